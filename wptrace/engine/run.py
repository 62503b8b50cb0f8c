# SPDX-License-Identifier: Apache-2.0
"""Runs a flow: attaches, reports every interval, ends on a signal, a count or a closed pipe, and sums up."""

from __future__ import annotations

import gc
import math
import os
import stat
import time
from contextlib import ExitStack

from wptrace.analysis.history import History
from wptrace.analysis.verdict import Case, judge
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.engine.budget import Keeper
from wptrace.engine.flow import Flow
from wptrace.engine.signals import Stop
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.privileges import require_admin
from wptrace.model.book import INCONSISTENT
from wptrace.model.kind import REQUESTS
from wptrace.model.report import Output, Report, Snapshot, rows_of, since

# The cells' 32-bit buckets are added up at least this often, far below what a CPU can count in.
_LONGEST_WAIT = 60.0
# Without an interval, stuck requests are looked for so often.
_STUCK_EVERY = 1.0
# So many objects more than before make Python look for garbage: those of some batches of records.
_COLLECTED = 100_000


class Looks:
    """When to look at the counters for the history: every second, unless a look costs more than a hundredth of that."""

    OFTEN = 1.0
    COST = 0.01

    def __init__(self, now: float, wanted: bool) -> None:
        self._pace = self.OFTEN if wanted else _LONGEST_WAIT
        self._last = now
        self._wanted = wanted

    @property
    def due(self) -> float:
        return self._last + self._pace

    def taken(self, now: float, cost: float) -> bool:
        """Whether a snapshot that was taken is such a look; one for a report may come somewhat early."""
        if now < self._last + self._pace / 2:
            return False
        self._last = now
        if self._wanted:
            self._pace = min(max(self.OFTEN, cost / self.COST), _LONGEST_WAIT)
        return True


def run(
    flow: Flow,
    output: Output,
    interval_s: float | None,
    count: int | None,
    statistics: bool,
    watch_fd: int = -1,
    stuck_ns: int | None = None,
    limit: float | None = None,
) -> None:
    """`watch_fd` is the output's descriptor: where it is a pipe, its reader's end is noticed without a write.

    With `stuck_ns`, what is in flight for at least so long is told at each interval, or every second without one.
    `limit` is the share of the busy CPU time that the tracing may cost; a flow that costs more does less.
    """
    with Stop() as stop, ExitStack() as cleanup:
        cleanup.callback(output.close)
        if statistics:
            require_admin("--stats")
            cleanup.enter_context(run_statistics())
        cleanup.callback(flow.close)
        reader = Reader(stop.fd)
        if watch_fd >= 0 and _is_pipe(watch_fd):
            reader.watch_hangup(watch_fd)
        _run(flow, output, reader, stop, interval_s, count, stuck_ns, limit, cleanup)


def _run(
    flow: Flow,
    output: Output,
    reader: Reader,
    stop: Stop,
    interval_s: float | None,
    count: int | None,
    stuck_ns: int | None,
    limit: float | None,
    cleanup: ExitStack,
) -> None:
    start = flow.start(reader)
    collect_seldom()
    first = latest = flow.snapshot()
    keeper = _keeper(flow, limit)
    if keeper is not None:
        cleanup.callback(keeper.close)
        start = start._replace(notes=[*start.notes, *keeper.notes()])
    output.start(start)
    history = History()
    history.add(first.at_ns, first.cells)
    done = 0
    now = time.monotonic()
    looks = Looks(now, bool(flow.judged))
    due = now + interval_s if interval_s else math.inf
    stuck_due = now + (interval_s or _STUCK_EVERY) if stuck_ns is not None else math.inf
    while not stop.asked and not reader.hung_up and (count is None or done < count):
        reader.wait(min(due, stuck_due, looks.due, keeper.due if keeper is not None else math.inf) - time.monotonic())
        reader.drain()
        _events(flow, output)
        if stop.take_list():
            output.in_flight(flow.in_flight(0), time.time_ns())
        now = time.monotonic()
        if stuck_ns is not None and now >= stuck_due:
            stuck_due = _next(stuck_due, interval_s or _STUCK_EVERY, now)
            stuck = flow.in_flight(stuck_ns)
            if stuck:
                output.in_flight(stuck, time.time_ns())
        if keeper is not None and now >= keeper.due:
            keeper.look(now)
        if now < min(due, looks.due):
            continue
        before = time.process_time()
        if now < due:
            at_ns, cells = int(now * 1e9), flow.look()
        else:
            taken = flow.snapshot()
            at_ns, cells = taken.at_ns, taken.cells
        if looks.taken(now, time.process_time() - before):
            history.add(at_ns, cells)
        if now < due or interval_s is None:
            continue
        output.interval(_report("interval", flow, taken, latest, keeper))
        latest = taken
        done += 1
        due = _next(due, interval_s, now)
    flow.stop()
    reader.drain()
    _events(flow, output)
    last = flow.snapshot()
    history.add(last.at_ns, last.cells)
    report = _report("summary", flow, last, first, keeper)
    for cause, count in output.losses().items():
        report.book.note(cause, count)
    output.summary(_with_verdict(report, flow, history)._replace(lists=flow.lists()))


def _keeper(flow: Flow, limit: float | None) -> Keeper | None:
    shedder = flow.shedder() if limit is not None else None
    return None if limit is None or shedder is None else Keeper(limit, shedder, time.monotonic())


def collect_seldom() -> None:
    """Records are many small objects without cycles: looking for some as often as Python does takes long."""
    gc.freeze()
    gc.set_threshold(_COLLECTED)


def _next(due: float, step: float, now: float) -> float:
    """After a stop (SIGSTOP, a suspended machine) it goes on from now, what was missed is not made up for."""
    return due + step if due + step > now else now + step


def _events(flow: Flow, output: Output) -> None:
    events = flow.events()
    for event in events:
        output.event(event)
    if events:
        output.flush()


def _report(kind: str, flow: Flow, now: Snapshot, earlier: Snapshot, keeper: Keeper | None) -> Report:
    cells, counters = since(now, earlier)
    books = {name: book.interval(earlier.books[name]) for name, book in now.books.items()}
    shrunk = sum(found.shrunk for stages in cells.values() for found in stages.values())
    if shrunk:
        books[REQUESTS].note(INCONSISTENT, shrunk)
    return Report(
        kind,
        now.at_ns + wall_offset_ns(),
        now.at_ns - earlier.at_ns,
        books,
        rows_of(cells, flow.kinds),
        counters,
        now.overhead.since(earlier.overhead),
        budget=None if keeper is None else keeper.spending(earlier.at_ns, now.at_ns, kind == "summary"),
    )


def _with_verdict(summary: Report, flow: Flow, history: History) -> Report:
    if not flow.judged:
        return summary
    return summary._replace(verdict=judge(Case(summary, flow.judged, history.stretches, wall_offset_ns()), flow.rules))


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
