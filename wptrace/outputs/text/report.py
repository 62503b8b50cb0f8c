# SPDX-License-Identifier: Apache-2.0
"""A report as text: all of it for a pipe, in sections that can be shortened for a live screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wptrace.model.results import HIT, KINDS, LAYER, OPERATION, REQUEST, WRITEBACK, Report
from wptrace.outputs.text import budget
from wptrace.outputs.text.header import header, law, losses
from wptrace.outputs.text.tables import Style, Table, compact, stages, tables, whole


def lines(report: Report, style: Style) -> Iterator[str]:
    """An interval or a summary, with all that it holds."""
    yield from header(report, style)
    for kind in KINDS:
        found = compact(report, HIT, style) if kind == HIT else stages(report, kind, style)
        if found:
            yield from ["", *found]
    if report.operations is not None:
        yield from ["", *law(report)]
    yield from losses(report)
    yield from budget.lines(report)


def sections(report: Report, style: Style) -> dict[str, list[list[str]]]:
    """The same for a live screen: each section in its full form and in shorter ones."""
    found = {"time": [list(header(report, style))], "losses": [list(losses(report)), []]}
    if report.budget is not None:
        found["budget"] = [list(budget.lines(report)), list(budget.lines(report))[:1]]
    if report.operations is not None:
        found["accounting"] = [list(law(report)), []]
    operations, hits, layers, requests, written = (tables(report, kind) for kind in KINDS)
    if operations:
        found["operations"] = _forms(report, OPERATION, operations, style)
    if hits:
        found["page-cache hits"] = [compact(report, HIT, style), []]
    if layers:
        found["layers"] = [*_forms(report, LAYER, layers, style), []]
    if requests:
        found["block requests"] = [*_forms(report, REQUEST, requests, style), []]
    if written:
        found["writeback"] = [*_forms(report, WRITEBACK, written, style), []]
    return found


def _forms(report: Report, kind: str, found: Sequence[Table], style: Style) -> list[list[str]]:
    """All of them, the one that took the most time and a line for each other, a line for each."""
    first = max(found, key=lambda table: whole(table[1]).sum)
    others = [table for table in found if table is not first]
    return [
        stages(report, kind, style),
        [*stages(report, kind, style, [first]), *(["", *compact(report, kind, style, others)] if others else [])],
        compact(report, kind, style),
    ]
