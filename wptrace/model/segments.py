# SPDX-License-Identifier: Apache-2.0
"""When an object was in each of its stages or, if that is unknown, how long."""

from __future__ import annotations

from collections.abc import Iterator

from wptrace.model.kind import UNATTRIBUTED
from wptrace.model.report import Event, Segment

IN_ORDER_OF_STAGES = "in order of stages, not of time"
# Stages in which an operation may be both before and behind its request.
_ANYWHERE = ("journal", UNATTRIBUTED)


def segments(event: Event) -> Iterator[Segment]:
    """Generate the known segments, then the rest of each stage, end to end in the order of the path."""
    yield from event.segments
    at = event.segments[-1].to_ns if event.segments else 0
    left = dict(event.stages)
    for one in event.segments:
        left[one.stage] = left.get(one.stage, 0) - (one.to_ns - one.from_ns)
    for name in (*(stage.name for stage in event.group.kind.stages), UNATTRIBUTED):
        ns = min(left.get(name, 0), event.total_ns - at)
        if ns > 0:
            yield Segment(name, at, at + ns)
            at += ns


def is_timed(event: Event) -> bool:
    """Whether segments are in their real places: sums of several waits are laid end to end."""
    if event.segments:
        return not event.more
    busy = [name for name, ns in event.stages.items() if ns > 0]
    if len(busy) < 2 or "requests" not in event.fields:
        return True
    return bool(event.fields["requests"] == 1) and not any(name in busy for name in _ANYWHERE)


def order(event: Event) -> str:
    """A note on their order; empty where all are in order of time."""
    if is_timed(event):
        return ""
    if event.segments:
        return f"the last {event.more:,} stretch{'es' if event.more > 1 else ''} of it {IN_ORDER_OF_STAGES}"
    return IN_ORDER_OF_STAGES
