# SPDX-License-Identifier: Apache-2.0
"""Runs of BPF programs between two inventories."""

from __future__ import annotations

from wptrace.model.inventory import Inventory, Map, Program, between

SECOND = 1_000_000_000


def program(number: int, runs: int = 0, time: int = 0, own: bool = False) -> Program:
    return Program(number, "tracing", f"p{number}", (), 4096, (), (), own, runs, time)


def found(number: int, memory: int, own: bool = False) -> Map:
    return Map(number, "hash", f"m{number}", 4, 8, 100, memory, (), own)


def test_runs_are_those_of_the_interval() -> None:
    earlier = Inventory(5 * SECOND, (program(1, 100, 5000), program(2, 7, 70), program(3)), ())
    now = Inventory(7 * SECOND, (program(1, 300, 20_005_000), program(2, 7, 70), program(4, 3, 30)), ())
    activity = between(earlier, now, wall_offset_ns=11)
    assert (activity.ts_ns, activity.duration_ns) == (7 * SECOND + 11, 2 * SECOND)
    assert [(usage.program.id, usage.runs, usage.run_ns) for usage in activity.programs] == [
        (1, 200, 20_000_000),
        (4, 3, 30),  # loaded meanwhile, so all of it counts
        (2, 0, 0),
    ]
    busiest, _, idle = activity.programs
    assert (busiest.mean_ns, busiest.share) == (100_000, 0.01)
    assert (idle.mean_ns, idle.share) == (0, 0)


def test_the_largest_maps_come_first_and_own_ones_are_added_up() -> None:
    maps = (found(1, 100), found(2, 300, own=True), found(3, 200))
    programs = (program(1, 1, SECOND // 10, own=True), program(2, 1, SECOND // 5))
    activity = between(Inventory(0, (), ()), Inventory(SECOND, programs, maps), 0)
    assert [one.id for one in activity.maps] == [2, 3, 1]
    assert (activity.memory(), activity.memory(own=True)) == (8192 + 600, 4096 + 300)
    assert activity.share() == 0.1 + 0.2
    assert activity.share(own=True) == 0.1
    assert activity.share(own=False) == 0.2


def test_an_interval_of_no_length_has_no_shares() -> None:
    once = Inventory(5, (program(1, 1, 1),), ())
    assert between(once, once, 0).programs[0].share == 0
