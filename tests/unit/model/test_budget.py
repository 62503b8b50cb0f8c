# SPDX-License-Identifier: Apache-2.0
"""Decisions of a budget, whatever the costs are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wptrace.flows.io.options import FS, INTERFERENCE, SAMPLE, SAVINGS
from wptrace.model import budget
from wptrace.model.budget import EACH, Change, Cost, Costs, Policy, Saving, Spending, Step, ladder, off_ns, share

SECOND = 1_000_000_000
LIMIT = 0.05
TIGHT, CALM, BETWEEN = LIMIT * 0.8, LIMIT * 0.4 - 1e-9, LIMIT * 0.6

STEPS = 5
costs = st.floats(0, 1, allow_nan=False)
gaps = st.integers(1, 100 * SECOND)
histories = st.lists(st.tuples(costs, gaps), max_size=200)


def decided(history: Sequence[tuple[float, int]], steps: int = STEPS) -> list[tuple[int, float, int, int]]:
    """Return (when, cost, decision, steps shed by then) of each look."""
    policy, now, found = Policy(LIMIT, steps), 0, []
    for cost, gap in history:
        now += gap
        found.append((now, cost, policy.decide(cost, now), policy.shed))
    return found


# --- The order --------------------------------------------------------------------------------------------------------


def test_the_ladder_is_in_the_stated_order() -> None:
    steps = ladder(SAVINGS)
    assert [step.kind for step in steps] == [INTERFERENCE, EACH, FS] + [SAMPLE] * 4
    assert [step.one_in for step in steps] == [0, 0, 0, 4, 16, 64, 256]
    assert ladder([SAMPLE]) == steps[3:]
    assert ladder([]) == ()


def test_what_was_timed_before_a_step() -> None:
    steps = ladder([FS, SAMPLE])
    assert [budget.rate_before(steps, step) for step in steps[1:]] == [0, 4, 16, 64]


# --- Decisions --------------------------------------------------------------------------------------------------------


@given(histories, st.integers(0, 8))
def test_one_step_at_a_time_and_never_beyond_the_ends(history: list[tuple[float, int]], steps: int) -> None:
    before = 0
    for _, _, decision, shed in decided(history, steps):
        assert decision in (-1, 0, 1)
        assert shed == before + decision
        assert 0 <= shed <= steps
        before = shed


@given(histories)
def test_whatever_is_too_much_is_answered_at_once(history: list[tuple[float, int]]) -> None:
    before = 0
    for _, cost, decision, shed in decided(history):
        assert (decision == 1) == (cost >= TIGHT and before < STEPS)
        before = shed


@given(histories)
def test_nothing_comes_back_before_it_was_calm_for_long_enough(history: list[tuple[float, int]]) -> None:
    found = decided(history)
    for place, (now, _, decision, _) in enumerate(found):
        if decision != -1:
            continue
        calm = now
        for at, cost, other, _ in reversed(found[:place]):
            if cost >= LIMIT * budget.RETURN_BELOW or other:
                break
            calm = at
        assert now - calm >= budget.PATIENCE_NS


@given(st.lists(st.tuples(st.floats(0, TIGHT - 1e-9), gaps), max_size=50))
def test_what_is_within_the_budget_sheds_nothing(history: list[tuple[float, int]]) -> None:
    assert all(decision == 0 for _, _, decision, _ in decided(history))


def test_the_way_down_and_up() -> None:
    policy, now = Policy(LIMIT, 3), 0
    for wanted in (1, 2, 3):
        now += SECOND
        assert (policy.decide(TIGHT, now), policy.shed) == (1, wanted)
    assert policy.decide(1.0, now + 1) == 0
    for _ in range(100):
        now += SECOND
        assert policy.decide(BETWEEN, now) == 0
    for wanted in (2, 1, 0):
        now += 1
        assert policy.decide(CALM, now) == 0
        now += budget.PATIENCE_NS - 1
        assert policy.decide(CALM, now) == 0
        now += 1
        assert (policy.decide(CALM, now), policy.shed) == (-1, wanted)
    assert policy.decide(CALM, now + 1000 * SECOND) == 0


def test_a_moment_of_more_cost_begins_the_wait_anew() -> None:
    policy = Policy(LIMIT, 1)
    policy.decide(TIGHT, 0)
    policy.decide(CALM, SECOND)
    policy.decide(BETWEEN, 10 * SECOND)
    assert policy.decide(CALM, 12 * SECOND) == 0
    assert policy.decide(CALM, 21 * SECOND) == 0
    assert policy.decide(CALM, 22 * SECOND) == -1


@settings(deadline=None)
@given(st.lists(st.floats(0, 0.1), min_size=STEPS + 1, max_size=STEPS + 1), st.sampled_from([1, 2, 5]))
def test_a_steady_load_does_not_make_it_flap(savings: list[float], pace: int) -> None:
    """Each step saves something. However little room that leaves between the thresholds, the waits double."""
    levels = [sum(savings[shed:]) for shed in range(STEPS + 1)]
    policy = Policy(LIMIT, STEPS)
    returns = []
    hours = 6
    for second in range(0, hours * 3600, pace):
        if policy.decide(levels[policy.shed], second * SECOND) == -1:
            returns.append(second)
    doublings = math.log2(budget.LONGEST_PATIENCE_NS / budget.PATIENCE_NS)
    assert len(returns) <= doublings + 1 + hours * 3600 * SECOND / budget.LONGEST_PATIENCE_NS


def test_a_step_that_is_always_too_much_is_tried_less_and_less_often() -> None:
    policy, now = Policy(LIMIT, 1), 0
    tried: list[Any] = []
    while len(tried) < 9:
        now += SECOND
        if policy.decide(CALM if policy.shed else TIGHT, now) == -1:
            tried.append(now)
    waits = [(later - earlier) // SECOND for earlier, later in zip(tried, tried[1:])]
    assert waits == [22, 42, 82, 162, 322, 642, 642, 642]


def test_after_a_long_good_time_the_wait_is_short_again() -> None:
    policy, now = Policy(LIMIT, 1), 0
    for _ in range(3):
        now += SECOND
        assert policy.decide(TIGHT, now) == 1
        while policy.decide(CALM, now) == 0:
            now += SECOND
    # The wait was 40 s, and the cost was low for more than three times as long.
    now += 121 * SECOND
    assert policy.decide(TIGHT, now) == 1
    policy.decide(CALM, now)
    assert policy.decide(CALM, now + 9 * SECOND) == 0
    assert policy.decide(CALM, now + 10 * SECOND) == -1


def test_what_cannot_come_back_stays_and_all_before_it() -> None:
    policy = Policy(LIMIT, 3)
    for now in (1, 2, 3):
        policy.decide(TIGHT, now)
    policy.decide(CALM, 4)
    assert policy.decide(CALM, 4 + budget.PATIENCE_NS) == -1
    assert policy.shed == 2
    policy.decide(CALM, 5 + budget.PATIENCE_NS)
    assert policy.decide(CALM, 5 + 2 * budget.PATIENCE_NS) == -1
    policy.keep()
    assert policy.shed == 2
    assert policy.decide(CALM, 10**15) == policy.decide(CALM, 10**16) == 0
    # The last step can still be shed and restored.
    assert policy.decide(TIGHT, 2 * 10**16) == 1
    policy.decide(CALM, 3 * 10**16)
    assert policy.decide(CALM, 4 * 10**16) == -1
    assert policy.decide(CALM, 5 * 10**16) == policy.decide(CALM, 6 * 10**16) == 0
    assert policy.shed == 2


# --- Costs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "busy", "elapsed", "expected"),
    [
        # A share of what the CPUs did.
        (50, 1000, 500, 0.05),
        # A share of one CPU's time if they did less, because a task that waits for a device is slowed as well.
        (50, 10, 1000, 0.05),
        (0, 0, 0, 0.0),
    ],
)
def test_a_cost_is_a_share_of_the_busy_time(cost: int, busy: int, elapsed: int, expected: float) -> None:
    assert share(cost, busy, elapsed) == expected


def test_the_way_into_a_program_costs_something() -> None:
    assert budget.programs_ns(1000, 0) == 1000
    assert budget.programs_ns(1000, 10) == 1000 + 10 * budget.ENTRY_NS


def test_the_mean_of_what_was_measured() -> None:
    found = Costs()
    assert found.mean() is None
    found.add(Cost(None, 0.01))
    assert found.mean() == Cost(None, 0.01)
    found.add(Cost(0.04, 0.03))
    mean = found.mean()
    assert mean is not None
    assert mean.programs == 0.04
    assert mean.reader == pytest.approx(0.02)
    assert mean.total == pytest.approx(0.06)
    assert found.worst == pytest.approx(0.07)


# --- Report -----------------------------------------------------------------------------------------------------------


def change(at: int, kind: Saving, shed: bool, one_in: int = 0) -> Change:
    return Change(at, 0, Step(kind, one_in), shed, Cost(0.1, 0.0))


NOTHING = dict.fromkeys(SAVINGS, 0)


def test_how_long_each_was_off() -> None:
    changes = [
        change(10, INTERFERENCE, True),
        change(20, SAMPLE, True, 4),
        change(30, SAMPLE, True, 16),
        change(50, SAMPLE, False, 16),
        change(60, SAMPLE, False, 4),
        change(90, SAMPLE, True, 4),
    ]
    assert off_ns(SAVINGS, changes, 0, 100) == {**NOTHING, INTERFERENCE: 90, SAMPLE: 50}
    assert off_ns(SAVINGS, changes, 40, 55) == {**NOTHING, INTERFERENCE: 15, SAMPLE: 15}
    assert off_ns(SAVINGS, changes, 65, 80) == {**NOTHING, INTERFERENCE: 15}
    assert off_ns(SAVINGS, changes, 0, 5) == off_ns(SAVINGS, [], 0, 5) == NOTHING


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 500), st.integers(0, 500))
def test_intervals_add_up(gaps: list[int], first: int, second: int) -> None:
    at, changes = 0, []
    for place, gap in enumerate(gaps):
        at += gap
        changes.append(change(at, FS, place % 2 == 0))
    middle, end = sorted((first, second))
    parts = [off_ns(SAVINGS, changes, 0, middle)[FS], off_ns(SAVINGS, changes, middle, end)[FS]]
    assert sum(parts) == off_ns(SAVINGS, changes, 0, end)[FS]
    assert 0 <= parts[1] <= end - middle


def test_one_in_so_many_is_what_the_last_step_says() -> None:
    def reported(*steps: Step) -> int:
        return Spending(LIMIT, Cost(None, 0), 0, steps, NOTHING, ()).one_in

    assert reported() == reported(Step(FS)) == 1
    assert reported(Step(FS), Step(SAMPLE, 4), Step(SAMPLE, 16)) == 16
