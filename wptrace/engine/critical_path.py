# SPDX-License-Identifier: Apache-2.0
"""The chain of stages that an operation really waited for.

An operation that waits for several requests takes as long as the last of them, not as long as their sum.
Walking back from its end, the child that finished last is what was waited for; when that one began, what had
just finished before is what was waited for, and so on. Time that two children share is charged once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from wptrace.engine.intervals import Interval, clip, length
from wptrace.engine.span import Span


class Segment(NamedTuple):
    """A piece of the path; `span` is what was waited for, a container where no stage covers the time."""

    start_ns: int
    end_ns: int
    span: Span

    @property
    def stage(self) -> str:
        return self.span.stage


class CriticalPath:
    """The segments of a span's path in order of time: they touch each other and cover it exactly."""

    __slots__ = ("segments",)

    def __init__(self, span: Span) -> None:
        backwards: list[Segment] = []
        _walk_back(span, span.start_ns, span.end_ns, backwards)
        self.segments = backwards[::-1]

    @property
    def charges(self) -> dict[str, int]:
        """Nanoseconds by stage; with `unattributed` they add up to the duration of the span."""
        charges: dict[str, int] = {}
        for start, end, span in self.segments:
            if span.stage:
                charges[span.stage] = charges.get(span.stage, 0) + end - start
        return charges

    @property
    def unattributed(self) -> int:
        return sum(end - start for start, end, span in self.segments if not span.stage)

    def inside(self, intervals: Iterable[Interval]) -> dict[str, int]:
        """How much of each stage's charge lies in `intervals`, such as those of an interrupt.

        Time on the path that no stage covers is under the empty name.
        """
        intervals = list(intervals)
        shares: dict[str, int] = {}
        for start, end, span in self.segments:
            share = length(clip(intervals, start, end))
            if share:
                shares[span.stage] = shares.get(span.stage, 0) + share
        return shares


def _order(span: Span) -> tuple[Any, ...]:
    """Twins are told apart by what is below them, so that it does not matter which one comes first."""
    return span.end_ns, -span.start_ns, span.stage, span.name, sorted(map(_order, span.children))


def _walk_back(span: Span, start: int, now: int, path: list[Segment]) -> None:
    """Append the segments of `span` in [start, now), latest first."""
    ended = sorted((child for child in span.children if child.start_ns < child.end_ns), key=_order)
    # Children that run or end at `now`. Since that only goes back, those that join later ended earlier: the
    # last one is the child that ended nearest to it, which is what the time after it had waited for.
    running: list[Span] = []
    while now > start:
        while ended and ended[-1].end_ns >= now:
            running.append(ended.pop())
        while running and running[-1].start_ns >= now:
            running.pop()
        if running:
            child = running.pop()
            began = max(child.start_ns, start)
            _walk_back(child, began, now, path)
        else:
            began = max(ended[-1].end_ns, start) if ended else start
            path.append(Segment(began, now, span))
        now = began
