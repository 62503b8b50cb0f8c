# SPDX-License-Identifier: Apache-2.0
"""Cycle counts scaled to the real clock."""

from __future__ import annotations

from typing import Any

import pytest

from wptrace.bpf.paced import Paced

MS = 1_000_000


class Program:
    """A program with a sample period for each CPU."""

    def __init__(self) -> None:
        self.attached: list[int] = []
        self.periods: dict[int, int] = {}

    def attach_cpu(self, cpu: int) -> None:
        self.attached.append(cpu)

    def set_period(self, cpu: int, period: int) -> None:
        self.periods[cpu] = period


@pytest.fixture
def program() -> Any:
    return Program()


def test_a_fast_cpu_gets_more_cycles_and_a_slow_one_fewer(program: Any) -> None:
    paced = Paced(program, MS, [0, 1, 2, 3])
    # At 4 GHz a million cycles take a quarter of a millisecond. CPU 2 is right, and nothing is known of CPU 3.
    paced.follow({0: MS // 4, 1: 3 * MS, 2: MS, 3: 0})
    assert program.periods == {0: 4 * MS, 1: MS // 3}
    # Now they take a millisecond everywhere, so nothing changes.
    program.periods.clear()
    paced.follow({0: MS, 1: MS, 2: MS, 3: MS})
    assert program.periods == {}


def test_it_follows_a_cpu_that_changes_its_speed(program: Any) -> None:
    paced = Paced(program, MS, [0])
    speeds = [4.0, 4.0, 1.0, 0.8, 2.5, 2.5]
    cycles = MS
    for ghz in speeds:
        paced.follow({0: int(cycles / ghz)})
        cycles = program.periods.get(0, cycles)
    assert cycles / 2.5 == pytest.approx(MS, rel=0.5)


def test_small_differences_are_left_alone(program: Any) -> None:
    Paced(program, MS, [0, 1]).follow({0: MS * 3 // 4, 1: MS * 3 // 2})
    assert program.periods == {}


def test_a_counter_is_never_so_quick_that_it_does_nothing_else(program: Any) -> None:
    Paced(program, MS, [0]).follow({0: 10_000 * MS})
    assert program.periods == {0: 10_000}


def test_a_cpu_that_was_away_begins_anew(program: Any) -> None:
    paced = Paced(program, MS, [0])
    paced.follow({0: MS // 4})
    paced.attach(0)
    paced.attach(5)
    assert program.attached == [0, 5]
    paced.follow({0: MS // 3, 5: MS // 4})
    assert program.periods == {0: 1_000_000 * MS // (MS // 3), 5: 4 * MS}
