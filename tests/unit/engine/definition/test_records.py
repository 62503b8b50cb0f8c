# SPDX-License-Identifier: Apache-2.0
"""Objects of a definition in the flight recorder: a dump has what `--each` shows of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine.definition.test_kinds import CORE, DISK, point, resolution
from tests.unit.flows.io.test_records import packed
from wptrace.bpf.object import BpfObject, open_object
from wptrace.capture.reader import Capture
from wptrace.capture.records import Names, Raw
from wptrace.capture.selection import Selection
from wptrace.capture.writer import About, CaptureOutput
from wptrace.engine.definition import definition as d
from wptrace.engine.definition.flow import MOST_ROWS, DefinedFlow, Options
from wptrace.engine.definition.kinds import kind_of
from wptrace.engine.definition.records import recorded
from wptrace.engine.recorder_size import LONGEST_NS, RecorderSize
from wptrace.errors import WptraceError
from wptrace.model.book import Book
from wptrace.model.kind import ALL, REQUESTS, TOTAL, Comm
from wptrace.model.report import BYTES, Event, Overhead, QuietOutput, Report, Start
from wptrace.tools import diff
from wptrace.tools.replay import Wanted, replay

WHOLE = (
    point("begun", d.BEGIN, stage="waits"),
    point("seen", d.PASS, stage="works", value=object()),
    point("done", d.END),
    point("torn", d.END, outcome="torn"),
)
KIND = kind_of(resolution(*WHOLE).definition, (DISK, CORE))
ROWS: dict[int, Sequence[Any]] = {0: ("(rest)", "(rest)"), 3: ("sda", 1)}
TASK = {"comm": b"db", "tgid": 11, "tid": 12, "begin_cpu": 1, "end_cpu": 300}
ONE = {"end_ns": 5000, "total_ns": 900, "key": 0xABC, "value": 512, "row": 3, "number": 1, "seen": 3, **TASK}


@pytest.fixture
def obj() -> Iterator[BpfObject]:
    with open_object("generic") as found:
        yield found


class Seen(QuietOutput):
    """An output that keeps events and the summary."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.report: Report | None = None

    def event(self, event: Event) -> None:
        self.events.append(event)

    def summary(self, report: Report) -> None:
        self.report = report


def dump(
    obj: BpfObject, path: Path, raw: Raw, records: Sequence[Mapping[str, Any]], rows: Any = ROWS, kind: Any = KIND
) -> Path:
    layout = raw.struct(obj)
    path.unlink(missing_ok=True)
    output = CaptureOutput(path, About("objects", (kind,), each=True, of_events=True))
    take = output.raw(obj, raw, [])
    output.start(Start("made", "", "6.12", {}, [], (kind,), []))
    output.name(Names(rows=rows))
    entries = b"".join(struct.pack("<II", layout.size, 0) + packed(layout, **one) for one in records)
    take(memoryview(bytearray(entries)))
    output.summary(Report("summary", 9000, 8000, {REQUESTS: Book()}, {}, {}, Overhead(0, 0, 0, 0, 0, 0)))
    output.close()
    return path


def seen(path: Path) -> tuple[list[Event], Report]:
    found = Seen()
    with closing(Capture(path)) as capture:
        replay(capture, found, Wanted(Selection({})))
    assert found.report is not None
    return found.events, found.report


