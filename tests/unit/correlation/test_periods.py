# SPDX-License-Identifier: Apache-2.0
"""Periods, and what was seen while they lasted."""

from __future__ import annotations

from wptrace.correlation.periods import Episodes, Longest, Run, longest
from wptrace.model.kind import Task


def record(cpu: int, ticked: int) -> dict[str, int]:
    return {"cpu": cpu, "ticked_ns": ticked}


def test_a_period_gets_its_own_sample() -> None:
    episodes = Episodes()
    for cpu, ticked in ((0, 100), (1, 100), (0, 200)):
        episodes.see({**record(cpu, ticked), "name": cpu * 1000 + ticked})
    episodes.end(record(1, 100))
    episodes.end(record(0, 200))
    episodes.end(record(0, 300))
    found = [sample and sample["name"] for _, sample in episodes.take()]
    assert found == [1100, 200, None]
    assert episodes.take() == []


def test_a_sample_is_given_once() -> None:
    episodes = Episodes()
    episodes.see(record(0, 100))
    assert episodes.seen(0, 100)
    assert episodes.seen(0, 101) is None
    for _ in range(2):
        episodes.end(record(0, 100))
    assert [sample is not None for _, sample in episodes.take()] == [True, False]
    assert episodes.seen(0, 100) is None


def test_samples_that_nobody_asks_for_make_room_oldest_first() -> None:
    episodes = Episodes(kept=3)
    for ticked in range(5):
        episodes.see(record(0, ticked))
    assert [ticked for ticked in range(5) if episodes.seen(0, ticked)] == [2, 3, 4]


# --- The task that had a CPU for most of a period ---------------------------------------------------------------------

A, B, IDLE = Task("a", 1, 1), Task("b", 2, 3), Task("swapper/0", 0, 0)


def test_runs_of_one_task_are_added_up() -> None:
    runs = [Run(0, 40, A), Run(40, 70, B), Run(70, 75, A), Run(75, 100, B)]
    assert longest(runs, 0, 100) == Longest(B, 55)


def test_only_what_lies_inside_counts() -> None:
    runs = [Run(0, 1000, A), Run(1000, 1010, B), Run(1010, 5000, A)]
    assert longest(runs, 995, 1014) == Longest(B, 10)
    assert longest(runs, 900, 1014) == Longest(A, 104)


def test_an_idle_cpu_is_somebody() -> None:
    assert longest([Run(0, 10, A), Run(10, 100, IDLE)], 0, 100) == Longest(IDLE, 90)


def test_nobody_is_known() -> None:
    assert longest([], 0, 100) is None
    assert longest([Run(0, 10, A), Run(50, 60, A)], 10, 50) is None


def test_threads_are_reported_apart() -> None:
    other = Task("b", 2, 4)
    assert longest([Run(0, 10, B), Run(10, 30, other), Run(30, 39, B)], 0, 39) == Longest(other, 20)


def test_a_run_that_is_being_written_does_no_harm() -> None:
    assert longest([Run(90, 10, A), Run(0, 5, B)], 0, 100) == Longest(B, 5)
