# SPDX-License-Identifier: Apache-2.0
"""Requests of which no program saw anything: some kernels skip programs, also both that see a request.

The disk has counted them (`stat` in sysfs). What it did since the trace began, and neither began for a program nor is a
request that is not ours, went unseen. Both are read after what the disk has counted, and the kernel shows the end of a
request to the programs before it counts it. So none is taken for unseen that a program saw; what is under way meanwhile
hides as many for now.
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
        # What was counted of each at the last look, and of those that came later before they were compared.
        self._counted = Counter[str]()
        self._earlier = Counter[str]()
        found = ((one.name, self._completed(one)) for one in extents)
        # What a disk had done when the trace began, and by the last look.
        self._before = {name: count for name, count in found if count is not None}
        self._now = dict(self._before)
        self.count = 0
        """How many there were."""

    def _completed(self, extent: blockdev.Extent) -> int | None:
        folder = self._sys / "block" / extent.disk
        # Stacked devices count bios, and a multipath hands on requests, which have ends of their own.
        if extent.hidden or not (folder / "mq").is_dir() or (folder / "dm").exists():
            return None
        return blockdev.completed(extent.name, self._sys)

    def compare(self, extents: Iterable[blockdev.Extent]) -> None:
        """These from now on; disks that came later once they have nothing in flight that began in another row."""
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

    def look(self) -> None:
        """At what the disks have done, before anything else is read."""
        self._begin()
        for name in list(self._now):
            done = blockdev.completed(name, self._sys)
            if done is None or done < self._now[name]:
                # It is gone, or another one has its name.
                del self._now[name]
            else:
                self._now[name] = done

    def note(self, counters: Iterable[tuple[Group, Mapping[str, int]]], seen: int) -> None:
        """By what was counted of requests, and how many began or are not ours."""
        unseen = sum(now - self._before[name] + self._earlier[name] for name, now in self._now.items()) - seen
        self._counted.clear()
        for group, counts in counters:
            dev, flush = str(group.label("dev")), group.label("op") == "flush"
            watched = dev in self._now
            # The disks count flushes apart, and a bio that asks for one as a write.
            unseen += counts["finished"] if flush or not watched else 0
            unseen -= counts["fate.asked"] if flush and watched else 0
            self._counted[dev] += counts["fate.asked"] if flush else counts["finished"]
        if self._now:
            self.count = max(self.count, unseen)
