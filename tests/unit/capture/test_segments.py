# SPDX-License-Identifier: Apache-2.0
"""Segments of captures: one after the other, without earlier ones, and after damage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.thorough import cases
from tests.unit.capture import made
from tests.unit.capture.made import replayed, totals, write
from wptrace.bpf.object import BpfObject
from wptrace.capture import writer
from wptrace.capture.frames import SEGMENT, Kind, Reader, Writer
from wptrace.capture.reader import Arriving, Capture, Records
from wptrace.cli.main import main
from wptrace.errors import WptraceError

Line = dict[str, Any]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a segment of each few frames."""
    monkeypatch.setattr(writer, "_SEGMENT_BYTES", 1)


def boundaries(path: Path) -> list[int]:
    with closing(Reader(path)) as reader:
        return [frame.place for frame in reader.frames() if frame.kind == SEGMENT]


def joined(path: Path, *parts: bytes | bytearray) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def counted(summary: Line) -> tuple[int, int, int]:
    (total,) = totals(summary)
    return total["count"], total["sum_ns"], summary["operations"]["finished"]


def of(numbers: Sequence[int]) -> tuple[int, int, int]:
    return len(numbers), sum(numbers), len(numbers)


@pytest.mark.usefixtures("small")
def test_a_capture_of_many_segments_is_as_one(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(obj, tmp_path / "some.wpt")
    assert len(boundaries(path)) >= 3
    start, *events, summary = replayed(path, capsys)
    assert start["notes"] == made.START.notes
    assert [one["total_ns"] for one in events] == list(range(8))
    assert {(one["dev"], one["comm"], one["cgroup"]) for one in events} == {("sda", "fio", "/cgroup55")}
    assert counted(summary) == of(range(8))


@pytest.mark.usefixtures("small")
def test_segments_may_be_cut_off_before_any(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(obj, tmp_path / "some.wpt")
    data, seen = path.read_bytes(), set()
    *places, last = boundaries(path)
    for place in places:
        start, *events, summary = replayed(joined(tmp_path / "rest.wpt", data[place:]), capsys)
        assert "segments of the capture are missing" in start["notes"][-1]
        numbers = [one["total_ns"] for one in events]
        assert numbers == list(range(8))[8 - len(numbers) :]
        # An interval may be there without its records.
        count = counted(summary)[0]
        assert count in (4, 5, 8)
        assert counted(summary) == of(range(8 - count, 8))
        assert count >= len(numbers)
        assert summary["duration_ns"] == {4: 1, 5: 2, 8: 3}[count] * 1_000_000_000
        seen.add(count)
    assert seen == {4, 5, 8}
    # Only the summary has the missing segments.
    (line,) = replayed(joined(tmp_path / "rest.wpt", data[last:]), capsys)
    assert (line["kind"], line["notes"][-1].partition(":")[0]) == ("start", "segments of the capture are missing")


@pytest.mark.parametrize("ends", [(True, True), (False, True), (True, False), (False, False)])
def test_captures_may_be_put_one_behind_the_other(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str], ends: tuple[bool, bool]
) -> None:
    one = write(obj, tmp_path / "one.wpt", (3, 1, 4), ends[0])
    other = write(obj, tmp_path / "other.wpt", (2, 6), ends[1])
    both = joined(tmp_path / "both.wpt", one.read_bytes(), other.read_bytes())
    start, *events, summary = replayed(both, capsys)
    notes = start["notes"][1:]
    assert notes[0] == "the capture was put together from 2 traces"
    assert [note.partition(":")[0] for note in notes[1:]] == ["the capture has no end"] * (ends != (True, True))
    assert [event["total_ns"] for event in events] == [*range(8), *range(8)]
    assert counted(summary) == of([*range(8), *range(8)])
    assert summary["duration_ns"] == 5_000_000_000
    *_, summary = replayed(both, capsys, "--pid", "7", "--summary")
    assert counted(summary) == of([*range(8), *range(8)])
    with closing(Capture(both)) as capture:
        assert (capture.head.traces, capture.head.whole) == (2, all(ends))
        # Both have records of the same layout, and share a decoder.
        assert len({item.number for item in capture.items() if isinstance(item, Records)}) == 1


def test_what_was_cut_off_costs_nothing_of_the_next_one(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it ends in a header, in a payload, or further back than the length of the next one."""
    data = write(obj, tmp_path / "one.wpt").read_bytes()
    other = write(obj, tmp_path / "other.wpt", (2, 6)).read_bytes()
    with closing(Reader(tmp_path / "one.wpt")) as reader:
        frames = list(reader.frames())
    head_end = next(frame.place + frame.length for frame in frames if frame.kind == Kind.LAYOUT)
    for length in range(head_end, len(data), cases(13, 37)):
        path = joined(tmp_path / "both.wpt", data[:length], other)
        with closing(Capture(path)) as capture:
            records = [item for item in capture.items() if isinstance(item, Records)]
            assert capture.head.traces == 2
            whole = [frame for frame in frames if frame.kind == Kind.RECORDS and frame.place + frame.length <= length]
            assert len(records) == len(whole) + 2
            assert capture.damaged <= 2


def test_the_next_one_may_look_like_the_end_of_a_header(tmp_path: Path) -> None:
    """A header lacks its last byte, which is the same as the first one of the next capture."""
    other = tmp_path / "other.wpt"
    for number in range(10_000):
        one = Writer(tmp_path / "one.wpt")
        one.begin()
        one.add(Kind.NAMES, b"%d" % number)
        one.close()
        header = (tmp_path / "one.wpt").read_bytes()[: -len(b"%d" % number)]
        if header[-1:] == b"w":
            break
    behind = Writer(other)
    behind.begin()
    behind.add(Kind.END, b"")
    behind.close()
    with closing(Reader(joined(tmp_path / "both.wpt", header[:-1], other.read_bytes()))) as reader:
        found = [frame.kind for frame in reader.frames()]
    assert found[-2:] == [SEGMENT, Kind.END]


def test_damage_ends_with_its_segment(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(write(obj, tmp_path / "one.wpt").read_bytes())
    other = write(obj, tmp_path / "other.wpt", (2, 6)).read_bytes()
    with closing(Reader(tmp_path / "one.wpt")) as reader:
        names = [frame for frame in reader.frames() if frame.kind == Kind.NAMES]
    for place in (names[1].place - 16, names[1].place):
        torn = data.copy()
        torn[place : place + 16] = bytes(16)
        with pytest.raises(WptraceError, match=r"is damaged: .* left out"):
            main(["replay", str(joined(tmp_path / "both.wpt", torn, other)), "--json"])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        numbers = [line["total_ns"] for line in lines if line["kind"] == "operation"]
        assert numbers[-8:] == list(range(8))
    # Even in the first bytes of the next capture.
    torn = bytearray(other)
    torn[5] ^= 1
    path = joined(tmp_path / "both.wpt", data, torn, other)
    with closing(Capture(path)) as capture:
        assert len([item for item in capture.items() if isinstance(item, Records)]) == 5


def test_traces_that_follow_different_things_are_refused(
    obj: BpfObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(obj, tmp_path / "one.wpt").read_bytes()
    monkeypatch.setattr(made, "START", made.START._replace(flow="host"))
    other = write(obj, tmp_path / "other.wpt").read_bytes()
    with pytest.raises(WptraceError, match="has traces of different flows"):
        Capture(joined(tmp_path / "both.wpt", data, other))
    monkeypatch.setattr(made, "START", made.START._replace(flow="io", filters={"dev": ["sdb"]}))
    third = write(obj, tmp_path / "third.wpt").read_bytes()
    with closing(Capture(joined(tmp_path / "both.wpt", data, third))) as capture:
        assert capture.head.start.notes[-1] == "they had different filters: those of the first one are shown"


@pytest.mark.usefixtures("small")
def test_segments_come_through_a_channel_byte_by_byte(obj: BpfObject, tmp_path: Path) -> None:
    path = write(obj, tmp_path / "some.wpt")
    data = path.read_bytes()
    for step in (1, 7, 4096):
        arriving, count = Arriving(path), 0
        for place in range(0, len(data), step):
            for found in arriving.feed(data[place : place + step]):
                count += len(found.rows) // arriving.layouts[found.number].stride
        assert arriving.ended
        assert count == 8
    arriving = Arriving(path)
    with pytest.raises(WptraceError, match="another trace begins in"):
        list(arriving.feed(data[: boundaries(path)[0]] + write(obj, tmp_path / "other.wpt").read_bytes()))
