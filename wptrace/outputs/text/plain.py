# SPDX-License-Identifier: Apache-2.0
"""Lines of text for flows whose tables are not those of stages: what they share, whatever the table is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from wptrace.model.book import Cause
from wptrace.model.results import InFlight, Report, Request, Start
from wptrace.outputs.text import words as text

_BLOCKS = "▏▎▍▌▋▊▉█"
_WITHOUT_BLOCKS = str.maketrans(dict.fromkeys(_BLOCKS, "#"))


class PlainOutput:
    """A subclass says what a report looks like."""

    def __init__(self, stream: TextIO, statistics: bool) -> None:
        self._stream = stream
        self._statistics = statistics
        try:
            _BLOCKS.encode(stream.encoding or "utf-8")
            self._characters: dict[int, str] = {}
        except UnicodeEncodeError:
            self._characters = _WITHOUT_BLOCKS

    def lines(self, report: Report) -> Iterator[str]:
        raise NotImplementedError

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._stream.write(line.translate(self._characters) + "\n")
        self._stream.flush()

    def start(self, start: Start) -> None:
        self._print(text.introduction(start))

    def request(self, request: Request) -> None:
        """These flows tell no single requests."""

    def flush(self) -> None:
        """Each line is seen at once."""

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        """Nor those in flight."""

    def interval(self, report: Report) -> None:
        self._print(["", *self._report(report)])

    def summary(self, report: Report) -> None:
        self._print(["", "Summary", *self._report(report)])

    def _report(self, report: Report) -> Iterator[str]:
        yield from self.lines(report)
        yield from losses(report.accounting.lost, "lost")
        yield from losses(report.accounting.noted, "noted")
        if self._statistics:
            yield text.overhead(report.overhead, report.duration_ns)

    def close(self) -> None:
        self._stream.flush()


def losses(causes: Mapping[Cause, int], verb: str) -> Iterator[str]:
    for cause, count in causes.items():
        if count:
            yield f"{verb}: {count:,} x {cause.name}: {cause.description}"
