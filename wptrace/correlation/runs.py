# SPDX-License-Identifier: Apache-2.0
"""Who had a CPU, and for how long of a given time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wptrace.model.kind import Task


class Run(NamedTuple):
    """A task had the CPU from one moment to the other."""

    start_ns: int
    end_ns: int
    task: Task


class Longest(NamedTuple):
    task: Task
    time_ns: int
    """Of all its runs, as far as they lie in the given time."""


def longest(runs: Iterable[Run], start_ns: int, end_ns: int) -> Longest | None:
    """The task that had the CPU for the longest part of this time."""
    times: dict[int, int] = {}
    tasks: dict[int, Task] = {}
    for run in runs:
        shared = min(run.end_ns, end_ns) - max(run.start_ns, start_ns)
        if shared > 0:
            times[run.task.tid] = times.get(run.task.tid, 0) + shared
            tasks[run.task.tid] = run.task
    if not times:
        return None
    tid = max(times, key=times.__getitem__)
    return Longest(tasks[tid], times[tid])
