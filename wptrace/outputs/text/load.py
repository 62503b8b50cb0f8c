# SPDX-License-Identifier: Apache-2.0
"""The load of devices: a line for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from wptrace.analysis import load
from wptrace.model.report import Report
from wptrace.outputs.text.tables import Style
from wptrace.outputs.text.words import columns, ends, head, padded, printable

_TITLE = "devices"
_NARROWEST, _WIDEST = 12, 32


def lines(report: Report, style: Style, names: Collection[str] | None = None) -> Iterator[str]:
    """Of these devices, or all of them."""
    found = load.busy(report, names)
    if not found:
        return
    room = min(max(_NARROWEST, *(columns(printable(one.dev)) for one in found)), _WIDEST)
    yield f"{padded(_TITLE, room)} {'util':>6} {'depth':>8} merged"
    for one in found:
        util = "-" if one.utilisation is None else f"{one.utilisation:.1%}"
        depth = f"{one.queue_depth:.2f}" if one.queue_depth < 100 else f"{one.queue_depth:,.0f}"
        merged = ", ".join(f"{op} {count:,}".strip() for op, count in sorted(one.merged.items())) or "-"
        yield head(f"{padded(ends(printable(one.dev), room), room)} {util:>6} {depth:>8} {merged}", style.width)
