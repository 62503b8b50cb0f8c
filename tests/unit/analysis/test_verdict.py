# SPDX-License-Identifier: Apache-2.0
"""Each rule of the verdict: when it applies and when not, with which figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.unit.outputs.samples import OVERHEAD, distribution
from wptrace.analysis import neighbours, verdict
from wptrace.analysis.history import Stretch, Sums
from wptrace.analysis.neighbours import HAD, MEANWHILE, NS, WAITED
from wptrace.analysis.verdict import TIMED, Case
from wptrace.analysis.waits import WAIT
from wptrace.flows.io import options
from wptrace.flows.io import rules as io_rules
from wptrace.flows.io.kinds import HIT, LAYER, OPERATION, REQUEST, SLEEP, UNREAD
from wptrace.flows.io.parts import owners as io_owners
from wptrace.model import kind
from wptrace.model.book import STATE_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import ALL, CPU, Group, Kind, Label, Noun, Point, Stage
from wptrace.model.report import Event, Finding, Report, Verdict, arranged

MS = 1_000_000
SECOND = 1000 * MS
READ, WRITE = OPERATION.group("sda", "read"), OPERATION.group("sda", "write")
REQUESTS = REQUEST.group("sda", "read")
HITS = HIT.group("sda", "read")
RULES = io_rules.path()
Cells = Mapping[Group, Mapping[str, Distribution]]
KINDS = (OPERATION, HIT, LAYER, REQUEST, SLEEP, WAIT, *io_owners.KINDS[options.COMM])


def cell(times: int = 1, **stages: int) -> dict[str, Distribution]:
    """Make cells of this many equal objects."""
    whole = sum(value for name, value in stages.items() if name != "preempted")
    return {name: distribution([value] * times) for name, value in {**stages, "total": whole}.items()}


def book(started: int = 0, lost: int = 0) -> Book:
    return Book.read(started, 0, {STATE_FULL: lost}, {})


def case(
    cells: Cells,
    duration_ns: int = SECOND,
    requests: Book | None = None,
    operations: Book | None = None,
    counters: Mapping[Group, Mapping[str, int]] | None = None,
    kinds: Sequence[Kind] = KINDS,
    **more: Any,
) -> Case:
    books = {kind.REQUESTS: requests or book(), **({} if operations is None else {kind.OPERATIONS: operations})}
    report = Report("summary", 0, duration_ns, books, arranged(cells, kinds), counters or {}, OVERHEAD)
    return Case(report, (OPERATION, REQUEST), **more)


def in_the_way(found: Case, rule: str, tasks: Mapping[str, int]) -> Case:
    """Return the case with these tasks in the way, by time."""
    counters = {io_rules.IN_THE_WAY.group(rule, who): {NS: ns} for who, ns in tasks.items()}
    return found._replace(report=found.report._replace(counters={**found.report.counters, **counters}))


def judge(found: Case, behind: Mapping[str, int] | None = None) -> Verdict:
    return verdict.judge(in_the_way(found, "behind", behind or {}), io_rules.path())


def rules(found: Case, behind: Mapping[str, int] | None = None) -> list[str]:
    return [finding.rule for finding in judge(found, behind).findings]


def finding(rule: Any, cells: Cells | Case, **more: Any) -> Finding:
    found = rule(cells if isinstance(cells, Case) else case(cells, **more))
    assert isinstance(found, Finding)
    assert found.rule == rule.__name__
    return found


# --- The first rule that applies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        ({}, "idle"),
        ({READ: cell(0, device=5)}, "idle"),
        ({HITS: cell(9)}, "cached"),
        ({HITS: cell(9), REQUESTS: cell(2, device=5)}, "largest"),
        ({REQUESTS: cell(9)}, "unmeasured"),
        ({REQUESTS: cell(9, device=0)}, "unmeasured"),
        ({LAYER.group("dm-0", "read"): cell(9, device=5)}, "idle"),
        ({READ: cell(2, device=5)}, "largest"),
    ],
)
def test_every_case_has_one_first_finding(cells: Cells, rule: str) -> None:
    assert [one for one in rules(case(cells)) if one in {rule.__name__ for rule in RULES.first}] == [rule]


def test_idle_tells_what_is_in_flight() -> None:
    assert finding(verdict.idle, {}, requests=book(4)).figures == {"in_flight": 4}
    both = {"in_flight": 7, "requests_in_flight": 4, "operations_in_flight": 3}
    assert finding(verdict.idle, {}, requests=book(4), operations=book(3)).figures == both
    assert judge(case({})).advice == io_rules._ADVICE["idle"]


@pytest.mark.parametrize("rules_of", [io_rules.path(children=(7,)), io_rules.BLOCK])
def test_what_hangs_is_not_left_out_by_filters(rules_of: verdict.Rules) -> None:
    found = verdict.judge(case({}, requests=book(4)), rules_of)
    assert "--stuck 5s" in found.advice
    assert found.findings[0].figures["in_flight"] == 4


def test_hits_do_not_hide_what_hangs() -> None:
    def advice(requests: int, operations: int) -> str:
        return judge(case({HITS: cell(9)}, requests=book(requests), operations=book(operations))).advice

    assert "--stuck 5s" in advice(1, 1)
    # A hit as well may be in flight at the end.
    assert advice(0, 1) == io_rules._ADVICE["cached"]


def test_cached_is_about_the_hits_that_took_the_most_time() -> None:
    found = finding(io_rules.cached, {HITS: {"total": distribution([2000] * 9)}, HIT.group("sda", "write"): cell(99)})
    assert found.group == HITS.everywhere
    assert found.figures == {"count": 9, "mean_ns": 2000.0, "p99_ns": 2000, "in_flight": 0}
    assert judge(case({HITS: cell(9)})).advice == io_rules._ADVICE["cached"]


def test_largest_is_the_largest_stage_of_the_heaviest_operations() -> None:
    cells = {
        READ: cell(10, fs=1, queue=9 * MS, device=MS),
        WRITE: cell(1, queue=20 * MS, device=70 * MS),
        # Requests have more time, but tasks wait for operations.
        REQUESTS: cell(100, queue=20 * MS, device=70 * MS),
    }
    found = finding(verdict.largest, cells)
    assert (found.stage, found.group) == ("queue", READ)
    assert found.figures["share"] == pytest.approx(0.9)
    assert (found.figures["mean_ns"], found.figures["p99_ns"]) == (9 * MS, 9 * MS)
    assert judge(case(cells)).stage == "queue"
    assert judge(case(cells)).advice.startswith("the I/O scheduler (queue/scheduler)")


def test_no_share_is_above_all_or_of_nothing() -> None:
    """A cell that is read while its CPU writes it may have a stage newer than its total."""
    for stages in ({"device": 7}, {}):
        torn = {READ: {**cell(2), **cell(2, **stages), "total": distribution([0, 0])}}
        assert [one.figures["share"] for one in judge(case(torn)).findings if "share" in one.figures] == [1.0] * len(
            stages
        )
    asleep = SLEEP.group("sda", "read")
    assert rules(case({REQUESTS: cell(9, device=5), asleep: cell(9, asleep=0, wakeup=0)})) == ["largest"]
    newer = {**cell(2, device=5), "preempted": distribution([9, 9])}
    assert finding(verdict.inside, {READ: newer}).figures["share"] == 1
    late = {**cell(2, wakeup=9), "total": distribution([5, 5])}
    assert finding(io_rules.woken, {REQUESTS: cell(9, device=5), asleep: late}).figures["share"] == 1


def test_without_operations_it_is_about_requests() -> None:
    found = finding(verdict.largest, {REQUESTS: cell(10, queue=MS, device=3 * MS), HITS: cell(99)})
    assert (found.stage, found.group) == ("device", REQUESTS)


def test_time_that_no_stage_covers_can_be_the_largest() -> None:
    cells = cell(10, device=MS)
    found = finding(verdict.largest, {READ: {**cells, "unattributed": distribution([9 * MS] * 10)}})
    assert found.stage == "unattributed"


def test_interference_is_never_the_largest_stage() -> None:
    assert finding(verdict.largest, {READ: cell(10, device=MS, preempted=9 * MS)}).stage == "device"


@pytest.mark.parametrize(
    ("times", "dev", "share"),
    [((9, 1), "sda", 0.9), ((1, 1), "sda", 0.5), ((1, 3), "sdb", 0.75), ((1, 1, 1), "", 0.0)],
)
def test_a_device_is_named_where_most_of_it_happened(times: tuple[int, ...], dev: str, share: float) -> None:
    names = ("sda", "sdb", "sdc")
    found = finding(
        verdict.largest, {OPERATION.group(name, "read"): cell(n, device=MS) for name, n in zip(names, times)}
    )
    assert found.group == OPERATION.group(dev or ALL, "read")
    assert found.figures["dev_share"] == pytest.approx(share)


def test_queue_depth_is_that_of_all_requests_by_littles_law() -> None:
    """31 requests of 10 ms in every 10 ms."""
    cells = {REQUESTS: cell(3000, device=10 * MS), REQUEST.group("sda", "write"): cell(100, device=10 * MS)}
    assert finding(verdict.largest, cells).figures["queue_depth"] == pytest.approx(31.0)
    assert finding(verdict.largest, cells, duration_ns=0).figures["queue_depth"] == 0.0
    assert finding(verdict.largest, {READ: cell(9, device=MS)}).figures["queue_depth"] == 0.0


# --- Further findings ---------------------------------------------------------------------------------------


def stretches(*means: int, key: Group = READ.everywhere, count: int = 40) -> list[Stretch]:
    one = [Sums(count, mean * count, mean * mean * count) for mean in means]
    return [Stretch(at, at + 1, {key: {"device": sums, "total": sums}}) for at, sums in enumerate(one)]


def test_grew_tells_when_and_by_how_much() -> None:
    found = finding(
        verdict.grew, {READ: cell(9, device=MS)}, stretches=stretches(MS, MS, 4 * MS, MS), wall_offset_ns=1000
    )
    assert (found.stage, found.group) == ("device", READ.everywhere)
    assert found.figures == {"factor": 4.0, "ts_ns": 1003, "duration_ns": 1, "mean_ns": 4 * MS, "rest_mean_ns": MS}


def test_growth_is_looked_for_in_what_the_verdict_is_about() -> None:
    other = stretches(MS, MS, 4 * MS, MS, key=REQUESTS.everywhere)
    assert verdict.grew(case({READ: cell(9, device=MS)}, stretches=other)) is None
    assert verdict.grew(case({REQUESTS: cell(9, device=MS)}, stretches=other)) is not None
    assert verdict.grew(case({HITS: cell(9)}, stretches=other)) is None
    assert verdict.grew(case({READ: cell(9, device=MS)})) is None


def tailed(slow: int, count: int = 1000, share: float = 0.02) -> Cells:
    """Make cells of reads of which some are slow in the device; `queue` is the same for all."""
    device = [slow if place < count * share else MS for place in range(count)]
    queue = [4 * MS] * count
    total = [one + other for one, other in zip(device, queue)]
    return {READ: {"queue": distribution(queue), "device": distribution(device), "total": distribution(total)}}


def test_tail_names_the_stage_that_makes_it_though_another_is_larger() -> None:
    cells = tailed(60 * MS)
    found = finding(verdict.tail, cells)
    assert found.stage == "device"
    assert finding(verdict.largest, cells).stage == "queue"
    assert found.figures["ratio"] == pytest.approx(12.8, rel=0.13)
    assert found.figures["p50_ns"] == pytest.approx(5 * MS, rel=0.07)
    assert found.figures["p99_ns"] == pytest.approx(64 * MS, rel=0.07)
    assert found.figures["stage_p99_ns"] == pytest.approx(60 * MS, rel=0.07)


def test_the_shortest_tail_of_the_fewest() -> None:
    took = distribution([1] * (verdict.TAIL_COUNT - 3) + [5] * 3)
    assert finding(verdict.tail, {READ: {"device": took, "total": took}}).figures["ratio"] == 5.0


def test_the_tail_is_made_by_what_grows_most_towards_it() -> None:
    """The queue is slower even in the slowest hundredth, but it always was."""
    slow = [place < 20 for place in range(1000)]
    queue = [60 * MS if one else 10 * MS for one in slow]
    device = [55 * MS if one else 1 for one in slow]
    total = [one + other for one, other in zip(queue, device)]
    stages = {"queue": distribution(queue), "device": distribution(device), "total": distribution(total)}
    assert finding(verdict.tail, {READ: stages}).stage == "device"


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(tailed(15 * MS), id="not so much slower"),
        pytest.param(tailed(60 * MS, share=0.005), id="fewer than one in a hundred"),
        pytest.param(tailed(60 * MS, count=verdict.TAIL_COUNT - 1), id="too few to tell"),
        pytest.param({REQUESTS: {name: distribution([0] * 999 + [5]) for name in ("device", "total")}}, id="no time"),
        pytest.param({READ: cell(999)}, id="no stages"),
        pytest.param({HITS: cell(999)}, id="hits"),
    ],
)
def test_what_is_no_tail(cells: Cells) -> None:
    assert verdict.tail(case(cells)) is None


def with_one(slow: int, count: int = 1000) -> Cells:
    """Make cells of reads of 1 ms, of which a single one was slow."""
    took = [MS] * (count - 1) + [slow]
    return {READ: {"device": distribution(took), "total": distribution(took)}}


def test_a_single_one_that_took_most_of_the_time() -> None:
    found = finding(verdict.outlier, with_one(5 * SECOND))
    assert found.figures.pop("share") == pytest.approx(5000 / 5999)  # type: ignore[attr-defined]
    assert (found.group, found.figures) == (
        READ.everywhere,
        {"max_ns": 5 * SECOND, "count": 1000, "rest_mean_ns": MS},
    )
    assert verdict.outlier(case(with_one(998 * MS))) is None
    assert verdict.outlier(case(with_one(5 * SECOND, count=verdict.OUTLIER_COUNT - 1))) is None
    assert verdict.outlier(case({})) is None
    assert verdict.outlier(case({READ: cell(20)})) is None
    # A maximum that is only a bound accuses nobody.
    bound = with_one(5 * SECOND)
    bound[READ]["total"].exact = False
    assert verdict.outlier(case(bound)) is None


def test_inside_tells_what_took_the_cpu() -> None:
    found = finding(verdict.inside, {READ: cell(10, device=8 * MS, preempted=2 * MS)})
    assert found.stage == "preempted"
    assert found.figures == {"share": 0.25, "sum_ns": 20 * MS}
    assert verdict.inside(case({READ: cell(10, device=100 * MS, preempted=9 * MS)})) is None
    assert verdict.inside(case({READ: cell(10, device=8 * MS)})) is None
    assert verdict.inside(case({HITS: cell(9)})) is None
    assert verdict.inside(case({READ: cell(9, device=0, preempted=0)})) is None


def test_lost_counts_operations_and_requests() -> None:
    assert finding(verdict.lost, {}, requests=book(20, 3)).figures == {"requests": 3, "requests_started": 20}
    both = finding(verdict.lost, {}, requests=book(20), operations=book(9, 1)).figures
    assert both == {"requests": 0, "requests_started": 20, "operations": 1, "operations_started": 9}
    assert verdict.lost(case({}, requests=book(20), operations=book(9))) is None


def test_all_of_them_can_be_reported_together_in_this_order() -> None:
    (stages,) = tailed(60 * MS).values()
    cells = {READ: {**stages, "preempted": distribution([3 * MS] * 1000)}}
    history = stretches(MS, MS, 4 * MS, MS)
    assert rules(case(cells, stretches=history, requests=book(20, 3))) == ["largest", "grew", "tail", "inside", "lost"]


@pytest.mark.parametrize(("waited", "reported"), [(SECOND, True), (SECOND // 2, True), (SECOND // 100, False)])
def test_who_filled_the_commits_of_others(waited: int, reported: bool) -> None:
    """Among the commits that others waited for, name the task that cost most if that is a tenth of all time."""
    found = judge(case({WRITE: cell(10, fs=SECOND // 10)}), {"mv[8]": 5, "cp[7]": waited})
    behind = [finding for finding in found.findings if finding.rule == "behind"]
    assert len(behind) == reported
    for one in behind:
        assert (one.who, one.figures["sum_ns"], one.figures["share"]) == ("cp[7]", waited, waited / SECOND)


def test_each_finding_has_advice_of_its_own() -> None:
    """A tail in `wakeup` gets other advice than one in the device."""
    found = judge(case(tailed(60 * MS)))
    assert {one.rule: one.advice for one in found.findings} == {
        one.rule: OPERATION[one.stage].advice for one in found.findings if one.stage
    }
    assert len({one.advice for one in found.findings}) == 2


def test_a_process_that_does_nothing_may_have_children_that_do() -> None:
    def advice(*children: int) -> str:
        return verdict.judge(case({}), io_rules.path(children=children)).advice

    assert advice(7, 8).startswith("processes that the one of --pid started (pid 7, 8): --children has")
    assert "(pid 1, 2, 3 and 2 more)" in advice(1, 2, 3, 4, 5)
    assert advice() == io_rules._ADVICE["idle"]


def owned(**under_way: int) -> dict[Group, dict[str, Distribution]]:
    requests = io_owners.KINDS[options.COMM][2]
    found = {}
    for who, time in under_way.items():
        owner = who if who in (kind.OTHERS, kind.NOBODY) else kind.Comm(who)
        spent = {"under_way": distribution([time]), "total": distribution([time])}
        found[requests.group("sda", "read", owner)] = spent
    return found


def test_who_had_the_device() -> None:
    found = finding(io_rules.owner, owned(backup=6 * MS, db=MS, others=2 * MS, nobody=MS))
    assert (found.who, found.figures) == ("backup", {"share": 0.6, "owners": 4, "more": 1, "unknown": 0.1})
    # Who has nothing but requests in flight had no time of it yet.
    assert finding(io_rules.owner, owned(backup=6 * MS, db=0)).figures == {"share": 1.0, "owners": 1}
    assert io_rules.owner(case(owned(others=5, nobody=7))) is None
    assert io_rules.owner(case({READ: cell(10, device=MS)})) is None


def test_flushes_of_the_block_layer_are_no_part_of_it() -> None:
    requests = io_owners.KINDS[options.COMM][2]
    cells = owned(backup=6 * MS, db=2 * MS)
    cells[requests.group("sda", "flush", kind.NOBODY)] = {
        "under_way": distribution([90 * MS]),
        "total": distribution([90 * MS]),
    }
    found = finding(io_rules.owner, cells)
    assert (found.who, found.figures) == ("backup", {"share": 0.75, "owners": 2})


def test_of_what_a_filter_leaves_out_nothing_is_said() -> None:
    """The owners are known all the same with --neighbours."""
    (rule,) = [one for one in io_rules.path(filtered=True).more if one.__name__ == "owner"]
    found = finding(rule, owned(backup=3 * MS, db=MS))
    assert (found.who, found.figures) == ("backup", {"share": 0.75, "owners": 2, "filtered": 1})
    assert rule(case(owned(backup=6 * MS))) is None
    assert rule(case({})) is None
    assert finding(rule, contended(38 * MS, 100 * MS, batch=92 * MS)).figures == {"share": 1.0, "owners": 1}


def by_statement(*rows: tuple[int, str, str, object, int, int], by: str = options.STATEMENT) -> Case:
    """Make a case of rows: kind by its index, device, operation, owner, count, and ns of each."""
    kinds = io_owners.KINDS[by]
    cells = {
        kinds[which].group(dev, op, who): cell(times, **({"under_way": ns} if which == 2 else {"total": ns}))
        for which, dev, op, who, times, ns in rows
    }
    counters = {group: {"bytes": 8192 * stages["total"].count} for group, stages in cells.items()}
    return case({READ: cell(9, device=MS), **cells}, counters=counters, kinds=(OPERATION, *kinds))


CHECKPOINTER = kind.Comm("postgres: checkpointer")


def test_the_statement_with_the_most_time() -> None:
    """A process without a statement does not count, however much time it has."""
    rows = by_statement(
        (0, "sda", "sync", CHECKPOINTER, 1, 50 * MS),
        (0, "sda", "read", "select a", 4, 5 * MS),
        (0, "sdb", "read", "select a", 1, 5 * MS),
        (0, "sda", "sync", "select a", 1, 5 * MS),
        (0, "sda", "read", "select b", 10, 2 * MS),
        (1, "sda", "read", "select a", 70, 1000),
        (1, "sda", "read", "select b", 7000, MS),
        (2, "sda", "read", "select a", 3, 2 * MS),
        (2, "sda", "write", CHECKPOINTER, 3, 9 * MS),
    )
    found = finding(io_rules.statement, rows)
    assert (found.who, found.group) == ("select a", READ)
    whole = {"share": 0.3, "sum_ns": 30 * MS, "count": 5, "bytes": 5 * 8192}
    assert found.figures == {**whole, "hits": 70, "device_ns": 6 * MS}


def test_statements_that_had_little() -> None:
    assert io_rules.statement(case({READ: cell(10, device=MS)})) is None
    assert io_rules.statement(case(owned(backup=6 * MS))) is None
    most = [(0, "sda", "sync", who, 1, 50 * MS) for who in (CHECKPOINTER, kind.OTHERS, kind.NOBODY, UNREAD)]
    assert io_rules.statement(by_statement(*most)) is None
    assert io_rules.statement(by_statement(*most, (0, "sda", "read", "select a", 1, 22 * MS))) is None
    assert io_rules.statement(by_statement(*most, (0, "sda", "read", "select a", 1, 23 * MS))) is not None


def test_the_unit_with_the_most_time() -> None:
    rows = [(0, "sda", "read", kind.Comm("no unit"), 1, 9 * MS), (0, "sda", "read", "job", 1, 2 * MS)]
    assert finding(io_rules.unit, by_statement(*rows, by=options.UNIT)).who == "job"
    assert io_rules.statement(by_statement(*rows, by=options.UNIT)) is None
    assert io_rules.unit(by_statement(*rows)) is None


def test_a_statement_that_is_on_many_devices() -> None:
    places = [(0, dev, "read", "select a", 1, MS) for dev in ("sda", "sdb", "sdc")]
    assert finding(io_rules.statement, by_statement(*places)).group == OPERATION.group(ALL, "read")


def contended(waited: int, whole: int, waits: int = 70, **had: int) -> Case:
    """Make a case in which /app waits while others have the device."""
    app = neighbours.Owner("/app")
    requests = io_owners.KINDS[options.CGROUP][2]
    cells = {requests.group("sda", "read", "/app"): {"total": distribution([whole])}, REQUESTS: cell(9, device=5)}
    counters: dict[Group, Mapping[str, int]] = {WAITED.group("sda", app): {"count": waits, "ns": waited}}
    for name, ns in had.items():
        owner = neighbours.Owner("/app" if name == "app" else name)
        owner.seen = f"{name}d"
        counters[MEANWHILE.group("sda", app, owner)] = {"count": 7, "ns": ns}
        counters[HAD.group("sda", "read", owner)] = {"count": 7, "ns": ns, "bytes": 7 * 65536}
    return case(cells, counters=counters, kinds=(requests, REQUEST))


def test_who_had_the_device_while_another_one_waited() -> None:
    found = finding(io_rules.neighbour, contended(38 * MS, 100 * MS, batch=92 * MS, cron=5 * MS, others=3 * MS))
    assert found.who == "batch (batchd, 64 KiB reads)"
    assert found.figures == {"share": 0.38, "had": 0.92, "waited_ns": 38 * MS, "waits": 70, "unknown": 0.03}
    assert found.group is not None
    assert found.group.fields == {"dev": "sda", "owner": "/app"}
    # The owner waited for a short time, seldom, or for itself.
    assert io_rules.neighbour(contended(9 * MS, 100 * MS, batch=92 * MS)) is None
    assert io_rules.neighbour(contended(38 * MS, 100 * MS, waits=3, batch=92 * MS)) is None
    assert io_rules.neighbour(contended(38 * MS, 100 * MS, batch=40, app=60)) is None
    assert io_rules.neighbour(case({})) is None


@pytest.mark.parametrize(
    ("had", "who", "share"),
    [
        ({"batch": 25, "others": 75}, "many others", 1.0),
        ({"others": 92, "app": 8}, "many others", 0.92),
        ({"nobody": 92, "app": 8}, "others", 0.92),
        ({"one": 30, "nobody": 60, "app": 10}, "others", 0.9),
        ({"one": 49, "two": 48, "app": 3}, "one (oned, 64 KiB reads) and two (twod, 64 KiB reads)", 0.97),
        ({"one": 51, "two": 46, "app": 3}, "one (oned, 64 KiB reads) and two (twod, 64 KiB reads)", 0.97),
        ({"one": 15, "two": 15, "three": 15, "four": 15, "five": 15, "six": 15, "app": 10}, "many others", 0.9),
        ({"one": 60, "nobody": 35, "app": 5}, "one (oned, 64 KiB reads)", 0.6),
    ],
)
def test_an_accusation_takes_a_majority(had: dict[str, int], who: str, share: float) -> None:
    found = finding(io_rules.neighbour, contended(380, 1000, **had))
    assert found.who == who
    assert found.figures["had"] == pytest.approx(share)
    assert bool(found.figures.get("many")) == (who == "many others")


def test_the_victim_is_who_waits_for_others() -> None:
    """The others wait much longer for each other, but also for themselves."""
    counters: dict[Group, Mapping[str, int]] = {}
    requests = io_owners.KINDS[options.CGROUP][2]
    cells: dict[Group, dict[str, Distribution]] = {}
    owners = {name: neighbours.Owner(name) for name in ("/app", "/one", "/two")}
    for name, waited, whole in (("/app", 90, 100), ("/one", 9000, 10_000), ("/two", 9000, 10_000)):
        counters[WAITED.group("sda", owners[name])] = {"count": 100, "ns": waited}
        cells[requests.group("sda", "read", name)] = {"total": distribution([whole])}
        for holder, ns in (("/app", 2), ("/one", 49), ("/two", 49)):
            counters[MEANWHILE.group("sda", owners[name], owners[holder])] = {"count": 100, "ns": ns * waited}
    found = finding(io_rules.neighbour, cells, counters=counters, kinds=(requests,))
    assert found.group is not None
    assert (found.group.label("owner"), found.who) == ("/app", "/one and /two")


def test_a_stacked_device_is_named_and_not_the_disk_below() -> None:
    layers = cell(10, layers=23 * MS, device=2 * MS)
    rows = {
        OPERATION.group("vdb", "write"): layers,
        LAYER.group("dm-0", "write"): cell(10, layers=22 * MS, device=2 * MS),
        LAYER.group("dm-1", "write"): cell(10, layers=MS, device=24 * MS),
    }
    found = finding(io_rules.largest, rows, kinds=(OPERATION, LAYER))
    assert (found.stage, found.who) == ("layers", "dm-0")


def test_large_operations_do_not_wait_for_locks() -> None:
    def looked_at(size: int) -> str:
        cells = {READ: cell(10, fs=20 * MS, device=2 * MS)}
        return judge(case(cells, counters={READ: {"bytes": 10 * size}})).advice

    assert "their size" in looked_at(8 << 20)
    assert "their size" not in looked_at(4096)


def test_a_tail_is_not_that_of_two_calls() -> None:
    (found,) = tailed(60 * MS).values()
    calls = io_owners.KINDS[options.CALL][0]
    sync = OPERATION.group("sda", "sync")
    for others, said in ((0, True), (500, False)):
        rows = {sync: found, calls.group("sda", "sync", "fdatasync"): {"total": found["total"]}}
        if others:
            rows[calls.group("sda", "sync", "sync_file_range")] = {"total": distribution([MS] * others)}
        kinds = (OPERATION, *io_owners.KINDS[options.CALL])
        assert (io_rules.tail(case(rows, kinds=kinds)) is not None) == said


def test_who_ran_meanwhile_is_named() -> None:
    found = verdict.judge(
        in_the_way(case({READ: cell(10, device=MS, wakeup=9 * MS)}), "ran", {"hog[7]": 80 * MS}),
        io_rules.path(interference=True),
    )
    assert [(one.rule, one.who) for one in found.findings if one.who] == [("ran", "hog[7]")]
    # A user of the option need not be told of it.
    assert "--interference" not in found.advice
    assert "--interference" in judge(case({READ: cell(10, device=MS, wakeup=9 * MS)})).advice


def test_nobody_had_a_partition_s_disk_alone() -> None:
    partial = io_rules.path(partial=True)
    (found,) = [rule for rule in partial.more if rule.__name__ == "owner"]
    assert finding(found, owned(backup=6 * MS)).figures["partial"] == 1


def test_who_had_the_device_when_a_filter_left_it_out() -> None:
    # A filter may leave out the owner that had the device.
    owner = finding(io_rules.owner, contended(38 * MS, 100 * MS, batch=92 * MS, app=8 * MS))
    assert (owner.who, owner.figures) == ("batch", {"share": 0.92, "owners": 2})


def test_every_rule_can_be_reached() -> None:
    (stages,) = tailed(60 * MS).values()
    everything = {READ: {**stages, "preempted": distribution([3 * MS] * 1000)}}
    cases = [
        case({}),
        case({HITS: cell(9)}),
        case({REQUESTS: cell(9)}),
        case(everything, stretches=stretches(MS, MS, 4 * MS, MS), requests=book(20, 3)),
        case(with_one(5 * SECOND)),
        case({**owned(backup=MS), REQUESTS: cell(9, device=5)}),
        case({REQUESTS: cell(9, device=5), SLEEP.group("sda", "read"): cell(9, asleep=5, wakeup=1)}),
        contended(38 * MS, 100 * MS, batch=92 * MS),
        *(by_statement((0, "sda", "read", "select a", 1, MS), by=by) for by in (options.STATEMENT, options.UNIT)),
    ]
    hog = {"hog[7]": 100 * SECOND}
    cases += [in_the_way(case({READ: cell(9, device=MS)}), rule, hog) for rule in ("behind", "ran", "irq_off")]
    reached = {found.rule for one in cases for found in verdict.judge(one, io_rules.path()).findings}
    assert reached == {rule.__name__ for rule in (*RULES.first, *RULES.more)}


def test_a_stage_without_advice_has_its_meaning() -> None:
    stage = Stage("handler", Point("E", "entered"), Point("X", "left"), "", "a driver does too much")
    irq = Kind("request", Noun("interrupt"), [Label("cpu", CPU)], [stage])
    cells = {irq.group(0): {"handler": distribution([5]), "total": distribution([5])}}
    assert verdict.judge(case(cells, kinds=[irq])._replace(kinds=[irq]), TIMED).advice == "a driver does too much"


def test_who_was_in_the_way_of_single_operations() -> None:
    """Operations of a capture may have any fields."""

    def event(**fields: Any) -> Event:
        return Event(READ, 0, 9, {"journal": 4}, {"pid": 5, **fields})

    def other(kind: str, pid: int, ns: Any) -> dict[str, Any]:
        return {"kind": kind, "name": "hog", "pid": pid, "ns": ns}

    found = io_rules.InTheWay()
    for one in (
        event(interference=[other("preempted", 7, 3), other("irq_off", 7, 20), other("hardirq", 0, 50)]),
        event(interference=[other("before_wakeup", 7, 100)]),
        event(commit={"most": {"comm": "dd", "pid": 9}}),
        event(commit={"most": {"comm": "own", "pid": 5}}),
        event(commit=[1], interference=3),
        event(interference=[{}, 7]),
        event(interference=[other("preempted", 7, "many")]),
    ):
        found.add(one)
    assert {group.values: counts[NS] for group, counts in found.counters().items()} == {
        ("ran", "hog[7]"): 103,
        ("irq_off", "hog[7]"): 20,
        ("behind", "dd[9]"): 4,
    }


def test_those_in_the_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_rules.InTheWay, "_MOST", 3)
    found = io_rules.InTheWay()
    for pid in [*range(1, 9), 1]:
        found.add(Event(READ, 0, 9, {}, {"interference": [{"kind": "ran", "name": "hog", "pid": pid, "ns": 1}]}))
    assert sorted(counts[NS] for counts in found.counters().values()) == [1, 1, 2]
