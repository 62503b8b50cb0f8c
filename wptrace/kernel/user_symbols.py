# SPDX-License-Identifier: Apache-2.0
"""Names of functions in the memory of a process, from /proc/PID/maps and the symbol tables of the files in it."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import BinaryIO, NamedTuple

from wptrace.kernel.symbols import UNKNOWN

PROC = Path("/proc")

# st_name, st_info, st_other, st_shndx, st_value, st_size of the 64-bit ELF
_SYMBOL = struct.Struct("<IBBHQQ")
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_EXECUTABLE = 1  # PF_X


class Region(NamedTuple):
    """Executable memory that a file is mapped to."""

    start: int
    end: int
    offset: int
    path: str


def regions(pid: int, proc: Path = PROC) -> list[Region]:
    """Where a process has code; empty where it has gone."""
    try:
        lines = (proc / str(pid) / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        place, access, offset, _, _, *path = line.split(None, 5)
        if "x" in access:
            start, end = (int(edge, 16) for edge in place.split("-"))
            found.append(Region(start, end, int(offset, 16), path[0] if path else ""))
    return found


class ProcessSymbols:
    """Of one process. Its maps are read at once, as it may end soon, and anew for an address that they lack."""

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
        # The file as the process sees it, which may have another root; where it has ended, as we see it.
        table = _table_of(f"{self._proc}/{self._pid}/root{found.path}") or _table_of(found.path)
        name = table.name(offset) if table else ""
        return name or f"[{Path(found.path).name}+{offset:#x}]"

    def _region(self, address: int) -> Region | None:
        return next((region for region in self._regions if region.start <= address < region.end), None)


class Table:
    """The functions of a file, by their place in it."""

    def __init__(self, found: list[tuple[int, int, bytes]]) -> None:
        found.sort()
        self._starts = [start for start, _, _ in found]
        self._found = found

    def name(self, offset: int) -> str:
        place = bisect_right(self._starts, offset)
        if not place:
            return ""
        start, size, name = self._found[place - 1]
        # Written in assembler, some have no size.
        return name.decode(errors="backslashreplace") if not size or offset < start + size else ""


# Many processes have the same files; each is read once, under whatever name.
_tables: dict[tuple[int, int, int], Table | None] = {}


def _table_of(path: str) -> Table | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            found = os.fstat(file.fileno())
            key = found.st_dev, found.st_ino, found.st_mtime_ns
            if key not in _tables:
                _tables[key] = _table(file)
            return _tables[key]
    except (OSError, ValueError):  # gone, or no such name
        return None


def _table(file: BinaryIO) -> Table | None:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(file)
        if elf.elfclass != 64 or not elf.little_endian:
            return None
        shifts = [
            (part["p_vaddr"], part["p_vaddr"] + part["p_filesz"], part["p_offset"] - part["p_vaddr"])
            for part in elf.iter_segments("PT_LOAD")
            if part["p_flags"] & _EXECUTABLE
        ]
        # The full table is left out of most files; the other one has what is called from outside.
        section = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
        if section is None:
            return None
        return Table(_functions(section.data(), elf.get_section(section["sh_link"]).data(), shifts))
    except ELFError:
        return None


def _functions(table: bytes, names: bytes, shifts: list[tuple[int, int, int]]) -> list[tuple[int, int, bytes]]:
    found = []
    for place, info, _, section, value, size in _SYMBOL.iter_unpack(table[: len(table) // 24 * 24]):
        if info & 0xF in _FUNCTIONS and section:
            shift = next((shift for low, high, shift in shifts if low <= value < high), None)
            if shift is not None:
                found.append((value + shift, size, names[place : names.index(b"\0", place)]))
    return found
