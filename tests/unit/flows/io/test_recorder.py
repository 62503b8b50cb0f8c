# SPDX-License-Identifier: Apache-2.0
"""The areas of the flight recorder: which of their records are whole, and in which order."""

from __future__ import annotations

import struct

import pytest

from wptrace.flows.io.parts.recorder import Copied, _areas, _ordered, _whole

_SIZE, _ROOM = 32, 8
_RECORD = struct.Struct("<Q20xI")
assert _RECORD.size == _SIZE


def area(written: int, room: int = _ROOM, **others: int) -> bytes:
    """As so many records left it, each of which ended at ten times its number; `others` have another number."""
    rows = [_RECORD.pack(0, 0)] * min(written, room)
    for number in range(written):
        rows[number % room] = _RECORD.pack(10 * number, others.get(f"r{number}", number + 1))
    return b"".join(rows)


def numbers(copied: Copied) -> list[int]:
    return [end // 10 for end, _ in _RECORD.iter_unpack(copied.rows)]


@pytest.mark.parametrize("written", [0, 1, 7, 8, 9, 15, 16, 21])
def test_the_last_ones_are_there_the_oldest_first(written: int) -> None:
    copied = _whole(area(written), _SIZE, _ROOM, written, written)
    assert numbers(copied) == list(range(max(written - _ROOM, 0), written))
    assert (copied.torn, copied.wrapped) == (0, written > _ROOM)


def test_what_may_have_been_overwritten_while_it_was_copied_is_left_out() -> None:
    """The numbers of the copy are all right: only the second look at the head tells."""
    assert numbers(_whole(area(21), _SIZE, _ROOM, 21, 24)) == [16, 17, 18, 19, 20]
    assert numbers(_whole(area(21), _SIZE, _ROOM, 21, 40)) == []
    assert _whole(area(8), _SIZE, _ROOM, 8, 9).wrapped


@pytest.mark.parametrize("torn", [13, 16, 17, 20])
def test_a_record_that_is_being_written_is_counted(torn: int) -> None:
    copied = _whole(area(21, **{f"r{torn}": torn + 1 - _ROOM}), _SIZE, _ROOM, 21, 21)
    assert numbers(copied) == [number for number in range(13, 21) if number != torn]
    assert copied.torn == 1


def test_numbers_beyond_32_bits_go_on() -> None:
    begin = (1 << 32) - 4
    rows = [b""] * _ROOM
    for number in range(begin, begin + _ROOM):
        rows[number % _ROOM] = _RECORD.pack(10 * (number - begin), (number + 1) & 0xFFFFFFFF)
    copied = _whole(b"".join(rows), _SIZE, _ROOM, begin + _ROOM, begin + _ROOM)
    assert numbers(copied) == list(range(_ROOM))


def test_records_of_all_cpus_are_in_the_order_of_their_ends() -> None:
    some = [Copied(b"".join(_RECORD.pack(end, 1) for end in ends), 3, 0, False) for ends in ((5, 20, 30), (1, 19, 40))]
    entries, earlier = _ordered(some, _SIZE, 5)
    ends = [struct.unpack_from("<I4xQ", entries, at) for at in range(0, len(entries), _SIZE + 8)]
    assert ends == [(_SIZE, end) for end in (5, 19, 20, 30, 40)]
    assert earlier == 1


def test_cpus_share_the_memory() -> None:
    found = _areas(100_000, 5, [0, 1, 3])
    assert [one.room for one in found] == [32_768, 32_768, 1024, 32_768, 1024]
    assert [one.first for one in found] == [0, 32_768, 65_536, 66_560, 99_328]
