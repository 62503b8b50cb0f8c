# SPDX-License-Identifier: Apache-2.0
"""A command of Debian's PostgreSQL 15 in the root of its package, which sees /mnt: `runuser` of pages."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.kernel.rooted import NOBODY
from tests.lab import peers


def main() -> None:
    """Run that command in the current mount namespace, which is its own."""
    root = str(peers.fetch(peers.POSTGRES[15]))
    for words in (
        ("mount", "--bind", root, root),
        ("mount", "--rbind", "/mnt", f"{root}/mnt"),
        ("mount", "--rbind", "/dev", f"{root}/dev"),
    ):
        subprocess.run(words, check=True)
    os.chdir(root)
    # Unlike with chroot, files have the paths that they have on the page.
    subprocess.run(("pivot_root", ".", "home"), check=True)
    os.chdir("/")
    done = subprocess.run(sys.argv[1:], user=NOBODY, group=NOBODY, extra_groups=[], check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
