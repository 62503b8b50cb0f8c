# SPDX-License-Identifier: Apache-2.0
"""Archives that are the same bytes no matter who builds them and when: sorted, without an owner, with one time."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from layout import ROOT, PackagingError


def epoch() -> int:
    """The time that everything in a package has: SOURCE_DATE_EPOCH, else that of the last commit."""
    named = os.environ.get("SOURCE_DATE_EPOCH")
    if named is not None:
        if not named.isdigit():
            raise PackagingError(f"SOURCE_DATE_EPOCH is {named!r} and no number of seconds")
        return int(named)
    return int(git("log", "-1", "--format=%ct"))


def git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PackagingError(f"git: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it failed"]
        raise PackagingError(f"git {words[0]}: {said[0]}: packages are made from a clone, or with SOURCE_DATE_EPOCH")
    return done.stdout


def tracked() -> list[str]:
    """Return the files in git and in the tree, as they are there, committed or not."""
    return [name for name in git("ls-files", "-z").split("\0") if name and (ROOT / name).is_file()]


def pack(folder: Path, names: Iterable[str], top: str, when: int) -> bytes:
    """A tar of these files, and of the folders that they are in, below `top`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        made: set[str] = set()
        for name in sorted(names):
            parts = f"{top}/{name}".split("/")
            for depth in range(1, len(parts)):
                parent = "/".join(parts[:depth])
                if parent not in made:
                    made.add(parent)
                    tar.addfile(_entry(parent, tarfile.DIRTYPE, 0o755, when))
            path = folder / name
            data = path.read_bytes()
            entry = _entry(f"{top}/{name}", tarfile.REGTYPE, 0o755 if path.stat().st_mode & 0o100 else 0o644, when)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _entry(name: str, kind: bytes, mode: int, when: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = kind, mode, when
    return entry


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


def xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=9)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
