# SPDX-License-Identifier: Apache-2.0
"""The page of a report: its contents, its size, and that names in it are only text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outputs import path, samples
from tests.unit.outputs.samples import HOSTILE, MS, NOON, SECOND, distribution, play
from wptrace.analysis.neighbours import HAD, MEANWHILE, WAITED, Owner
from wptrace.analysis.waits import ASLEEP, COUNT, NS, WAIT, WAITS
from wptrace.flows.io.parts.owners import KINDS as BY
from wptrace.flows.stacks import IO
from wptrace.model.distribution import Distribution
from wptrace.model.kind import TOTAL, Task
from wptrace.model.report import Event, Report, Start, arranged
from wptrace.model.stack import Stack
from wptrace.outputs import export
from wptrace.outputs.export import html, over_time
from wptrace.outputs.registry import Wanted

END = "</script><script>alert(1)</script><!--"


def page(folder: Path, *results: Any, view: str = "stages") -> str:
    place = folder / "report.html"
    play(export.make("html", place, view, Wanted()), *results)
    return place.read_text()


def data(found: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', found)[0])
    return made


def reported(folder: Path, *results: Any, view: str = "stages") -> dict[str, Any]:
    return data(page(folder, *results, view=view))


def added(cells: Iterable[list[Any]]) -> list[Any]:
    """Return count, sum and buckets of cells together."""
    count = total = 0
    buckets: Counter[int] = Counter()
    for one in cells:
        count, total = count + one[0], total + one[1]
        buckets.update(dict(zip(one[-1][::2], one[-1][1::2])))
    return [count, total, buckets]


def summary(found: Any = None, **changes: Any) -> Report:
    return path.report(found, "summary", **changes)


def times(count: int, report: Report) -> Report:
    """Make a summary of so many seconds, in each of which was the same."""
    cells = {group: {name: one.copy() for name, one in found.items()} for group, found in report.cells.items()}
    for group, found in report.cells.items():
        for name, one in found.items():
            for _ in range(count - 1):
                cells[group][name].merge(one)
    return report._replace(cells=arranged(cells, path.KINDS), duration_ns=count * SECOND)


def test_columns_add_up_to_the_whole(tmp_path: Path) -> None:
    """The last part of a trace is in no interval."""
    found = reported(tmp_path, path.start(), path.report(ts_ns=NOON - SECOND // 2), times(2, summary()))
    assert len(found["columns"]) == 2
    assert found["columns"][0][1] == found["columns"][1][0]
    checked = 0
    for at, series in enumerate(found["series"]):
        for name, cell in series["cells"].items():
            of_it = [cells[str(at)].get(name, [0, 0, []]) for _, _, cells, _ in found["columns"] if str(at) in cells]
            assert added(of_it) == added([cell])
            checked += cell[0]
    assert checked


def test_figures_are_those_of_the_report(tmp_path: Path) -> None:
    report = summary()
    found = reported(tmp_path, path.start(), report)
    names = [series["name"] for series in found["series"]]
    assert names == [
        "read operations", "write operations", "read page-cache hits", "write page-cache hits",
        "flush block requests", "read block requests", "write block requests",
    ]  # fmt: skip
    device = report.cells[path.OPERATION.group("nvme0n1", "read")]["device"]
    cell = found["series"][0]["cells"]["device"]
    figures = [device.count, device.sum, round(device.mean), *map(device.percentile, (50, 90, 99, 99.9)), device.max]
    assert cell[:8] == figures
    assert [stage["is"] for stage in found["kinds"][0]["metrics"]].count("stage") == len(path.NAMES) + 1
    assert found["books"] == [["requests", 704, 700, 4, 0, 1], ["operations", 5523, 5520, 3, 0, 3]]


def test_what_was_lost_and_how_it_was_measured(tmp_path: Path) -> None:
    found = reported(tmp_path, path.start(), [path.waiting()], summary(lost=3))
    assert len(found["losses"]) == 3
    assert found["notes"] == ["complete is part of device on nvme"]
    assert found["sources"][0] == ["fs", "tp_btf/x"]
    assert ["dev", "nvme0n1"] in found["filters"]
    assert "postgres" in "\n".join(found["stuck"])
    assert "3 lost" in found["text"]


def test_one_has_its_stages_and_its_story(tmp_path: Path) -> None:
    operation = path.operation(interference=[path.interference("preempted", 3 * MS)])
    (one,) = reported(tmp_path, path.start(), operation, summary())["events"]["rows"]
    assert sum(ns for _, ns in one["stages"]) == one["total"] == operation.total_ns
    assert [name for name, _ in one["stages"]] == [name for name in path.NAMES if path.USUAL[name]]
    assert (one["who"], one["what"]) == ("postgres[4711/4715]", "nvme0n1 read operation")
    assert one["where"].endswith("/2619 at 1048576")
    assert one["series"] == 0
    assert "preempted 3.00 ms by hog" in "\n".join(one["story"])


def test_the_incident_of_a_dump(tmp_path: Path) -> None:
    event = path.operation()
    assert reported(tmp_path, path.start(), event, summary())["incident"] is None
    others = path.incident(event).under_way[1]._replace(owner="", op="")
    # Even if more events come than are kept.
    found = reported(tmp_path, path.start(), summary()._replace(incident=path.incident(event, others=others, left=9)))
    made = found["incident"]
    assert made["event"]["total"] == event.total_ns
    assert made["event"]["series"] == 0
    assert "by postgres[4711/4715] took" in made["lines"][0]
    assert made["lines"][1] == "3.20 ms of it, 87%, were in the device; the median of others is 90.0 us"
    assert made["rows"][0] == ["backup[812]", "write", 30, 30 << 20, 12, 4, 4 << 20]
    assert (made["others"][5], made["left"]) == (1, 9)
    assert made["queued"] - made["begin"] == pytest.approx(400)
    assert made["until"] - made["queued"] == pytest.approx(300)
    assert re.fullmatch(
        r"slow since .*; up to this one 43 of 2,210 were slow; 7 more after it, until \S+", made["lines"][2]
    )
    assert made["event"]["end"] - made["queued"] == pytest.approx((event.total_ns - path.USUAL["fs"]) / MS)
    assert "incident: nvme0n1 read operation of" in found["text"]
    none = reported(
        tmp_path, path.start(), summary()._replace(incident=path.incident(event, beginning=None, under_way=[]))
    )
    assert none["incident"]["begin"] is None
    assert none["incident"]["moment"].endswith("no other request was under way on nvme0n1")


def test_stretches_are_kept_where_they_were(tmp_path: Path) -> None:
    event = path.in_time()
    one, cut, several = (
        reported(tmp_path, path.start(), found, summary())["events"]["rows"][0]
        for found in (event, event._replace(segments=event.segments[:3], more=11), path.operation(requests=2))
    )
    assert one["spans"] == [[part.stage, part.from_ns, part.to_ns - part.from_ns] for part in event.segments]
    assert cut["spans"][:3] == one["spans"][:3]
    assert sum(ns for _, _, ns in cut["spans"]) == event.total_ns
    assert "spans" not in several
    assert (one["timed"], cut["timed"], several["timed"]) == (True, False, False)


def test_the_slowest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "SLOWEST", 3)
    events = [path.operation()._replace(total_ns=ns) for ns in (5, 9, 1, 7, 3, 8)]
    found = reported(tmp_path, path.start(), *events, summary())["events"]
    assert (found["seen"], found["kept"]) == (6, 3)
    assert [one["total"] for one in found["rows"]] == [9, 8, 7]


def test_a_long_trace_has_no_more_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "COLUMNS", 16)
    reports = [path.report(ts_ns=NOON + at * SECOND) for at in range(over_time.COLUMNS + 5)]
    whole = times(len(reports), summary(ts_ns=reports[-1].ts_ns))
    columns = reported(tmp_path, path.start(), *reports, whole)["columns"]
    assert over_time.COLUMNS / 2 <= len(columns) <= over_time.COLUMNS
    assert sum(cells["0"]["total"][0] for _, _, cells, _ in columns) == 500 * len(reports)
    edges = [edge for begin, end, _, _ in columns for edge in (begin, end)]
    assert edges == sorted(edges)


def singles(count: int) -> list[Event]:
    """Make events, each 1 ms longer than the one before it; one process has two of three."""
    found = []
    for at in range(count):
        stages = {**path.USUAL, "device": (at + 1) * MS}
        event = path.operation(pid=1 if at % 3 else 2, comm="db")
        found.append(event._replace(end_ns=NOON - at * 7 * MS, total_ns=sum(stages.values()), stages=stages))
    return found


def summed(events: list[Event]) -> Report:
    """Make the summary of these events alone, with rows by process."""
    (kind, *_) = BY["process"]
    cells: dict[Any, Any] = {}
    for event in events:
        owned = kind.group(*event.group.values, Task("db", event.fields["pid"]))
        for group, stages in ((event.group, event.stages), (owned, {})):
            into = cells.setdefault(group, {})
            for name, ns in {**stages, TOTAL: event.total_ns}.items():
                into.setdefault(name, Distribution()).add(ns)
    return summary()._replace(cells=arranged(cells, (*path.KINDS, kind)))


def test_events_are_columns_where_every_one_is_there(tmp_path: Path) -> None:
    """Operations, each of their stages and each process have columns, unless an event is missing."""
    start, events = path.start()._replace(filters={"by": "process"}), singles(300)
    found = reported(tmp_path, start, *events, summed(events))
    parts, columns = [*found["series"], *found["apart"]], found["singles"]["columns"]
    assert [part["name"] for part in parts] == ["read operations", "read db[1] operations", "read db[2] operations"]
    assert set(found["singles"]["of"]) == {"0", "1", "2"}
    assert "device" in found["singles"]["of"]["0"]
    assert 300 * 7 / found["singles"]["width"] <= len(columns) <= 300 * 7 / found["singles"]["width"] + 1
    for at, names in found["singles"]["of"].items():
        for name in names:
            cells = [cells[at][name] for _, _, cells in columns if at in cells]
            assert added(cells) == added([parts[int(at)]["cells"][name]]), name
    # The missing one belongs to the second process.
    fewer = reported(tmp_path, start, *events[1:], summed(events))["singles"]
    assert set(fewer["of"]) == {"1"}


def test_columns_of_events_become_wider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "COLUMNS", 16)
    events = singles(300)
    found = reported(tmp_path, path.start(), *events, summed(events))["singles"]
    assert found["width"] == 160
    assert 8 <= len(found["columns"]) <= 16
    assert sum(cells["0"]["total"][0] for _, _, cells in found["columns"]) == 300


def test_stages_that_the_kind_does_not_have_are_not_kept() -> None:
    found = over_time.Singles()
    for event in singles(300):
        found.add(event._replace(stages={f"{event.end_ns}": MS}))
    assert {name for cells in found._columns.values() for stages in cells.values() for name in stages} == {TOTAL}


def test_a_trace_without_anything(tmp_path: Path) -> None:
    found = reported(tmp_path, path.start(), summary({}))
    assert (found["series"], found["columns"], found["tables"], found["stacks"]) == ([], [], [], None)


def test_devices_are_rows_where_there_are_several(tmp_path: Path) -> None:
    both = {**path.cells("sda"), **path.cells("sdb")}
    assert reported(tmp_path, path.start(), summary())["tables"] == []
    table = reported(tmp_path, path.start(), summary(both))["tables"][0]
    assert [(row["name"], row["total"][0]) for row in table["rows"]] == [
        ("sda read", 500), ("sdb read", 500), ("sda write", 120), ("sdb write", 120),
    ]  # fmt: skip


def owned(names: list[str]) -> Report:
    (kind, *_) = BY["process"]
    cells = dict(path.cells())
    for number, name in enumerate(names):
        cells[kind.group("nvme0n1", "read", Task(name, number + 1))] = {
            TOTAL: samples.distribution([MS * (number + 1)])
        }
    counters = {
        HAD.group("nvme0n1", "read", Owner("/batch")): {"ns": 80 * MS, "count": 4, "bytes": 1 << 20},
        WAITED.group("nvme0n1", Owner("/db")): {"ns": 40 * MS, "count": 2},
        MEANWHILE.group("nvme0n1", Owner("/db"), Owner("/batch")): {"ns": 30 * MS},
    }
    report = summary()
    return report._replace(cells=arranged(cells, (*path.KINDS, kind)), counters={**report.counters, **counters})


def test_owners_and_neighbours(tmp_path: Path) -> None:
    start = path.start()._replace(filters={"by": "process", "neighbours": True})
    found = reported(tmp_path, start, owned(["one", "two"]))
    (table,) = found["tables"]
    assert [(row["name"], row["op"], row["total"][1]) for row in table["rows"]] == [
        ("two[2]", "read", 2 * MS), ("one[1]", "read", MS),
    ]  # fmt: skip
    assert found["by"] == "process"
    assert all(found["kinds"][series["kind"]]["name"] in ("operation", "hit", "request") for series in found["series"])
    batch, db = found["neighbours"]
    assert (batch["name"], batch["device"], batch["dev"]) == ("/batch (256 KiB reads)", 80 * MS, "nvme0n1")
    assert (db["waits"], db["met"]) == (2, [["/batch", 1.0]])


def stacks(names: list[str]) -> tuple[Start, Report]:
    cells = {
        IO.group("sda", "read", Stack((name, "submit_bio", "vfs_read"), (), "")): {TOTAL: samples.distribution([MS])}
        for name in names
    }
    report = summary()._replace(cells=arranged(cells, (IO,)), books={"requests": samples.book()})
    return path.start()._replace(flow="stacks", kinds=(IO,), filters={}), report


def test_stacks_are_a_flame_graph(tmp_path: Path) -> None:
    found = reported(tmp_path, *stacks(["a", "b"]), view="stacks")
    assert sorted(row[0] for row in found["stacks"]["rows"]) == [["vfs_read", "submit_bio", name] for name in "ab"]
    assert [row[1:3] for row in found["stacks"]["rows"]] == [[MS, 1], [MS, 1]]
    assert [series["name"] for series in found["series"]] == ["read I/Os"]
    assert found["tables"] == []


@pytest.mark.parametrize("name", [*HOSTILE, END, "\x00", "'\"&<>"], ids=ascii)
def test_names_can_do_nothing(tmp_path: Path, name: str) -> None:
    plain = page(tmp_path, path.start(), summary())
    start = path.start()._replace(notes=[name], kernel=name, filters={"dev": [name], "comm": name, "by": "process"})
    event = path.operation(
        comm=name, path=name, cgroup=name, dev=name, interference=[path.interference("hardirq", 9, name)]
    )
    found = page(tmp_path, start, event, [path.waiting(comm=name)], owned([name]))
    assert all(char.isprintable() for line in found.split("\n") for char in line.replace("\t", ""))
    tags = re.compile(r"<[a-z/!][^>]*>", re.I)
    body = found.partition("<body>")[2].partition("<script>")[0]
    assert Counter(tags.findall(body)) == Counter(tags.findall(plain.partition("<body>")[2].partition("<script>")[0]))
    assert data(found)["events"]["rows"][0]["who"].startswith(data(found)["kernel"])
    page(tmp_path, *stacks([name]), view="stacks")


def test_nothing_is_fetched_and_nothing_else_runs(tmp_path: Path) -> None:
    found = page(tmp_path, path.start(), path.operation(), summary())
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', found)[0]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (source,) = re.findall(rf"<{tag}>(.*?)</{tag}>", found, re.DOTALL)
        checksum = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{checksum}'" in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|insertAdjacent|document\.write", found)


def test_values_that_no_flow_has_do_not_end_it(tmp_path: Path) -> None:
    event = path.operation(error=-5, sector=None, path="")._replace(total_ns=0, stages={"strange": -1})
    (one,) = reported(tmp_path, path.start(), event, summary())["events"]["rows"]
    assert (one["stages"], one["failed"]) == ([], "")


def waited() -> Report:
    """Make operations of one device that waited for half of a stage."""
    report, group = summary(), path.OPERATION.group("nvme0n1", "read")
    took = report.cells[group]["fs"].sum
    waits = WAIT.group(*group.values, "fs", "lock of the file <b>")
    counters = {
        WAITS.group(*waits.values): Counter({COUNT: 1234}),
        ASLEEP.group(*group.values, "fs"): Counter({NS: took // 2}),
    }
    cells = {**report.cells, waits: {TOTAL: samples.distribution([took // 4] * 2)}}
    return report._replace(cells=cells, counters={**report.counters, **counters})


def test_a_stage_has_what_it_was_made_of(tmp_path: Path) -> None:
    found = reported(tmp_path, path.start(), waited())
    made = {series["name"]: series["made"] for series in found["series"] if series["made"]}
    assert made == {"read operations": ["of fs: 50.0% lock of the file <b> (1,234), 50.0% on the CPU"]}


class Counted(str):
    """A name that counts with how many others it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    def __str__(self) -> str:
        return self


def test_columns_are_not_counted_again_with_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    size, sizes = over_time._size, []

    def counted(cells: Any) -> int:
        sizes.append(size(cells))
        return sizes[-1]

    monkeypatch.setattr(over_time, "_size", counted)
    times, report = over_time.Times(), path.report()
    count = 3 * over_time.COLUMNS
    for at in range(count):
        times.interval(report._replace(ts_ns=NOON + at * SECOND))
    assert len(sizes) < 3 * count


def test_a_name_is_not_looked_for_among_all_others(tmp_path: Path) -> None:
    """Names of devices and of operations come from a file, and may be as many as its events."""
    count = 500
    request = path.request()
    of = [request.group._replace(values=(Counted(f"sd{at}"), Counted(f"op{at}"))) for at in range(count)]
    report = summary({group: {TOTAL: distribution([at])} for at, group in enumerate(of)})
    Counted.compared = 0
    found = reported(tmp_path, path.start(), *(request._replace(group=group) for group in of), report)
    assert len(found["places"]["devices"]) == len(found["places"]["ops"]) == len(found["series"]) == count
    assert {row["series"] for row in found["events"]["rows"]} == set(range(count))
    assert Counted.compared < 40 * count
