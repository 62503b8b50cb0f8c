# SPDX-License-Identifier: Apache-2.0
"""Requests in flight as a table: how old each is, and how far it came."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.kernel.clock import clock_seconds
from wptrace.model import units
from wptrace.model.report import InFlight
from wptrace.outputs.text import story
from wptrace.outputs.text.words import columns, padded, printable, task

MOST = 50
"""How many are listed, the oldest ones."""
_COLUMNS = ("age", "stage", "op", "device", "who", "what")


def lines(found: Sequence[InFlight], at_ns: int, width: int, dates: bool, most: int = MOST) -> list[str]:
    title = f"in flight at {clock_seconds(at_ns, dates)}: {len(found):,}"
    if not found:
        return [title]
    title += f", the oldest for {units.duration(found[0].age_ns)}"
    rows = [_row(one) for one in found[:most]]
    widths = [max(columns(row[place]) for row in (_COLUMNS, *rows)) for place in range(len(_COLUMNS) - 1)]
    room = width - sum(widths) - 2 * len(_COLUMNS)
    listed = [_line(_COLUMNS[:-1], _COLUMNS[-1], widths)]
    listed += [_line(row, story.what(one.fields, room), widths) for row, one in zip(rows, found)]
    rest = len(found) - len(rows)
    return [title, *listed, *([f"  and {rest:,} more"] if rest else [])]


def _row(one: InFlight) -> tuple[str, ...]:
    who = task(one.fields) if "comm" in one.fields else ""
    return units.duration(one.age_ns), one.stage, *_where(one), who


def _where(one: InFlight) -> tuple[str, str]:
    """Name its operation and place."""
    first, *others = (label.shown(value) for label, value in zip(one.group.kind.labels, one.group.values))
    return printable(" ".join((*others, *one.group.kind.constants.values()))), printable(first)


def _line(row: Sequence[str], what: str, widths: Sequence[int]) -> str:
    age, *others = (padded(cell, width) for cell, width in zip(row, widths))
    return f"  {age.strip():>{widths[0]}}  {'  '.join(others)}  {what}".rstrip()
