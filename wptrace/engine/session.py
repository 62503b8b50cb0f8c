# SPDX-License-Identifier: Apache-2.0
"""Flows that are traced from start to end, and consumers of their counts and records, each at its own pace."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Protocol

from wptrace.analysis.history import History
from wptrace.bpf.ring import Reader
from wptrace.engine.flow import Flow
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model.book import INCONSISTENT
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, Group
from wptrace.model.report import Event, Report, Snapshot, Start, arranged, since

if TYPE_CHECKING:
    from wptrace.engine.budget import Keeper

# The 32-bit buckets of cells are read at least this often, long before a CPU can make them wrap.
_LONGEST_WAIT = 60.0
# The number of records to decode and format at a time, so that they fit a CPU's caches.
_PIECE = 2048
_MOST_PIECES = 16


class HistoryPace:
    """When to read the counters for the history: each second, but less often for an agent, or if a read costs more than
    a hundredth of that."""

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
    """A consumer of events, with a turn when it is due."""

    @property
    def due(self) -> float:
        """When its turn is due, by the monotonic clock; infinite if it only wants events and the end."""

    def events(self, events: Sequence[Event]) -> None: ...

    def turn(self, now: float) -> None:
        """Take a turn. A snapshot costs nothing if another consumer took one in the same turn."""

    def end(self) -> None:
        """Finish: the flows are detached, and all events have been delivered."""


def next_due(due: float, step: float, now: float) -> float:
    """The next due time. After a stop (SIGSTOP, a suspended machine) missed ones are skipped, and so is one that would
    come too soon: a window of a millisecond says nothing."""
    return due + step if due + step / 2 > now else now + step


class QuietConsumer:
    """A consumer that does nothing; a subclass does what it is for."""

    due = math.inf

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        pass

    def end(self) -> None:
        pass


class Trace:
    """A flow in a session."""

    start: Start
    first: Snapshot
    _pace: HistoryPace

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._consumers: list[Consumer] = []
        self._keeper: Keeper | None = None
        self._turning = False
        self._read: Snapshot | None = None
        """The snapshot of the current turn."""
        self._cost_s = 0.0
        self._history = History()

    def subscribe(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)

    def unsubscribe(self, consumer: Consumer) -> None:
        """Remove a consumer, without ending it."""
        self._consumers.remove(consumer)

    def begin(self, reader: Reader, often: float) -> None:
        self.start = self.flow.start(reader)
        # What ended since its programs are attached is in the first snapshot, and so in no figures.
        self.flow.forget_events()
        # The first snapshot: later events are all in the figures.
        self.first = self.snapshot()
        self.flow.begin()
        self._pace = HistoryPace(time.monotonic(), bool(self.flow.verdict_kinds), often)
        self.remember(self.first)

    def keep(self, budget: float) -> None:
        """Enforce a budget from now on; the cost of the start does not count."""
        shedder = self.flow.shedder()
        if shedder is not None:
            from wptrace.engine.budget import Keeper

            self._keeper = Keeper(budget, shedder, time.monotonic())
            self.start = self.start._replace(notes=[*self.start.notes, *self._keeper.notes()])

    def keep_within(self, budget: float) -> None:
        """Change the budget, if there is one."""
        if self._keeper is not None:
            self._keeper.limit(budget)

    @property
    def due(self) -> float:
        keeper = math.inf if self._keeper is None else self._keeper.due
        return min(keeper, self._pace.due, *(consumer.due for consumer in self._consumers))

    def deliver(self) -> None:
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
        """Everything that was counted so far; within a turn it is read once."""
        if self._read is not None:
            return self._read
        before = time.process_time()
        snapshot = self.flow.snapshot()
        self._cost_s = time.process_time() - before
        if self._turning:
            self._read = snapshot
        return snapshot

    def lately(self, before: Snapshot) -> Snapshot:
        """The earlier snapshot with the distributions of now: that costs less than half as much."""
        if self._read is not None:
            return self._read
        return before._replace(at_ns=time.monotonic_ns(), cells=self.flow.read_cells())

    def finish(self) -> None:
        """Complete the history and end the consumers."""
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
        """The report of a window with its verdict, by the history of that time."""
        from wptrace.analysis.verdict import Case, judge

        report, flow = self.window(earlier, now, kind), self.flow
        if not flow.verdict_kinds:
            return report
        during = [one for one in self._history.stretches if earlier.at_ns <= one.start_ns and one.end_ns <= now.at_ns]
        case = Case(report, flow.verdict_kinds, during, wall_offset_ns())
        return report._replace(verdict=judge(case, flow.rules))

    def close(self) -> None:
        # They hold references to this trace.
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
        """`wake` is a descriptor that ends a wait, `budget` the share of CPU time for all flows, `history_s` the least
        time between reads for the history."""
        self.reader = Reader(wake)
        self.traces = [Trace(flow) for flow in flows]
        self._share = None if budget is None else budget / len(flows)
        self._history_s = history_s

    def start(self) -> None:
        """Load and attach all flows."""
        for trace in self.traces:
            trace.begin(self.reader, self._history_s)
        if self._share is not None:
            for trace in self.traces:
                trace.keep(self._share)

    @property
    def due(self) -> float:
        return min(trace.due for trace in self.traces)

    def wait(self, until: float = math.inf) -> None:
        """Wait until a consumer is due or a descriptor is ready, and deliver the new events."""
        self.reader.wait(min(self.due, until) - time.monotonic())
        self._deliver()

    def turn(self) -> None:
        now = time.monotonic()
        for trace in self.traces:
            trace.turn(now)

    def _deliver(self, pieces: int = _MOST_PIECES) -> None:
        """Deliver events; consumers get a turn after so many pieces, or after all of them with 0."""
        for number in count(1):
            self.reader.drain(_PIECE)
            for trace in self.traces:
                trace.deliver()
            if not self.reader.behind or number == pieces:
                return

    def end(self) -> None:
        """Detach all flows, deliver the remaining events, and end the consumers."""
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
