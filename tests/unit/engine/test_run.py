# SPDX-License-Identifier: Apache-2.0
"""The loop around a flow: intervals, ends, and the cleanup."""

from __future__ import annotations

import gc
import math
import os
import select
import signal
import socket
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.thorough import cases
from tests.unit.engine.conftest import Time
from tests.unit.memory import traced
from tests.unit.outputs import path
from tests.unit.outputs.samples import KIND, OVERHEAD, cell, group, request, sized, start
from wptrace.bpf.ring import Reader
from wptrace.engine import budget
from wptrace.engine import run as module
from wptrace.engine.flow import Flow
from wptrace.engine.run import RunOptions, run
from wptrace.engine.session import HistoryPace, next_due
from wptrace.engine.signals import Stop
from wptrace.errors import UnsupportedError, WptraceError
from wptrace.model.book import RING_FULL, Book, Cause
from wptrace.model.budget import Cost, Spending
from wptrace.model.kind import REQUESTS
from wptrace.model.report import Event, InFlight, Report, Snapshot, Start

SDA_READ = group("sda")
SECOND = 1_000_000_000


class Fake(Flow):
    """A flow that finishes one request at each read."""

    name = "fake"
    kinds = verdict_kinds = (KIND,)

    def __init__(self, clock: Time, reported: list[str]) -> None:
        self.clock = clock
        self.reported = reported
        self.reads = 0
        self.cell = cell([], [])
        self.pending: list[Event] = []
        self.waiting: list[InFlight] = []
        self.asked: list[int] = []
        self.slow_after: float = math.inf
        self.reader: Reader | None = None

    def start(self, reader: Reader) -> Start:
        self.reported.append("start")
        self.reader = reader
        return start()

    def snapshot(self) -> Snapshot:
        self.reads += 1
        self.reported.append("snapshot")
        books = {REQUESTS: Book.read(self.reads + 1, self.reads, {}, {})}
        self.grow(self.clock.now - 1000.0)
        cells = {SDA_READ: {name: found.copy() for name, found in self.cell.items()}}
        return Snapshot(int(self.clock.now * SECOND), books, cells, sized({SDA_READ: 512 * self.reads}), OVERHEAD)

    def grow(self, seconds: float) -> None:
        """Add a request, which takes longer once the flow is slow."""
        device = 2 if seconds < self.slow_after else 20
        for name, value in (("queue", 1), ("device", device), ("total", 1 + device)):
            self.cell[name].add(value)

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        self.asked.append(at_least_ns)
        return self.waiting

    def events(self) -> list[Event]:
        found, self.pending = self.pending, []
        return found

    def stop(self) -> None:
        self.reported.append("stop")
        self.pending.append(request(dev="last"))

    def close(self) -> None:
        self.reported.append("close")


class Collected:
    def __init__(self, reported: list[str], fail: str = "") -> None:
        self.reported = reported
        self.fail = fail
        self.reports: list[Report] = []
        self.events: list[Event] = []
        self.waiting: list[tuple[list[InFlight], int]] = []
        self.lost: dict[Cause, int] = {}

    def _note(self, what: str) -> None:
        self.reported.append(f"output {what}")
        if what == self.fail:
            raise BrokenPipeError

    def start(self, start: Start) -> None:
        self._note("start")

    def event(self, event: Event) -> None:
        self._note("event")
        self.events.append(event)

    def flush(self) -> None:
        self._note("flush")

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._note("in_flight")
        self.waiting.append((found, at_ns))

    def interval(self, report: Report) -> None:
        self._note("interval")
        self.reports.append(report)

    def losses(self) -> dict[Cause, int]:
        return self.lost

    def summary(self, report: Report) -> None:
        self._note("summary")
        self.reports.append(report)

    def close(self) -> None:
        self._note("close")


class World:
    def __init__(self, clock: Time, fail: str = "") -> None:
        self.reported: list[str] = []
        self.clock = clock
        self.flow = Fake(clock, self.reported)
        self.output = Collected(self.reported, fail)

    def run(self, interval_s: float | None, count: int | None, **more: Any) -> None:
        run([(self.flow, self.output)], RunOptions(interval_s, count, **more))

    @property
    def lengths(self) -> list[float]:
        return [report.duration_ns / SECOND for report in self.output.reports]


@pytest.fixture
def world(clock: Time) -> World:
    return World(clock)


