# SPDX-License-Identifier: Apache-2.0
"""The BPF programs and maps of a machine at one moment, and what programs did between two of them."""

from __future__ import annotations

from typing import NamedTuple


class Holder(NamedTuple):
    """A process that has a descriptor of it."""

    pid: int
    comm: str


class Program(NamedTuple):
    id: int
    type: str
    name: str
    attached: tuple[str, ...]
    """Places as sections name them: tp_btf/sched_switch."""
    memory: int
    maps: tuple[int, ...]
    holders: tuple[Holder, ...]
    own: bool
    """Brought there by wptrace, this one or another."""
    run_count: int
    run_time_ns: int


class Map(NamedTuple):
    id: int
    type: str
    name: str
    key_size: int
    value_size: int
    max_entries: int
    memory: int
    holders: tuple[Holder, ...]
    own: bool


class Inventory(NamedTuple):
    at_ns: int
    """The time by the monotonic clock."""
    programs: tuple[Program, ...]
    maps: tuple[Map, ...]


class Usage(NamedTuple):
    """Runs and time of a program in an interval."""

    program: Program
    runs: int
    run_ns: int
    share: float
    """The share of one CPU's time."""

    @property
    def mean_ns(self) -> float:
        return self.run_ns / self.runs if self.runs else 0.0


class Activity(NamedTuple):
    ts_ns: int
    """Time of day at its end."""
    duration_ns: int
    programs: tuple[Usage, ...]
    """The busiest first."""
    maps: tuple[Map, ...]
    """The largest first."""

    def share(self, own: bool | None = None) -> float:
        return sum(usage.share for usage in self.programs if own in (None, usage.program.own))

    def memory(self, own: bool | None = None) -> int:
        """Return the memory of programs and maps."""
        programs = sum(usage.program.memory for usage in self.programs if own in (None, usage.program.own))
        return programs + sum(found.memory for found in self.maps if own in (None, found.own))


def between(earlier: Inventory, now: Inventory, wall_offset_ns: int) -> Activity:
    """A program that came in between counts from its load on; one that went is in neither."""
    before = {program.id: program for program in earlier.programs}
    duration = now.at_ns - earlier.at_ns
    found = []
    for program in now.programs:
        known = before.get(program.id)
        runs = program.run_count - (known.run_count if known else 0)
        spent = program.run_time_ns - (known.run_time_ns if known else 0)
        found.append(Usage(program, runs, spent, spent / duration if duration else 0.0))
    found.sort(key=lambda usage: (-usage.run_ns, -usage.runs, usage.program.id))
    maps = sorted(now.maps, key=lambda one: (-one.memory, one.id))
    return Activity(now.at_ns + wall_offset_ns, duration, tuple(found), tuple(maps))
