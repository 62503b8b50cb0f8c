# SPDX-License-Identifier: Apache-2.0
"""Compiled BPF objects as files, read without libbpf: by tests, and to say what is wrong with one that will not open.

A start goes without: importing pyelftools takes some 70 ms, and libbpf has the object's BTF anyway.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any, Final

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from wptrace.errors import REBUILD, WptraceError


class ObjectFile:
    """A relocatable BPF object with BTF; anything else is refused in one sentence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.data = path.read_bytes()
        except OSError as error:
            raise WptraceError(f"{path} cannot be read: {error.strerror}", hint=REBUILD) from None
        if not self.data.startswith(b"\x7fELF\x02\x01"):
            raise self._error("is not a 64-bit little-endian ELF file")
        try:
            self._elf = ELFFile(io.BytesIO(self.data))
            kind = self._elf["e_type"], self._elf["e_machine"]
            self.sections: dict[str, Any] = {section.name: section for section in self._elf.iter_sections()}
        except _BROKEN:
            raise self._error("is truncated") from None
        if kind != ("ET_REL", "EM_BPF"):
            raise self._error("is an ELF file, but not a relocatable BPF object")
        for name in (".BTF", ".BTF.ext"):
            if name not in self.sections or not self.content(name):
                raise self._error(f"has no {name}: it was built without -g, or stripped of it")

    def content(self, name: str) -> bytes:
        """The bytes of a section."""
        if name not in self.sections:
            raise self._error(f"has no section {name}")
        section = self.sections[name]
        if section["sh_type"] == "SHT_NOBITS":
            return b""
        start, size = section["sh_offset"], section["sh_size"]
        content = self.data[start : start + size]
        if len(content) != size:
            raise self._error("is truncated")
        return content

    def _error(self, problem: str) -> WptraceError:
        return WptraceError(f"{self.path} {problem}", hint=REBUILD)


# On damaged files pyelftools raises more than its own errors.
_BROKEN: Final = (ELFError, struct.error, LookupError, ValueError, OverflowError, AttributeError, TypeError, OSError)
