# SPDX-License-Identifier: Apache-2.0
"""A trace for Perfetto, queried by SQL in its own trace processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.unit.outputs import path
from tests.unit.outputs.export.events import some, sums
from tests.unit.outputs.export.test_perfetto import joined
from tests.unit.outputs.samples import play
from wptrace.outputs import export
from wptrace.outputs.registry import Wanted


def test_its_trace_processor_has_our_counts_and_sums(perfetto: Callable[[Path], Any], tmp_path: Path) -> None:
    events = some(500)
    place = tmp_path / "trace.pftrace"
    play(
        export.make("perfetto", place, "stages", Wanted()),
        path.start()._replace(file="an older day"),
        *events,
        path.report(),
        path.report(kind="summary"),
    )
    query = perfetto(place)
    counts, times = sums(events)
    rows = query("select name, count(*), sum(dur) from slice where depth = 1 group by name")
    assert {name: (count, ns) for name, count, ns in rows} == {name: (counts[name], times[name]) for name in counts}
    once = [event for event in events if event.stages["device"] and event.fields.get("requests", 1) == 1]
    assert query("select count(*) from flow") == [[len(once)]]
    # Each flow leads to the slice of the device, which is where that stage is.
    assert query(
        "select count(*) from flow join slice o on slice_out = o.id join slice i on slice_in = i.id"
        " where i.ts < o.ts or i.ts + i.dur > o.ts + o.dur"
    ) == [[0]]
    assert query("select name, value from stats where severity != 'info' and value > 0") == []
    whole = "select count(*), sum(dur) from slice where depth = 0 and name like '%operation{}'"
    operations = [event for event in events if event.group.kind is path.OPERATION]
    assert query(whole.format("")) == [[len(operations), sum(event.total_ns for event in operations)]]
    device = sum(event.stages["device"] for event in once if event.group.kind is path.OPERATION)
    count = sum(event.group.kind is path.OPERATION for event in once)
    assert query(whole.format(", in the device")) == [[count, device]]
    # Parts of a structured argument are arguments of their own, not a repr of Python.
    keys = {key for (key,) in query("select distinct key from args where key like 'debug.%'")}
    assert "debug.cpus.submit" in keys
    assert query("select count(*) from args where string_value like '{%' or string_value like '[{%'") == [[0]]
    tasks = "select pid, process.name, tid from thread join process using (upid) where pid >= 100 order by pid, tid"
    assert query(tasks) == [[pid, f"task{pid}", pid + more] for pid in (100, 101, 102) for more in (0, 1)]
    value = (
        "select value from counter join counter_track t on track_id = t.id where t.name = 'read operations a second'"
    )
    assert query(value) == [[500]]
    assert query("select count(*) from slice where dur < 0") == [[0]]


def test_a_guest_and_its_host_are_two_processes_with_arrows(perfetto: Callable[[Path], Any], tmp_path: Path) -> None:
    place = tmp_path / "both.pftrace"
    events = [joined(), joined(to_host=35)]
    play(
        export.make("perfetto", place, "stages", Wanted()),
        path.start()._replace(file="both"),
        *events,
        path.report(kind="summary"),
    )
    query = perfetto(place)
    processes = "select name from process where upid in (select upid from process_track) order by name"
    assert query(processes) == [["guest"], ["host"]]
    # To the host, and back.
    ways = "select o.name, i.name, count(*) from flow join slice o on slice_out = o.id join slice i on slice_in = i.id"
    assert query(f"{ways} group by 1, 2 order by 1") == [
        ["/srv/a.img", "back", len(events)],
        ["vda read request", "/srv/a.img", len(events)],
    ]
    assert query("select name, value from stats where severity != 'info' and value > 0") == []
    inside = "select count(*), sum(s.dur) from slice s join slice p on s.parent_id = p.id where p.name = '/srv/a.img'"
    host = [ns for event in events for name, ns in event.stages.items() if name.startswith("host_")]
    assert query(inside) == [[len(host), sum(host)]]
