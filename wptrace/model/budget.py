# SPDX-License-Identifier: Apache-2.0
"""What a budget for the tracing's own cost decides: what to shed, when, and what comes back (docs/budget.md).

Costs and times come in, decisions go out. Costs are shares: 0.05 is 5 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

SHED_AT = 0.8
"""Of the limit: what costs as much is shed, so that the limit itself is not reached."""
RETURN_BELOW = 0.4
"""Of the limit: below it something may come back."""
PATIENCE_NS = 10_000_000_000
"""It has to stay below for so long."""
LONGEST_PATIENCE_NS = 64 * PATIENCE_NS
PROBATION = 3
"""What has to go again within so many times the patience came back too early."""
ENTRY_NS = 40
"""What the way into a program and out of it costs, which the kernel's run time does not contain."""

INTERFERENCE, EACH, FS, SAMPLE = "interference", "each", "fs", "sample"
KINDS = (INTERFERENCE, EACH, FS, SAMPLE)
TOLD_ONE_IN = 100
"""What is left of `each`."""
RATES = (4, 16, 64, 256)
"""The steps of `sample`: one in so many requests is timed."""


class Step(NamedTuple):
    """What can be shed at a time."""

    kind: str
    one_in: int = 0
    """Of `sample`."""


def ladder(kinds: Iterable[str]) -> tuple[Step, ...]:
    """The steps of those that a trace has, in the order in which they go."""
    there = set(kinds)
    steps = [Step(kind) for kind in KINDS if kind in there and kind != SAMPLE]
    return (*steps, *(Step(SAMPLE, rate) for rate in RATES if SAMPLE in there))


def rate_before(steps: Sequence[Step], step: Step) -> int:
    """One in how many requests was timed before this step; 0: all."""
    return max((one.one_in for one in steps if one.kind == SAMPLE and one.one_in < step.one_in), default=0)


class Cost(NamedTuple):
    """What the tracing cost: shares of the time that the CPUs were busy."""

    programs: float | None
    """None: this kernel does not tell."""
    reader: float

    @property
    def total(self) -> float:
        return (self.programs or 0.0) + self.reader


def share(cost_ns: int, busy_ns: int, elapsed_ns: int) -> float:
    """Of the time that all CPUs were busy, or of one CPU's where they were less than that.

    A task that waits for its device keeps no CPU busy, and is slowed all the same; one of them lasts as long as one
    CPU does.
    """
    return cost_ns / max(busy_ns, elapsed_ns, 1)


def programs_ns(run_time_ns: int, runs: int) -> int:
    return run_time_ns + runs * ENTRY_NS


class Policy:
    """How many of the steps are shed: always the first ones."""

    def __init__(self, limit: float, steps: int) -> None:
        self.limit = limit
        self.steps = steps
        self.shed = 0
        self._kept = 0
        """So many stay shed."""
        self._patience_ns = PATIENCE_NS
        self._calm_since: int | None = None
        self._returned_at: int | None = None

    def decide(self, cost: float, now_ns: int) -> int:
        """1: one more was shed, -1: the last one came back, 0: neither. `shed` has changed accordingly."""
        if cost >= SHED_AT * self.limit:
            self._calm_since = None
            if self.shed == self.steps:
                return 0
            early = self._returned_at is not None and now_ns - self._returned_at < PROBATION * self._patience_ns
            if early:
                self._patience_ns = min(2 * self._patience_ns, LONGEST_PATIENCE_NS)
            elif self._returned_at is not None:
                self._patience_ns = PATIENCE_NS
            self._returned_at = None
            self.shed += 1
            return 1
        if cost >= RETURN_BELOW * self.limit:
            self._calm_since = None
            return 0
        if self._calm_since is None:
            self._calm_since = now_ns
        if self.shed == self._kept or now_ns - self._calm_since < self._patience_ns:
            return 0
        self._calm_since = None
        self._returned_at = now_ns
        self.shed -= 1
        return -1

    def keep(self) -> None:
        """What was to come back cannot: it stays shed for good, and so does what went before it."""
        self.shed += 1
        self._kept = self.shed
        self._returned_at = None


class Change(NamedTuple):
    at_ns: int
    """Of the monotonic clock."""
    ts_ns: int
    """Time of day."""
    step: Step
    shed: bool
    """False: it came back."""
    cost: Cost
    """Why."""


class Spending(NamedTuple):
    """What a budget did in an interval, or in the whole trace."""

    limit: float
    cost: Cost
    """The mean of what was measured; if nothing was, what was measured last."""
    worst: float
    shed: tuple[Step, ...]
    """At its end."""
    off_ns: dict[str, int]
    """By kind of step: how long it was off, or sampled."""
    changes: tuple[Change, ...]
    refused: str = ""
    """Why what is shed does not come back; empty where it may."""

    @property
    def one_in(self) -> int:
        """How many requests are there for one that is timed, at the end."""
        return self.shed[-1].one_in or 1 if self.shed else 1


def off_ns(changes: Sequence[Change], since_ns: int, until_ns: int) -> dict[str, int]:
    """How long each kind of step was shed between two moments."""
    found = dict.fromkeys(KINDS, 0)
    began: dict[str, int] = {}
    depth: dict[str, int] = {}
    for change in changes:
        kind, at = change.step.kind, min(max(change.at_ns, since_ns), until_ns)
        depth[kind] = depth.get(kind, 0) + (1 if change.shed else -1)
        if change.shed and depth[kind] == 1:
            began[kind] = at
        elif not change.shed and not depth[kind]:
            found[kind] += at - began.pop(kind)
    for kind, at in began.items():
        found[kind] += until_ns - at
    return found


class Costs:
    """The mean and the worst of what was measured."""

    def __init__(self) -> None:
        self._programs = self._reader = 0.0
        self._count = self._told = 0
        self.worst = 0.0

    def add(self, cost: Cost) -> None:
        self._count += 1
        self._reader += cost.reader
        if cost.programs is not None:
            self._told += 1
            self._programs += cost.programs
        self.worst = max(self.worst, cost.total)

    def mean(self) -> Cost | None:
        if not self._count:
            return None
        return Cost(self._programs / self._told if self._told else None, self._reader / self._count)
