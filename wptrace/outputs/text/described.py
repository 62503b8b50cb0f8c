# SPDX-License-Identifier: Apache-2.0
"""Whose the statements of rows are: a line for each, in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wptrace.model.report import Report
from wptrace.outputs.text.tables import Style
from wptrace.outputs.text.words import ends, head, padded, printable

_COLUMNS = (("databases", "database", 12), ("users", "user", 12), ("applications", "application", 14))
_IDS, _ID = "query_ids", 20
_NARROWEST, _WIDEST = 16, 60


def lines(report: Report, style: Style) -> Iterator[str]:
    found = report.lists.get("statements")
    if not found:
        return
    room = min(max(style.width - sum(width + 1 for _, _, width in _COLUMNS) - _ID - 1, _NARROWEST), _WIDEST)
    titles = " ".join(padded(title, width) for _, title, width in _COLUMNS)
    yield f"{padded('statements', room)} {titles} {'query id':>{_ID}}"
    for one in found:
        line = padded(ends(printable(one["owner"]), room), room)
        for field, _, width in _COLUMNS:
            line += f" {padded(_several(one[field], width), width)}"
        yield f"{line} {_several(one[_IDS], _ID):>{_ID}}".rstrip()


def _several(values: Sequence[str], width: int) -> str:
    """The first one, and how many more there are."""
    if not values:
        return ""
    more = f" +{len(values) - 1}" if len(values) > 1 else ""
    return head(printable(values[0]), width - len(more)) + more
