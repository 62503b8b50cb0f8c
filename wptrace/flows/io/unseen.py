# SPDX-License-Identifier: Apache-2.0
"""Requests of which no program saw anything: some kernels skip programs, also both that see a request.

The disk has counted them (`stat` in sysfs). What it did since the trace began, and neither began for a program nor is a
request that is not ours, went unseen. Both are read after what the disk has counted, and the kernel shows the end of a
request to the programs before it counts it. So none is taken for unseen that a program saw; what is under way meanwhile
hides as many for now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from wptrace.kernel import blockdev
from wptrace.model.kind import Group


class Unseen:
    def __init__(self, extents: Iterable[blockdev.Extent], sys: Path = blockdev.SYS) -> None:
        self._sys = sys
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

    def look(self) -> None:
        """At what the disks have done, before anything else is read."""
        for name in list(self._now):
            done = blockdev.completed(name, self._sys)
            if done is None or done < self._now[name]:
                # It is gone, or another one has its name.
                del self._now[name]
            else:
                self._now[name] = done

    def note(self, counters: Iterable[tuple[Group, Mapping[str, int]]], seen: int) -> None:
        """By what was counted of requests, and how many began or are not ours."""
        if not self._now:
            return
        unseen = sum(now - self._before[name] for name, now in self._now.items()) - seen
        for group, counts in counters:
            watched, flush = group.label("dev") in self._now, group.label("op") == "flush"
            # The disks count flushes apart, and a bio that asks for one as a write.
            unseen += counts["finished"] if flush or not watched else 0
            unseen -= counts["fate.asked"] if flush and watched else 0
        self.count = max(self.count, unseen)
