# SPDX-License-Identifier: Apache-2.0
"""The functions of an ELF file by their place in it."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from wptrace.kernel import elf

_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC

_MOST_WITH_CODE = 8
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
