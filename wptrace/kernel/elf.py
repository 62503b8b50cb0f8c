# SPDX-License-Identifier: Apache-2.0
"""Segments, sections and symbols of an ELF file.

The file may be anybody's: nothing in it is trusted, least of all a size.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

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

# More than the largest browsers have. What is beyond has no name.
_MOST_SYMBOLS = 1 << 20
_MOST_SECTIONS = 1 << 12
_MOST_SEGMENTS = 1 << 8
_LARGEST_NAMES = 1 << 26


class Code(NamedTuple):
    """A segment that is executed."""

    offset: int
    address: int
    size: int


class Symbol(NamedTuple):
    name: int
    """Where it is among the names."""
    type: int
    section: int
    """0: it is another file's."""
    value: int
    size: int


class Symbols(NamedTuple):
    code: list[Code]
    table: Iterator[Symbol]
    names: bytes


def symbols(fd: int) -> Symbols | None:
    """Of an open file: those of the full table, which most files lack, or of what is called from outside.

    None if it is not an ELF file, or has neither.
    """
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        return None
    segments_at, sections_at, segment_size, segments, section_size, sections = _HEADER.unpack(head)
    if segment_size != _SEGMENT.size or section_size != _SECTION.size:
        return None
    code = [
        Code(offset, address, size)
        for kind, access, offset, address, size in _table(fd, _SEGMENT, segments_at, min(segments, _MOST_SEGMENTS))
        if kind == _LOADED and access & _EXECUTABLE
    ]
    known = list(_table(fd, _SECTION, sections_at, min(sections, _MOST_SECTIONS)))
    for kind in (_ALL_SYMBOLS, _DYNAMIC_SYMBOLS):
        for found, offset, size, link in known:
            if found == kind and link < len(known):
                table = _table(fd, _SYMBOL, offset, min(size // _SYMBOL.size, _MOST_SYMBOLS))
                _, names_at, names_size, _ = known[link]
                names = _read(fd, names_at, min(names_size, _LARGEST_NAMES))
                made = (Symbol(name, info & 0xF, section, value, size) for name, info, section, value, size in table)
                return Symbols(code, made, names)
    return None


def _table(fd: int, entry: struct.Struct, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    data = _read(fd, offset, count * entry.size)
    return entry.iter_unpack(data[: len(data) // entry.size * entry.size])


def _read(fd: int, offset: int, size: int) -> bytes:
    """As much of it as the file has; the memory is allocated only then."""
    there = os.fstat(fd).st_size - offset
    return os.pread(fd, min(size, there), offset) if there > 0 else b""
