# SPDX-License-Identifier: Apache-2.0
"""Stacks that started I/O: as text, and folded for flame graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, TextIO

from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.kind import ALL, TOTAL, Group, Noun
from wptrace.model.report import BYTES, Report, Start
from wptrace.model.stack import Stack
from wptrace.outputs.text import header
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.view import View
from wptrace.outputs.text.words import NOTE, printable

TIME, COUNT = "time", "count"
IO = Noun("I/O")


class Charged(NamedTuple):
    """I/O of one operation that a stack started on one device, or on all of them."""

    group: Group
    stack: Stack
    found: Distribution
    share: float
    bytes: int


def charged(report: Report, per_device: bool) -> list[Charged]:
    """The rows of a report, the most time first."""
    report = report if per_device else report.everywhere()
    return [
        Charged(row.group, row.group.label("stack"), row.distribution, row.share, report.counter(row.group, BYTES))
        for row in report.rows
        if row.metric == TOTAL
    ]


class StacksView(View):
    def begin(self, start: Start) -> Iterator[str]:
        self._min_ns = start.filters.get("min_ns", 0)
        # Each report says what --min left out.
        left = {key: given for key, given in start.filters.items() if key != "min_ns"}
        yield from super().begin(start._replace(filters=left))

    def report(self, report: Report, width: int) -> Iterator[str]:
        rows = charged(report, self.wanted.per_device)
        shown = rows[: self.wanted.top or None]
        book = report.book
        time = header.time(report, self.style(width))
        line = f"{time}  {IO.of(book.finished)} in {units.duration(report.duration_ns)}, {book.in_flight:,} in flight"
        if self._min_ns:
            line += f"; {sum(row.found.count for row in rows):,} took {units.duration(self._min_ns)} or more"
        yield line
        if len(rows) > len(shown):
            yield ""
            yield f"and {len(rows) - len(shown):,} more, with less time (--top 0 shows all)"
        # A stack has many lines: the largest comes last, where a terminal still shows it.
        for row in reversed(shown):
            yield ""
            yield from self._row(row)

    def _row(self, row: Charged) -> Iterator[str]:
        found = row.found
        name = printable(row.group.all_of("stack").shown)
        times = f"mean {units.duration(found.mean)}, p50 {units.duration(found.percentile(50))}"
        times += f", p99 {units.duration(found.percentile(99))}, max {units.duration(found.max)}"
        yield f"{name}: {IO.of(found.count)}, {units.size(row.bytes)}, {row.share:.1%} of the time; {times}"
        for frame in row.stack.kernel:
            yield f"    {printable(frame)}"
        if row.stack.process:
            yield f"    -- {printable(row.stack.process)}"
        for frame in row.stack.user:
            yield f"    {printable(frame)}"


class FoldedOutput(TextOutput):
    """A line for each stack and its weight; what else there is to say goes elsewhere, as tools read this."""

    def __init__(self, stream: TextIO, view: StacksView, weight: str) -> None:
        super().__init__(stream, view)
        self._weight = weight

    def start(self, start: Start) -> None:
        with suppress(OSError):
            for note in start.notes:
                print(f"{NOTE}{printable(note)}", file=sys.stderr)

    def interval(self, report: Report) -> None:
        """Flame graphs are of the whole trace."""

    def summary(self, report: Report) -> None:
        weights: dict[str, int] = {}
        wanted = self._view.wanted
        for row in charged(report, wanted.per_device)[: wanted.top or None]:
            name = row.stack.folded()
            where = row.group.label("dev")
            if where is not ALL:
                name = f"{where};{name}"
            weight = row.found.sum if self._weight == TIME else row.found.count
            weights[name] = weights.get(name, 0) + weight
        self._print(f"{printable(name)} {weight}" for name, weight in sorted(weights.items()))
        for line in header.losses(report):
            print(printable(line), file=sys.stderr)


VIEW = StacksView
