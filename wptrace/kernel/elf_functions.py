# SPDX-License-Identifier: Apache-2.0
"""The functions of an ELF file by their place in it.

The file may be anybody's: nothing in it is trusted, least of all a size.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator

# The 64-bit ELF, little-endian: e_phoff, e_shoff, e_phentsize, e_phnum, e_shentsize and e_shnum of its header; p_type,
# p_flags, p_offset, p_vaddr and p_filesz of a segment; sh_type, sh_offset, sh_size and sh_link of a section; st_name,
# st_info, st_shndx, st_value and st_size of a symbol.
_HEADER = struct.Struct("<32xQQ6xHHHH2x")
_MAGIC = b"\x7fELF\x02\x01"
_SEGMENT = struct.Struct("<IIQQ8xQ16x")
_SECTION = struct.Struct("<4xI16xQQI20x")
_SYMBOL = struct.Struct("<IBxHQQ")
_LOADED, _EXECUTABLE = 1, 1  # PT_LOAD, PF_X
_ALL_SYMBOLS, _DYNAMIC_SYMBOLS = 2, 11  # SHT_SYMTAB, SHT_DYNSYM
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC

# More than the largest browsers have. What is beyond has no name.
_MOST_SYMBOLS = 1 << 20
_MOST_SECTIONS = 1 << 12
_MOST_SEGMENTS = 1 << 8
_MOST_WITH_CODE = 8
_LARGEST_NAMES = 1 << 26
_LONGEST_NAME = 1 << 10


class Functions:
    """Names are decoded when they are needed: many symbols may share a long one."""

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
    """Of an open file; None if it is not an ELF file, or has none."""
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        return None
    segments_at, sections_at, segment_size, segments, section_size, sections = _HEADER.unpack(head)
    if segment_size != _SEGMENT.size or section_size != _SECTION.size:
        return None
    shifts = [
        (address, address + size, offset - address)
        for kind, access, offset, address, size in _table(fd, _SEGMENT, segments_at, min(segments, _MOST_SEGMENTS))
        if kind == _LOADED and access & _EXECUTABLE
    ]
    known = list(_table(fd, _SECTION, sections_at, min(sections, _MOST_SECTIONS)))
    # The full table is left out of most files; the other one has what is called from outside.
    for kind in (_ALL_SYMBOLS, _DYNAMIC_SYMBOLS):
        for found, offset, size, link in known:
            if found == kind and link < len(known):
                symbols = _table(fd, _SYMBOL, offset, min(size // _SYMBOL.size, _MOST_SYMBOLS))
                _, names_at, names_size, _ = known[link]
                names = _read(fd, names_at, min(names_size, _LARGEST_NAMES))
                return Functions(list(_placed(symbols, shifts[:_MOST_WITH_CODE])), names)
    return None


def _placed(symbols: Iterator[tuple[int, ...]], shifts: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    for place, info, section, value, size in symbols:
        if info & 0xF in _FUNCTIONS and section:
            shift = next((shift for low, high, shift in shifts if low <= value < high), None)
            if shift is not None and 0 <= value + shift < 1 << 63:
                yield value + shift, size, place


def _table(fd: int, entry: struct.Struct, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    data = _read(fd, offset, count * entry.size)
    return entry.iter_unpack(data[: len(data) // entry.size * entry.size])


def _read(fd: int, offset: int, size: int) -> bytes:
    """As much of it as the file has; the memory is allocated only then."""
    there = os.fstat(fd).st_size - offset
    return os.pread(fd, min(size, there), offset) if there > 0 else b""
