# SPDX-License-Identifier: Apache-2.0
"""Names of functions in the memory of a process, from /proc/PID/maps and the symbol tables of the files in it.

The process may be anybody's, and what its paths lead to is what it wants: a pipe that nobody writes, a device that
does something when it is opened, a file of another owner. So a file is opened by /proc/PID/map_files, which leads to
what is mapped and nowhere else. Where that is not allowed (it takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), or the
process has ended, its path is followed, and taken only if it is the file that was mapped.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from wptrace.kernel import files
from wptrace.kernel.elf_functions import Functions, functions
from wptrace.kernel.symbols import UNKNOWN

PROC = Path("/proc")

# The memory that tables of all files may take together; those that were used last are kept.
_LARGEST = 256 << 20
_DELETED = " (deleted)"


class Region(NamedTuple):
    """Executable memory that a file is mapped to."""

    start: int
    end: int
    offset: int
    path: str
    dev: int = 0
    inode: int = 0


def regions(pid: int, proc: Path = PROC) -> list[Region]:
    """Return the executable mappings of a process; empty if it has exited."""
    try:
        # Names may hold any byte but line feeds, which the kernel escapes: as text, more than those would end a line.
        lines = (proc / str(pid) / "maps").read_bytes().split(b"\n")
    except OSError:
        return []
    found = []
    for line in filter(None, lines):
        place, access, offset, dev, inode, *path = line.split(None, 5)
        if b"x" in access:
            start, end = (int(edge, 16) for edge in place.split(b"-"))
            major, minor = (int(part, 16) for part in dev.split(b":"))
            name = os.fsdecode(path[0]) if path else ""
            found.append(Region(start, end, int(offset, 16), name, os.makedev(major, minor), int(inode)))
    return found


class ProcessSymbols:
    """Symbols of a process. Its maps are read at once, because it may exit, and again for an address that they lack."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._regions = regions(pid, proc)

    def name(self, address: int) -> str:
        found = self._region(address)
        if found is None:
            self._regions = regions(self._pid, self._proc) or self._regions
            found = self._region(address)
        if found is None or not found.path.startswith("/"):
            return UNKNOWN
        offset = address - found.start + found.offset
        table = self._table(found)
        name = table.name(offset) if table else ""
        return name or f"[{Path(found.path).name}+{offset:#x}]"

    def _region(self, address: int) -> Region | None:
        return next((region for region in self._regions if region.start <= address < region.end), None)

    def _table(self, region: Region) -> Functions | None:
        process = f"{self._proc}/{self._pid}"
        fd = _opened(f"{process}/map_files/{region.start:x}-{region.end:x}")
        if fd < 0 and not region.path.endswith(_DELETED):
            # The file as the process sees it, which may have another root; where it has ended, as we see it.
            for path in (f"{process}/root{region.path}", region.path):
                fd = _opened(path, region)
                if fd >= 0:
                    break
        if fd < 0:
            return None
        try:
            return _table_of(fd)
        finally:
            os.close(fd)


def _opened(path: str, region: Region | None = None) -> int:
    """A descriptor of a regular file, and of the one that was mapped, if that is given; -1 where it is none."""

    def is_wanted(found: os.stat_result) -> bool:
        return files.is_regular(found) and (region is None or _is_mapped(found, region))

    try:
        return files.open_to_read(path, is_wanted, os.O_NOFOLLOW if region is not None else 0)[0]
    except (OSError, ValueError):  # gone, not allowed, another one, or no such name
        return -1


def _is_mapped(found: os.stat_result, region: Region) -> bool:
    """btrfs and overlayfs show stat(2) a device of their own, one without a driver: there the inode has to do."""
    return found.st_ino == region.inode and (found.st_dev == region.dev or not os.major(found.st_dev))


# Many processes have the same files; each is read once, under whatever name.
_tables: OrderedDict[tuple[int, int, int], Functions | None] = OrderedDict()


def _table_of(fd: int) -> Functions | None:
    found = os.fstat(fd)
    key = found.st_dev, found.st_ino, found.st_mtime_ns
    try:
        if key not in _tables:
            _tables[key] = functions(fd)
    except OSError:
        return None
    _tables.move_to_end(key)
    while len(_tables) > 1 and sum(table.bytes for table in _tables.values() if table) > _LARGEST:
        _tables.popitem(last=False)
    return _tables[key]
