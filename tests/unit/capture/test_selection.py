# SPDX-License-Identifier: Apache-2.0
"""Selections from a capture, and those that it cannot answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture.made import ABOUT, START, entry, keep, replayed, report, totals, write
from tests.unit.outputs.samples import distribution
from wptrace.bpf.object import BpfObject
from wptrace.capture.selection import QUESTIONS
from wptrace.capture.writer import About, CaptureOutput
from wptrace.cli.main import main
from wptrace.errors import UsageError, WptraceError
from wptrace.flows import cpu
from wptrace.flows.io.kinds import KINDS, OPERATION, REQUEST
from wptrace.flows.io.parts import owners
from wptrace.flows.io.records import RECORDS
from wptrace.flows.size import REQUEST as SIZES
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model.book import Book
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL, Comm, Kind, Label, Noun, Task
from wptrace.model.report import BYTES, Event, Overhead, Report, arranged
from wptrace.model.tally import Tally

MANY: tuple[dict[str, Any], ...] = (
    {"tgid": 7, "comm": b"fio", "cgroup": 1, "path": b"log\0db\0srv\0", "path_end": 11},
    {"tgid": 7, "comm": b"fio", "cgroup": 2, "path": b"table\0db\0srv\0", "path_end": 13},
    {"tgid": 9, "comm": b"dd", "cgroup": 3, "path": b"dbx\0srv\0", "path_end": 8},
    {"tgid": 9, "comm": b"dd", "cgroup": 3, "op": 1},
)
CGROUPS = {1: "/a", 2: "/a/b", 3: "/ab"}


@pytest.fixture
def file(obj: BpfObject, tmp_path: Path) -> Path:
    """Four operations of 1 to 4 ns, one second apart."""
    path = tmp_path / "trace.wpt"
    output = CaptureOutput(path, ABOUT)
    take = output.raw(obj, RECORDS, ["other", "sda"], CGROUPS.__getitem__)
    output.start(START)
    begin = START_NS
    for at, values in enumerate(MANY):
        end = begin + at * 1_000_000_000
        take(memoryview(entry(obj, at + 1, start_ns=end - at - 1, end_ns=end, **values)))
        output.interval(report("interval", [at + 1], end + wall_offset_ns() + 1000))
    output.summary(report("summary", [1, 2, 3, 4], end + wall_offset_ns() + 1000, 4_000_000_000))
    output.close()
    return path


# The start is in the past, even on a machine that has just booted.
START_NS = 1_000_000_000


def reported(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[list[int], dict[str, Any]]:
    """Return the time of each event, and the summary."""
    _, *singles, summary = replayed(path, capsys, *options)
    return [one["total_ns"] for one in singles], summary


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--pid=7"], [1, 2]),
        (["--tid=8"], [1, 2, 3, 4]),
        (["--comm=dd"], [3, 4]),
        (["--cgroup=/a"], [1, 2]),
        (["--cgroup=/a/b/"], [2]),
        (["--cgroup=a"], [1, 2]),
        (["--file=/srv/db/log"], [1]),
        (["--dir=/srv/db"], [1, 2]),
        (["--dir=/srv/"], [1, 2, 3]),
        (["--pid=7", "--dir=/srv", "--cgroup=/a/b"], [2]),
        (["--pid=1"], []),
    ],
)
def test_single_ones_answer(
    options: list[str], expected: list[int], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    singles, summary = reported(file, capsys, *options)
    assert singles == expected
    rows = totals(summary)
    assert sum(row["count"] for row in rows) == summary["operations"]["finished"] == len(expected)
    assert sum(row["sum_ns"] for row in rows) == sum(expected)
    # Without stories less of each event is decoded.
    assert reported(file, capsys, *options, "--summary") == ([], summary)


def test_a_name_of_a_thread_is_as_long_as_the_kernel_keeps_it() -> None:
    (comm,) = [one for one in QUESTIONS if one.name == "comm"]
    for found in ("longer-than-fif", Task("longer-than-fif", 7), Comm("longer-than-fif")):
        assert comm.holds(found, "longer-than-fifteen")
        assert comm.holds(found, "longer-than-fif")
        assert not comm.holds(found, "longer-than-fi")


def test_rows_answer_where_their_labels_do(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    singles, summary = reported(file, capsys, "--op=read", "--dev=/dev/sda")
    assert (singles, summary["operations"]["finished"]) == ([1, 2, 3], 4)
    assert reported(file, capsys, "--op=write")[0] == [4]
    singles, summary = reported(file, capsys, "--dev=sdb")
    assert (singles, summary["rows"], summary["operations"]["finished"]) == ([], [], 0)


def test_single_ones_that_took_long(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    singles, summary = reported(file, capsys, "--slow=3ns")
    assert (singles, summary["operations"]["finished"]) == ([3, 4], 4)


def ended() -> list[int]:
    """Return when each operation ended."""
    first = START_NS + wall_offset_ns()
    return [first + place * 1_000_000_000 for place in range(4)]


def moment(ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(ns // 10**9)) + f".{ns % 10**9:09d}"


def test_a_part_of_the_time(obj: BpfObject, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = reported(file, capsys)[1]
    at = ended()
    singles, summary = reported(
        file, capsys, f"--since={moment(at[1] - 500_000_000)}", f"--until={moment(at[2] + 500_000_000)}"
    )
    assert singles == [2, 3]
    assert (summary["operations"]["finished"], summary["duration_ns"]) == (2, 2_000_000_000)
    assert sum(row["sum_ns"] for row in totals(summary)) == 5
    everything = reported(file, capsys, f"--since={moment(at[0] - 10**9)}")[1]
    assert everything["rows"] == whole["rows"]
    assert everything["operations"] == whole["operations"]


def test_a_part_of_the_time_is_as_long_where_events_answer(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rates used to be those of the time between the first event and the last one."""
    at = ended()
    since, until = at[1] - 500_000_000, at[2] + 500_000_000
    singles, summary = reported(file, capsys, "--comm=fio", f"--since={moment(since)}", f"--until={moment(until)}")
    assert singles == [2]
    assert (summary["ts_ns"], summary["duration_ns"]) == (until, 2_000_000_000)
    whole = reported(file, capsys)[1]
    # Only as much of it as was recorded.
    end = whole["ts_ns"]
    later = reported(file, capsys, "--pid=9", f"--since={moment(since)}", f"--until={moment(end + 10**9)}")[1]
    assert (later["ts_ns"], later["duration_ns"]) == (end, end - since)
    earlier = reported(file, capsys, "--pid=7", f"--since={moment(at[0] - 10**10)}", f"--until={moment(until)}")[1]
    assert (earlier["ts_ns"], earlier["duration_ns"]) == (until, until - (end - whole["duration_ns"]))


