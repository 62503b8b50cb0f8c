# SPDX-License-Identifier: Apache-2.0
"""Tables: a line for each stage of what took its time, one line alone for what has no stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.results import HIT, LAYER, OPERATION, REQUEST, WRITEBACK, Group, Report, Row
from wptrace.model.stages import StageTable
from wptrace.outputs.text.words import bar, columns, happened, padded, printable

# With the widest figures that a trace can bring a line has 79 columns, the bar takes what is left.
_FIGURES = (("mean", None), ("p50", 50.0), ("p99", 99.0))
_MORE_FIGURES = (("mean", None), ("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9))
_ROOM_FOR_MORE = 110
_WIDEST_BAR = 30
# Two tables beside each other, where each still has a bar.
_ROOM_FOR_TWO = 158
_BETWEEN = "  "

Table = tuple[Group, list[Row]]


class Style(NamedTuple):
    width: int
    dates: bool
    table: StageTable | None = None

    @property
    def inside(self) -> set[str]:
        """Stages that are no part of the sum."""
        return set() if self.table is None else {stage.name for stage in self.table.inside}


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def tables(report: Report, kind: str) -> list[Table]:
    found = groupby(report.rows, key=lambda row: row.group)
    return [(group, list(rows)) for group, rows in found if group.kind == kind]


def whole(rows: Sequence[Row]) -> Distribution:
    """The total is the last row."""
    return rows[-1].distribution


def stages(report: Report, kind: str, style: Style, only: Sequence[Table] | None = None) -> list[str]:
    """A table for each device and operation; two beside each other where there is room."""
    found = tables(report, kind) if only is None else only
    across = 2 if len(found) > 1 and report.operations is not None and style.width >= _ROOM_FOR_TWO else 1
    room = (style.width - len(_BETWEEN) * (across - 1)) // across
    drawn = [list(_stages(group, rows, report, style._replace(width=room))) for group, rows in found]
    lines: list[str] = []
    for first in range(0, len(drawn), across):
        lines += [""] if first else []
        beside = zip_longest(*drawn[first : first + across], fillvalue="")
        lines += [_BETWEEN.join(padded(line, room) for line in line_of_all).rstrip() for line_of_all in beside]
    return lines


def _stages(group: Group, rows: list[Row], report: Report, style: Style) -> Iterator[str]:
    wide = report.operations is not None and style.width >= _ROOM_FOR_MORE
    yield _title(group, rows, report)
    yield f"  {'stage':<12} {'count':>11}{''.join(f' {name:>8}' for name in _names(wide))} {'share':>6}"
    inside = [row for row in rows if row.stage in style.inside]
    for row in rows:
        if row not in inside:
            yield _row(row, wide, style.width)
    if inside:
        yield "  of that, inside the stages above:"
        for row in inside:
            yield _row(row, wide, style.width)


_TITLES = {
    OPERATION: "operations",
    HIT: "page-cache hits",
    LAYER: "bios",
    REQUEST: "block requests",
    WRITEBACK: "writeback bios",
}


def name(group: Group, report: Report) -> str:
    """A flow that sees nothing but requests needs not say that they are some."""
    plain = _plain_name(group)
    return plain if report.operations is None else f"{plain} {_TITLES[group.kind]},"


def _title(group: Group, rows: list[Row], report: Report) -> str:
    noun = "request" if report.operations is None else _TITLES[group.kind][:-1]
    title = f"{_plain_name(group)}: {counted(max(row.distribution.count for row in rows), noun)}"
    untimed = report.untimed.get(group, 0)
    if untimed:
        title += f" ({max(whole(rows).count - untimed, 0):,} timed)"
    seconds = report.duration_ns / 1e9
    if seconds:
        rate = units.rate(max(row.distribution.count for row in rows) / seconds)
        title += f", {rate}, {units.size(_bytes(group, report) / seconds)}/s"
    return "; ".join([title, *([happened(report.events[group])] if report.events.get(group) else [])])


def _plain_name(group: Group) -> str:
    return f"{printable(group.dev)} {group.op}".strip()


def _bytes(group: Group, report: Report) -> int:
    sizes = report.bytes.items()
    return sum(size for key, size in sizes if key[1:] == group[1:] and group.dev in ("", key.dev))


def _names(wide: bool) -> list[str]:
    return [*(name for name, _ in (_MORE_FIGURES if wide else _FIGURES)), "max"]


def _figures(found: Distribution, wide: bool) -> str:
    values = [
        found.mean if percent is None else found.percentile(percent)
        for _, percent in (_MORE_FIGURES if wide else _FIGURES)
    ]
    return "".join(f" {units.duration(value):>8}" for value in (*values, found.max))


def _row(row: Row, wide: bool, width: int) -> str:
    found = row.distribution
    line = f"  {row.stage:<12} {found.count:>11,}{_figures(found, wide)} {row.share:>6.1%}"
    return f"{line}  {bar(row.share, min(max(width - len(line) - 2, 0), _WIDEST_BAR))}".rstrip()


def compact(report: Report, kind: str, style: Style, only: Sequence[Table] | None = None) -> list[str]:
    """One line for each device and operation, without stages."""
    found = tables(report, kind) if only is None else only
    if not found:
        return []
    seconds = report.duration_ns / 1e9
    wide = style.width >= _ROOM_FOR_MORE
    names = "".join(f" {name:>8}" for name in _names(wide))
    lines = [f"{_counted(_TITLES[kind], 'count')}{names} {'rate':>9}"]
    for group, rows in found:
        of_all = whole(rows)
        rate = units.rate(of_all.count / seconds) if seconds else ""
        counted = _counted(f"  {_plain_name(group)}", f"{of_all.count:,}")
        line = f"{counted}{_figures(of_all, wide)} {rate:>9}"
        if wide and seconds:
            line += f" {units.size(_bytes(group, report) / seconds) + '/s':>11}"
        lines.append(line.rstrip())
    return lines


def _counted(name: str, count: str) -> str:
    """As wide as the names and counts of stages, so that all tables stand in the same columns."""
    return f"{name} {count:>{max(25 - columns(name), 0)}}"
