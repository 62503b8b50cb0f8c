# SPDX-License-Identifier: Apache-2.0
"""The waits of a stage, from the cells and counters of an interval."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.analysis.test_verdict import MS, SECOND, case, cell, judge
from tests.unit.outputs.samples import distribution
from wptrace.analysis import verdict, waits
from wptrace.analysis.verdict import Case
from wptrace.analysis.waits import ASLEEP, COUNT, LIMIT, MACHINE, NS, RATE, RUNNING, SHORTER, WAIT, WAITS, WORK, Share
from wptrace.flows.io import rules
from wptrace.flows.io.kinds import OPERATION, REQUEST, SLEEP
from wptrace.flows.io.options import CGROUP
from wptrace.flows.io.parts.owners import KINDS
from wptrace.flows.io.parts.waits import owned
from wptrace.flows.io.wait_reasons import BY_NAME
from wptrace.model.kind import ALL
from wptrace.model.report import BYTES, Row
from wptrace.outputs.text import owners, stages, tables
from wptrace.outputs.text import verdict as words

WRITE = OPERATION.group("sda", "write")
CGROUPS = KINDS[CGROUP]


def waiting(
    stage: str, reasons: Mapping[str, tuple[int, int]], asleep_ns: int | None = None, dev: str = "sda", **stages: int
) -> Case:
    """Make a case of ten equal writes; for each reason, `reasons` has how many waited and for how long."""
    found = case(
        {
            OPERATION.group(dev, "write"): cell(10, **stages),
            **{
                WAIT.group(dev, "write", stage, name): {"total": distribution([ns] * count)}
                for name, (count, ns) in reasons.items()
            },
        }
    )
    counters = {WAITS.group(dev, "write", stage, name): {COUNT: 2 * count} for name, (count, _) in reasons.items()}
    if asleep_ns is not None:
        counters[ASLEEP.group(dev, "write", stage)] = {NS: asleep_ns}
    return Case(found.report._replace(counters=counters), found.kinds)


LOCKED = waiting("fs", {"journal commit": (2, 5 * MS), "lock of the file": (8, 8 * MS)}, 80 * MS, fs=10 * MS, device=MS)


def test_a_stage_is_its_waits_the_longest_first_and_the_time_on_the_cpu() -> None:
    (made,) = waits.of(LOCKED.report)[WRITE.values]
    assert (made.stage, made.whole_ns) == ("fs", 100 * MS)
    assert made.reasons == (
        Share("lock of the file", 64 * MS, 0.64, 8, 16),
        Share("journal commit", 10 * MS, 0.1, 2, 4),
    )
    assert (made.shorter_ns, made.running_ns) == (6 * MS, 20 * MS)
    assert made.parts == [("lock of the file", 0.64), (RUNNING, 0.2), ("journal commit", 0.1), (SHORTER, 0.06)]


@pytest.mark.parametrize(("wait_ns", "asleep_ns"), [(15 * MS, 90 * MS), (2 * MS, 150 * MS), (15 * MS, None)])
def test_no_share_is_above_all_where_waits_are_newer(wait_ns: int, asleep_ns: int | None) -> None:
    found = waiting("fs", {"memory": (10, wait_ns)}, asleep_ns, fs=10 * MS)
    (made,) = waits.of(found.report)[WRITE.values]
    assert sum(share for _, share in made.parts) <= 1
    (row,) = (one for one in found.report.rows if one.group.kind is WAIT)
    assert waits.of_row(found.report, row)["share"] <= 1


def test_without_how_long_tasks_slept_nothing_is_said_of_the_cpu() -> None:
    """No task runs in the dirty limit."""
    (made,) = waits.of(waiting("dirty_limit", {"dirty limit": (2, 5 * MS)}, dirty_limit=2 * MS).report)[WRITE.values]
    assert (made.shorter_ns, made.running_ns) == (None, None)
    assert made.parts == [("dirty limit", 0.5)]


def test_waits_of_all_devices_are_added_up() -> None:
    one, other = LOCKED.report, waiting("fs", {"memory": (1, 9 * MS)}, 9 * MS, dev="sdb", fs=MS).report
    both = one._replace(cells={**one.cells, **other.cells}, counters={**one.counters, **other.counters}).everywhere()
    (made,) = waits.of(both)[ALL, "write"]
    assert [(share.reason, share.ns) for share in made.reasons] == [
        ("lock of the file", 64 * MS),
        ("journal commit", 10 * MS),
        ("memory", 9 * MS),
    ]
    assert made.whole_ns == 110 * MS


def asleep(late_ns: int) -> Case:
    """Ten tasks slept as long as their requests took, and ran this much later."""
    rows = {
        REQUEST.group("sda", "read"): cell(10, device=10 * MS),
        SLEEP.group("sda", "read"): cell(10, asleep=10 * MS, wakeup=late_ns),
        WAIT.group("sda", "read", "asleep", "direct I/O"): {"total": distribution([10 * MS] * 6)},
    }
    return Case(case(rows).report, (REQUEST,))


def test_sleeps_of_tasks_are_made_of_reasons_and_nothing_ran_meanwhile() -> None:
    (made,) = waits.of(asleep(MS).report)["sda", "read"]
    assert (made.stage, made.shorter_ns, made.running_ns) == ("asleep", 40 * MS, 0)
    assert made.parts == [("direct I/O", 0.6), (SHORTER, 0.4)]
    row = Row(WAIT.group("sda", "read", "asleep", "direct I/O"), "total", distribution([10 * MS] * 6), 1.0)
    assert waits.of_row(asleep(MS).report, row) == {"waits": 0, "share": 0.6}


def test_tasks_that_ran_late_are_in_the_verdict() -> None:
    found = verdict.judge(asleep(10 * MS), rules.path())
    (woken,) = (one for one in found.findings if one.rule == "woken")
    assert (woken.stage, woken.figures["share"], woken.figures["mean_ns"]) == ("wakeup", 0.5, 10 * MS)
    lines = list(words.lines(found, dates=False))
    assert "also: tasks that slept for read requests ran 10.0 ms after these were complete" in "\n".join(lines)
    assert not any(one.rule == "woken" for one in verdict.judge(asleep(MS), rules.path()).findings)


def test_nothing_is_said_of_stages_in_which_nobody_slept() -> None:
    assert waits.of(case({WRITE: cell(10, fs=MS)}).report) == {}


def test_samples_of_work_without_a_time_have_no_share() -> None:
    """A capture may have any figures."""
    rows = {WRITE: cell(10, fs=MS), WORK.group("sda", "write", "fs", "copying"): {"total": distribution([0])}}
    (made,) = waits.of(case(rows, kinds=(OPERATION, WORK)).report)[WRITE.values]
    assert made.work == (("copying", 0.0),)


def test_a_table_has_them_below_its_stages() -> None:
    lines = tables.stages(LOCKED.report, OPERATION, tables.Style(200, False))
    assert lines[-1] == (
        "  of fs: 64.0% lock of the file (16), 20.0% on the CPU, 10.0% journal commit (4), 6.0% shorter waits"
    )
    narrow = tables.stages(LOCKED.report, OPERATION, tables.Style(60, False))
    assert [line for line in narrow if "%" in line and "lock" in line] == [
        "  of fs: 64.0% lock of the file (16), 20.0% on the CPU,"
    ]


def test_the_verdict_names_them_and_advises_for_the_largest() -> None:
    first = judge(LOCKED).findings[0]
    assert first.stage == "fs"
    assert first.parts[0] == ("lock of the file", 0.64)
    assert first.advice == BY_NAME["lock of the file"].advice
    (line, look) = list(words.lines(judge(LOCKED), False))[:2]
    assert line.endswith(": 64% lock of the file, 20% on the CPU, 10% journal commit")
    assert look == f"look at: {first.advice}"


def test_the_verdict_says_whether_it_is_work() -> None:
    found = judge(waiting("fs", {}, 10 * MS, fs=10 * MS)).findings[0]
    assert found.parts == [(RUNNING, 0.9), (SHORTER, 0.1)]
    assert "perf" in found.advice


def test_the_verdict_names_whose_waits_they_are() -> None:
    kind = owned(CGROUPS[0].labels[-1])
    values = ("sda", "write", "fs", "lock of the file")

    def said(**times: int) -> str:
        rows = {kind.group(*values, f"/{who}"): {"total": distribution([ns])} for who, ns in times.items()}
        report = LOCKED.report._replace(cells={**LOCKED.report.cells, **rows})
        return next(iter(words.lines(judge(Case(report, LOCKED.kinds)), False)))

    assert said(app=60 * MS, batch=4 * MS).endswith(
        ": 64% lock of the file, 20% on the CPU, 10% journal commit, most of it of /app"
    )
    assert "/app" not in said(app=3 * MS, batch=3 * MS, other=3 * MS)


def test_a_table_by_owner_has_the_reason_and_the_stage() -> None:
    kind = owned(CGROUPS[0].labels[-1])
    group = kind.group(ALL, "write", "fs", "lock of the file", "/app")
    report = LOCKED.report._replace(cells={group: {"total": distribution([MS] * 3)}})
    title, line = owners.lines(report, kind, tables.Style(100, False), "cgroup")
    assert title.split() == ["waits", "by", "cgroup", "op", "count", "stage", "mean", "p99", "share"]
    assert " ".join(line.split()) == "app /app: lock of the file write 3 fs 1.00 ms 1.00 ms 100.0%"


def test_stacks_are_shown_where_they_are_asked_for() -> None:
    one = {"dev": "sda", "op": "write", "in_stage": "fs", "reason": "memory", "waits": 1200, "sum_ns": 5 * MS}
    stack = {"stack": ["shrink_node\x1b", "vfs_write"]}
    found = [{**one, **stack}, {**one, **stack, "waits": 1, "owner": "/app\x1b"}]
    assert list(stages.wait_stacks(LOCKED.report._replace(lists={"wait_stacks": found}), 80)) == [
        "",
        "sda write fs: memory, 1,200 times, 5.00 ms",
        "    shrink_node\\x1b <- vfs_write",
        "",
        "sda write fs: memory, once, 5.00 ms of /app\\x1b",
        "    shrink_node\\x1b <- vfs_write",
    ]


def limited(limit: int, machine: int) -> str:
    found = waiting("dirty_limit", {"dirty limit": (10, 9 * MS)}, fs=MS, dirty_limit=9 * MS)
    counters = {
        **found.report.counters,
        WAITS.group("sda", "write", "dirty_limit", "dirty limit"): {
            COUNT: 20, LIMIT: 20 * limit, RATE: 20 << 20, MACHINE: 20 * machine,
        },
        REQUEST.group("sda", "write"): {BYTES: 8 << 20},
    }  # fmt: skip
    return next(iter(words.lines(judge(Case(found.report._replace(counters=counters), found.kinds)), False)))


def test_the_verdict_says_whose_the_dirty_limit_is() -> None:
    assert limited(4 << 20, 4 << 20).endswith(": the machine may have 4 MiB dirty, and 8 MiB/s go to the disk")
    assert limited(12 << 20, 400 << 20).endswith(": its cgroup may have 12 MiB dirty, and 8 MiB/s go to the disk")


def test_rows_in_json_say_how_often_and_of_which_share() -> None:
    report, group = LOCKED.report, WAIT.group("sda", "write", "fs", "lock of the file")
    row = Row(group, "total", report.cells[group]["total"], 1.0)
    assert waits.of_row(report, row) == {"waits": 16, "share": 0.64}
    stage = Row(WRITE, "fs", report.cells[WRITE]["fs"], 1.0)
    assert waits.of_row(report, stage) == {"asleep_ns": 80 * MS}
    assert waits.of_row(report, stage._replace(metric="device")) == {}
    assert report.duration_ns == SECOND
