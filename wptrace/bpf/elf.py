# SPDX-License-Identifier: Apache-2.0
"""Compiled BPF objects as files: what Python needs of them before libbpf opens them.

pyelftools would do as well, but its import alone takes 70 ms of the half second that a start may take.
"""

from __future__ import annotations

import struct
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from wptrace.errors import WptraceError

REBUILD: Final = "rebuild it with make, or reinstall wptrace"

ELF64_LITTLE_ENDIAN: Final = b"\x7fELF\x02\x01"
ET_REL: Final = 1
EM_BPF: Final = 247
SHT_NOBITS: Final = 8


class Section(NamedTuple):
    name: str
    type: int
    offset: int
    size: int
    link: int
    """The index of a related section: for relocations that of the symbols."""


class ObjectFile:
    """A relocatable BPF object with BTF; anything else is refused in one sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.data = path.read_bytes()
        except OSError as error:
            raise WptraceError(f"{path} cannot be read: {error.strerror}", hint=REBUILD) from None
        try:
            self._headers = self._section_headers()
        except (struct.error, IndexError, OverflowError):
            raise self._error("is truncated") from None
        self.sections: dict[str, Section] = {section.name: section for section in self._headers}
        for name in (".BTF", ".BTF.ext"):
            if not self.sections.get(name) or not self.content(name):
                raise self._error(f"has no {name}: it was built without -g, or stripped of it")

    @cached_property
    def btf(self) -> bytes:
        """The content of .BTF, the places of variables in .bss and .data filled in as linkers do."""
        content = bytearray(self.content(".BTF"))
        relocations = self.sections.get(".rel.BTF")
        if not relocations:
            return bytes(content)
        try:
            symbols = self._content(self._headers[relocations.link])
            for place, info in struct.iter_unpack("<QQ", self._content(relocations)):
                (value,) = struct.unpack_from("<Q", symbols, 24 * (info >> 32) + 8)
                (addend,) = struct.unpack_from("<I", content, place)
                struct.pack_into("<I", content, place, addend + value)
        except (struct.error, IndexError, OverflowError):
            raise self._error("has corrupt relocations in .rel.BTF") from None
        return bytes(content)

    @property
    def license(self) -> str:
        return self.content("license").split(b"\0", 1)[0].decode("ascii", "backslashreplace")

    def content(self, name: str) -> bytes:
        """The bytes of a section."""
        section = self.sections.get(name)
        if not section:
            raise self._error(f"has no section {name}")
        return self._content(section)

    def _content(self, section: Section) -> bytes:
        if section.type == SHT_NOBITS:
            return b""
        content = self.data[section.offset : section.offset + section.size]
        if len(content) != section.size:
            raise self._error("is truncated")
        return content

    def _section_headers(self) -> list[Section]:
        if not self.data.startswith(ELF64_LITTLE_ENDIAN):
            raise self._error("is not a 64-bit little-endian ELF file")
        kind, machine = struct.unpack_from("<HH", self.data, 16)
        if kind != ET_REL or machine != EM_BPF:
            raise self._error("is an ELF file, but not a relocatable BPF object")
        (start,) = struct.unpack_from("<Q", self.data, 40)
        step, count, names_index = struct.unpack_from("<3H", self.data, 58)
        # Words: name, type, flags, address, offset, size, link, info.
        raw = [struct.unpack_from("<IIQQQQII", self.data, start + index * step) for index in range(count)]
        _, _, _, _, offset, size, _, _ = raw[names_index]
        names = self.data[offset : offset + size]
        return [Section(_string(names, each[0]), each[1], each[4], each[5], each[6]) for each in raw]

    def _error(self, problem: str) -> WptraceError:
        return WptraceError(f"{self.path} {problem}", hint=REBUILD)


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.find(b"\0", offset)].decode("utf-8", "replace")
