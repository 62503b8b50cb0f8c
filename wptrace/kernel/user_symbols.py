# SPDX-License-Identifier: Apache-2.0
"""Names of functions in the memory of a process, from /proc/PID/maps and the symbol tables of the files in it.

The process may be anybody's, and what its paths lead to is what it wants: a pipe that nobody writes, a device that
does something when it is opened, a file of another owner. So a file is opened by /proc/PID/map_files, which leads to
what is mapped and nowhere else. Where that is not allowed (it takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), or the
process has ended, its path is followed, and taken only if it is the file that was mapped.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wptrace.kernel import elf, files
from wptrace.kernel.symbols import UNKNOWN

PROC = Path("/proc")

# The memory that tables of all files may take together; those that were used last are kept.
_LARGEST = 256 << 20
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_MOST_WITH_CODE = 8
_LONGEST_NAME = 1 << 10
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


class Functions:
    """The functions of an ELF file by their place. Names are decoded when asked for: many may share a long one."""

    def __init__(self, found: list[tuple[int, int, int]], names: bytes) -> None:
        """Each with its start in the file, its size and the place of its name."""
        found.sort()
        self._starts = array("Q", [start for start, _, _ in found])
        self._sizes = array("Q", [size for _, size, _ in found])
        self._places = array("I", [place for _, _, place in found])
        self._names = names
        self.bytes = len(found) * 20 + len(names)

    def name(self, offset: int) -> str:
        place = bisect_right(self._starts, offset) - 1
        # Written in assembler, some have no size.
        if place < 0 or (self._sizes[place] and offset >= self._starts[place] + self._sizes[place]):
            return ""
        name = self._names[self._places[place] : self._places[place] + _LONGEST_NAME]
        return name.split(b"\0", 1)[0].decode(errors="backslashreplace")


def functions(fd: int) -> Functions | None:
    """Return the functions of an open file; None if it is not an ELF file or has no symbols."""
    found = elf.symbols(fd)
    return None if found is None else Functions(list(_placed(found)), found.names)


def _placed(symbols: elf.Symbols) -> Iterator[tuple[int, int, int]]:
    shifts = [(one.address, one.address + one.size, one.offset - one.address) for one in symbols.code[:_MOST_WITH_CODE]]
    for place, kind, section, value, size in symbols.table:
        if kind in _FUNCTIONS and section:
            shift = next((shift for low, high, shift in shifts if low <= value < high), None)
            if shift is not None and 0 <= value + shift < 1 << 63:
                yield value + shift, size, place
