# SPDX-License-Identifier: Apache-2.0
"""The agent's time for a scrape while 100,000 owners come and go, in a process without BPF."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

from wptrace.agent.owner_names import OwnerNames
from wptrace.flows.io import kinds
from wptrace.flows.io.options import CGROUP
from wptrace.flows.io.parts.owners import KINDS
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution, merge_stages
from wptrace.model.kind import REQUESTS, UNATTRIBUTED, Group
from wptrace.model.report import BYTES, Overhead, Snapshot
from wptrace.outputs.metrics import Process, Source
from wptrace.outputs.prometheus import Metrics

OWNERS, THERE, REPLACED, TOP = 100_000, 2_000, 500, 20
_OPERATION, _HIT, _REQUEST = KINDS[CGROUP]
_VALUES = 4


def _path(number: int) -> str:
    pod = f"kubepods-burstable-pod{number:08x}_0000_4000_8000_000000000000.slice"
    return f"/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{number:064x}.scope"


class _World:
    """Counts of owners as a flow has them; owners that leave are counted among the others."""

    def __init__(self) -> None:
        self._random = random.Random(1)  # noqa: S311
        self._there: deque[int] = deque()
        self._next = self._at_ns = 0
        self._cells: dict[Group, dict[str, Distribution]] = {}
        self._counters: dict[Group, dict[str, int]] = {}
        self._folded: dict[Group, int] = {}

    @staticmethod
    def _groups(number: int) -> list[Group]:
        return [kind.group("nvme0n1", "read", _path(number)) for kind in (_OPERATION, _REQUEST)]

    def _count(self, group: Group) -> None:
        # Snapshots have new objects.
        found = {name: one.copy() for name, one in self._cells.get(group, {}).items()}
        for measured in group.kind.rows:
            if measured.name != UNATTRIBUTED:
                one = found.setdefault(measured.name, Distribution())
                for _ in range(_VALUES):
                    one.add(int(self._random.lognormvariate(11, 2)))
        self._cells[group] = found
        self._counters[group] = {BYTES: self._counters.get(group, {}).get(BYTES, 0) + 4096}

    def _leave(self, group: Group) -> None:
        others = group.of_others
        self._cells[others] = {name: one.copy() for name, one in self._cells.get(others, {}).items()}
        merge_stages(self._cells, others, self._cells.pop(group))
        left = self._counters.pop(group)
        self._counters[others] = {BYTES: self._counters.get(others, {}).get(BYTES, 0) + left[BYTES]}
        self._folded[group] = 1

    def turn(self, busy: float) -> None:
        """Let the oldest owners leave, as many others come, and this share of the rest go on."""
        rest = [number for number in self._there if self._random.random() < busy]
        for _ in range(REPLACED if self._there else THERE):
            if len(self._there) == THERE:
                for group in self._groups(self._there.popleft()):
                    self._leave(group)
            self._there.append(self._next)
            self._next += 1
            rest.append(self._there[-1])
        first = self._there[0]
        for group in (group for number in rest if number >= first for group in self._groups(number)):
            self._count(group)
        self._at_ns += 10**10

    def snapshot(self) -> Snapshot:
        counters = {group: dict(counts) for group, counts in self._counters.items()}
        books, cost = {REQUESTS: Book.read(1, 1, {}, {})}, Overhead(1, 1, 1, 1, 1, 1)
        return Snapshot(self._at_ns, books, dict(self._cells), counters, cost, dict(self._folded))


def run(owners: int, busy: float) -> dict[str, Any]:
    """Return the CPU time of each text in ms, without the first."""
    nowhere = Path("/nonexistent")
    metrics = Metrics([Source("io", "path", (*kinds.KINDS, *KINDS[CGROUP]), {})])
    metrics.own(OwnerNames("container", nowhere, nowhere).owners(TOP))
    world, process, times, text = _World(), Process(1.0, 1, 1.0, bpf_is_timed=True), [], ""
    for _ in range(1 + (owners - THERE) // REPLACED):
        world.turn(busy)
        snapshot = world.snapshot()
        before = time.process_time()
        text = metrics.text([snapshot], process)
        times.append((time.process_time() - before) * 1e3)
    return {"ms": times[1:], "lines": text.count("wptrace_io_owner_"), "busy": busy, "owners": owners}


def line(found: dict[str, Any]) -> str:
    times = sorted(found["ms"])
    quarters = [statistics.median(part) for part in (found["ms"][: len(times) // 4], found["ms"][-len(times) // 4 :])]
    return (
        f"{found['owners']} owners, {found['busy']:.0%} of those who stay busy: {times[0]:.1f} ms at least, "
        f"median {statistics.median(times):.1f} ms (first quarter {quarters[0]:.1f} ms, last {quarters[1]:.1f} ms)"
    )
