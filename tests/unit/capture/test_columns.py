# SPDX-License-Identifier: Apache-2.0
"""Records that become columns, and records again; what nobody packed is refused."""

from __future__ import annotations

import struct
import sys
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.capture.columns import MOST_BYTES, WORD, Packer, cleared, longest, unpack

WORDS = 4
# Few different words, so that columns are alike, nearly alike, and zero.
_WORDS = st.sampled_from([0, 0, 1, 2, 0x0102030405060708, (1 << 64) - 1])


class Batch(NamedTuple):
    rows: list[list[int]]
    holes: frozenset[int]


def batches(before: int) -> st.SearchStrategy[list[Batch]]:
    row = st.lists(_WORDS, min_size=before + WORDS, max_size=before + WORDS)
    # Many records in which few differ, too.
    rows = st.one_of(
        st.lists(row, min_size=1, max_size=8),
        st.builds(lambda one, many, other: [one] * many + [other] + [one], row, st.integers(1, 150), row),
    )
    return st.lists(st.builds(Batch, rows, st.frozensets(st.integers(0, WORDS - 1))), min_size=1, max_size=5)


def kept(batch: Batch, before: int) -> list[list[int]]:
    return [[0 if at in batch.holes else word for at, word in enumerate(row[before:])] for row in batch.rows]


@given(st.sampled_from([0, 1, 2]).flatmap(lambda before: st.tuples(st.just(before), batches(before))))
def test_records_are_the_same_again(made: tuple[int, list[Batch]]) -> None:
    """A packer has all batches of a kind, whatever changes from one to the next."""
    before, found = made
    packer = Packer(WORDS * WORD, before)
    for batch in found:
        rows, count = kept(batch, before), len(batch.rows)
        data = packer.pack(
            bytearray(struct.pack(f"={(before + WORDS) * count}Q", *(word for row in batch.rows for word in row))),
            batch.holes,
        )
        assert unpack(data, WORDS * WORD, count) == struct.pack(
            f"={WORDS * count}Q", *(word for row in rows for word in row)
        )
        changed = {at for at in range(WORDS) if len({row[at] for row in rows}) > 1}
        assert {at for at in packer.changed if at >= 0} == changed
        assert len(data) <= longest(WORDS * WORD, count)


def test_what_is_alike_takes_next_to_nothing() -> None:
    """One kind for each column; a word for one that is the same; a mask and a plane for each byte that changes."""
    same, zero, low, high = 5 << 40, 0, 7, 9 << 56
    rows = [[same, zero, low, high], [same, zero, low + 256, high], [same, zero, low + 3, high + (1 << 56)]]
    data = Packer(WORDS * WORD).pack(bytearray(struct.pack("<12Q", *(word for row in rows for word in row))))
    planes = [bytes((0b11,)), bytes((7, 7, 10)), bytes((0, 1, 0)), struct.pack("<Q", high), bytes((0x80, 9, 9, 10))]
    assert data == bytes((1, 0, 2, 2)) + struct.pack("<QQ", same, low) + b"".join(planes)


def test_the_longest_is_what_changes_everywhere() -> None:
    rows = bytes(range(32)) + bytes(255 - byte for byte in range(32))
    assert len(Packer(32).pack(bytearray(rows))) == longest(32, 2)


GOOD = Packer(2 * WORD).pack(bytearray(struct.pack("=4Q", 5, 1, 5, 2)))


@pytest.mark.parametrize(
    ("data", "stride", "count", "words"),
    [
        (b"", 16, 1, "no such records"),
        (b"\0", 16, 1, "no such records"),
        (b"\0\0", 16, 0, "no such records"),
        (b"\0\0", 15, 1, "no such records"),
        (b"\0\0", 0, 1, "no such records"),
        (b"\0\0", 16, MOST_BYTES // 16 + 1, "no such records"),
        (b"\3\0", 16, 1, "kind of a column"),
        *((GOOD[:end], 16, 2, "cut off|bytes follow") for end in range(2, len(GOOD))),
        (GOOD + b"\0", 16, 2, "bytes follow"),
        (GOOD, 16, 1, "bytes follow"),
        (GOOD, 16, 3, "cut off"),
    ],
)
def test_what_nobody_packed_is_refused(data: bytes, stride: int, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unpack(data, stride, count)


def test_as_many_as_there_may_be() -> None:
    assert unpack(b"\0\0", 16, MOST_BYTES // 16) == bytes(MOST_BYTES)


@given(st.lists(st.tuples(st.binary(min_size=10, max_size=10), st.integers(0, 12)), min_size=1, max_size=9))
def test_behind_a_text_is_nothing_up_to_the_longest(texts: list[tuple[bytes, int]]) -> None:
    """A field of ten bytes from the fourth on, whose length is said behind it; more than it holds may be said."""
    rows = bytearray(b"".join(b"head" + text + used.to_bytes(2, sys.byteorder) for text, used in texts))
    most = min(max(used for _, used in texts), 10)
    assert cleared(rows, 16, 4, 14, 10) == most
    same = len({used for _, used in texts}) == 1
    for at, (text, used) in enumerate(texts):
        end = most if same else min(used, most)
        expected = text[:end] + bytes(most - end) + text[most:]
        assert rows[at * 16 : at * 16 + 16] == b"head" + expected + used.to_bytes(2, sys.byteorder)
