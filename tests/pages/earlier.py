# SPDX-License-Identifier: Apache-2.0
"""Writes docs/captures/old-kernel.wpt, with which a recipe compares: by its commands, on an older kernel.

    python3 -m tests.lab run --kernel 6.1 --cpus 1 --icount=off --share $PWD/docs/captures -- \\
        $PWD/.venv/bin/python -m tests.pages.earlier
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.pages.page import ROOT, only, run

CAPTURE = ROOT / "docs" / "captures" / "old-kernel.wpt"


def main() -> int:
    page = only((ROOT / "docs" / "recipes.md").read_text(), "A disk to try it on", "A kernel update")
    # The difference comes after the trace, and needs what is written here.
    page, _, _ = page.partition("This page cannot reboot")
    folder = Path(tempfile.mkdtemp())
    written = run(page, folder)
    shutil.copyfile(folder / "work" / "new-kernel.wpt", CAPTURE)
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
