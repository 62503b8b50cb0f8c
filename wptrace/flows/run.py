# SPDX-License-Identifier: Apache-2.0
"""Runs a flow: attaches, reports every interval, ends on a signal, a count or a closed pipe, and sums up."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from types import FrameType
from typing import Any, Optional

from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.engine.results import Output, Report, Snapshot, rows_of, since
from wptrace.flows.base import Flow
from wptrace.kernel.clock import wall_offset_ns

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The cells' 32-bit buckets are added up at least this often, far below what a CPU can count in.
_LONGEST_WAIT = 60.0


class Stop:
    """Knows when to end. Signals write to a socket that the reader waits on, so they are never held up by a wait."""

    def __init__(self) -> None:
        self.asked = False
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._before: dict[int, Any] = {}

    @property
    def fd(self) -> int:
        return self._read.fileno()

    def __enter__(self) -> Stop:
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        self.asked = True
        # Whoever asks twice does not want to wait for the summary.
        signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._read.close()
        self._write.close()


def run(
    flow: Flow, output: Output, interval_s: Optional[float], count: Optional[int], statistics: bool, watch_fd: int = -1
) -> None:
    """`watch_fd` is the output's descriptor: where it is a pipe, its reader's end is noticed without a write."""
    with Stop() as stop:
        reader = Reader(stop.fd)
        if watch_fd >= 0 and _is_pipe(watch_fd):
            reader.watch_hangup(watch_fd)
        kept = run_statistics() if statistics else None
        try:
            if kept is not None:
                kept.__enter__()
            _run(flow, output, reader, stop, interval_s, count)
        finally:
            flow.close()
            if kept is not None:
                kept.__exit__(None, None, None)
            output.close()


def _run(
    flow: Flow, output: Output, reader: Reader, stop: Stop, interval_s: Optional[float], count: Optional[int]
) -> None:
    start = flow.start(reader)
    first = latest = flow.snapshot()
    output.start(start)
    done = 0
    due = time.monotonic() + (interval_s or _LONGEST_WAIT)
    while not stop.asked and not reader.hung_up and (count is None or done < count):
        reader.wait(due - time.monotonic())
        reader.drain()
        _requests(flow, output)
        if time.monotonic() < due:
            continue
        now = flow.snapshot()
        if interval_s is None:
            due = time.monotonic() + _LONGEST_WAIT
            continue
        output.interval(_report("interval", flow, now, latest))
        latest = now
        done += 1
        # After a stop (SIGSTOP, a suspended machine) intervals go on from now, they are not made up for.
        due = max(due + interval_s, time.monotonic())
    flow.stop()
    reader.drain()
    _requests(flow, output)
    output.summary(_report("summary", flow, flow.snapshot(), first))


def _requests(flow: Flow, output: Output) -> None:
    for request in flow.requests():
        output.request(request)


def _report(kind: str, flow: Flow, now: Snapshot, earlier: Snapshot) -> Report:
    cells, sizes = since(now, earlier)
    return Report(
        kind,
        now.at_ns + wall_offset_ns(),
        now.at_ns - earlier.at_ns,
        now.accounting.interval(earlier.accounting),
        rows_of(cells, flow.stages),
        sizes,
        now.failed - earlier.failed,
        now.overhead.since(earlier.overhead),
    )


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
