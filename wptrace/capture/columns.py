# SPDX-License-Identifier: Apache-2.0
"""Records as columns: what is alike in many of them takes next to nothing.

A column has the same word of each record. Of one that is the same in all, that word is kept; of the others each of the
eight bytes that is not always the same, one byte of all records after the other. Words are alike in their high bytes,
and what is left is packed well and quickly, which rows of a thousand bytes are not.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterator

WORD = 8
MOST_BYTES = 1 << 24
"""The limit of all records together after unpacking."""
_ZERO, _SAME, _OTHER = range(3)
# Records that are compared together where a difference is sought.
_LOOKED_AT = 64


class Packer:
    """Packs records of one kind, batch after batch.

    Which of their bytes change is much the same in all batches, and what is the same in all records need not be looked
    at one by one: a batch is compared at once with what it would be if no other bytes changed than those that ever did.
    """

    def __init__(self, stride: int, before: int = 0) -> None:
        """`stride` is the length of a record, of whole words; so many words `before` each of them are not kept."""
        self._many = stride // WORD
        self._before = before * WORD
        self._step = self._before + stride
        self._changing: set[int] = set()
        # The same memory again and again: the kernel clears what is new, which takes longer than to fill it.
        self._alike = bytearray()
        self._littered = False
        self._holes: Collection[int] = ()
        self.changed: set[int] = set()
        """Words of records that are not the same in all of the last batch."""

    def pack(self, rows: bytearray, holes: Collection[int] = ()) -> bytes:
        """`holes` are words of a record that are not kept; what is in them may be cleared."""
        planes = self._planes(rows, holes)
        first = bytes(rows[self._before : self._step])
        by_word: dict[int, list[int]] = {}
        for at in sorted(planes):
            by_word.setdefault((at - self._before) // WORD, []).append(at)
        self.changed = set(by_word).difference(holes)
        modes = bytearray(self._many)
        parts: list[bytes | bytearray] = [modes]
        nothing = bytes(WORD)
        for place in range(self._many):
            word = first[place * WORD : (place + 1) * WORD]
            changed = by_word.get(place)
            if place in holes or (not changed and word == nothing):
                continue
            parts.append(word)
            if changed is None:
                modes[place] = _SAME
                continue
            modes[place] = _OTHER
            parts.append(bytes((sum(1 << at % WORD for at in changed),)))
            parts += [planes[at] for at in changed]
        return b"".join(parts)

    def _planes(self, rows: bytearray, holes: Collection[int]) -> dict[int, bytearray]:
        """Return bytes of all records by their place, without those that are the same in all records."""
        step = self._step
        alike = self._alike
        if self._littered:
            self._clear(rows, holes)
        moved = self._littered and holes != self._holes
        if moved or len(alike) != len(rows):
            alike = self._alike = rows[:step] * (len(rows) // step)
            self._holes = holes
        planes: dict[int, bytearray] = {}
        new: Collection[int] = self._changing
        at = 0
        while True:
            for byte in new:
                planes[byte] = alike[byte::step] = rows[byte::step]
            if alike == rows:
                break
            at = self._difference(rows, at)
            new = self._differing(rows, at)
            if not self._littered and any(byte // WORD - self._before // WORD in holes for byte in new):
                self._littered = True
                self._alike = bytearray()
                return self._planes(rows, holes)
            self._changing.update(new)
        count = len(rows) // step
        return {byte: plane for byte, plane in planes.items() if plane != plane[:1] * count}

    def _difference(self, rows: bytearray, at: int) -> int:
        """The first record from there on that is not what it would be."""
        # Slices of bytearrays would be copies, for which the kernel clears memory again and again.
        with memoryview(self._alike) as alike:
            for some in (self._step * _LOOKED_AT, self._step):
                while rows.startswith(alike[at : at + some], at):
                    at += some
        return at

    def _differing(self, rows: bytearray, at: int) -> list[int]:
        """Bytes of this record that are not what they would be."""
        one, other = rows[at : at + self._step], self._alike[at : at + self._step]
        words = zip(range(0, self._step, WORD), memoryview(one).cast("Q"), memoryview(other).cast("Q"))
        differ = (word for word, is_, would_be in words if is_ != would_be)
        return [byte for word in differ for byte in range(word, word + WORD) if one[byte] != other[byte]]

    def _clear(self, rows: bytearray, holes: Collection[int]) -> None:
        """Fill with zeros the columns that were never written."""
        for begin, end in _runs(holes):
            # Padding is zeros; a slice that is assigned would be copied first.
            clear = struct.Struct(f"{(end - begin) * WORD}x").pack_into
            for at in range(self._before + begin * WORD, len(rows), self._step):
                clear(rows, at)


def _runs(places: Collection[int]) -> Iterator[tuple[int, int]]:
    """Generate the beginning and end of each run."""
    found = sorted(places)
    begins = [place for place in found if place - 1 not in places]
    ends = [place + 1 for place in found if place + 1 not in places]
    return zip(begins, ends)


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
            raise ValueError("the kind of a column is unknown")
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
        raise ValueError("bytes follow the columns")
    return rows


def longest(stride: int, count: int) -> int:
    """So many bytes are the most that `pack` makes of so many records."""
    return stride // WORD * (1 + WORD + 1) + stride * count


def cleared(rows: bytearray, stride: int, text: int, end: int, length: int) -> int:
    """Clears what lies behind a text in a field of `length` bytes: the kernel leaves there what was there before.

    `text` is where it begins in a record, `end` where the 16 bits stand that say how much of it is used. Behind the
    longest one nothing is cleared; its length is returned.
    """
    count = len(rows) // stride
    if all(rows[at::stride] == rows[at : at + 1] * count for at in (end, end + 1)):
        return min(int.from_bytes(rows[end : end + 2], sys.byteorder), length)
    halves = memoryview(rows).cast("H")[end // 2 :: stride // 2].tolist()
    length = min(max(halves), length)
    nothing = bytes(length)
    for at, used in zip(range(text, len(rows), stride), halves):
        if used < length:
            rows[at + used : at + length] = nothing[used:]
    return length
