# SPDX-License-Identifier: Apache-2.0
"""Keeps a trace within its budget: measures its cost, and has the flow shed load or restore it (docs/budget.md)."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from wptrace.bpf.programs import run_statistics
from wptrace.engine.flow import Counted, Shedder
from wptrace.errors import NotPermittedError, WptraceError
from wptrace.kernel import cpus, privileges
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model import budget
from wptrace.model.budget import Change, Cost, Costs, Policy, Saving, Spending, Step

log = logging.getLogger("wptrace.budget")

# Counting run times slows down all programs of the machine, so it is done for a short time only.
_WINDOW_S = 0.1
# The time between two measurements: near the limit, and otherwise.
_SOON_S = 0.9
_LATER_S = 3.9
# An hour of measurements is kept, for windows that begin in between.
_KEPT = 4096
# Changes that are listed one by one, at least.
_CHANGES = 1024


class _Reading(NamedTuple):
    at_ns: int
    busy_ns: int
    own_ns: int
    programs_ns: int


class Meter:
    """Measures the cost of the programs for a short time, and that of this process since the last measurement."""

    def __init__(self, programs: Sequence[Counted]) -> None:
        self._programs = programs
        self._statistics: AbstractContextManager[None] | None = None
        self._begin: _Reading | None = None
        self._last = self._read()
        self.refused = ""
        """The reason why the kernel does not count run times."""

    def begin(self) -> None:
        if not self.refused:
            statistics = run_statistics()
            try:
                statistics.__enter__()
                self._statistics = statistics
            except WptraceError as error:
                lacking = isinstance(error, NotPermittedError) and "CAP_SYS_ADMIN" not in privileges.effective()
                self.refused = "run times need CAP_SYS_ADMIN, which is missing" if lacking else error.message
        self._begin = self._read()

    def end(self) -> Cost:
        now, begin, last = self._read(), self._begin or self._last, self._last
        counted = self._statistics is not None
        self.close()
        self._last = now
        reader = budget.share(now.own_ns - last.own_ns, now.busy_ns - last.busy_ns, now.at_ns - last.at_ns)
        if not counted:
            return Cost(None, reader)
        spent = now.programs_ns - begin.programs_ns
        return Cost(budget.share(spent, now.busy_ns - begin.busy_ns, now.at_ns - begin.at_ns), reader)

    def _read(self) -> _Reading:
        ran = [program.statistics() for program in self._programs]
        spent = budget.programs_ns(sum(one.run_time_ns for one in ran), sum(one.run_count for one in ran))
        return _Reading(time.monotonic_ns(), cpus.busy_ns(), time.process_time_ns(), spent)

    def close(self) -> None:
        if self._statistics is not None:
            self._statistics.__exit__(None, None, None)
            self._statistics = None


class Keeper:
    """Enforces a budget. `due` is when to measure again, by the monotonic clock in seconds."""

    def __init__(self, limit: float, shedder: Shedder, now: float, meter: Meter | None = None) -> None:
        self._shedder = shedder
        self._steps = shedder.steps
        self._policy = Policy(limit, len(self._steps))
        self._meter = Meter(shedder.programs()) if meter is None else meter
        self._measuring = False
        self._changes: list[Change] = []
        """The most recent changes."""
        self._standing: list[Change] = []
        """Steps that were shed before those and still are."""
        self._off_before_ns = Counter[Saving]()
        self._of_all = Costs()
        self._measured: deque[tuple[int, Cost]] = deque(maxlen=_KEPT)
        self._last = Cost(None, 0.0)
        self._refused = ""
        self.due = now
        # The first measurement shows whether the kernel counts run times.
        self.check(now)

    def limit(self, share: float) -> None:
        """Change the limit. Steps that were shed come back as the load allows."""
        self._policy.limit = share

    def check(self, now: float) -> None:
        if not self._measuring:
            self._meter.begin()
            self._measuring = True
            self.due = now + _WINDOW_S
            return
        self._measuring = False
        cost = self._last = self._meter.end()
        self._of_all.add(cost)
        self._measured.append((int(now * 1e9), cost))
        changed = self._policy.decide(cost.total, int(now * 1e9))
        if changed > 0:
            step = self._steps[self._policy.shed - 1]
            self._shedder.shed(step)
            self._note(step, True, cost, now)
        elif changed < 0:
            self._restore(self._steps[self._policy.shed], cost, now)
        tight = changed or cost.total >= budget.RETURN_BELOW * self._policy.limit
        self.due = now + (_SOON_S if tight and self._policy.shed < len(self._steps) else _LATER_S)

    def _restore(self, step: Step, cost: Cost, now: float) -> None:
        try:
            self._shedder.restore(step)
        except WptraceError as error:
            log.info("%s stays off: %s", step.kind.name, error.message)
            self._refused = f"{step.kind.name}: {error.message}"
            self._policy.keep()
            return
        self._note(step, False, cost, now)

    def _note(self, step: Step, shed: bool, cost: Cost, now: float) -> None:
        at_ns = int(now * 1e9)
        self._changes.append(Change(at_ns, at_ns + wall_offset_ns(), step, shed, cost))
        if len(self._changes) > 2 * _CHANGES:
            self._forget(len(self._changes) - _CHANGES)

    def _forget(self, count: int) -> None:
        """Turn the oldest changes into sums: how long each step was shed, and which steps still are."""
        savings, until_ns = self._shedder.savings, self._changes[count].at_ns
        older = [*self._standing, *self._changes[:count]]
        for saving, ns in budget.off_ns(savings, older, 0, until_ns).items():
            self._off_before_ns[saving] += ns
        steps = Counter[Step]()
        for one in older:
            steps[one.step] += 1 if one.shed else -1
        cost = self._changes[count].cost
        self._standing = [Change(until_ns, until_ns, step, True, cost) for step, shed in steps.items() if shed > 0]
        del self._changes[:count]

    def _off_ns(self, since_ns: int, until_ns: int, whole: bool) -> dict[Saving, int]:
        changes = [*self._standing, *self._changes]
        found = budget.off_ns(self._shedder.savings, changes, since_ns, until_ns)
        return {saving: ns + self._off_before_ns[saving] for saving, ns in found.items()} if whole else found

    def notes(self) -> list[str]:
        order = ", ".join(dict.fromkeys(step.kind.less for step in self._steps))
        limit = f"{self._policy.limit * 100:.3g}%"
        found = [f"a budget of {limit} of the busy CPU time: to stay within it, wptrace cuts {order}, in this order"]
        if self._meter.refused:
            found.append(f"the budget covers only the reader: {self._meter.refused}")
        return found

    def spending(self, since_ns: int, until_ns: int, whole: bool) -> Spending:
        costs = self._of_all if whole else self._between(since_ns, until_ns)
        return Spending(
            self._policy.limit,
            costs.mean() or self._last,
            costs.worst,
            self._steps[: self._policy.shed],
            self._off_ns(since_ns, until_ns, whole),
            tuple(change for change in self._changes if since_ns <= change.at_ns < until_ns),
            self._refused,
            self._policy.shed == len(self._steps),
        )

    def _between(self, since_ns: int, until_ns: int) -> Costs:
        found = Costs()
        for at_ns, cost in self._measured:
            if since_ns < at_ns <= until_ns:
                found.add(cost)
        return found

    def close(self) -> None:
        self._meter.close()
