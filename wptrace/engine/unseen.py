# SPDX-License-Identifier: Apache-2.0
"""Requests that no program saw at all: some kernels skip programs (docs/decisions/recursion.md).

The disk has counted them (`stat` in sysfs). A request that the disk has completed since the trace began is unseen if it
neither started for a program nor is one that is not ours. Both of these are read after the disk's counters, and the
kernel runs the programs at the end of a request before it counts it. So no request that a program saw is taken for
unseen; where programs count starts, requests in flight hide as many unseen ones for the time being.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from wptrace.kernel import blockdev
from wptrace.model.kind import Group


class Unseen:
    def __init__(self, extents: Iterable[blockdev.Extent], sys: Path = blockdev.SYS) -> None:
        self._sys = sys
        self._come: list[blockdev.Extent] = []
        # Counts by row at the last comparison; for new devices, counts from before they were compared.
        self._counted = Counter[str]()
        self._earlier = Counter[str]()
        found = ((one.name, self._completed(one)) for one in extents)
        # Requests that a disk had completed when the trace began, and at the last read.
        self._before = {name: count for name, count in found if count is not None}
        self._now = dict(self._before)
        self.count = 0
        """The number of unseen requests."""

    def _completed(self, extent: blockdev.Extent) -> int | None:
        folder = self._sys / "block" / extent.disk
        # Stacked devices count bios, and a multipath device passes on requests, which have ends of their own.
        if extent.hidden or not (folder / "mq").is_dir() or (folder / "dm").exists():
            return None
        return blockdev.completed(extent.name, self._sys)

    def compare(self, extents: Iterable[blockdev.Extent]) -> None:
        """Compare these extents from now on; new disks once nothing that began in another row is in flight there."""
        wanted = {one.name: one for one in extents}
        self._now = {name: count for name, count in self._now.items() if name in wanted}
        self._come = [one for name, one in wanted.items() if name not in self._now]

    def _begin(self) -> None:
        waiting, self._come = self._come, []
        for one in waiting:
            if blockdev.in_flight(one.name, self._sys):
                self._come.append(one)
            elif (count := self._completed(one)) is not None:
                self._before[one.name] = self._now[one.name] = count
                self._earlier[one.name] = self._counted[one.name]

    def read_disks(self) -> None:
        """Read the disks' counters, before anything else."""
        self._begin()
        for name in list(self._now):
            done = blockdev.completed(name, self._sys)
            if done is None or done < self._now[name]:
                # The disk is gone, or another one has its name.
                del self._now[name]
            else:
                self._now[name] = done

    def note(self, counters: Iterable[tuple[Group, Mapping[str, int]]], seen: int) -> None:
        """Compare with the counted requests, and with how many began or are not ours."""
        unseen = sum(now - self._before[name] + self._earlier[name] for name, now in self._now.items()) - seen
        self._counted.clear()
        for group, counts in counters:
            dev, flush = str(group.label("dev")), group.label("op") == "flush"
            watched = dev in self._now
            # Disks count flushes apart, and a bio with a flush flag as a write.
            unseen += counts["finished"] if flush or not watched else 0
            unseen -= counts["events.asked"] if flush and watched else 0
            self._counted[dev] += counts["events.asked"] if flush else counts["finished"]
        if self._now:
            self.count = max(self.count, unseen)
