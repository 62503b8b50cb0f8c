# SPDX-License-Identifier: Apache-2.0
"""The cost to every system call of the machine of finding operations by them (bpf_src/block/calls.bpf.c).

With anything at a tracepoint of system calls each call of each task takes the kernel's slow path, at both ends. The
kernel counts the run time of programs alone, so that path is timed here, by a call that does next to nothing.
"""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import repeat
from typing import Callable, NamedTuple

from wptrace.bpf import trial
from wptrace.bpf.generated import Generated, Target
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import Program, Statistics
from wptrace.flows.io import operations
from wptrace.kernel import cpus
from wptrace.model import budget

_WATCHED_S = 0.05
_CALLS, _RUNS = 1000, 5
MANY = 50_000
"""So many system calls a second that do no I/O are many."""


class Price(NamedTuple):
    calls: float
    """A second, of those that do no I/O."""
    share: float
    """Of the busy time, or of one CPU's where that is less: what they would pay."""

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
    """Whether operations can be found by system calls alone on this kernel."""
    return not trial.functions()


def price() -> Price:
    """Count them for a moment, as they pay for it."""
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
    """Calls that are about no file, and about those whose data are not stored."""
    found = [each.counts for each in obj.maps["counted"][0]]
    return [sum(counts[at] for counts in found) for at in map(obj.enum("call_about").index, ("other", "not_stored"))]


def call_ns(call: Callable[[], object] = os.getppid) -> float:
    """How long a short call takes, the best of some runs."""
    return min(_run(call) for _ in range(_RUNS)) / _CALLS


def _run(call: Callable[[], object]) -> int:
    began_ns = time.perf_counter_ns()
    for _ in repeat(None, _CALLS):
        call()
    return time.perf_counter_ns() - began_ns


def slow_path_ns() -> float:
    """How long the kernel takes for the ways to programs at both ends of a call, by a program that does nothing."""
    bare_ns = call_ns()
    program = Generated("nothing", Target("raw_tp", "sys_exit"), trial.NOTHING)
    try:
        program.attach()
        return max(call_ns() - bare_ns - budget.ENTRY_NS, 0.0)
    finally:
        program.close()


class SlowPath:
    """As a program that runs at each system call for so long."""

    def __init__(self, enter: Program, ns: float) -> None:
        """`enter` is one that does run there."""
        self._enter, self._ns = enter, ns

    def statistics(self) -> Statistics:
        counted = self._enter.statistics()
        return counted._replace(run_count=0, run_time_ns=int(counted.run_count * self._ns))
