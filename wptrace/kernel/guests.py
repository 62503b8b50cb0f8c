# SPDX-License-Identifier: Apache-2.0
"""Processes that run guests (QEMU, cloud-hypervisor, Firecracker), and the images of their disks, by /proc.

What stands in /proc of another process is chosen by that one: names may hold anything, and are not looked up.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from wptrace.kernel import files

PROC = Path("/proc")
_KVM = "/dev/kvm"
_NAMES = re.compile(rb"qemu-system-|qemu-kvm|kvm$|cloud-hypervis|firecracker")
# More of a command line is not looked at, nor more descriptors of a process.
_LONGEST = 1 << 18
_MOST = 4096
_DEPTH = 16
# Options of QEMU by which disks are named.
_DRIVES = {"-drive", "-blockdev", "--blockdev", "--drive"}
_PLAIN = {"-hda", "-hdb", "-hdc", "-hdd", "-cdrom", "-fda", "-fdb", "-mtdblock", "-sd", "-pflash"}
_FILE_KEYS = {"file", "filename", "file.filename"}
_FORMATS = {b"QFI\xfb": "qcow2", b"KDMV": "vmdk", b"vhdxfile": "vhdx", b"conectix": "vpc"}


class Image(NamedTuple):
    """A file or block device that is a guest's disk."""

    path: str
    """The path in /proc."""
    inode: int
    """The inode of the file, or of the block device's node."""
    device: tuple[int, int] | None
    """The number of a block device."""
    format: str
    """Only in raw ones is a place of the guest's disk the same place of the image."""
    aio: str = ""
    """How QEMU reads and writes a file, by its command line."""


class Guest(NamedTuple):
    pid: int
    name: str
    """The name on the command line, or that of the process."""
    images: tuple[Image, ...]


def find(proc: Path = PROC) -> list[int]:
    """Processes that have /dev/kvm open or are called like one that runs guests."""
    pids = sorted(int(folder.name) for folder in proc.glob("[0-9]*") if folder.name.isdecimal())
    return [pid for pid in pids if _runs_guests(proc / str(pid))]


def read(pid: int, proc: Path = PROC) -> Guest:
    folder = proc / str(pid)
    words = _command_line(folder)
    named = dict(_named_files(words))
    images: dict[tuple[int, int], Image] = {}
    for link, fd in _descriptors(folder):
        found = _image(fd, link, named)
        if found is not None:
            images.setdefault((found[0].inode, found[1]), found[0])
    return Guest(pid, _name(words) or _comm(folder), tuple(sorted(images.values())))


def _runs_guests(folder: Path) -> bool:
    try:
        if _NAMES.match((folder / "comm").read_bytes().rstrip(b"\n")):
            return True
    except OSError:
        return False
    return any(link == _KVM for link, _ in _descriptors(folder))


def _comm(folder: Path) -> str:
    try:
        return (folder / "comm").read_bytes().rstrip(b"\n").decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _command_line(folder: Path) -> list[str]:
    try:
        with (folder / "cmdline").open("rb") as file:
            data = file.read(_LONGEST)
    except OSError:
        return []
    return [word.decode("utf-8", "surrogateescape") for word in data.split(b"\0")]


def _descriptors(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name of each open file, and the path of its descriptor."""
    try:
        found = sorted((folder / "fd").iterdir(), key=lambda fd: fd.name)[:_MOST]
    except OSError:
        return
    for fd in found:
        with suppress(OSError):  # it was just closed
            yield os.readlink(fd), fd  # noqa: PTH115 - it is a name, and no path that leads anywhere


def _image(fd: Path, link: str, named: Mapping[str, str]) -> tuple[Image, int] | None:
    """Return the image of a block device or of a file on the command line, and the device that it is on."""
    name = next((name for name in _names_of(link) if name in named), None)

    def is_image(found: os.stat_result) -> bool:
        return stat.S_ISBLK(found.st_mode) or (name is not None and stat.S_ISREG(found.st_mode))

    try:
        opened, found = files.open_to_read(fd, is_image)
    except OSError:
        # Closed, or no such file; or somebody has a lease on it, and would have to give it up first.
        return None
    try:
        is_device = stat.S_ISBLK(found.st_mode)
        number = (os.major(found.st_rdev), os.minor(found.st_rdev)) if is_device else None
        aio = "" if is_device or name is None else named[name]
        return Image(link, found.st_ino, number, _format(opened), aio), found.st_dev
    finally:
        os.close(opened)


def _names_of(link: str) -> Iterator[str]:
    """Generate the names that a file may have on a command line: there may be thousands, so they are not tried.

    A name without a folder is relative to the process's own directory, which it may have left.
    """
    yield link
    parts = link.split("/")[-_DEPTH:]
    yield from ("/".join(parts[at:]) for at in range(len(parts)) if parts[at])


def _format(opened: int) -> str:
    """Return the format by the first bytes. A guest may have written those of another format into a raw image."""
    try:
        first = os.pread(opened, 8, 0)
    except OSError:
        return ""
    return next((name for magic, name in _FORMATS.items() if first.startswith(magic)), "raw")


def _name(words: Iterable[str]) -> str:
    """`-name guest=web,debug-threads=on`, or `-name web`."""
    every = list(words)
    for option, value in zip(every, every[1:]):
        if option in ("-name", "--name"):
            keys = dict(_keys(value))
            return keys.get("guest") or value.partition(",")[0]
        if option == "--id":  # Firecracker
            return value
    return ""


def _keys(value: str) -> Iterator[tuple[str, str]]:
    """QEMU's own syntax: a comma in a value is written twice."""
    for part in value.replace(",,", "\0").split(","):
        key, _, of = part.partition("=")
        yield key, of.replace("\0", ",")


def _named_files(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Generate the files on a command line, each with its `aio`."""
    every = list(words)
    for option, value in zip(every, every[1:]):
        if option in _PLAIN:
            yield value, ""
        elif option in _DRIVES:
            yield from _of_drive(value)
        elif option == "--disk":  # cloud-hypervisor
            yield from ((of, "") for key, of in _keys(value) if key == "path")


def _of_drive(value: str) -> Iterator[tuple[str, str]]:
    if not value.startswith("{"):
        keys = list(_keys(value))
        aio = dict(keys).get("aio", "")
        yield from ((of, aio) for key, of in keys if key in _FILE_KEYS)
        return
    with suppress(ValueError, RecursionError):
        yield from _of_json(json.loads(value), _DEPTH)


def _of_json(found: Any, depth: int) -> Iterator[tuple[str, str]]:
    if depth and isinstance(found, Mapping):
        aio = found.get("aio")
        for key, value in found.items():
            if key in _FILE_KEYS and isinstance(value, str):
                yield value, aio if isinstance(aio, str) else ""
            else:
                yield from _of_json(value, depth - 1)
