# SPDX-License-Identifier: Apache-2.0
"""Sizes of requests as text: a row for each size, or for each power of two where there are many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group, Noun
from wptrace.model.report import BYTES, Report
from wptrace.model.tally import Tally
from wptrace.outputs.text import header, words
from wptrace.outputs.text.view import View
from wptrace.outputs.text.words import bar

REQUEST = Noun("request")

_HEADER = f"  {'size':<19} {'count':>13} {'share':>7} {'sequential':>10}"
_BAR = 30
# More rows than this are shown by powers of two, unless the user wants each.
_ROWS = 24


class SizesView(View):
    def report(self, report: Report, width: int) -> Iterator[str]:
        report = report if self.wanted.per_device else report.everywhere()
        time, took = header.time(report, self.style(width)), units.duration(report.duration_ns)
        yield f"{time}  {REQUEST.of(report.book.finished)} in {took}, {units.size(report.bytes)}"
        for group, metrics in report.cells.items():
            yield ""
            yield from self._group(group, metrics, report.counter(group, BYTES), report.duration_ns / 1e9)

    def _group(self, group: Group, metrics: Mapping[str, Distribution], size: int, seconds: float) -> Iterator[str]:
        total, sequential = _tally(metrics["total"]), _tally(metrics.get("sequential"))
        line = f"{words.group(group)}: {REQUEST.of(total.count)}"
        if seconds:
            line += f", {units.rate(total.count / seconds)}, {units.size(size / seconds)}/s"
        if "sequential" not in metrics:
            yield line
            return
        yield f"{line}, {_part(sequential.count, total.count)} sequential"
        yield _HEADER
        ranges = _sizes if self.wanted.exact or len(total.counts) <= _ROWS else _powers
        for name, sizes in ranges(total):
            count = sum(total.counts[one] for one in sizes)
            in_order = sum(sequential.counts.get(one, 0) for one in sizes)
            row = f"  {name:<19} {count:>13,} {_part(count, total.count):>7} {_part(in_order, count):>10}"
            yield f"{row}  {bar(count / total.count, _BAR)}".rstrip()
        figures = (total.mean, *map(total.percentile, (50, 99)), total.max)
        yield "  mean {}, p50 {}, p99 {}, max {}".format(*map(units.size, figures))


def _tally(found: Distribution | None) -> Tally:
    return found if isinstance(found, Tally) else Tally()


def _part(count: int, whole: int) -> str:
    return f"{count / whole:.1%}" if whole else "-"


def exact(size: int) -> str:
    """A size with all of its digits: 4 KiB, 128.5 KiB, 1 MiB, 36 B."""
    if size and size % (1 << 20) == 0:
        return f"{size >> 20:,} MiB"
    if size and size % 512 == 0:
        return f"{size / 1024:,.1f}".removesuffix(".0") + " KiB"
    return f"{size:,} B"


def _sizes(total: Tally) -> Iterator[tuple[str, list[int]]]:
    for size in sorted(total.counts):
        yield exact(size), [size]


def _powers(total: Tally) -> Iterator[tuple[str, list[int]]]:
    for power, sizes in groupby(sorted(total.counts), key=int.bit_length):
        low = 1 << power - 1 if power else 0
        yield f"{exact(low)} - {exact(1 << power)}", list(sizes)


VIEW = SizesView
