# SPDX-License-Identifier: Apache-2.0
"""Runs a flow: attaches, reports every interval, ends on a signal, a count or a closed pipe, and sums up."""

from __future__ import annotations

import gc
import math
import os
import stat
import time
from collections.abc import Mapping
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
from wptrace.model.results import Output, Report, Snapshot, events_since, rows_of, since, untimed_since

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
    looks = Looks(now, flow.stages.timed)
    due = now + interval_s if interval_s else math.inf
    stuck_due = now + (interval_s or _STUCK_EVERY) if stuck_ns is not None else math.inf
    while not stop.asked and not reader.hung_up and (count is None or done < count):
        reader.wait(min(due, stuck_due, looks.due, keeper.due if keeper is not None else math.inf) - time.monotonic())
        reader.drain()
        _requests(flow, output)
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
    _requests(flow, output)
    last = flow.snapshot()
    history.add(last.at_ns, last.cells)
    output.summary(_with_verdict(_report("summary", flow, last, first, keeper), flow, history, last.behind))


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


def _requests(flow: Flow, output: Output) -> None:
    requests = flow.requests()
    for request in requests:
        output.request(request)
    if requests:
        output.flush()


def _report(kind: str, flow: Flow, now: Snapshot, earlier: Snapshot, keeper: Keeper | None) -> Report:
    cells, sizes = since(now, earlier)
    operations = None
    if now.operations is not None and earlier.operations is not None:
        operations = now.operations.interval(earlier.operations)
    book = now.accounting.interval(earlier.accounting)
    shrunk = sum(found.shrunk for stages in cells.values() for found in stages.values())
    if shrunk:
        book.note(INCONSISTENT, shrunk)
    return Report(
        kind,
        now.at_ns + wall_offset_ns(),
        now.at_ns - earlier.at_ns,
        book,
        rows_of(cells, flow.stages),
        sizes,
        now.failed - earlier.failed,
        now.overhead.since(earlier.overhead),
        operations,
        now.failed_operations - earlier.failed_operations,
        untimed=untimed_since(now, earlier),
        budget=None if keeper is None else keeper.spending(earlier.at_ns, now.at_ns, kind == "summary"),
        events=events_since(now, earlier),
    )


def _with_verdict(summary: Report, flow: Flow, history: History, behind: Mapping[str, int]) -> Report:
    if not flow.stages.timed:
        return summary
    case = Case(
        summary.rows,
        flow.stages,
        summary.duration_ns,
        summary.accounting,
        summary.operations,
        history.stretches,
        wall_offset_ns(),
        behind,
    )
    return summary._replace(verdict=judge(case))


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
