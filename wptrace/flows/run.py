# SPDX-License-Identifier: Apache-2.0
"""Runs a flow: attaches, reports every interval, ends on a signal, a count or a closed pipe, and sums up."""

from __future__ import annotations

import math
import os
import signal
import socket
import stat
import time
from contextlib import ExitStack
from types import FrameType
from typing import Any

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
        self._woken = -1

    @property
    def fd(self) -> int:
        return self._read.fileno()

    def __enter__(self) -> Stop:
        self._woken = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        # Under nohup a hang-up is ignored, and stays so. An ignored SIGINT is what a shell gives to its background
        # jobs; who sends one to us by hand means it.
        kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS if number not in kept}
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        # Whoever asks twice does not want to wait for the summary.
        signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._woken)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._read.close()
        self._write.close()


def run(
    flow: Flow, output: Output, interval_s: float | None, count: int | None, statistics: bool, watch_fd: int = -1
) -> None:
    """`watch_fd` is the output's descriptor: where it is a pipe, its reader's end is noticed without a write."""
    with Stop() as stop, ExitStack() as cleanup:
        cleanup.callback(output.close)
        if statistics:
            cleanup.enter_context(run_statistics())
        cleanup.callback(flow.close)
        reader = Reader(stop.fd)
        if watch_fd >= 0 and _is_pipe(watch_fd):
            reader.watch_hangup(watch_fd)
        _run(flow, output, reader, stop, interval_s, count)


def _run(flow: Flow, output: Output, reader: Reader, stop: Stop, interval_s: float | None, count: int | None) -> None:
    start = flow.start(reader)
    first = latest = flow.snapshot()
    output.start(start)
    done = 0
    now = time.monotonic()
    due = now + interval_s if interval_s else math.inf
    read_by = now + _LONGEST_WAIT
    while not stop.asked and not reader.hung_up and (count is None or done < count):
        reader.wait(min(due, read_by) - time.monotonic())
        reader.drain()
        _requests(flow, output)
        now = time.monotonic()
        if now < min(due, read_by):
            continue
        taken = flow.snapshot()
        read_by = now + _LONGEST_WAIT
        if interval_s is None or now < due:
            continue
        output.interval(_report("interval", flow, taken, latest))
        latest = taken
        done += 1
        # After a stop (SIGSTOP, a suspended machine) intervals go on from now, they are not made up for.
        due = due + interval_s if due + interval_s > now else now + interval_s
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
