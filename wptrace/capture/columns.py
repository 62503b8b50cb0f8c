# SPDX-License-Identifier: Apache-2.0
"""Records as columns: what is alike in many of them takes next to nothing.

A column has the same word of each record. Of one that is the same in all, that word is kept; of the others each of the
eight bytes that is not always the same, one byte of all records after the other. Words are alike in their high bytes,
and what is left is packed well and quickly, which rows of a thousand bytes are not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import lru_cache
from typing import Any

WORD = 8
MOST_BYTES = 1 << 24
"""Of all records together, once they are rows again."""
_ZERO, _SAME, _OTHER = range(3)
# Words that are looked at together.
_LINE = 8


def pack(rows: bytes | bytearray | memoryview, stride: int, holes: Collection[int] = (), before: int = 0) -> bytes:
    """`stride` is the length of a record, of whole words; `holes` are words of it that are not kept.

    So many words `before` each record are not, either.
    """
    many = stride // WORD
    lines = _Lines(rows, many + before)
    count = lines.count
    modes = bytearray(many)
    parts: list[bytes] = [b""]
    nothing = bytes(WORD)
    for place in range(many):
        if place in holes:
            continue
        column, first = lines.column(place + before)
        if not column:
            if first != nothing:
                modes[place] = _SAME
                parts.append(first)
            continue
        modes[place] = _OTHER
        planes, mask = [], 0
        for byte in range(WORD):
            plane = column[byte::WORD]
            if plane != plane[:1] * count:
                mask |= 1 << byte
                planes.append(plane)
        parts += (first, bytes((mask,)), *planes)
    parts[0] = bytes(modes)
    return b"".join(parts)


class _Lines:
    """Words of records by lines of some words: where a line is the same in all of them, so is each of its words.

    To look at a line of eight words takes what it takes to look at one.
    """

    def __init__(self, rows: bytes | bytearray | memoryview, many: int) -> None:
        """Records are of so many words."""
        self._long = next(long for long in range(min(_LINE, many), 0, -1) if many % long == 0)
        self._step = many // self._long
        found = memoryview(rows)
        self.count = len(found) // (WORD * many)
        whole = (_line(WORD * self._long) * (self.count * self._step)).from_buffer(
            bytearray(found) if found.readonly else found
        )
        self._lines = memoryview(whole)
        self._at = -1
        self._words: memoryview | None = None
        self._first = b""

    def column(self, place: int) -> tuple[bytes, bytes]:
        """A word of all records, and that of the first one; nothing of all where they are the same."""
        at, inside = divmod(place, self._long)
        if at != self._at:
            self._at = at
            line = self._lines[at :: self._step].tobytes()
            self._first = line[: WORD * self._long]
            self._words = None if line == self._first * self.count else memoryview(line).cast("Q")
        first = self._first[inside * WORD : (inside + 1) * WORD]
        if self._words is None:
            return b"", first
        column = self._words[inside :: self._long].tobytes()
        return (b"" if column == first * self.count else column), first


@lru_cache(None)
def _line(size: int) -> Any:
    """Items of any size can be taken with a step; those of a cast are of eight bytes at most."""
    return type("_Line", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_char * size)]})


def unpack(data: bytes, stride: int, count: int) -> bytearray:
    """Raises ValueError where it is not what `pack` makes."""
    many = stride // WORD
    if stride % WORD or not many or not 0 < count * stride <= MOST_BYTES or len(data) < many:
        raise ValueError("there are no such records")
    rows = bytearray(count * stride)
    words = memoryview(rows).cast("Q")
    at = many
    for place in range(many):
        mode = data[place]
        if mode == _ZERO:
            continue
        if mode > _OTHER:
            raise ValueError("a column is of no kind that is known")
        first = data[at : at + WORD]
        at += WORD
        if len(first) < WORD:
            raise ValueError("a column is cut off")
        column = bytearray(first * count)
        if mode == _OTHER:
            mask = data[at] if at < len(data) else 0
            at += 1
            for byte in range(WORD):
                if mask >> byte & 1:
                    plane = data[at : at + count]
                    at += count
                    if len(plane) < count:
                        raise ValueError("a column is cut off")
                    column[byte::WORD] = plane
        words[place::many] = memoryview(column).cast("Q")
    if at != len(data):
        raise ValueError("there is more than columns")
    return rows


def longest(stride: int, count: int) -> int:
    """So many bytes are the most that `pack` makes of so many records."""
    return stride // WORD * (1 + WORD + 1) + stride * count


def cleared(rows: bytearray | memoryview, stride: int, text: int, end: int, length: int) -> int:
    """Clears what lies behind a text in a field of `length` bytes: the kernel leaves there what was there before.

    `text` is where it begins in a record, `end` where the 16 bits stand that say how much of it is used. Behind the
    longest one nothing is cleared; its length is returned.
    """
    halves = memoryview(rows).cast("H")[end // 2 :: stride // 2].tolist()
    length = min(max(halves, default=0), length)
    if halves.count(length) == len(halves):
        return length
    nothing = bytes(length)
    for at, used in zip(range(text, len(rows), stride), halves):
        if used < length:
            rows[at + used : at + length] = nothing[used:]
    return length
