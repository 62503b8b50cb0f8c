# SPDX-License-Identifier: Apache-2.0
"""The keeper of a budget: what it sheds, when, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from wptrace.bpf.programs import Program, Statistics
from wptrace.engine import budget as module
from wptrace.engine.budget import Keeper, Meter
from wptrace.errors import LibbpfError, NotPermittedError
from wptrace.flows.io.options import SAVINGS
from wptrace.kernel import cpus, privileges
from wptrace.model import budget
from wptrace.model.budget import Cost, Step, ladder

SECOND = 1_000_000_000
STEPS = ladder(SAVINGS)
LIMIT = 0.05


class Flow:
    """A flow that costs less with each step that is shed."""

    def __init__(self, cost: Callable[[int], float], stays: str = "") -> None:
        self.cost = cost
        self.stays = stays
        self.savings, self.steps = SAVINGS, STEPS
        self.asked: list[tuple[str, Step]] = []
        self.shed_now: list[Step] = []

    def programs(self) -> list[Program]:
        return []

    def shed(self, step: Step) -> None:
        self.asked.append(("shed", step))
        self.shed_now.append(step)

    def restore(self, step: Step) -> None:
        if step.kind.name == self.stays:
            raise LibbpfError("no second time")
        self.asked.append(("restore", step))
        assert self.shed_now.pop() == step


class FakeMeter:
    refused = ""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.windows = 0
        self.open = False

    def begin(self) -> None:
        assert not self.open
        self.open = True
        self.windows += 1

    def end(self) -> Cost:
        assert self.open
        self.open = False
        whole = self.flow.cost(len(self.flow.shed_now))
        return Cost(whole * 0.75, whole * 0.25)

    def close(self) -> None:
        self.open = False


@pytest.fixture(autouse=True)
def _wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "wall_offset_ns", lambda: 1000 * SECOND)


def kept(flow: Flow, seconds: float, limit: float = LIMIT) -> tuple[Keeper, FakeMeter]:
    meter = FakeMeter(flow)
    keeper = Keeper(limit, flow, 0.0, cast("Meter", meter))
    go_on(keeper, seconds)
    return keeper, meter


def go_on(keeper: Keeper, until: float) -> None:
    while keeper.due <= until:
        before = keeper.due
        keeper.check(keeper.due)
        assert keeper.due > before


def test_too_much_sheds_everything_in_the_stated_order_and_back() -> None:
    flow = Flow(lambda shed: 1.0)
    keeper, _ = kept(flow, 60)
    assert flow.asked == [("shed", step) for step in STEPS]
    found = keeper.spending(0, 60 * SECOND, whole=True)
    assert (found.one_in, found.exhausted) == (256, True)
    flow.cost = lambda shed: 0.0
    flow.asked.clear()
    go_on(keeper, 200)
    assert flow.asked == [("restore", step) for step in reversed(STEPS)]
    assert flow.shed_now == []


def test_it_stops_where_it_is_within_the_budget() -> None:
    flow = Flow(lambda shed: (0.09, 0.06, 0.03)[min(shed, 2)])
    keeper, _ = kept(flow, 600)
    assert flow.shed_now == list(STEPS[:2])
    found = keeper.spending(0, 600 * SECOND, whole=True)
    assert found.shed == STEPS[:2]
    off = {saving.name: ns for saving, ns in found.off_ns.items()}
    assert off["interference"] > off["each"] > 590 * SECOND
    assert off["fs"] == off["sample"] == 0
    assert not found.exhausted
    assert [(change.step, change.shed) for change in found.changes] == [(STEPS[0], True), (STEPS[1], True)]
    assert found.changes[0].cost.total == pytest.approx(0.09)
    assert found.changes[0].ts_ns == found.changes[0].at_ns + 1000 * SECOND


def test_changes_of_months_are_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are the same as with all changes; only the list is shorter."""

    def spent(most: int) -> budget.Spending:
        monkeypatch.setattr(module, "_CHANGES", most)
        flow = Flow(lambda shed: 0.09 if shed < 2 else 0.0)
        keeper, _ = kept(flow, 50_000)
        flow.cost = lambda shed: 0.0 if shed > 2 else 0.09
        go_on(keeper, 60_000)
        return keeper.spending(0, 60_000 * SECOND, whole=True)

    every, few = spent(1 << 20), spent(4)
    assert len(every.changes) > 40
    assert 4 <= len(few.changes) <= 8
    assert few._replace(changes=()) == every._replace(changes=())
    assert few.changes == every.changes[-len(few.changes) :]


def test_a_large_budget_sheds_nothing() -> None:
    flow = Flow(lambda shed: 0.3)
    keeper, _ = kept(flow, 100, limit=1.0)
    assert flow.asked == []
    found = keeper.spending(0, 100 * SECOND, whole=True)
    assert (found.shed, found.changes, found.one_in) == ((), (), 1)
    assert tuple(found.cost) == pytest.approx((0.225, 0.075))


