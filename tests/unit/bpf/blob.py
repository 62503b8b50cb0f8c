# SPDX-License-Identifier: Apache-2.0
"""Raw BTF by hand, laid out as compilers do."""

from __future__ import annotations

import struct
from collections.abc import Sequence


class Blob:
    """A builder of BTF. Types get the ids 1, 2, 3, ... in order; each method returns the id."""

    def __init__(self, first_id: int = 1, strings_start: int = 0) -> None:
        self._types: list[bytes] = []
        # Only a blob without a base starts with the empty name.
        self._strings = b"" if strings_start else b"\0"
        self._first_id = first_id
        self._strings_start = strings_start

    def __bytes__(self) -> bytes:
        types = b"".join(self._types)
        header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self._strings))
        return header + types + self._strings

    @property
    def strings_end(self) -> int:
        return self._strings_start + len(self._strings)

    @property
    def next_id(self) -> int:
        return self._first_id + len(self._types)

    def name(self, name: str) -> int:
        if not name:
            return 0
        at = self._strings_start + len(self._strings)
        self._strings += name.encode() + b"\0"
        return at

    def add(
        self,
        kind: int,
        name: str = "",
        extra: int = 0,
        words: Sequence[int] = (),
        vlen: int = 0,
        flag: bool = False,
    ) -> int:
        info = kind << 24 | vlen | flag << 31
        head = struct.pack("<III", self.name(name), info, extra)
        self._types.append(head + b"".join(struct.pack("<I", word & 0xFFFFFFFF) for word in words))
        return self.next_id - 1

    def integer(
        self,
        name: str,
        size: int,
        signed: bool = False,
        boolean: bool = False,
        bits: int | None = None,
        offset: int = 0,
    ) -> int:
        encoding = (1 if signed else 0) | (4 if boolean else 0)
        return self.add(1, name, size, [encoding << 24 | offset << 16 | (8 * size if bits is None else bits)])

    def pointer(self, target: int) -> int:
        return self.add(2, extra=target)

    def array(self, element: int, count: int) -> int:
        return self.add(3, words=[element, element, count])

    def composite(
        self,
        name: str,
        size: int,
        members: Sequence[tuple[str, int, int] | tuple[str, int, int, int]],
        union: bool = False,
        flag: bool = True,
    ) -> int:
        """Add a struct or union of members (name, type, bit offset) or, for bit fields, (..., bit size)."""
        words: list[int] = []
        for member_name, target, bit_offset, *bits in members:
            place = (bits[0] << 24 if bits else 0) | bit_offset
            words += [self.name(member_name), target, place]
        return self.add(5 if union else 4, name, size, words, len(members), flag)

    def enum(self, name: str, values: dict[str, int], size: int = 4, signed: bool = False) -> int:
        words = [word for each, value in values.items() for word in (self.name(each), value)]
        return self.add(6, name, size, words, len(values), signed)

    def enum64(self, name: str, values: dict[str, int], signed: bool = False) -> int:
        words = [word for each, value in values.items() for word in (self.name(each), value, value >> 32)]
        return self.add(19, name, 8, words, len(values), signed)

    def typedef(self, name: str, target: int) -> int:
        return self.add(8, name, target)

    def function_type(self, returned: int, params: Sequence[tuple[str, int]]) -> int:
        words = [word for name, target in params for word in (self.name(name), target)]
        return self.add(13, extra=returned, words=words, vlen=len(params))

    def variable(self, name: str, target: int, linkage: int = 1) -> int:
        return self.add(14, name, target, [linkage])

    def section(self, name: str, size: int, variables: Sequence[tuple[int, int, int]]) -> int:
        words = [word for variable in variables for word in variable]
        return self.add(15, name, size, words, len(variables))