def test_a_dump_has_each_with_its_row_and_all_that_is_counted(obj: BpfObject, tmp_path: Path) -> None:
    raw = recorded(2, ["torn"], [BYTES])
    more = {"end_ns": 6000, "total_ns": 70, "row": 0, "outcome": 1, "failed": 1, "seen": 1, "spent[0]": 70}
    records = [{**ONE, "spent[0]": 600, "spent[1]": 300}, {**ONE, **more}]
    events, report = seen(dump(obj, tmp_path / "x.wpt", raw, records))
    first, second = events
    assert first.group == KIND.group("sda", 1)
    assert (first.total_ns, first.stages) == (900, {"waits": 600, "works": 300})
    fields = {"key": "0xabc", "value": 512, "unit": "bytes", "begin_cpu": 1, "end_cpu": 300}
    assert first.fields == {**fields, "comm": "db", "pid": 11, "tid": 12}
    assert second.group == KIND.group("(rest)", "(rest)")
    assert (second.stages, second.end_ns - first.end_ns) == ({"waits": 70}, 1000)
    assert (second.fields["outcome"], second.fields["failed"]) == ("torn", True)
    assert report.counters == {first.group: {BYTES: 512}, second.group: {BYTES: 512, "torn": 1}}
    assert report.cells[second.group][TOTAL].sum == 70
    assert (report.book.finished, report.book.failed) == (2, 1)
    with closing(Capture(tmp_path / "x.wpt")) as capture:
        side = diff.read(capture, diff.Wanted("x.wpt"))
    sums = {group.values: cells[TOTAL].sum for group, cells in side.report.cells.items()}
    assert sums == {first.group.values: 900, second.group.values: 70}
    assert (side.report.counters, side.report.book.finished) == (report.counters, 2)


def test_a_single_stage_is_the_total(obj: BpfObject, tmp_path: Path) -> None:
    kind = kind_of(resolution(WHOLE[0], WHOLE[2]).definition, ())
    raw = recorded(0, [], [])
    assert raw.struct(obj).size == obj.struct("recorded_object").size - 7 * 8
    (event,), report = seen(dump(obj, tmp_path / "x.wpt", raw, [{**ONE, "row": 0}], {0: ()}, kind))
    assert (event.total_ns, event.stages) == (900, {"waits": 900})
    assert "value" not in event.fields
    assert report.counters == {kind.group(): {}}


@pytest.mark.parametrize(
    ("rows", "stages"),
    [({}, 2), ({3: ("sda",)}, 2), ({3: ("sda", 1, 2)}, 2), (ROWS, 1), (ROWS, 3), (ROWS, 0)],
    ids=["no row", "few labels", "many labels", "few stages", "many stages", "none"],
)
def test_what_does_not_fit_makes_no_sense(obj: BpfObject, tmp_path: Path, rows: Any, stages: int) -> None:
    path = dump(obj, tmp_path / "x.wpt", recorded(stages, [], []), [ONE], rows)
    with pytest.raises(WptraceError, match="makes no sense"):
        seen(path)


@pytest.mark.parametrize("value", [None, ALL, Comm("x"), "x" * (1 << 14), 1 << 64])
def test_labels_are_numbers_and_short_texts(obj: BpfObject, tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.wpt"
    dump(obj, path, recorded(2, [], []), [ONE], {3: ("sda", value)})
    with pytest.raises(WptraceError, match="makes no sense"):
        seen(path)


def test_what_is_kept_for_a_recorder_is_known_before_the_load(obj: BpfObject) -> None:
    flow = DefinedFlow(resolution(*WHOLE), Options(recorder=RecorderSize(LONGEST_NS, 1 << 20)))
    flow._prepare(obj)
    size = obj.struct("recorded_object").size - 5 * 8
    assert obj.maps["recorded"].value_size == size
    assert obj.maps["recorded"].max_entries * size >= (1 << 20) // 2
    assert flow._emits_records
    assert DefinedFlow(resolution(*WHOLE), Options()).flight_recorder is None


def test_there_are_no_more_rows_than_a_trace_has(obj: BpfObject, tmp_path: Path) -> None:
    rows = dict.fromkeys(range(MOST_ROWS + 1), ("sda", 1))
    assert seen(dump(obj, tmp_path / "x.wpt", recorded(2, [], []), [ONE], rows))[1].book.finished == 1
    with pytest.raises(WptraceError, match="makes no sense"):
        seen(dump(obj, tmp_path / "x.wpt", recorded(2, [], []), [ONE], {**rows, 1 << 20: ("sda", 1)}))