def list_in_flight() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_several_flows_have_reports_of_their_own(clock: Time) -> None:
    """All attach before any output gets a start, and all detach before any summary."""
    reported: list[str] = []
    flows = [Fake(clock, reported), Fake(clock, reported)]
    outputs = [Collected(reported), Collected(reported)]
    run(list(zip(flows, outputs)), RunOptions(1.0, 2))
    assert [len(output.reports) for output in outputs] == [3, 3]
    assert [report.kind for report in outputs[1].reports] == ["interval", "interval", "summary"]
    starts = [at for at, what in enumerate(reported) if what == "start"]
    assert len(starts) == 2
    assert starts[1] < reported.index("output start")
    stops = [at for at, what in enumerate(reported) if what == "stop"]
    assert len(stops) == 2
    assert stops[1] < reported.index("output summary")
    assert reported.count("close") == reported.count("output close") == 2


def test_so_many_intervals_and_a_summary(world: World) -> None:
    world.run(0.5, 3)
    assert [report.kind for report in world.output.reports] == ["interval"] * 3 + ["summary"]
    assert world.lengths == [0.5, 0.5, 0.5, 1.5]
    assert world.reported[:3] == ["start", "snapshot", "output start"]
    assert world.reported[-7:-5] == ["stop", "output event"]
    assert world.reported[-5:] == ["output flush", "snapshot", "output summary", "close", "output close"]


def test_each_interval_holds_what_came_in_it(world: World) -> None:
    world.run(1.0, 2)
    first, second, summary = world.output.reports
    assert [report.book.finished for report in world.output.reports] == [1, 1, 3]
    assert [report.bytes for report in (first, second, summary)] == [512, 512, 1536]
    assert [row.metric for row in first.rows] == ["queue", "device", "total"]
    assert summary.rows[0].distribution.count == 3
    for report in world.output.reports:
        book = report.book
        assert book.started == book.finished + book.in_flight + book.lost_total


def test_requests_are_reported_as_they_come_and_the_last_ones_before_the_summary(world: World) -> None:
    world.clock.at(0.3, lambda: world.flow.pending.append(request(dev="first")))
    world.run(1.0, 1)
    assert [one.group.label("dev") for one in world.output.events] == ["first", "last"]
    reported = [word for word in world.reported if word.startswith("output")]
    words = ("start", "event", "flush", "interval", "event", "flush", "summary", "close")
    assert reported == [f"output {word}" for word in words]


@pytest.mark.parametrize(("interval_s", "ends", "lengths"), [(1.0, 2.5, [1.0, 1.0, 2.5]), (None, 200.0, [200.0])])
def test_a_signal_ends_the_trace_with_a_summary(
    world: World, interval_s: float | None, ends: float, lengths: list[float]
) -> None:
    world.clock.at(ends, interrupt)
    world.run(interval_s, None)
    assert world.lengths == lengths


@pytest.mark.parametrize("interval_s", [None, 3600.0, 1e9])
def test_counters_are_read_before_they_can_wrap(world: World, interval_s: float | None) -> None:
    """Buckets have 32 bits, which ten million requests a second fill in seven minutes."""
    world.clock.at(1000.0, interrupt)
    world.run(interval_s, None)
    assert max(world.clock.waits) <= 60.0
    assert world.reported.count("snapshot") >= 16
    assert world.lengths == [1000.0]


def test_long_intervals_are_kept(world: World) -> None:
    world.run(150.0, 2)
    assert world.lengths == [150.0, 150.0, 300.0]


def test_intervals_do_not_drift(world: World) -> None:
    """A slow report does not delay the next one."""
    slow = world.output.interval

    def interval(report: Report) -> None:
        slow(report)
        world.clock.now += 0.3

    world.output.interval = interval  # type: ignore[method-assign]
    world.run(1.0, 4)
    assert world.lengths[:4] == [1.0, 1.0, 1.0, 1.0]


def test_a_suspended_machine_gets_one_long_interval_and_goes_on(world: World) -> None:
    def suspend() -> None:
        world.clock.now += 100.0

    world.clock.at(1.5, suspend)
    world.run(1.0, 4)
    assert world.lengths[:4] == [1.0, 100.5, 1.0, 1.0]


