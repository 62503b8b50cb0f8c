# SPDX-License-Identifier: Apache-2.0
"""Captures of each release, which every later version reads: `python -m tests.unit.capture.releases` writes this one's.

They are made up, so that they hold no data of a machine: kinds and values of all sorts, records, books, verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.unit.capture import made
from tests.unit.outputs.samples import distribution
from wptrace import __version__
from wptrace.analysis import neighbours
from wptrace.analysis.neighbours import Owner
from wptrace.bpf.object import open_object
from wptrace.capture.frames import Kind
from wptrace.capture.writer import About, CaptureOutput
from wptrace.cli.main import main
from wptrace.flows import cpu, size, stacks
from wptrace.flows.io.kinds import OPERATION
from wptrace.model.book import RECURSION, RING_FULL, STATE_FULL, Book
from wptrace.model.budget import Change, Cost, Saving, Spending, Step
from wptrace.model.kind import ALL, REQUESTS, TOTAL, Group, Task
from wptrace.model.report import Event, Finding, InFlight, Overhead, Report, Source, Start, Verdict, arranged
from wptrace.model.stack import Stack
from wptrace.model.tally import Tally

FOLDER = Path(__file__).with_name("releases")
_SAVING = Saving("sample", "less", "gone", (4, 16))
_BUDGET = Spending(
    0.05,
    Cost(None, 0.01),
    0.06,
    (Step(_SAVING, 4),),
    {_SAVING: 5},
    (Change(1, 2, Step(_SAVING, 4), True, Cost(0.1, 0.2)),),
)
_TURN, _WAIT = cpu.KINDS[cpu.THREAD]


def _report(groups: Mapping[Group, Any]) -> Report:
    book = Book.read(9, 7, {STATE_FULL: 1}, {RING_FULL: 2, RECURSION: 3}, 1)
    counters = {group: {"bytes": 4096, "merged": 2} for group in groups}
    meanwhile = neighbours.MEANWHILE.group("sda", Owner("/a"), Owner("others"))
    owner = Owner("/b")
    owner.seen = "backup"
    counters |= {meanwhile: {"ns": 5}, neighbours.HAD.group("sda", "read", owner): {"ns": 7, "count": 2, "bytes": 512}}
    rows = arranged(groups, list({group.kind: 1 for group in groups}))
    return Report("summary", 2_000_000_000, 1_000_000_000, {REQUESTS: book}, rows, counters, Overhead(1, 2, 3, 4, 5, 6))


def _write(path: Path, view: str, start: Start, report: Report, *events: Event) -> None:
    output = CaptureOutput(path, About(view, intervals=True, shown={"top": 5}))
    output.start(start)
    for event in events:
        output.event(event)
    groups = [group for group in report.cells if group.kind is not OPERATION]
    output.in_flight([InFlight(group, 5, "wait", {"pid": 7}) for group in groups[:1]], 1_500_000_000)
    output.interval(report._replace(kind="interval"))
    group = next(iter(report.cells))
    found = Finding("tail", {"ratio": 2.5, "p50_ns": 1, "p99_ns": 7, "stage_p99_ns": 5}, group, TOTAL, "who", "advice")
    output.summary(report._replace(verdict=Verdict((found,), "advice"), budget=_BUDGET, lists={"more": [{"pid": 7}]}))
    output.close()


def write(folder: Path) -> list[Path]:
    """Write a capture for each kind of rows, and one of records."""
    task = Task("dd", 7, 8)
    turns = {
        _TURN.group(task): {"wait": distribution([5]), TOTAL: distribution([5])},
        _TURN.group(ALL): {TOTAL: distribution([1])},
    }
    tallies = {size.REQUEST.group("sda", "read"): {"random": Tally({512: 2}), TOTAL: Tally({512: 2})}}
    stack = Stack(("submit_bio", "vfs_read"), ("main",), "dd[7]")
    ios = {stacks.IO.group("sda", "read", stack): {TOTAL: distribution([3, 1 << 60])}}
    event = Event(
        _WAIT.group(task),
        1_400_000_000,
        5,
        {"wait": 5},
        {"comm": "\udcff", "pid": 7, "tid": 8, "cpu": 0, "sleep_ns": 0},
    )

    def start(flow: str, *kinds: object) -> Start:
        return Start(flow, "", "6.12.0", {"by": "thread"}, [Source("wait", "tp_btf/sched_switch")], kinds, ["note"])  # type: ignore[arg-type]

    files = [folder / f"{__version__}-{name}.wpt" for name in ("cpu", "size", "stacks", "io")]
    _write(files[0], "turns", start("cpu", _TURN), _report(turns), event)
    _write(files[1], "sizes", start("size", size.REQUEST), _report(tallies))
    _write(files[2], "stacks", start("stacks", stacks.IO), _report(ios))
    with open_object("io_path") as obj:
        made.write(obj, files[3])
    return files


def without_machine(path: Path) -> None:
    """Remove the data of the machine that wrote a capture."""
    from tests.unit.capture.test_hostile import made as written
    from tests.unit.capture.test_hostile import opened

    frames = opened(path)
    for kind, content in frames:
        if kind == Kind.START:
            content.update(host="host", machine="x86_64", boot="", command=[])
        if kind == Kind.CLOCK:
            content.update(monotonic_ns=1, realtime_ns=1_000_000_000, boot_id="", machine_id="")
    written(path, frames)


def lines(path: Path) -> list[str]:
    shown = StringIO()
    with redirect_stdout(shown):
        main(["replay", str(path), "--json"])
    return shown.getvalue().splitlines()


if __name__ == "__main__":
    for file in write(FOLDER):
        without_machine(file)
        reported = [{name: value for name, value in json.loads(line).items() if name != "file"} for line in lines(file)]
        file.with_suffix(".json").write_text("".join(json.dumps(one) + "\n" for one in reported))
