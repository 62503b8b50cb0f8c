# SPDX-License-Identifier: Apache-2.0
"""Results as text: each flow names a small view for what is special about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from wptrace.model.kind import Kind
from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header, words
from wptrace.outputs.text.tables import Style

Forms = Sequence[Sequence[str]]
"""The lines of a section of a live screen, the full form first and the shortest last; an empty one leaves it out."""


class View:
    """A subclass changes what is special."""

    folds = False
    """Its tables fit any usual terminal, so that what is longer is a sentence."""
    arranges = False
    """Its tables are of whatever rows they are handed."""
    spaced = True
    """Set requests in flight apart from the lines above them."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.kinds: tuple[Kind, ...] = ()

    def begin(self, start: Start) -> Iterator[str]:
        self.kinds = tuple(start.kinds)
        yield from words.introduction(start)

    def add(self, event: Event) -> None:
        """Each one, whether it is shown at once or not."""

    def event(self, event: Event, width: int, whole: bool) -> Iterator[str]:
        """Return the lines of an event; with `whole`, names are not shortened."""
        yield from words.event(event, width, self.wanted.dates)

    def in_flight(self, found: list[InFlight], at_ns: int, width: int, most: int) -> list[str]:
        """Empty for flows without records, and for those with too many to be read."""
        return []

    def report(self, report: Report, width: int) -> Iterator[str]:
        """An interval or a summary."""
        raise NotImplementedError

    def closing(self, report: Report, width: int) -> Iterator[str]:
        """Return the parts that only a summary has."""
        yield from ()

    def sections(
        self, report: Report | None, recent: Sequence[Event], width: int, terse: bool = False, of: Report | None = None
    ) -> Mapping[str, Forms]:
        """Return sections of a live screen by the names of screen.SECTIONS.

        `terse` ones leave out rows without time; `of` has the rows if the user has chosen others than the report's.
        """
        found: dict[str, Forms] = {}
        if report is not None:
            lost = list(header.losses(report, self.kinds))
            found = {"time": [list(self.report(report, width))], "losses": [lost, []]}
        if recent:
            lines = [line for event in recent for line in self.event(event, width, False)]
            found["slow ones"] = [lines, []]
        return found

    def style(self, width: int) -> Style:
        return Style(width, self.wanted.dates)