def test_it_measures_for_a_short_time_now_and_then() -> None:
    flow = Flow(lambda shed: 0.0)
    _, calm = kept(flow, 100)
    assert 20 <= calm.windows <= 30
    flow = Flow(lambda shed: LIMIT * 0.6)
    _, tight = kept(flow, 100)
    assert 90 <= tight.windows <= 110


def test_intervals_tell_what_was_measured_in_them() -> None:
    flow = Flow(lambda shed: 0.5)
    keeper, _ = kept(flow, 3)
    first = keeper.spending(0, 3 * SECOND, whole=False)
    assert first.cost.total == pytest.approx(0.5)
    assert (first.worst, len(first.changes)) == (0.5, 3)
    flow.cost = lambda shed: 0.01
    nothing = keeper.spending(3 * SECOND, 3 * SECOND + 1, whole=False)
    assert (nothing.cost.total, nothing.worst, nothing.changes) == (0.5, 0.0, ())
    go_on(keeper, 30)
    later = keeper.spending(3 * SECOND, 30 * SECOND, whole=False)
    assert later.cost.total == later.worst == pytest.approx(0.01)
    whole = keeper.spending(0, 30 * SECOND, whole=True)
    assert whole.worst == 0.5
    assert 0.01 < whole.cost.total < 0.5
    assert whole.changes == (*first.changes, *later.changes)


def test_what_the_kernel_does_not_take_back_stays_off() -> None:
    flow = Flow(lambda shed: 1.0, stays="fs")
    keeper, _ = kept(flow, 60)
    flow.cost = lambda shed: 0.0
    go_on(keeper, 1000)
    assert flow.shed_now == list(STEPS[:3])
    found = keeper.spending(0, 1000 * SECOND, whole=True)
    assert found.refused == "fs: no second time"
    assert found.shed == STEPS[:3]
    assert found.off_ns[STEPS[2].kind] > 900 * SECOND
    assert [change.step for change in found.changes if not change.shed] == list(reversed(STEPS[3:]))


def test_the_notes_tell_the_order() -> None:
    keeper, meter = kept(Flow(lambda shed: 0.0), 0)
    (note,) = keeper.notes()
    words = ["interference", "records", "operations", "times of requests"]
    assert sorted(words, key=note.index) == words
    assert "5%" in note
    meter.refused = "not you"
    assert keeper.notes()[1:] == ["the budget covers only the reader: not you"]


# --- The meter --------------------------------------------------------------------------------------------------------


class Machine:
    """Times and counts that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.busy = self.own = 0
        self.ran = Statistics(1, 0, 0, 0, 0, 0)
        self.on = 0
        self.refused = False
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(time, "process_time_ns", lambda: self.own)
        monkeypatch.setattr(cpus, "busy_ns", lambda: self.busy)
        monkeypatch.setattr(module, "run_statistics", lambda: self)

    def __enter__(self) -> None:
        if self.refused:
            raise NotPermittedError("run-time statistics cannot be switched on")
        self.on += 1

    def __exit__(self, *error: object) -> None:
        self.on -= 1

    def statistics(self) -> Statistics:
        return self.ran

    def meter(self) -> Meter:
        return Meter([cast("Any", self)])

    def run(self, ns: int, busy: int, own: int, run_ns: int = 0, runs: int = 0) -> None:
        self.now += ns
        self.busy += busy
        self.own += own
        self.ran = self.ran._replace(run_count=self.ran.run_count + runs, run_time_ns=self.ran.run_time_ns + run_ns)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_programs_by_the_window_and_the_reader_by_all_of_the_time(machine: Machine) -> None:
    meter = machine.meter()
    machine.run(900, busy=1800, own=90, run_ns=10**9, runs=10**9)
    meter.begin()
    assert machine.on == 1
    machine.run(100, busy=200, own=10, run_ns=6, runs=0)
    assert meter.end() == Cost(6 / 200, 100 / 2000)
    assert machine.on == 0
    meter.begin()
    machine.run(100, busy=50, own=1, run_ns=6, runs=1)
    assert meter.end() == Cost((6 + budget.ENTRY_NS) / 100, 1 / 100)


def test_who_lacks_the_capability_for_run_times_hears_its_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.refused = True
    monkeypatch.setattr(privileges, "effective", lambda: {"CAP_BPF", "CAP_PERFMON"})
    meter = machine.meter()
    meter.begin()
    assert meter.refused == "run times need CAP_SYS_ADMIN, which is missing"


def test_without_run_times_the_reader_is_watched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.refused = True
    monkeypatch.setattr(privileges, "effective", lambda: {"CAP_SYS_ADMIN"})
    meter = machine.meter()
    meter.begin()
    assert meter.refused == "run-time statistics cannot be switched on"
    machine.run(100, busy=200, own=10)
    assert meter.end() == Cost(None, 0.05)
    assert machine.on == 0


def test_run_times_are_off_in_the_end(machine: Machine) -> None:
    meter = machine.meter()
    meter.begin()
    meter.close()
    meter.close()
    assert machine.on == 0
