#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make vmlinux.h of each machine anew from Debian's 6.12 kernels, which the lab downloads."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.lab import fetch  # noqa: E402
from tests.lab.errors import LabError  # noqa: E402
from tests.lab.matrix import find  # noqa: E402

AMD64 = find("6.12")
ARM64 = dataclasses.replace(AMD64, name="6.12-arm64", arch="arm64", release=AMD64.release.replace("amd64", "arm64"))


def main() -> None:
    for arch, kernel in (("x86_64", AMD64), ("arm64", ARM64)):
        installed = fetch.fetch(kernel)
        packages = json.loads((installed.directory / "kernel.json").read_text())["packages"]
        output = HERE / arch / "vmlinux.h"
        command = [HERE / "generate.py", installed.image, "--output", output, "--source", packages[0]]
        subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        sys.exit(f"update.py: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
