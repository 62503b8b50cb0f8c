# SPDX-License-Identifier: Apache-2.0
"""OTF2 folders, read back with the format's own library."""

from __future__ import annotations

import stat
from collections import Counter
from pathlib import Path
from typing import Any

import otf2
import pytest

from tests.unit.outputs import path
from tests.unit.outputs.export.events import some, sums
from tests.unit.outputs.export.test_rows import written
from tests.unit.outputs.samples import HOSTILE, NOON
from wptrace.errors import UsageError
from wptrace.model.kind import EventField, Kind, Noun, Point, Stage
from wptrace.model.report import Event
from wptrace.outputs import export
from wptrace.outputs.registry import Wanted

SUMMARY = path.report(kind="summary")


def read(folder: Path) -> tuple[Counter[tuple[int, str]], Counter[tuple[int, str]], list[Any]]:
    """Return counts and times of each region by depth, and the attributes of the outermost ones."""
    counts: Counter[tuple[int, str]] = Counter()
    times: Counter[tuple[int, str]] = Counter()
    stacks: dict[Any, list[tuple[str, int]]] = {}
    attributes = []
    with otf2.reader.open(str(folder / "traces.otf2")) as trace:
        assert trace.timer_resolution == 1_000_000_000
        for location, event in trace.events:
            stack = stacks.setdefault(location, [])
            if isinstance(event, otf2.events.Enter):
                stack.append((event.region.name, event.time))
                if event.attributes:
                    attributes.append({one.name: value for one, value in event.attributes.items()})
            elif isinstance(event, otf2.events.Leave):
                name, begin = stack.pop()
                assert name == event.region.name
                counts[len(stack), name] += 1
                times[len(stack), name] += event.time - begin
    assert not any(stacks.values())
    return counts, times, attributes


def test_regions_have_the_times_of_the_stages_and_nest(tmp_path: Path) -> None:
    events = some()
    folder = written(tmp_path, "otf2", path.start(), *events, SUMMARY)
    counts, times, attributes = read(folder)
    expected = sums(events)
    assert {name: count for (depth, name), count in counts.items() if depth == 1} == expected[0]
    assert {name: ns for (depth, name), ns in times.items() if depth == 1} == expected[1]
    assert sum(count for (depth, _), count in counts.items() if depth == 0) == len(events)
    assert {one["path"] for one in attributes if "path" in one} >= {"/srv/1", "/srv/2"}
    assert {"in order of stages, not of time"} == {one["stages"] for one in attributes if "stages" in one}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_stretches_stand_in_the_order_of_time(tmp_path: Path) -> None:
    event = path.in_time()
    counts, times, attributes = read(written(tmp_path, "otf2", path.start(), event, SUMMARY))
    assert counts[1, "device"] == 2
    assert times[1, "device"] == event.stages["device"]
    assert not [one for one in attributes if "stages" in one]


def test_many_threads_share_locations(tmp_path: Path) -> None:
    events = [path.operation(pid=at, tid=at, comm=f"task{at}") for at in range(1, 300)]
    folder = written(tmp_path, "otf2", path.start(), *events, SUMMARY)
    with otf2.reader.open(str(folder / "traces.otf2")) as trace:
        names = [one.name for one in trace.definitions.locations]
    assert [name for name in names if name.startswith("task")] == [f"task{at}[{at}]" for at in range(1, 257)]
    assert sum(read(folder)[0][0, name] for name in ["nvme0n1 read operation"]) == len(events)


def test_events_at_once_have_a_bounded_number_of_files(tmp_path: Path) -> None:
    """Each location needs two files."""
    many = 800
    events = [path.operation(pid=7, tid=7, comm="task") for _ in range(many)]
    folder = written(tmp_path, "otf2", path.start(), *events, SUMMARY)
    assert sum(1 for _ in folder.rglob("*")) < 2 * 512
    shown = sum(count for (depth, _), count in read(folder)[0].items() if depth == 0)
    assert shown == 128 + 256
    assert f"{many - shown:,} events are left out".encode() in (folder / "traces.otf2").read_bytes()


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_can_do_nothing(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path, "otf2", path.start(), path.operation(comm=name, path=name, dev=name), SUMMARY)
    with otf2.reader.open(str(folder / "traces.otf2")) as trace:
        assert all(one.name.isprintable() for one in trace.definitions.strings)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_that_a_forged_capture_declares_can_do_nothing(tmp_path: Path, name: str) -> None:
    stage, fields = Stage(name, Point("B", "begin"), Point("E", "end"), "", ""), [EventField(name, str)]
    kind = Kind("mine", Noun(name), (), [stage], fields=fields)
    event = Event(kind.group(), NOON, 5, {name: 5}, {name: name})
    start = path.start()._replace(flow=name, kinds=(kind,))
    folder = written(tmp_path, "otf2", start, event, SUMMARY)
    with otf2.reader.open(str(folder / "traces.otf2")) as trace:
        assert all(one.name.isprintable() for one in trace.definitions.strings)


def test_what_is_there_stays(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    (place / "kept").write_text("kept")
    with pytest.raises(UsageError, match="is not empty"):
        export.make("otf2", place, "stages", Wanted())
    (place / "kept").unlink()
    assert read(written(tmp_path, "otf2", path.start(), path.operation(), SUMMARY))[0]
    with pytest.raises(UsageError, match="is not a folder"):
        export.make("otf2", place / "traces.otf2", "stages", Wanted())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out"]


def test_without_a_summary_there_is_nothing(tmp_path: Path) -> None:
    made = export.make("otf2", tmp_path / "out", "stages", Wanted())
    made.start(path.start())
    made.event(path.operation())
    made.close()
    assert list(tmp_path.iterdir()) == []
