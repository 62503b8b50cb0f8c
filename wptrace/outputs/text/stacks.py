# SPDX-License-Identifier: Apache-2.0
"""Stacks that started I/O: as text, as JSON, and folded for flame graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.results import Group, Report, Row, Start
from wptrace.model.stack import Stack
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.text.plain import PlainOutput, losses
from wptrace.outputs.text.words import printable

TIME, COUNT = "time", "count"
WEIGHTS = (TIME, COUNT)


class View(NamedTuple):
    """How the user wants it."""

    per_device: bool
    dates: bool
    statistics: bool
    top: int
    """So many stacks, those with the most time first; 0: all of them."""
    min_ns: int


class Charged(NamedTuple):
    """What a stack started on one device, or on all of them, by one operation."""

    group: Group
    stack: Stack
    found: Distribution
    bytes: int


def charged(report: Report, per_device: bool) -> list[Charged]:
    """The rows of a report, the most time first."""
    distributions: dict[Group, Distribution] = {}
    sizes: dict[Group, int] = {}
    for row in report.rows:
        if row.stage == "total":
            group = row.group if per_device else row.group._replace(dev="")
            distributions.setdefault(group, Distribution()).merge(row.distribution)
            if row.group in report.bytes:
                sizes[group] = sizes.get(group, 0) + report.bytes[row.group]
    rows = [
        Charged(group, group.key, found, sizes.get(group, 0))
        for group, found in distributions.items()
        if isinstance(group.key, Stack)
    ]
    return sorted(rows, key=lambda row: (-row.found.sum, row.group.dev, row.group.op, row.stack))


class StacksOutput(PlainOutput):
    def __init__(self, stream: TextIO, view: View) -> None:
        super().__init__(stream, view.statistics)
        self._view = view

    def start(self, start: Start) -> None:
        # Each report says what --min left out.
        super().start(start._replace(filters={key: given for key, given in start.filters.items() if key != "min_ns"}))

    def lines(self, report: Report) -> Iterator[str]:
        rows = charged(report, self._view.per_device)
        shown = rows[: self._view.top or None]
        book = report.accounting
        time = clock_time(report.ts_ns, self._view.dates).partition(".")[0]
        line = f"{time}  {_ios(book.finished)} in {units.duration(report.duration_ns)}, {book.in_flight:,} in flight"
        if self._view.min_ns:
            line += f"; {sum(row.found.count for row in rows):,} took {units.duration(self._view.min_ns)} or more"
        yield line
        whole = sum(row.found.sum for row in rows)
        for row in shown:
            yield ""
            yield from self._row(row, whole)
        if len(rows) > len(shown):
            yield ""
            yield f"and {len(rows) - len(shown):,} more (--top 0 shows all)"

    def _row(self, row: Charged, whole: int) -> Iterator[str]:
        found = row.found
        name = f"{printable(row.group.dev)} {row.group.op}".strip()
        share = found.sum / whole if whole else 0.0
        times = f"mean {units.duration(found.mean)}, p50 {units.duration(found.percentile(50))}"
        times += f", p99 {units.duration(found.percentile(99))}, max {units.duration(found.max)}"
        yield f"{name}: {_ios(found.count)}, {units.size(row.bytes)}, {share:.1%} of the time; {times}"
        for frame in row.stack.kernel:
            yield f"    {printable(frame)}"
        if row.stack.process:
            yield f"    -- {printable(row.stack.process)}"
        for frame in row.stack.user:
            yield f"    {printable(frame)}"


class FoldedOutput(PlainOutput):
    """A line for each stack and its weight; what else there is to say goes elsewhere, as tools read this."""

    def __init__(self, stream: TextIO, view: View, weight: str, complaints: TextIO = sys.stderr) -> None:
        super().__init__(stream, statistics=False)
        self._view = view
        self._weight = weight
        self._complaints = complaints

    def start(self, start: Start) -> None:
        pass

    def interval(self, report: Report) -> None:
        """Flame graphs are of the whole trace."""

    def summary(self, report: Report) -> None:
        weights: dict[str, int] = {}
        for row in charged(report, self._view.per_device):
            name = row.stack.folded()
            if row.group.dev:
                name = f"{row.group.dev};{name}"
            weight = row.found.sum if self._weight == TIME else row.found.count
            weights[name] = weights.get(name, 0) + weight
        self._print(f"{printable(name)} {weight}" for name, weight in sorted(weights.items()))
        for causes, verb in ((report.accounting.lost, "lost"), (report.accounting.noted, "noted")):
            for line in losses(causes, verb):
                print(line, file=self._complaints)


class StacksJson(NdjsonOutput):
    """Rows have the frames of their stack, and no standard deviation: the kernel side keeps no squares."""

    def __init__(self, stream: TextIO, view: View) -> None:
        super().__init__(stream)
        self._view = view
        self._sizes: dict[Group, int] = {}

    def interval(self, report: Report) -> None:
        super().interval(self._chosen(report))

    def summary(self, report: Report) -> None:
        super().summary(self._chosen(report))

    def _chosen(self, report: Report) -> Report:
        rows = charged(report, per_device=True)
        whole = sum(row.found.sum for row in rows)
        self._sizes = {row.group: row.bytes for row in rows}
        shown = [
            Row(row.group, "total", row.found, row.found.sum / whole if whole else 0.0)
            for row in rows[: self._view.top or None]
        ]
        # The verdict is about stages, of which there is only one here.
        return report._replace(rows=shown, verdict=None)

    def row(self, row: Row) -> dict[str, Any]:
        line = super().row(row)
        del line["stddev_ns"]
        line["bytes"] = self._sizes[row.group]
        if isinstance(row.group.key, Stack):
            line["stack"] = row.group.key._asdict()
        return line


def _ios(count: int) -> str:
    return f"{count:,} I/O{'' if count == 1 else 's'}"
