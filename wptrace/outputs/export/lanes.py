# SPDX-License-Identifier: Apache-2.0
"""Lanes for overlapping events: each lane has one at a time, with its parts inside."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from wptrace.correlation.guests import HOST
from wptrace.model import segments as known
from wptrace.model.kind import DEVICE
from wptrace.model.report import Event

DISK = "device"
"""The stage in which a device works on something."""


class Segment(NamedTuple):
    stage: str
    begin_ns: int
    end_ns: int


class Lanes:
    """A lane for each that is under way at once; those that come are sorted by their ends, more or less."""

    def __init__(self) -> None:
        self._ends: dict[Hashable, list[int]] = {}

    def take(self, owner: Hashable, begin_ns: int, end_ns: int, most: int | None = None) -> int | None:
        """None where all of them are taken, and there are as many as there may be."""
        ends = self._ends.get(owner, [])
        for lane, last in enumerate(ends):
            if last <= begin_ns:
                ends[lane] = end_ns
                return lane
        if most is not None and len(ends) >= most:
            return None
        # For an owner that may have no lane, nothing is kept.
        self._ends[owner] = ends
        ends.append(end_ns)
        return len(ends) - 1


def segments(event: Event) -> Iterator[Segment]:
    """Its stages end to end, none of them beyond its end: clocks of two CPUs may differ by some cycles."""
    start, end = event.start_ns, event.end_ns
    for one in known.segments(event):
        begin = start + one.from_ns
        if begin < end:
            yield Segment(one.stage, begin, min(start + one.to_ns, end))


def sides(event: Event) -> tuple[list[Segment], list[Segment]]:
    """Return the segments of the machine that waited, and those of its host if there is one."""
    found = list(segments(event))
    if "host" not in event.fields:
        return found, []
    there = [one._replace(stage=one.stage[len(HOST) :]) for one in found if one.stage.startswith(HOST)]
    return [one for one in found if not one.stage.startswith(HOST)], there


def device(event: Event) -> str:
    """Return the device of an event with a single request in it."""
    if not event.stages.get(DISK) or event.fields.get("requests", 1) != 1:
        return ""
    found = (label for label in event.group.kind.labels if label.type == DEVICE)
    label = next(found, None)
    return "" if label is None else label.shown(event.group.label(label.name))
