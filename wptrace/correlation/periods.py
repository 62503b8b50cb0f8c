# SPDX-License-Identifier: Apache-2.0
"""Samples of a period that is over, and the tasks that had the CPU meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wptrace.model.kind import Task

Record = Mapping[str, Any]

# A sample whose period turns out to be none is never used.
_KEPT = 1024


class Episodes:
    """The CPU and its last tick before (`ticked_ns`) name a period, in the record of its end and in the sample."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._ended: list[Record] = []
        self._samples: dict[tuple[int, int], Record] = {}

    def end(self, record: Record) -> None:
        self._ended.append(record)

    def see(self, sample: Record) -> None:
        while len(self._samples) >= self._kept:
            del self._samples[next(iter(self._samples))]
        self._samples[sample["cpu"], sample["ticked_ns"]] = sample

    def seen(self, cpu: int, ticked_ns: int) -> Record | None:
        """Return the part of a period seen so far; it may not be over."""
        return self._samples.get((cpu, ticked_ns))

    def take(self) -> list[tuple[Record, Record | None]]:
        """Return the periods that ended since the last call. All of their samples must have been seen by then."""
        ended, self._ended = self._ended, []
        return [(record, self._samples.pop((record["cpu"], record["ticked_ns"]), None)) for record in ended]


class Run(NamedTuple):
    """A task had the CPU from one moment to the other."""

    start_ns: int
    end_ns: int
    task: Task


class Longest(NamedTuple):
    task: Task
    time_ns: int
    """The time of all its runs within the period."""


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
