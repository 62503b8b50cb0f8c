# SPDX-License-Identifier: Apache-2.0
"""Flows that are traced from start to end, and whoever consumes what they count and record, each at its own pace."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Protocol

from wptrace.analysis.history import History
from wptrace.analysis.verdict import Case, judge
from wptrace.bpf.ring import Reader
from wptrace.engine.budget import Keeper
from wptrace.engine.flow import Flow
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model.book import INCONSISTENT
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, Group
from wptrace.model.report import Event, Report, Snapshot, Start, arranged, since

# The 32-bit buckets of cells are added up at least this often, far below the time in which a CPU can make them wrap.
_LONGEST_WAIT = 60.0
# So many records at a time are decoded and made lines of: caches of a CPU hold no more.
_PIECE = 2048
_MOST_PIECES = 16


class HistoryPace:
    """When to read the counters for the history: each second, unless that costs more than a hundredth of the time, or
    somebody stays on for weeks."""

    OFTEN = 1.0
    COST = 0.01

    def __init__(self, now: float, wanted: bool, often: float = OFTEN) -> None:
        self._step = often if wanted else _LONGEST_WAIT
        self._last = now
        self._wanted, self._often = wanted, often

    @property
    def due(self) -> float:
        return self._last + self._step

    def accept(self, now: float, cost: float) -> bool:
        """Whether to add a snapshot taken now to the history: one for a report may come somewhat early."""
        if now < self._last + self._step / 2:
            return False
        self._last = now
        if self._wanted:
            self._step = min(max(self._often, cost / self.COST), _LONGEST_WAIT)
        return True


class Consumer(Protocol):
    """Gets events as they come, and a turn when it is due."""

    @property
    def due(self) -> float:
        """Seconds of the monotonic clock; infinite if it only wants events and the end."""

    def events(self, events: Sequence[Event]) -> None: ...

    def turn(self, now: float) -> None:
        """Called when it is due. A snapshot taken here costs nothing if another consumer took one in the same turn."""

    def end(self) -> None:
        """The flows are detached, and all events have been delivered."""


class Trace:
    """One flow of a session."""

    start: Start
    first: Snapshot
    _pace: HistoryPace

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._consumers: list[Consumer] = []
        self._keeper: Keeper | None = None
        self._turning = False
        self._read: Snapshot | None = None
        """In this turn."""
        self._cost_s = 0.0
        self._history = History()

    def subscribe(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)

    def unsubscribe(self, consumer: Consumer) -> None:
        """It is not told the end."""
        self._consumers.remove(consumer)

    def begin(self, reader: Reader, often: float) -> None:
        self.start = self.flow.start(reader)
        # Before anything is taken: what events tell is in the figures as well.
        self.first = self.snapshot()
        self.flow.begin()
        self._pace = HistoryPace(time.monotonic(), bool(self.flow.verdict_kinds), often)
        self.remember(self.first)

    def keep(self, budget: float) -> None:
        """From now on it may cost so much; what the start cost is over."""
        shedder = self.flow.shedder()
        if shedder is not None:
            self._keeper = Keeper(budget, shedder, time.monotonic())
            self.start = self.start._replace(notes=[*self.start.notes, *self._keeper.notes()])

    def keep_within(self, budget: float) -> None:
        """Another budget than before, where there is one."""
        if self._keeper is not None:
            self._keeper.limit(budget)

    @property
    def due(self) -> float:
        keeper = math.inf if self._keeper is None else self._keeper.due
        return min(keeper, self._pace.due, *(consumer.due for consumer in self._consumers))

    def deliver(self) -> None:
        """Hands new events to all consumers."""
        events = self.flow.events()
        if not events:
            return
        for consumer in self._consumers:
            consumer.events(events)

    def turn(self, now: float) -> None:
        if self._keeper is not None and now >= self._keeper.due:
            self._keeper.check(now)
        self._turning, self._read = True, None
        for consumer in self._consumers:
            if now >= consumer.due:
                consumer.turn(now)
        self._read_for_history(now)
        self._turning, self._read = False, None

    def remember(self, snapshot: Snapshot) -> None:
        """Add a snapshot to the history."""
        self._remember(snapshot.at_ns, snapshot.cells)

    def _remember(self, at_ns: int, cells: Mapping[Group, dict[str, Distribution]]) -> None:
        """Add the kinds that a verdict may be about; there may be thousands of owners besides."""
        kinds = self.flow.verdict_kinds
        self._history.add(at_ns, {group: stages for group, stages in cells.items() if group.kind in kinds})

    def _read_for_history(self, now: float) -> None:
        """Use what a consumer has just read, or read the counters when that is due."""
        if self._read is not None:
            at_ns, cells = self._read.at_ns, self._read.cells
        elif now >= self._pace.due:
            before = time.process_time()
            at_ns, cells = int(now * 1e9), self.flow.read_cells()
            self._cost_s = time.process_time() - before
        else:
            return
        if self._pace.accept(now, self._cost_s):
            self._remember(at_ns, cells)

    def snapshot(self) -> Snapshot:
        """All that was counted so far; within one turn it is read once."""
        if self._read is not None:
            return self._read
        before = time.process_time()
        snapshot = self.flow.snapshot()
        self._cost_s = time.process_time() - before
        if self._turning:
            self._read = snapshot
        return snapshot

    def lately(self, before: Snapshot) -> Snapshot:
        """The same with the distributions of now, and all else as it was before: that costs less than half as much."""
        if self._read is not None:
            return self._read
        return before._replace(at_ns=time.monotonic_ns(), cells=self.flow.read_cells())

    def finish(self) -> None:
        """Adds the last of the history and ends the consumers."""
        self._turning = True
        self.remember(self.snapshot())
        for consumer in self._consumers:
            consumer.end()

    def window(self, earlier: Snapshot, now: Snapshot, kind: str) -> Report:
        """Report what happened between any two snapshots of this trace."""
        cells, counters = self.flow.folded(*since(now, earlier))
        books = {name: book.interval(earlier.books[name]) for name, book in now.books.items()}
        shrunk = sum(found.shrunk for stages in cells.values() for found in stages.values())
        if shrunk:
            books[REQUESTS].note(INCONSISTENT, shrunk)
        return Report(
            kind,
            now.at_ns + wall_offset_ns(),
            now.at_ns - earlier.at_ns,
            books,
            arranged(cells, self.flow.kinds),
            counters,
            now.overhead.since(earlier.overhead),
            budget=None
            if self._keeper is None
            else self._keeper.spending(earlier.at_ns, now.at_ns, earlier is self.first),
        )

    def window_with_verdict(self, earlier: Snapshot, now: Snapshot, kind: str) -> Report:
        """The same with its verdict, by the history of that time."""
        report, flow = self.window(earlier, now, kind), self.flow
        if not flow.verdict_kinds:
            return report
        during = [one for one in self._history.stretches if earlier.at_ns <= one.start_ns and one.end_ns <= now.at_ns]
        case = Case(report, flow.verdict_kinds, during, wall_offset_ns())
        return report._replace(verdict=judge(case, flow.rules))

    def close(self) -> None:
        # They refer to this trace.
        self._consumers.clear()
        if self._keeper is not None:
            self._keeper.close()
        self.flow.close()


class Session:
    """Loaded flows, one reader for all of their rings, and a loop that gives each consumer its turn."""

    def __init__(
        self,
        flows: Sequence[Flow],
        wake: int | None = None,
        budget: float | None = None,
        history_s: float = HistoryPace.OFTEN,
    ) -> None:
        """`wake` is a descriptor that ends a wait; `budget` is the share of CPU time for all flows together. So often
        at least counters are read for the history."""
        self.reader = Reader(wake)
        self.traces = [Trace(flow) for flow in flows]
        self._share = None if budget is None else budget / len(flows)
        self._history_s = history_s

    def start(self) -> None:
        """Loads and attaches all of them."""
        for trace in self.traces:
            trace.begin(self.reader, self._history_s)
        if self._share is not None:
            for trace in self.traces:
                trace.keep(self._share)

    @property
    def due(self) -> float:
        return min(trace.due for trace in self.traces)

    def wait(self, until: float = math.inf) -> None:
        """Waits until somebody is due, or woken, and delivers the events that came."""
        self.reader.wait(min(self.due, until) - time.monotonic())
        self._deliver()

    def turn(self) -> None:
        now = time.monotonic()
        for trace in self.traces:
            trace.turn(now)

    def _deliver(self, pieces: int = _MOST_PIECES) -> None:
        """Others have their turn after so many pieces; 0: there is nothing else any more."""
        for number in count(1):
            self.reader.drain(_PIECE)
            for trace in self.traces:
                trace.deliver()
            if not self.reader.behind or number == pieces:
                return

    def end(self) -> None:
        """Detaches all flows, delivers what is left, and ends the consumers."""
        for trace in self.traces:
            trace.flow.stop()
        self._deliver(pieces=0)
        for trace in self.traces:
            trace.finish()

    def close(self) -> None:
        """Detach everything, in whatever state the session is."""
        with ExitStack() as stack:
            for trace in self.traces:
                stack.callback(trace.close)
