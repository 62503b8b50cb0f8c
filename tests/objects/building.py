# SPDX-License-Identifier: Apache-2.0
"""The project's own Makefile, with a build directory of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHES = ("x86_64", "arm64")


def run_make(build: Path, *arguments: str, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = ["make", "objects", f"BUILD={build / 'build'}", f"OBJECTS={build / 'objects'}", *arguments]
    # The environment of an outer make must not reach the inner one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment.pop("V", None)
    return subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)


def built(build: Path, *arguments: str, source: Path = ROOT) -> dict[str, Path]:
    """Build, and return the objects by `arch/name`."""
    done = run_make(build, *arguments, source=source)
    assert done.returncode == 0, done.stderr
    objects = build / "objects"
    return {str(path.relative_to(objects)): path for path in sorted(objects.glob("*/*.bpf.o"))}


def sources(directory: Path) -> list[str]:
    return sorted(path.name[: -len(".bpf.c")] for path in directory.rglob("*.bpf.c"))


def compilers() -> list[str]:
    """Return every clang with a version in its name, oldest first."""
    found = {
        path.name
        for directory in os.get_exec_path()
        if Path(directory).is_dir()
        for path in Path(directory).iterdir()
        if re.fullmatch(r"clang-\d+", path.name) and shutil.which(path.name)
    }
    return sorted((name for name in found if int(name[6:]) >= 14), key=lambda name: int(name[6:]))
