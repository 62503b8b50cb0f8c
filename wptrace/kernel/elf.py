# SPDX-License-Identifier: Apache-2.0
"""Segments, sections and symbols of an ELF file.

The file may be anybody's: nothing in it is trusted, least of all a size.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

# The 64-bit ELF, little-endian: e_type, e_machine, e_phoff, e_shoff, e_phentsize, e_phnum, e_shentsize, e_shnum and
# e_shstrndx of its header; p_type, p_flags, p_offset, p_vaddr and p_filesz of a segment; sh_name, sh_type, sh_addr,
# sh_offset, sh_size and sh_link of a section; st_name, st_info, st_shndx, st_value and st_size of a symbol.
_HEADER = struct.Struct("<16xHH12xQQ6xHHHHH")
_MAGIC = b"\x7fELF\x02\x01"
_SEGMENT = struct.Struct("<IIQQ8xQ16x")
_SECTION = struct.Struct("<II8xQQQI20x")
_SYMBOL = struct.Struct("<IBxHQQ")
_NOTE = struct.Struct("<III")
_LOADED, _EXECUTABLE = 1, 1  # PT_LOAD, PF_X
_ALL_SYMBOLS, _DYNAMIC_SYMBOLS = 2, 11  # SHT_SYMTAB, SHT_DYNSYM

# More than the largest browsers have. What is beyond has no name.
_MOST_SYMBOLS = 1 << 20
_MOST_SECTIONS = 1 << 12
_MOST_SEGMENTS = 1 << 8
_LARGEST_NAMES = 1 << 26


class Header(NamedTuple):
    type: int
    """The type of the file: 2 is a program, 3 a library or a position-independent program."""
    machine: int
    segments_at: int
    sections_at: int
    segment_size: int
    segments: int
    section_size: int
    sections: int
    names: int
    """The number of the section with the names of sections."""


class Segment(NamedTuple):
    """A segment that is loaded."""

    offset: int
    address: int
    size: int
    executed: bool = True

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + self.size

    def place(self, address: int) -> int:
        """The place of an address in the file."""
        return address - self.address + self.offset


class Section(NamedTuple):
    name: int
    type: int
    address: int
    offset: int
    size: int
    link: int


class Symbol(NamedTuple):
    name: int
    """The offset of the name."""
    type: int
    section: int
    """0: it is another file's."""
    value: int
    size: int


class Note(NamedTuple):
    owner: bytes
    """With the NUL at its end."""
    type: int
    content: bytes


class Symbols(NamedTuple):
    code: list[Segment]
    """The segments that are executed."""
    table: Iterator[Symbol]
    names: bytes
    full: bool = True
    """The file is not stripped."""


def header(fd: int) -> Header | None:
    """Read the header of an open file; None if it is not a 64-bit, little-endian ELF file."""
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        return None
    found = Header(*_HEADER.unpack(head))
    return found if found.segment_size == _SEGMENT.size and found.section_size == _SECTION.size else None


def segments(fd: int, head: Header) -> list[Segment]:
    return [
        Segment(offset, address, size, bool(access & _EXECUTABLE))
        for kind, access, offset, address, size in _table(
            fd, _SEGMENT, head.segments_at, min(head.segments, _MOST_SEGMENTS)
        )
        if kind == _LOADED
    ]


def sections(fd: int, head: Header) -> list[Section]:
    return [Section(*one) for one in _table(fd, _SECTION, head.sections_at, min(head.sections, _MOST_SECTIONS))]


def symbols(fd: int) -> Symbols | None:
    """Read symbols of an open file, from the full table, which most files lack, or from that for dynamic linking.

    None if it is not an ELF file or has neither.
    """
    head = header(fd)
    if head is None:
        return None
    code = [one for one in segments(fd, head) if one.executed]
    known = sections(fd, head)
    for kind in (_ALL_SYMBOLS, _DYNAMIC_SYMBOLS):
        for one in known:
            if one.type == kind and one.link < len(known):
                table = _table(fd, _SYMBOL, one.offset, min(one.size // _SYMBOL.size, _MOST_SYMBOLS))
                names = content(fd, known[one.link], _LARGEST_NAMES)
                made = (Symbol(name, info & 0xF, section, value, size) for name, info, section, value, size in table)
                return Symbols(code, made, names, kind == _ALL_SYMBOLS)
    return None


def content(fd: int, section: Section, most: int) -> bytes:
    return _read(fd, section.offset, min(section.size, most))


def notes(data: bytes) -> Iterator[Note]:
    """Those of a section of notes, up to the first one that is not whole."""
    at = 0
    while at + _NOTE.size <= len(data):
        owner_size, size, kind = _NOTE.unpack_from(data, at)
        owner = at + _NOTE.size
        start = owner + _aligned(owner_size)
        if start + size > len(data):
            return
        yield Note(data[owner : owner + owner_size], kind, data[start : start + size])
        at = start + _aligned(size)


def _aligned(size: int) -> int:
    return size + 3 & ~3


def _table(fd: int, entry: struct.Struct, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    data = _read(fd, offset, count * entry.size)
    return entry.iter_unpack(data[: len(data) // entry.size * entry.size])


def _read(fd: int, offset: int, size: int) -> bytes:
    """Read at most as much as the file has, because memory is allocated for that."""
    there = os.fstat(fd).st_size - offset
    return os.pread(fd, min(size, there), offset) if there > 0 else b""
