# SPDX-License-Identifier: Apache-2.0
"""What sizes requests have, as text: a row for each size, or for each power of two where there are many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple, TextIO

from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.results import Group, Report, Row
from wptrace.model.tally import Tally
from wptrace.outputs.text.plain import PlainOutput
from wptrace.outputs.text.words import bar, printable

_HEADER = f"  {'size':<19} {'count':>13} {'share':>7} {'sequential':>10}"
_BAR = 30
# More rows than this are told by powers of two, unless the user wants each.
_ROWS = 24


class View(NamedTuple):
    """How the user wants it."""

    per_device: bool
    dates: bool
    statistics: bool
    exact: bool


class SizeOutput(PlainOutput):
    def __init__(self, stream: TextIO, view: View) -> None:
        super().__init__(stream, view.statistics)
        self._view = view

    def lines(self, report: Report) -> Iterator[str]:
        time = clock_time(report.ts_ns, self._view.dates).partition(".")[0]
        yield (
            f"{time}  {_requests(report.accounting.finished)} in {units.duration(report.duration_ns)},"
            f" {units.size(sum(report.bytes.values()))}"
        )
        groups = _groups(report.rows, self._view.per_device)
        sizes: dict[Group, int] = {}
        for group, size in report.bytes.items():
            group = group if self._view.per_device else group._replace(dev="")
            sizes[group] = sizes.get(group, 0) + size
        for group, tallies in groups.items():
            yield ""
            yield from self._group(group, tallies, sizes.get(group, 0), report.duration_ns / 1e9)

    def _group(self, group: Group, tallies: Mapping[str, Tally], size: int, seconds: float) -> Iterator[str]:
        total = tallies["total"]
        sequential = tallies.get("sequential")
        line = f"{printable(group.dev)} {group.op}".strip() + f": {_requests(total.count)}"
        if seconds:
            line += f", {units.rate(total.count / seconds)}, {units.size(size / seconds)}/s"
        if sequential is None:
            yield line
            return
        yield f"{line}, {_part(sequential.count, total.count)} sequential"
        yield _HEADER
        ranges = _sizes if self._view.exact or len(total.counts) <= _ROWS else _powers
        for name, sizes in ranges(total):
            count = sum(total.counts[one] for one in sizes)
            in_order = sum(sequential.counts.get(one, 0) for one in sizes)
            row = f"  {name:<19} {count:>13,} {_part(count, total.count):>7} {_part(in_order, count):>10}"
            yield f"{row}  {bar(count / total.count, _BAR)}".rstrip()
        figures = (total.mean, *map(total.percentile, (50, 99)), total.max)
        yield "  mean {}, p50 {}, p99 {}, max {}".format(*map(units.size, figures))


def _groups(rows: list[Row], per_device: bool) -> dict[Group, dict[str, Tally]]:
    """The tallies by operation, and by device where the user wants that."""
    found: dict[Group, dict[str, Tally]] = {}
    for row in rows:
        group = row.group if per_device else row.group._replace(dev="")
        found.setdefault(group, {}).setdefault(row.stage, Tally()).merge(row.distribution)
    return dict(sorted(found.items(), key=lambda item: (item[0].dev, item[0].op)))


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _part(count: int, whole: int) -> str:
    return f"{count / whole:.1%}" if whole else "-"


def exact(size: int) -> str:
    """A size with all of its digits: 4 KiB, 128.5 KiB, 1 MiB, 36 B."""
    if size and size % (1 << 20) == 0:
        return f"{size >> 20:,} MiB"
    if size and size % 512 == 0:
        return f"{size / 1024:,g} KiB" if size < 1 << 29 else f"{size / 1024:,.1f} KiB"
    return f"{size:,} B"


def _sizes(total: Tally) -> Iterator[tuple[str, list[int]]]:
    for size in sorted(total.counts):
        yield exact(size), [size]


def _powers(total: Tally) -> Iterator[tuple[str, list[int]]]:
    for power, sizes in groupby(sorted(total.counts), key=int.bit_length):
        low = 1 << power - 1 if power else 0
        yield f"{exact(low)} - {exact(1 << power)}", list(sizes)
