#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the packages that are published: sdist, wheel, tarball, SBOM and SHA256SUMS, into dist/.

They are made of what is in git, with the objects and the binding that make has built, and have the time of the last
commit (or SOURCE_DATE_EPOCH): two runs give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import archive
import bundle
import layout
import sbom

_BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
KINDS = ("sdist", "wheel", "tarball")


def make(out: Path, kinds: list[str], machines: list[str], pythons: list[str]) -> list[Path]:
    when, version = archive.epoch(), layout.version()
    with tempfile.TemporaryDirectory(prefix="wptrace-dist-") as name:
        work, made = Path(name), Path(name) / "made"
        made.mkdir()
        if "sdist" in kinds:
            _sdist(_stage(work / "sdist", when), made / f"wptrace-{version}.tar.gz", version, when)
        if "wheel" in kinds:
            stage = _stage(work / "wheel", when)
            for source, place in layout.package(layout.MACHINES):
                _copy(source, stage / "wptrace" / place, 0o644, when)
            for source, place in layout.completions(layout.ROOT / "build/completions"):
                _copy(source, stage / "build/completions" / place, 0o644, when)
            _backend(stage, "build_wheel", made, when)
        parts: list[bundle.Part] = []
        if "tarball" in kinds:
            folder = work / "tarball"
            parts = bundle.fill(folder, machines, pythons)
            names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
            top = f"wptrace-{version}-linux"
            (made / f"{top}.tar.xz").write_bytes(archive.xz(archive.pack(folder, names, top, when)))
        (made / f"wptrace-{version}.cdx.json").write_text(sbom.of(version, parts, when))
        sums = "".join(f"{archive.digest(path)}  {path.name}\n" for path in sorted(made.iterdir()))
        (made / "SHA256SUMS").write_text(sums)
        out.mkdir(parents=True, exist_ok=True)
        for old in (*out.glob("wptrace-*"), *out.glob("SHA256SUMS")):
            old.unlink()
        return [Path(shutil.copy(path, out / path.name)) for path in sorted(made.iterdir())]


def _stage(folder: Path, when: int) -> Path:
    """Return the files in git, and nothing that lies about."""
    for name in archive.tracked():
        source = layout.ROOT / name
        _copy(source, folder / name, 0o755 if source.stat().st_mode & 0o100 else 0o644, when)
    return folder


def _copy(source: Path, target: Path, mode: int, when: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
    target.chmod(mode)
    os.utime(target, (when, when))


def _sdist(stage: Path, target: Path, version: str, when: int) -> None:
    """Build the source distribution and pack it anew: the backend keeps the times and the owners of the files."""
    _backend(stage, "build_sdist", stage.parent, when)
    unpacked = stage.parent / "unpacked"
    shutil.unpack_archive(stage.parent / target.name, unpacked)
    top = unpacked / f"wptrace-{version}"
    names = [str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()]
    target.write_bytes(archive.gzipped(archive.pack(top, names, top.name, when)))


def _backend(stage: Path, what: str, out: Path, when: int) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(when), "MAKE": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, what, str(out)],
        cwd=stage,
        env=environment,
        capture_output=True,
        text=True,
        umask=0o022,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it failed"]
        raise layout.PackagingError(f"{what}: {said[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=layout.ROOT / "dist")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these; repeatable (default: all)")
    parser.add_argument("--machine", action="append", choices=layout.MACHINES, help="of the tarball (default: all)")
    parser.add_argument("--python", action="append", choices=bundle.PYTHONS, help="of the tarball (default: all)")
    options = parser.parse_args()
    try:
        made = make(
            options.out,
            options.kind or list(KINDS),
            options.machine or list(layout.MACHINES),
            options.python or list(bundle.PYTHONS),
        )
    except layout.PackagingError as error:
        sys.exit(f"dist: {error}")
    for path in made:
        print(f"  {path.stat().st_size:>9,}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
