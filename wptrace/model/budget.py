# SPDX-License-Identifier: Apache-2.0
"""The decisions of a budget for the cost of tracing: what to shed, when, and what comes back (docs/budget.md).

Costs and times come in, decisions go out. Costs are shares: 0.05 is 5 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

SHED_AT = 0.8
"""The share of the limit from which on steps are shed, so that the limit itself is not reached."""
RETURN_BELOW = 0.4
"""The share of the limit below which a step may come back."""
PATIENCE_NS = 10_000_000_000
"""How long the cost has to stay below it."""
LONGEST_PATIENCE_NS = 64 * PATIENCE_NS
PROBATION = 3
"""A step that has to go again within so many times the patience came back too early."""
ENTRY_NS = 40
"""The cost of entering and leaving a program, which the kernel's run time does not contain."""


class Saving(NamedTuple):
    """A saving that a flow can make."""

    name: str
    less: str
    """The cost for the user, said in advance."""
    gone: str = ""
    """And once it has, if that is something else."""
    rates: tuple[int, ...] = ()
    """Sampling rates, for a saving in several steps."""


KEPT_ONE_IN = 100
"""The part of `each` that is left."""
EACH = Saving("each", f"records (1/{KEPT_ONE_IN} are kept)", f"records but 1/{KEPT_ONE_IN}")
_RATES = (4, 16, 64, 256)


def times_of(many: str) -> Saving:
    """Requests that are still counted, but not timed."""
    return Saving("sample", f"times of {many} (of one in {', '.join(map(str, _RATES))})", f"times of {many}", _RATES)


class Step(NamedTuple):
    """The savings that can be made at a time."""

    kind: Saving
    one_in: int = 0
    """The sampling rate of this step."""


def ladder(savings: Iterable[Saving]) -> tuple[Step, ...]:
    """Their steps, in this order."""
    return tuple(Step(one, rate) for one in savings for rate in one.rates or (0,))


def rate_before(steps: Sequence[Step], step: Step) -> int:
    """Return the sampling rate before this step; 0: all."""
    return max((one.one_in for one in steps if one.kind == step.kind and one.one_in < step.one_in), default=0)


class Cost(NamedTuple):
    """The cost of the tracing, as shares of the time that the CPUs were busy."""

    programs: float | None
    """None: this kernel does not measure it."""
    reader: float

    @property
    def total(self) -> float:
        return (self.programs or 0.0) + self.reader


def share(cost_ns: int, busy_ns: int, elapsed_ns: int) -> float:
    """Return the cost as a share of the time that all CPUs were busy, or of one CPU's time if they were less busy.

    A task that waits for its device keeps no CPU busy but is slowed as well, and lasts as long as one CPU does.
    """
    return cost_ns / max(busy_ns, elapsed_ns, 1)


def programs_ns(run_time_ns: int, runs: int) -> int:
    return run_time_ns + runs * ENTRY_NS


class Policy:
    """The number of steps that are shed, always the first ones."""

    def __init__(self, limit: float, steps: int) -> None:
        self.limit = limit
        self.steps = steps
        self.shed = 0
        self._kept = 0
        """The number of steps that stay shed."""
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
        """Keep the last step shed for good, and all before it, since it cannot come back."""
        self.shed += 1
        self._kept = self.shed
        self._returned_at = None


class Change(NamedTuple):
    at_ns: int
    """The time by the monotonic clock."""
    ts_ns: int
    """Time of day."""
    step: Step
    shed: bool
    """False: it came back."""
    cost: Cost
    """Why."""


class Spending(NamedTuple):
    """The effect of a budget in an interval, or in the whole trace."""

    limit: float
    cost: Cost
    """The mean of what was measured; if nothing was, what was measured last."""
    worst: float
    shed: tuple[Step, ...]
    """At its end."""
    off_ns: dict[Saving, int]
    """How long each saving was off, or sampled."""
    changes: tuple[Change, ...]
    refused: str = ""
    """Why what is shed does not come back; empty where it may."""
    exhausted: bool = False
    """There is nothing left to shed."""

    @property
    def one_in(self) -> int:
        """How many requests there are for each timed one, at the end."""
        return self.shed[-1].one_in or 1 if self.shed else 1


def off_ns(savings: Iterable[Saving], changes: Sequence[Change], since_ns: int, until_ns: int) -> dict[Saving, int]:
    """Return how long each step was shed between two moments."""
    found = dict.fromkeys(savings, 0)
    began: dict[Saving, int] = {}
    depth: dict[Saving, int] = {}
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
        self._count = self._known = 0
        self.worst = 0.0

    def add(self, cost: Cost) -> None:
        self._count += 1
        self._reader += cost.reader
        if cost.programs is not None:
            self._known += 1
            self._programs += cost.programs
        self.worst = max(self.worst, cost.total)

    def mean(self) -> Cost | None:
        if not self._count:
            return None
        return Cost(self._programs / self._known if self._known else None, self._reader / self._count)
