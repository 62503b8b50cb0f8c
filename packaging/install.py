#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs wptrace, or takes it away: `make install` and `make uninstall`.

Without pip, whose modules lie below one Python's version and whose records name the folder of the build: the package is
copied to LIBDIR/wptrace, which every Python from 3.9 on can run, and the command is a launcher of a few lines.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import layout

LAUNCHER = """\
#!{interpreter} -IS
# SPDX-License-Identifier: Apache-2.0
{first}
import site
import sys

site.main()
sys.path.insert(0, {libdir!r})
import wptrace

# What else lies beside the package is not meant.
del sys.path[0]
from wptrace.__main__ import run

run()
"""


class Target:
    """Folders as the installed command sees them; files are written below `destdir`."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.destdir: str = options.destdir
        self.prefix = Path(options.prefix)
        self.libdir = Path(options.libdir)
        self.mandir = Path(options.mandir)
        for name, path in (("PREFIX", self.prefix), ("LIBDIR", self.libdir), ("MANDIR", self.mandir)):
            if not path.is_absolute() or ".." in path.parts:
                raise layout.PackagingError(f"{name} is {path}, which is not an absolute path")

    def real(self, path: Path) -> Path:
        return Path(f"{self.destdir}{path}")

    @property
    def command(self) -> Path:
        return self.prefix / "bin/wptrace"

    @property
    def package(self) -> Path:
        return self.libdir / "wptrace"

    @property
    def licences(self) -> Path:
        return self.prefix / "share/licenses/wptrace"


def files(target: Target, machine: str, completions: Path) -> Iterator[tuple[Path, Path]]:
    """Files to copy, with their places; all but the launcher."""
    for source, place in layout.package([machine]):
        yield source, target.package / place
    for source in layout.manuals():
        yield source, target.mandir / "man1" / source.name
    for source, place in layout.completions(completions):
        yield source, target.prefix / place
    for source in layout.licences():
        yield source, target.licences / source.name


def install(target: Target, machine: str, interpreter: str, completions: Path) -> None:
    wanted = list(files(target, machine, completions))
    uninstall(target)
    for source, path in wanted:
        _write(target.real(path), source.read_bytes(), 0o644)
    for place in layout.UNITS:
        _write(target.real(target.prefix / place), layout.unit(place, str(target.prefix)), 0o644)
    launcher = LAUNCHER.format(interpreter=interpreter, first=layout.FIRST, libdir=str(target.libdir))
    _write(target.real(target.command), launcher.encode(), 0o755)


def uninstall(target: Target) -> None:
    """Everything that an installation of any version may have put there, and folders that are only wptrace's."""
    for folder in (target.package, target.licences):
        real = target.real(folder)
        # rmtree follows no link, and neither is one meant here.
        if real.is_symlink():
            real.unlink()
        elif real.is_dir():
            shutil.rmtree(real)
    manuals = target.real(target.mandir / "man1")
    others = [target.command, *(target.prefix / place for place in (*layout.COMPLETIONS.values(), *layout.UNITS))]
    for path in (*map(target.real, others), *manuals.glob("wptrace.1"), *manuals.glob("wptrace-*.1")):
        path.unlink(missing_ok=True)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file with this mode under any umask. A link with its name is replaced, not followed."""
    _make_folder(path.parent)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, mode)


def _make_folder(path: Path) -> None:
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir()
        path.chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("install", "uninstall"))
    parser.add_argument("--destdir", default="", help="the root that the paths are below while files are written")
    parser.add_argument("--prefix", default="/usr/local")
    parser.add_argument("--libdir", default="/usr/local/lib")
    parser.add_argument("--mandir", default="/usr/local/share/man")
    parser.add_argument("--machine", choices=layout.MACHINES, default=os.uname().machine.replace("aarch64", "arm64"))
    parser.add_argument("--interpreter", default="/usr/bin/python3", help="the Python that the command runs on")
    parser.add_argument("--completions", default="build/completions", type=Path)
    options = parser.parse_args()
    try:
        target = Target(options)
        if options.what == "uninstall":
            uninstall(target)
        else:
            install(target, options.machine, options.interpreter, options.completions)
    except layout.PackagingError as error:
        sys.exit(f"{options.what}: {error}")
    except OSError as error:
        sys.exit(f"{options.what}: {error.filename}: {error.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
