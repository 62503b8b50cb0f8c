# SPDX-License-Identifier: Apache-2.0
"""Tables: a line for each stage of what took its time, one line alone for what has no stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import NamedTuple

from wptrace.analysis import waits
from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group, Kind
from wptrace.model.report import BYTES, UNTIMED, Report, Row
from wptrace.outputs.text import words
from wptrace.outputs.text.words import bar, columns, padded

# A line with the widest figures that a trace can bring has 79 columns; the bar takes what is left.
_FIGURES = (("mean", None), ("p50", 50.0), ("p99", 99.0))
_MORE_FIGURES = (("mean", None), ("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9))
_ROOM_FOR_MORE = 110
_WIDEST_BAR = 30
# The name of a stage; few are longer.
_STAGE = 12
# Two tables beside each other, where each still has a bar.
_ROOM_FOR_TWO = 158
_BETWEEN = "  "
# The smallest share of a stage that is shown.
_LEAST_PART = 0.005
# So much of what it did on the CPU is named.
_WORKS, _LEAST_WORK = 3, 0.05

Table = tuple[Group, list[Row]]


class Style(NamedTuple):
    width: int
    dates: bool
    terse: bool = False
    """Without stages that took no time in any table of their kind."""


def wide(report: Report) -> bool:
    """Whether the report has operations and their requests, whose tables have room for more."""
    return len(report.books) > 1


def tables(report: Report, kind: Kind) -> list[Table]:
    mine = report.only(group for group in report.cells if group.kind is kind)
    return [(group, list(rows)) for group, rows in groupby(mine.rows, key=lambda row: row.group)]


def whole(rows: Sequence[Row]) -> Distribution:
    """The total is the last row."""
    return rows[-1].distribution


def stages(report: Report, kind: Kind, style: Style, only: Sequence[Table] | None = None) -> list[str]:
    """A table for each device and operation; two beside each other where there is room."""
    found = tables(report, kind) if only is None else only
    across = 2 if len(found) > 1 and wide(report) and style.width >= _ROOM_FOR_TWO else 1
    room = (style.width - len(_BETWEEN) * (across - 1)) // across
    idle = _idle(report, kind) if style.terse else set()
    shown = [(group, [row for row in rows if row.metric not in idle]) for group, rows in found]
    made = waits.of(report) if kind.name in waits.WAITING else {}
    drawn = [list(one(group, rows, report, style._replace(width=room), made)) for group, rows in shown]
    lines: list[str] = []
    for first in range(0, len(drawn), across):
        lines += [""] if first else []
        side_by_side = zip_longest(*drawn[first : first + across], fillvalue="")
        lines += [_BETWEEN.join(padded(line, room) for line in line_of_all).rstrip() for line_of_all in side_by_side]
    return lines


def _idle(report: Report, kind: Kind) -> set[str]:
    cells = (found for group, found in report.cells.items() if group.kind is kind)
    busy = {name for found in cells for name, one in found.items() if one.sum}
    return {measured.name for measured in kind.measured} - busy


def one(
    group: Group, rows: Sequence[Row], report: Report, style: Style, made: waits.ByGroup | None = None
) -> Iterator[str]:
    """The table of one; what stages were `made` of is the same for all of a report."""
    many = wide(report) and style.width >= _ROOM_FOR_MORE
    yield _title(group, rows, report)
    # The table may only have events that were asked for, as flushes.
    if not any(row.distribution.count for row in rows):
        return
    names_width = max(_STAGE, *(len(row.metric) for row in rows))
    yield f"  {'stage':<{names_width}} {'count':>11}{''.join(f' {name:>8}' for name in _names(many))} {'share':>6}"
    names = {metric.name for metric in group.kind.interference}
    # Some disks and kernels do not show H.
    exact = wide(report) or any(stage.end.letter == "H" for stage in group.kind.stages)
    interference = [row for row in rows if row.metric in names]
    for row in rows:
        if row not in interference:
            yield _row(row, many, style.width, names_width, exact)
    if interference:
        yield "  of that, inside the stages above:"
        for row in interference:
            yield _row(row, many, style.width, names_width, False)
    if group.kind.name not in waits.WAITING:
        return
    for found in (waits.of(report) if made is None else made).get(group.values, ()):
        if parts := made_of(found):
            yield from words.wrapped([f"of {found.stage}: {parts[0]}", *parts[1:]], style.width, "  ", ", ")


def made_of(found: waits.Waits) -> list[str]:
    """List the waits in a stage, and how often each occurred."""
    more = {one.reason: f"{one.waits:,}" for one in found.reasons}
    busy = [f"{share:.0%} {words.printable(what)}" for what, share in found.work[:_WORKS] if share >= _LEAST_WORK]
    more[waits.RUNNING] = ", ".join(busy)
    return [
        f"{share:.1%} {words.printable(name)}{f' ({more[name]})' if more.get(name) else ''}"
        for name, share in found.parts
        if share >= _LEAST_PART
    ]


def name(group: Group, report: Report) -> str:
    """A flow that sees nothing but one kind needs not say which."""
    plain = words.group(group)
    return f"{plain} {group.kind.noun.plural}," if wide(report) else plain


def _title(group: Group, rows: Sequence[Row], report: Report) -> str:
    name = words.group(group)
    title = f"{name}: " if name else ""
    title += group.kind.noun.of(max(row.distribution.count for row in rows))
    untimed = report.counter(group, UNTIMED)
    if untimed:
        title += f" ({max(whole(rows).count - untimed, 0):,} timed)"
    seconds = report.duration_ns / 1e9
    if seconds:
        title += f", {units.rate(max(row.distribution.count for row in rows) / seconds)}"
        if group.kind.sized:
            title += f", {units.size(report.counter(group, BYTES) / seconds)}/s"
    events = report.events(group)
    return "; ".join([title, *([words.happened(events)] if events else [])])


def _names(wide: bool) -> list[str]:
    return [*(name for name, _ in (_MORE_FIGURES if wide else _FIGURES)), "max"]


def _figures(found: Distribution, wide: bool) -> str:
    values = [
        found.mean if percent is None else found.percentile(percent)
        for _, percent in (_MORE_FIGURES if wide else _FIGURES)
    ]
    return words.durations(*values, found.max)


def _row(row: Row, many: bool, width: int, names_width: int, exact: bool) -> str:
    """Format a row. With `exact` times, which are never 0, an empty row's points were not observed or not passed."""
    found = row.distribution
    figures, share = _figures(found, many), f"{row.share:.1%}"
    if exact and found.count and not found.max:
        figures, share = f" {'-':>8}" * (len(_names(many))), "-"
    line = f"  {row.metric:<{names_width}} {found.count:>11,}{figures} {share:>6}"
    return f"{line}  {bar(row.share, min(max(width - len(line) - 2, 0), _WIDEST_BAR))}".rstrip()


def compact(report: Report, kind: Kind, style: Style, only: Sequence[Table] | None = None) -> list[str]:
    """Return a line for each device and operation, without stages."""
    found = tables(report, kind) if only is None else only
    if not found:
        return []
    seconds = report.duration_ns / 1e9
    many = style.width >= _ROOM_FOR_MORE
    names = "".join(f" {name:>8}" for name in _names(many))
    lines = [f"{_counted(kind.noun.plural, 'count')}{names} {'rate':>9}"]
    for group, rows in found:
        of_all = whole(rows)
        rate = units.rate(of_all.count / seconds) if seconds else ""
        counted = _counted(f"  {words.group(group) or 'all'}", f"{of_all.count:,}")
        line = f"{counted}{_figures(of_all, many)} {rate:>9}"
        if many and seconds and kind.sized:
            line += f" {units.size(report.counter(group, BYTES) / seconds) + '/s':>11}"
        lines.append(line.rstrip())
    return lines


def _counted(name: str, count: str) -> str:
    """Format a count in the columns of stages, so that all tables are aligned."""
    return f"{name} {count:>{max(25 - columns(name), 0)}}"