@pytest.mark.parametrize(("late", "following"), [(0.0, 1.0), (0.25, 0.75), (0.75, 1.0), (0.9999, 1.0), (3.0, 1.0)])
def test_a_late_window_is_not_followed_by_a_tiny_one(late: float, following: float) -> None:
    assert next_due(10.0, 1.0, 10.0 + late) == 10.0 + late + following


def test_a_reader_that_left_ends_the_trace(world: World) -> None:
    def leave() -> None:
        assert world.flow.reader is not None
        world.flow.reader.hung_up = True

    world.clock.at(1.5, leave)
    world.run(1.0, None)
    assert world.lengths == [1.0, 1.5]


@pytest.mark.parametrize("fail", ["start", "event", "interval", "summary", "close"])
def test_all_is_cleaned_up_whatever_the_output_does(clock: Time, fail: str) -> None:
    world = World(clock, fail)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(BrokenPipeError):
        world.run(1.0, 1)
    assert world.reported[-2:] == ["close", "output close"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_all_is_cleaned_up_when_the_flow_cannot_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(reader: Reader) -> Start:
        raise UnsupportedError("this kernel cannot")

    monkeypatch.setattr(world.flow, "start", refuse)
    with pytest.raises(UnsupportedError):
        world.run(1.0, 1)
    assert world.reported == ["close", "output close"]


# --- In flight ------------------------------------------------------------------------------------------------


def test_what_is_stuck_is_reported_before_each_interval(world: World) -> None:
    world.flow.waiting = [path.waiting()]
    world.run(2.0, 3, stuck_ns=5 * SECOND)
    assert world.flow.asked == [5 * SECOND] * 3
    reported = [word for word in world.reported if word in ("output in_flight", "output interval")]
    assert reported == ["output in_flight", "output interval"] * 3
    assert {id(found) for found, _ in world.output.waiting} == {id(world.flow.waiting)}


def test_without_an_interval_it_is_looked_for_every_second(world: World) -> None:
    world.flow.waiting = [path.waiting()]
    world.clock.at(10.5, interrupt)
    world.run(None, None, stuck_ns=SECOND)
    assert len(world.output.waiting) == 10


def test_nothing_stuck_is_not_reported_and_nobody_asks_unasked(world: World) -> None:
    world.run(1.0, 3, stuck_ns=SECOND)
    assert (len(world.flow.asked), world.output.waiting) == (3, [])
    world.flow.asked.clear()
    world.run(1.0, 3)
    assert world.flow.asked == []


class Keeping:
    """A keeper that checks every 0.7 seconds."""

    made: ClassVar[list[Keeping]] = []

    def __init__(self, limit: float, shedder: object, now: float) -> None:
        self.limit, self.shedder, self.due = limit, shedder, now
        self.checks: list[float] = []
        self.asked: list[tuple[int, int, bool]] = []
        self.closed = False
        self.made.append(self)

    def check(self, now: float) -> None:
        assert now >= self.due
        self.checks.append(round(now - 1000.0, 3))
        self.due = now + 0.7

    def notes(self) -> list[str]:
        return ["a budget"]

    def spending(self, since_ns: int, until_ns: int, whole: bool) -> Spending:
        self.asked.append((since_ns // SECOND - 1000, until_ns // SECOND - 1000, whole))
        return Spending(self.limit, Cost(None, 0.0), 0.0, (), {}, ())

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> list[Keeping]:
    monkeypatch.setattr(budget, "Keeper", Keeping)
    Keeping.made = []
    return Keeping.made


def test_a_budget_is_looked_after_between_and_with_the_intervals(world: World, keeping: list[Keeping]) -> None:
    world.flow.shedder = lambda: "less"  # type: ignore[assignment,method-assign,return-value]
    notes: list[str] = []
    world.output.start = lambda start: notes.extend(start.notes)  # type: ignore[method-assign]
    world.run(2.0, 2, limit=0.05)
    (keeper,) = keeping
    assert (keeper.limit, keeper.shedder, keeper.closed) == (0.05, "less", True)
    assert keeper.checks == [0.0, 0.7, 1.4, 2.1, 2.8, 3.5]
    assert keeper.asked == [(0, 2, True), (2, 4, False), (0, 4, True)]
    assert notes[-1] == "a budget"
    assert [report.budget.limit for report in world.output.reports if report.budget] == [0.05] * 3


@pytest.mark.parametrize(("limit", "sheds"), [(None, True), (0.05, False)])
def test_without_a_budget_or_anything_to_shed_nobody_looks(
    world: World, keeping: list[Keeping], limit: float | None, sheds: bool
) -> None:
    if sheds:
        world.flow.shedder = lambda: "less"  # type: ignore[assignment,method-assign,return-value]
    world.run(2.0, 1, limit=limit)
    assert keeping == []
    assert [report.budget for report in world.output.reports] == [None, None]


@pytest.mark.parametrize("interval_s", [None, 1.0, 3600.0])
@pytest.mark.parametrize("found", [[], [path.waiting()]])
def test_a_usr1_lists_everything_and_ends_nothing(
    world: World, interval_s: float | None, found: list[InFlight]
) -> None:
    world.flow.waiting = found
    for seconds in (0.1, 0.2, 5.5):
        world.clock.at(seconds, list_in_flight)
    world.clock.at(8.0, interrupt)
    world.run(interval_s, None)
    assert world.flow.asked == [0, 0, 0]
    assert [one for one, _ in world.output.waiting] == [found] * 3
    assert world.lengths[-1] == 8.0


def test_a_usr1_while_it_starts_is_answered_at_once(world: World) -> None:
    starts = world.flow.start

    def slowly(reader: Reader) -> Start:
        list_in_flight()
        return starts(reader)

    world.flow.start = slowly  # type: ignore[method-assign]
    world.clock.at(0.0, lambda: None)
    world.clock.at(0.5, interrupt)
    world.run(None, None)
    assert world.flow.asked == [0]
    assert world.reported.index("output start") < world.reported.index("output in_flight")


def test_the_summary_has_what_the_output_lost_and_what_the_flow_lists(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.output.lost = {RING_FULL: 3}
    monkeypatch.setattr(Fake, "lists", lambda _: {"offenders": [{"count": 1}]})
    world.run(1.0, 1)
    interval, summary = world.output.reports
    assert (interval.book.noted, interval.lists) == ({}, {})
    assert (summary.book.noted, summary.lists) == ({RING_FULL: 3}, {"offenders": [{"count": 1}]})


# --- The verdict ----------------------------------------------------------------------------------------------


def findings(report: Report) -> list[str]:
    return [] if report.verdict is None else [finding.rule for finding in report.verdict.findings]


@pytest.mark.parametrize("interval_s", [None, 1.0, 0.25, 30.0])
def test_the_summary_knows_when_a_stage_grew_whatever_the_interval(world: World, interval_s: float | None) -> None:
    world.flow.slow_after = 100.0
    world.clock.at(150.5, interrupt)
    world.run(interval_s, None)
    *intervals, summary = world.output.reports
    assert all(report.verdict is None for report in intervals)
    assert "grew" in findings(summary)
    assert summary.verdict is not None
    grew = next(finding for finding in summary.verdict.findings if finding.rule == "grew")
    assert grew.stage == "device"
    ended = grew.figures["ts_ns"] / SECOND - 1000
    assert ended == 150.5
    assert ended - grew.figures["duration_ns"] / SECOND == pytest.approx(99.5, abs=1.0)


def test_a_summary_without_a_change_has_none(world: World) -> None:
    world.clock.at(150.5, interrupt)
    world.run(None, None)
    assert findings(world.output.reports[-1]) == ["largest"]


def test_a_flow_that_has_nothing_to_judge_has_no_verdict(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "verdict_kinds", ())
    world.clock.at(200.0, interrupt)
    world.run(None, None)
    assert world.output.reports[-1].verdict is None
    assert world.flow.reads < 10, "nobody reads a history"


def test_looks_for_the_history_cost_no_snapshots_of_their_own_where_there_are_intervals(world: World) -> None:
    world.run(1.0, 100)
    assert world.flow.reads <= 103
    world.flow.reads = 0
    world.run(0.25, 100)
    assert world.flow.reads <= 103


@pytest.mark.parametrize(("cost", "seconds"), [(0.0, 1.0), (0.005, 1.0), (0.02, 2.0), (0.3, 30.0), (9.0, 60.0)])
def test_looks_take_a_hundredth_of_the_time_at_most(cost: float, seconds: float) -> None:
    pace = HistoryPace(100.0, wanted=True)
    assert pace.due == 101.0
    assert pace.accept(101.0, cost)
    assert pace.due == pytest.approx(101.0 + seconds)


def test_looks_that_nobody_wants_are_as_rare_as_counters_allow() -> None:
    pace = HistoryPace(0.0, wanted=False)
    assert pace.due == 60.0
    assert pace.accept(60.0, 0.0)
    assert pace.due == 120.0


def test_a_look_that_is_too_early_does_not_count() -> None:
    pace = HistoryPace(0.0, wanted=True)
    assert not pace.accept(0.4, 0.0)
    assert pace.due == 1.0
    assert pace.accept(0.6, 0.0)
    assert pace.due == 1.6


def test_hours_take_no_more_memory_than_minutes(clock: Time) -> None:
    """Everything that the loop keeps, without what a flow and an output keep."""

    def taken(seconds: float) -> int:
        world = World(clock)
        world.output.reports = Forgetful()
        world.reported = world.flow.reported = world.output.reported = Forgetful()
        clock.waits = Forgetful()
        peak = [0]

        def end() -> None:
            gc.collect()
            peak[0] = memory.now
            interrupt()

        clock.events.append((clock.now + seconds, end))
        world.run(30.0, None)
        return peak[0]

    with traced() as memory:
        taken(300.0)
        minutes = taken(300.0)
        assert taken(cases(2 * 3600, 1800)) < minutes + (16 << 10)


class Forgetful(list[Any]):
    def append(self, item: Any) -> None:
        pass


class Statistics:
    def __init__(self, reported: list[str], fail: bool = False) -> None:
        self.reported = reported
        self.fail = fail

    def __enter__(self) -> None:
        if self.fail:
            raise WptraceError("run-time statistics cannot be switched on")
        self.reported.append("statistics on")

    def __exit__(self, *error: object) -> None:
        self.reported.append("statistics off")


def test_statistics_are_on_from_before_the_first_program_to_after_the_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "run_statistics", lambda: Statistics(world.reported))
    world.run(1.0, 1, statistics=True)
    assert world.reported[:2] == ["statistics on", "start"]
    assert world.reported[-3:] == ["close", "statistics off", "output close"]


def test_statistics_that_cannot_be_had_are_one_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_statistics", lambda: Statistics(world.reported, fail=True))
    with pytest.raises(WptraceError, match="run-time statistics cannot be switched on") as caught:
        world.run(1.0, 1, statistics=True)
    assert caught.value.__context__ is None
    assert "start" not in world.reported


def test_a_pipe_whose_reader_left_ends_a_real_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Time())
    read, write = os.pipe()
    os.close(read)
    try:
        world.run(5.0, 1, watch_fd=write)  # unless it goes unnoticed, an interval
    finally:
        os.close(write)
    assert [report.kind for report in world.output.reports] == ["summary"]


# --- Stop -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the signal handlers of this process after each test."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    assert {number: signal.getsignal(number) for number in numbers} == before
    assert signal.set_wakeup_fd(-1) == -1


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_for_the_end_and_wakes(number: signal.Signals) -> None:
    with Stop() as stop:
        assert not stop.asked
        assert not readable(stop.fd)
        os.kill(os.getpid(), number)
        assert stop.asked
        assert readable(stop.fd)
        # A second signal ends the process at once.
        assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize(("number", "asked"), [(signal.SIGHUP, False), (signal.SIGINT, True)])
def test_what_nohup_ignores_stays_ignored_and_a_background_job_is_interrupted(
    number: signal.Signals, asked: bool
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Stop() as stop:
            assert (signal.getsignal(number) is signal.SIG_IGN) is not asked
            os.kill(os.getpid(), number)
            assert stop.asked is asked
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_list_is_asked_for_once_however_often(world: World) -> None:
    with Stop() as stop:
        assert not stop.take_list()
        for _ in range(3):
            list_in_flight()
        assert readable(stop.fd)
        assert stop.take_list()
        assert not stop.take_list()
        assert not stop.asked


def test_other_signals_do_not_end_and_wake_once() -> None:
    with Stop() as stop:
        list_in_flight()
        assert readable(stop.fd)
        Reader(stop.fd).wait(60.0)
        assert not stop.asked
        assert not readable(stop.fd)


def test_a_wakeup_descriptor_of_before_is_restored() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        signal.set_wakeup_fd(ours.fileno())
        try:
            with Stop():
                pass
        finally:
            assert signal.set_wakeup_fd(-1) == ours.fileno()
