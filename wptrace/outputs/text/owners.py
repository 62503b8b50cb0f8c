# SPDX-License-Identifier: Apache-2.0
"""Tables of owners: a line for each with its requests, those with the most time first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Callable

from wptrace.analysis.owners import owner
from wptrace.analysis.waits import OWNED_WAIT
from wptrace.model import cgroup, units
from wptrace.model.distribution import Distribution
from wptrace.model.kind import ALL, CGROUP, NOBODY, OTHERS, Group, Kind, Label, Task
from wptrace.model.report import BYTES, Report
from wptrace.outputs.text.tables import Style, tables, whole
from wptrace.outputs.text.words import columns, durations, ends, head, padded, printable

_UNDER_WAY = "under_way"
# The widths of what a line has behind the name, and of the device.
_FIGURES = 55
_DEV = 10
# The width of a count that is not larger than most are.
_COUNT = 9
_NARROWEST = 14
# The width of a stage, where there are no bytes.
_STAGE = 9
_WIDEST = 60
# A shorter part of a command line is useless.
_COMMAND = 8


def is_owned(kind: Kind) -> bool:
    return kind.owner_place is not None


def lines(
    report: Report, kind: Kind, style: Style, by: str, command: Callable[[Task], str] | None = None, sort: bool = True
) -> Iterator[str]:
    """The sums over the lines are those of the tables above. A process has its `command` line where there is room.

    Who had most of the device comes first, unless the rows are in another order already.
    """
    found = tables(report, kind)
    found = sorted(found, key=lambda table: place_of(table[0], report.cells[table[0]])) if sort else found
    at = kind.owner_place
    if not found or at is None:
        return
    label = kind.labels[at]
    per_device = found[0][0].label("dev") is not ALL
    count = max(_COUNT, *(len(f"{whole(rows).count:,}") for _, rows in found))
    room = max(style.width - _FIGURES - (_DEV + 1 if per_device else 0), _NARROWEST) - (count - _COUNT)
    room = min(room, _WIDEST)
    device = sum(row.distribution.sum for _, rows in found for row in rows if row.metric == _UNDER_WAY)
    title = padded(head(f"{kind.noun.plural} by {by}", room), room) + (f" {'dev':<{_DEV}}" if per_device else "")
    share = "device" if device else "share"
    waits = kind.name == OWNED_WAIT
    yield f"{title} {'op':<9} {'count':>{count}} {'stage' if waits else 'bytes':>9} {'mean':>8} {'p99':>8} {share:>6}"
    for group, rows in found:
        total, op = whole(rows), "" if group.label("op") is ALL else group.label("op")
        whose = owner(group)
        shown = _shown(label, whose, room)
        if command is not None and isinstance(whose, Task):
            left = room - columns(shown) - 1
            shown += f" {head(printable(command(whose)), left)}" if left >= _COMMAND else ""
        if waits:
            shown = f"{shown}: {printable(str(group.label('reason')))}"
        line = padded(ends(shown, room), room)
        if per_device:
            line += f" {padded(ends(printable(group.label('dev')), _DEV), _DEV)}"
        third = printable(str(group.label("in_stage")))[:_STAGE] if waits else units.size(report.counter(group, BYTES))
        line += f" {op:<9} {total.count:>{count},} {third:>9}"
        line += durations(total.mean, total.percentile(99))
        under_way = sum(row.distribution.sum for row in rows if row.metric == _UNDER_WAY)
        yield f"{line} {under_way / device if device else rows[-1].share:>6.1%}"


def place_of(group: Group, metrics: Mapping[str, Distribution]) -> tuple[bool, float]:
    """Return the place of a row by its time in devices; rows without any are alike."""
    return OTHERS in group.values, -metrics[_UNDER_WAY].sum if _UNDER_WAY in metrics else 0.0


def _shown(label: Label, value: object, room: int) -> str:
    """Return the short name of a cgroup, and its path if there is room."""
    found = label.shown(value)
    if label.type != CGROUP or found in (OTHERS, NOBODY):
        return printable(found)
    short = cgroup.short(found)
    if short == found:
        return printable(found)
    return printable(f"{short} {found}" if len(short) + 1 + len(found) <= room else short)
