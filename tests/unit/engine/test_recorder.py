# SPDX-License-Identifier: Apache-2.0
"""The areas of the flight recorder: which records are whole, and in which order; and its dumps."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.capture.made import replayed
from tests.unit.engine.dumped import SECOND, dump
from wptrace.bpf.object import BpfObject, open_object
from wptrace.capture.reader import Capture
from wptrace.capture.records import Names
from wptrace.engine.recorder import (
    _HEAD_BYTES,
    Recorder,
    Whole,
    _areas,
    _entries,
    _ordered,
    _whole,
    does_not_fit,
)
from wptrace.engine.recorder_size import RecorderSize
from wptrace.flows.io.kinds import KINDS
from wptrace.flows.io.recorded import RECORDED
from wptrace.kernel import cpus, memory

_SIZE, _ROOM = 32, 8
_RECORD = struct.Struct("<Q20xI")
assert _RECORD.size == _SIZE


def area(written: int, room: int = _ROOM, **others: int) -> bytes:
    """Make an area after this many records, each of which ended at ten times its number. `others` replaces numbers."""
    rows = [_RECORD.pack(0, 0)] * min(written, room)
    for number in range(written):
        rows[number % room] = _RECORD.pack(10 * number, others.get(f"r{number}", number + 1))
    return b"".join(rows)


def whole(raw: bytes, before: int, after: int, at: int = 0) -> tuple[Whole, list[int]]:
    """Return what is whole of a copied area, and the numbers of its records."""
    found = _whole(memoryview(raw).cast("I")[_SIZE // 4 - 1 :: _SIZE // 4], at, _ROOM, before, after)
    rows = [
        _RECORD.unpack_from(raw, place * _SIZE) for begin, count in found.runs for place in range(begin, begin + count)
    ]
    return found, [end // 10 for end, _ in rows]


@pytest.mark.parametrize("written", [0, 1, 7, 8, 9, 15, 16, 21])
def test_the_last_ones_are_there_the_oldest_first(written: int) -> None:
    for before in (0, 3):
        found, numbers = whole(bytes(before * _SIZE) + area(written), written, written, before)
        assert numbers == list(range(max(written - _ROOM, 0), written))
        assert (found.there, found.torn, found.wrapped) == (len(numbers), 0, written > _ROOM)


def test_what_may_have_been_overwritten_while_it_was_copied_is_left_out() -> None:
    """All numbers in the copy are right; only the second reading of the head shows it."""
    assert whole(area(21), 21, 24)[1] == [16, 17, 18, 19, 20]
    assert whole(area(21), 21, 40)[1] == []
    assert whole(area(8), 8, 9)[0].wrapped
    assert whole(area(8), 8, 9)[1] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("torn", [[13], [16], [17], [20], [13, 14, 19], list(range(13, 21))])
def test_a_record_that_is_being_written_is_counted(torn: list[int]) -> None:
    found, numbers = whole(area(21, **{f"r{one}": one + 1 - _ROOM for one in torn}), 21, 21)
    assert numbers == [number for number in range(13, 21) if number not in torn]
    assert found.torn == len(torn)


def test_numbers_beyond_32_bits_go_on() -> None:
    begin = (1 << 32) - 4
    rows = [b""] * _ROOM
    for number in range(begin, begin + _ROOM):
        rows[number % _ROOM] = _RECORD.pack(10 * (number - begin), (number + 1) & 0xFFFFFFFF)
    assert whole(b"".join(rows), begin + _ROOM, begin + _ROOM)[1] == list(range(_ROOM))


def test_records_of_all_cpus_are_in_the_order_of_their_ends() -> None:
    rows = bytearray().join(_RECORD.pack(end, 1) for end in (5, 20, 99, 30, 1, 19, 40))
    ends = memoryview(rows).cast("Q")[:: _SIZE // 8]
    order, earlier = _ordered(ends, [Whole([(0, 2), (3, 1)], 4, 1, False), Whole([(4, 3)], 3, 0, False)], 5)
    (entries,) = _entries(rows, _SIZE, order)
    found = [struct.unpack_from("<I4xQ", entries, at) for at in range(0, len(entries), _SIZE + 8)]
    assert found == [(_SIZE, end) for end in (5, 19, 20, 30, 40)]
    assert earlier == 1


def test_cpus_share_the_memory() -> None:
    found = _areas(100_000, 5, [0, 1, 3])
    assert [one.room for one in found] == [32_768, 32_768, 1024, 32_768, 1024]
    assert [one.first for one in found] == [0, 32_768, 65_536, 66_560, 99_328]


@pytest.mark.parametrize("possible", [[0, 1, 4], [0, 1]])
def test_an_area_has_the_number_of_its_cpu(monkeypatch: pytest.MonkeyPatch, possible: list[int]) -> None:
    """Numbers in between that are of no CPU have one too, with little room."""
    assert len(started(monkeypatch, possible, possible)._areas) == possible[-1] + 1


def test_the_room_of_a_cpu_is_that_of_one_that_is_online(monkeypatch: pytest.MonkeyPatch) -> None:
    """On arm64 the first CPU may be taken offline as well."""
    (note,) = started(monkeypatch, [0, 1, 2], [1, 2]).notes()
    assert "the last 4,096 operations of each of 2 CPUs" in note


def test_areas_are_shared_where_there_are_more_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(range(1792))
    assert len(started(monkeypatch, numbers, numbers)._areas) == 1024


def started(monkeypatch: pytest.MonkeyPatch, possible: list[int], online: list[int]) -> Recorder:
    """A recorder on a machine with these CPUs, whose programs are not loaded."""
    monkeypatch.setattr(cpus, "possible", lambda *_: possible)
    monkeypatch.setattr(cpus, "online", lambda: online)
    with open_object("io_path_recorder") as obj:
        recorder = Recorder(RecorderSize(SECOND, 1 << 20), None, KINDS, RECORDED, "operations", lambda: Names({}))
        recorder.prepare(obj)
        heads = memoryview(bytearray(obj.length("recorder_heads") * _HEAD_BYTES))
        monkeypatch.setattr(obj, "view", lambda _: heads)
        recorder.start(obj)
    words = heads.cast("I")[2 :: _HEAD_BYTES // 4]
    assert [one.first for one in recorder._areas] == words[: len(recorder._areas)].tolist()
    return recorder


@pytest.mark.parametrize(("free", "fits"), [(400, True), (399, False)])
def test_there_must_be_room_for_a_dump_as_well(monkeypatch: pytest.MonkeyPatch, free: int, fits: bool) -> None:
    """A quarter of the free memory stays free."""
    monkeypatch.setattr(memory, "room", lambda: memory.Room(free << 20, "the cgroup /a"))
    takes = "a recorder does not fit that takes 100 MiB of the kernel's memory, and a dump of it 200 MiB for a moment"
    assert does_not_fit(100 << 20) == ("" if fits else f"{takes}: the cgroup /a has {free} MiB free")


def test_times_after_the_start_of_a_dump_count_from_its_begin(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dump.wpt"
    made = dump(obj, path, 5, [(0.5, 1000), (1.5, 1000), (2.5, 1000)])
    assert made.until_ns - made.since_ns >= 5 * SECOND
    with closing(Capture(path)) as capture:
        assert capture.head.began_ns == made.since_ns
        # A join needs them.
        assert all(anchor.realtime_ns > made.since_ns for anchor in capture.head.anchors)
        assert len(capture.head.anchors) == 2
    for options, count in ((("--since", "0s"), 3), (("--since", "1s"), 2), (("--since", "1s", "--until", "2s"), 1)):
        _, *singles, summary = replayed(path, capsys, *options)
        assert (len(singles), summary["operations"]["finished"]) == (count, count)
