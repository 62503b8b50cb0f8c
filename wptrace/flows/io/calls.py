# SPDX-License-Identifier: Apache-2.0
"""The cost to every system call of the machine of finding operations by them (bpf_src/block/calls.bpf.c).

With any program at the tracepoints of system calls, every call of every task takes the kernel's slow path at both ends.
The kernel only counts the run time of the programs, so that path is timed here, by a call that does next to nothing.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from functools import partial
from itertools import repeat
from typing import Callable, NamedTuple

from wptrace.bpf import trial
from wptrace.bpf.generated import Generated, Target
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import Program, Statistics
from wptrace.errors import WptraceError
from wptrace.flows.io import operations
from wptrace.kernel import cpus
from wptrace.model import budget

_WATCHED_S = 0.05
_CALLS, _RUNS = 200, 5
MANY = 50_000
"""More system calls a second than this, without I/O, are many."""
PLAN = (
    "trace requests alone (--level request) if functions cannot be observed and a start counts more than"
    f" {MANY:,} system calls a second that do no I/O"
)
"""What a dry run says, which counts nothing."""


class Price(NamedTuple):
    calls: float
    """System calls without I/O, a second."""
    share: float
    """Their cost, as a share of the busy time, or of one CPU if that is less."""

    @property
    def is_high(self) -> bool:
        return self.calls > MANY

    @property
    def words(self) -> str:
        return (
            f"this machine makes {self.calls:,.0f} system calls a second that do no I/O, and with --level path, which"
            f" finds operations by system calls here, they would cost about {self.share:.1%} of the busy time"
        )


def are_all_that_is_left() -> bool:
    """Whether system calls are the only way to find operations on this kernel."""
    return not trial.functions()


def price() -> Price:
    """Estimate the cost by counting system calls for a moment."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        every: tuple[Callable[[], object], ...] = (os.getppid, partial(os.pread, descriptor, 1, 0))
        bare_ns = [call_ns(call) for call in every]
        with trial.open_here("calls") as obj:
            obj.load()
            obj.bss.calls = operations.calls(len(obj.view("calls")), obj.enum("call_kind"), plain=True, syncs=True)
            for program in obj.progs.values():
                program.attach()
            more_ns = [max(call_ns(call) - bare, 0) for call, bare in zip(every, bare_ns)]
            began_ns, busy_ns, before = time.monotonic_ns(), cpus.busy_ns(), _counted(obj)
            time.sleep(_WATCHED_S)
            counts = [now - one for now, one in zip(_counted(obj), before)]
            took_ns, busy_ns = time.monotonic_ns() - began_ns, cpus.busy_ns() - busy_ns
    finally:
        os.close(descriptor)
    cost_ns = sum(count * ns for count, ns in zip(counts, more_ns))
    return Price(sum(counts) * 1e9 / took_ns, budget.share(int(cost_ns), busy_ns, took_ns))


def _counted(obj: BpfObject) -> list[int]:
    """Read the counts of calls without a file, and of calls to files without storage."""
    found = [each.counts for each in obj.maps["counted"][0]]
    return [sum(counts[at] for counts in found) for at in map(obj.enum("call_about").index, ("other", "not_stored"))]


def call_ns(call: Callable[[], object] = os.getppid) -> float:
    """The time of a short system call, the best of some runs."""
    return min(_run(call) for _ in range(_RUNS)) / _CALLS


def _run(call: Callable[[], object]) -> int:
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, _CALLS):
        call()
    return time.perf_counter_ns() - began_ns


def slow_path_ns() -> float:
    """The time that the kernel takes to reach programs at both ends of a call, measured with an empty program.

    0 where operations are found otherwise, and where no program is permitted: loading will fail with the reason.
    """
    with suppress(WptraceError):
        if are_all_that_is_left():
            bare_ns = call_ns()
            with closing(Generated("nothing", Target("raw_tp", "sys_exit"), trial.NOTHING)) as program:
                program.attach()
                return max(call_ns() - bare_ns - budget.ENTRY_NS, 0.0)
    return 0.0


class SlowPath:
    """Accounts for the slow path as a program that runs for so long at each system call."""

    def __init__(self, enter: Program, ns: float) -> None:
        """`enter` is a real program, whose runs are counted."""
        self._enter, self._ns = enter, ns

    def statistics(self) -> Statistics:
        counted = self._enter.statistics()
        return counted._replace(run_count=0, run_time_ns=int(counted.run_count * self._ns))