@pytest.mark.parametrize("options", [[], ["--comm=fio"], ["--json"], ["--json", "--pid=7"]], ids=" ".join)
def test_a_time_that_the_capture_does_not_have(
    options: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It used to end as if all was well, without a summary."""
    at = ended()
    for chosen in (f"--since={moment(at[3] + 10**10)}", f"--until={moment(at[0] - 10**10)}"):
        with pytest.raises(WptraceError, match="has no interval in that time") as found:
            main(["replay", str(file), chosen, *options])
        assert found.value.exit_code == 1
        goes = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ns // 10**9)) for ns in (at[3] - 4 * 10**9, at[3])]
        assert found.value.hint == f"it goes from {goes[0]} to {goes[1]}"
    assert "summary" not in capsys.readouterr().out


def test_events_of_a_time_in_which_no_interval_ends(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ended()
    options = [f"--since={moment(at[1] - 10**8)}", f"--until={moment(at[1] + 500)}"]
    assert [one["kind"] for one in replayed(file, capsys, *options)] == ["start", "operation"]
    with pytest.raises(WptraceError, match="has no interval in that time"):
        main(["replay", str(file), "--summary", *options])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by=call"], "--by call cannot be answered: the capture was made without --by"),
        (["--neighbours"], "--neighbours cannot be answered: the capture was made without --neighbours"),
        (["--folded=time"], "--folded needs a capture of wptrace stacks"),
        (["--folded=time", "--json"], "--folded and --json cannot be used together: choose one"),
        (["--folded=time", "--line"], "--folded and --line cannot be used together: choose one"),
        (["--folded=count", "--csv"], "--folded and --csv cannot be used together: choose one"),
        (["--folded=time", "--hist=total"], "--folded and --hist cannot be used together: choose one"),
        (["--exact"], "--exact needs a capture of wptrace size"),
        (["--hist=nothing"], "there is no stage nothing"),
        (["--pid=7", "-p8"], "--pid takes one value, not both 7 and 8"),
        (["--comm=fio", "--comm=dd"], "--comm takes one value, not both fio and dd"),
        (["--file=/a", "--file=/b"], "--file takes one value, not both /a and /b"),
        (["--since=1s", "--since=2s"], "--since takes one value, not both 1s and 2s"),
        (["--pid=x"], "--pid takes a number, not 'x'"),
        (["--since=yesterday"], "--since takes a time such as 14:03:05, 'yesterday 14:00' or 30s, not 'yesterday'"),
        (["--since=25:00"], "--since takes a time such as 14:03:05, 'yesterday 14:00' or 30s, not '25:00'"),
        (["--since=5s", "--until=2s"], "--since 5s is later than --until 2s"),
        (["--until=2999-01-01 00:00"], "--until 2999-01-01 00:00 is in the future: the capture begins "),
        (["--cpu=1"], "--cpu cannot be answered: events of this capture do not have it"),
    ],
)
def test_what_a_capture_cannot_answer(options: list[str], sentence: str, file: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        main(["replay", str(file), *options])


def test_other_owners_are_named() -> None:
    with pytest.raises(UsageError, match="--by call cannot be answered: the capture was made without --by") as caught:
        main(["replay", str(Path(__file__).parents[3] / "docs" / "captures" / "old-kernel.wpt"), "--by=call"])
    assert caught.value.hint == "from its events, --by can be process, thread, comm, cgroup, file, dir, device"


def test_several_operations_are_asked_for(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one used to replace the others silently."""
    counts = {}
    for ops in (["read"], ["write"], ["read", "write"]):
        start, *_, summary = replayed(file, capsys, *(f"--op={op}" for op in ops))
        assert start["filters"].get("ops", [start["filters"].get("op")]) == ops
        assert {row["op"] for row in summary["rows"]} <= set(ops)
        counts[tuple(ops)] = len(summary["rows"])
    assert counts["read", "write"] == counts["read",] + counts["write",]


def test_what_rows_alone_cannot_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "size.wpt"
    output = CaptureOutput(path, About("sizes"))
    output.start(START._replace(flow="size", level="", kinds=[SIZES]))
    group = SIZES.group("sda", "read")
    sizes = {"sequential": Tally({4096: 3}), "random": Tally({512: 1}), "total": Tally({4096: 3, 512: 1})}
    books = {REQUESTS: Book.read(4, 4, {}, {})}
    rows = arranged({group: sizes}, [SIZES])
    output.summary(Report("summary", 1, 1, books, rows, {group: {"bytes": 12800}}, Overhead(0, 0, 0, 0, 0, 0)))
    output.close()
    _, summary = reported(path, capsys)
    assert [row.get("counts") for row in summary["rows"]] == [{"4096": 3}, {"512": 1}, {"512": 1, "4096": 3}]
    assert reported(path, capsys, "--dev=sda", "--op=read")[1]["rows"] == summary["rows"]
    with pytest.raises(UsageError, match="--pid cannot be answered: rows of this capture do not have it, and there"):
        main(["replay", str(path), "--pid=1"])


@pytest.fixture
def rows_by_process(tmp_path: Path) -> Path:
    """A capture of `wptrace io --by process` with two processes and no events."""
    operations, hits, requests = owners.KINDS["process"]
    mine, other = Task("fio", 7), Task("dd", 9)
    cells = {
        OPERATION.group("sda", "read"): {"fs": distribution([1, 1, 5]), "total": distribution([10, 20, 90])},
        REQUEST.group("sda", "read"): {"device": distribution([4, 5, 6]), "total": distribution([4, 5, 6])},
        operations.group("sda", "read", mine): {"total": distribution([10, 20])},
        operations.group("sda", "read", other): {"total": distribution([90])},
        hits.group("sda", "read", mine): {"total": distribution([3])},
        requests.group("sda", "read", mine): {"under_way": distribution([4, 5]), "total": distribution([4, 5])},
    }
    counters = {group: {BYTES: 4096} for group in cells}
    kinds = [*KINDS, operations, hits, requests]
    books = {REQUESTS: Book.read(3, 3, {}, {}), OPERATIONS: Book.read(4, 4, {}, {})}
    whole = Report("summary", 2, 10**9, books, arranged(cells, kinds), counters, Overhead(0, 0, 0, 0, 0, 0))
    output = CaptureOutput(tmp_path / "rows.wpt", ABOUT._replace(each=False))
    output.start(START._replace(filters={"by": "process"}, kinds=kinds))
    output.interval(whole._replace(kind="interval"))
    output.summary(whole)
    output.close()
    return tmp_path / "rows.wpt"


@pytest.mark.parametrize("selected", ["--comm=fio", "--pid=7"])
def test_rows_by_owner_answer_for_those_without_owners(
    selected: str, rows_by_process: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This ended in a traceback: the verdict had no rule for rows by owner alone."""
    found = replayed(rows_by_process, capsys, selected)
    summary = found[-1]
    counts = [(row["kind"], row["count"], row["sum_ns"]) for row in totals(summary)]
    assert counts[:3] == [("operation", 2, 30), ("hit", 1, 3), ("request", 2, 9)]
    assert (summary["operations"]["finished"], summary["requests"]["finished"]) == (3, 2)
    # In which stage the time was is not known.
    assert "verdict" not in summary
    for form in ("html", "json"):
        assert main(["replay", str(rows_by_process), selected, "--to", form, "-o", str(tmp_path / form)]) == 0
    capsys.readouterr()
    assert main(["replay", str(rows_by_process), selected]) == 0
    shown = capsys.readouterr().out
    assert "2 operations (0 in flight), 1 page-cache hit, 2 requests (0 in flight), 4 KiB" in shown
    assert "verdict" not in shown


def test_rows_without_owners_are_not_counted_twice(rows_by_process: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = replayed(rows_by_process, capsys, "--op=read")[-1]
    assert (summary["operations"]["finished"], summary["requests"]["finished"]) == (3, 3)
    assert summary["verdict"]["findings"][0]["stage"] == "fs"


@pytest.mark.parametrize(("labels", "row"), [(("disk",), "sda"), (("disk", "op"), None)])
def test_rows_of_a_definition_are_by_its_labels(
    labels: tuple[str, ...], row: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = Kind("object", Noun("wait"), [Label(name, "text") for name in labels], [REQUEST.stages[0]], nested=True)
    cells = {waits.group(*["sda"] * len(labels)): {TOTAL: distribution([5])}}
    books = {REQUESTS: Book.read(1, 1, {}, {})}
    whole = Report("summary", 2, 10**9, books, arranged(cells, [waits]), {}, Overhead(0, 0, 0, 0, 0, 0))
    output = CaptureOutput(tmp_path / "flow.wpt", ABOUT._replace(view="objects", each=False))
    output.start(START._replace(filters={}, kinds=[waits]))
    output.interval(whole._replace(kind="interval"))
    output.summary(whole)
    output.close()
    if row is not None:
        found = replayed(tmp_path / "flow.wpt", capsys, "--by=disk")[-1]
        assert [one["labels"] for one in found["rows"]] == [{"disk": row}]
        return
    with pytest.raises(UsageError, match="--by disk cannot be answered: its rows are by disk and op"):
        main(["replay", str(tmp_path / "flow.wpt"), "--by=disk"])


def test_rows_by_process_do_not_know_threads(rows_by_process: Path) -> None:
    with pytest.raises(UsageError, match="--tid cannot be answered: rows of this capture do not have it"):
        main(["replay", str(rows_by_process), "--tid=7"])


@pytest.mark.parametrize(
    ("by", "row", "of_events"), [("process", Task("fio", 7), True), ("thread", Task("fio", 7, 8), False)]
)
def test_waits_for_a_cpu_answer_where_rows_are_of_processes(
    by: str, row: Task, of_events: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows by process answered with no turns at all, beside the waits of the thread."""
    path = tmp_path / "cpu.wpt"
    turn, wait = cpu.KINDS[by]
    output = CaptureOutput(path, About("turns", [turn]))
    output.start(START._replace(flow="cpu", level="", filters={"by": by}, kinds=[turn]))
    for tid, took in ((8, 5), (9, 6), (8, 7)):
        fields = {"comm": "fio", "pid": 7, "tid": tid, "cpu": 0, "sleep_ns": 0}
        whose = row if tid == 8 or by == "process" else row._replace(tid=tid)
        output.event(Event(wait.group(whose), took, took, {"wait": took}, fields))
    cells = {turn.group(row): {name: distribution([1, 2, 3]) for name in ("wait", "run", "total")}}
    books = {REQUESTS: Book.read(3, 3, {}, {})}
    output.summary(Report("summary", 9, 9, books, arranged(cells, [turn]), {}, Overhead(0, 0, 0, 0, 0, 0)))
    output.close()
    singles, summary = reported(path, capsys, "--tid=8")
    assert singles == [5, 7]
    (total,) = totals(summary)
    assert (total["kind"], total["count"]) == (("wait", 2) if of_events else ("request", 3))
    assert summary["requests"]["finished"] == total["count"]
    assert ("verdict" in summary) is not of_events
    assert main(["replay", str(path), "--tid=8", "--summary", "--hist=run"]) == 0
    shown = capsys.readouterr().out
    assert ("2 waits in 9 ns" if of_events else "3 turns in 9 ns") in shown
    assert ("verdict" in shown) is not of_events


def test_figures_that_are_not_of_each_are_said_to_be(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(obj, tmp_path / "trace.wpt")
    assert main(["replay", str(path), "--pid=7", "--summary"]) == 0
    assert "note: figures are those of the events of the capture" in capsys.readouterr().err


def test_a_slot_may_become_that_of_another_device(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier records keep the name of the earlier device, even if they were not written yet."""
    names = ["other", "sda", ""]

    def entries() -> Iterator[bytes]:
        for number, (slot, name) in enumerate([(1, "sda"), (2, "sdb"), (1, "sdb"), (1, "sdc"), (2, "sdb")]):
            names[slot if name != "sdb" else 2] = name
            yield entry(obj, number + 1, slot=slot)

    path = keep(obj, tmp_path / "trace.wpt", entries(), report("summary", range(1, 6), 1), names=names)
    _, *singles, _ = replayed(path, capsys)
    assert [one["dev"] for one in singles] == ["sda", "sdb", "sda", "sdc", "sdb"]
