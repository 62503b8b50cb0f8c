# SPDX-License-Identifier: Apache-2.0
"""A stretch of time in the story of a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from wptrace.engine.intervals import Interval, gaps


class Span:
    """What happened from `start_ns` to `end_ns`, made up of its children where it has some.

    A span with a `stage` charges its time to that stage, except where a child takes it over. One without is a
    container, such as an operation or a request: what its children leave open is nobody's.
    `attributes` say who and where.
    """

    __slots__ = ("attributes", "children", "end_ns", "name", "stage", "start_ns")

    def __init__(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        stage: str = "",
        attributes: Mapping[str, object] | None = None,
        children: Iterable[Span] = (),
    ) -> None:
        self.name = name
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.stage = stage
        self.attributes = dict(attributes or {})
        self.children = list(children)

    @property
    def interval(self) -> Interval:
        return self.start_ns, self.end_ns

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    def walk(self) -> Iterator[Span]:
        """This span and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def uncovered(self) -> list[Interval]:
        """The parts of the span in which no child runs."""
        return gaps((child.interval for child in self.children), self.start_ns, self.end_ns)
