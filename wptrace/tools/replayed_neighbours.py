# SPDX-License-Identifier: Apache-2.0
"""Neighbours of a capture with every single one: who had the device meanwhile, exactly, from the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from wptrace.analysis import neighbours
from wptrace.analysis.neighbours import COUNT, HAD
from wptrace.analysis.overlap import Overlap
from wptrace.capture.reader import Capture, Head, Records
from wptrace.capture.selection import Selection
from wptrace.errors import UsageError
from wptrace.flows.io.causes import NEIGHBOUR_LATE, NEIGHBOUR_UNKNOWN
from wptrace.flows.io.kinds import REQUEST
from wptrace.flows.io.options import OWNED
from wptrace.flows.io.spans import BY
from wptrace.model.book import Book
from wptrace.model.kind import REQUESTS, TEXTS, TOTAL
from wptrace.model.report import Counters, Report, Verdict
from wptrace.tools.owned import has_texts
from wptrace.tools.singles import Singles

EXACT = "neighbours, by {}, are the exact overlap of the times of single requests, from the records of the capture"
COUNTED = "neighbours are as the kernel counted them, not from the records of single requests"

_RULES = (*TEXTS, "owner", "neighbour")


def owners(head: Head, by: str | None) -> str:
    """Return the owners for which they can be computed from events; empty if there are only the kernel's figures."""
    start = head.start
    counted = bool(start.filters.get("neighbours"))
    by = by or start.filters.get("by") or BY[0]
    others = [name for name in start.filters if name not in ("dev", "by", "neighbours", "statement_text", "unit")]
    if start.flow != "io" or start.level not in OWNED:
        lacking = "it has no owners of requests"
    elif others:
        lacking = f"with --{others[0]}, so that who else had the device is not in it"
    elif not head.each:
        lacking = "without --each, so that not every request is in it"
    elif by not in BY and not has_texts(head, by):
        lacking = f"records do not have owners by {by}"
    else:
        return by
    if not counted:
        raise UsageError(
            f"--neighbours cannot be answered: the capture was made without --neighbours, and {lacking}",
            "capture with --each or --neighbours",
        )
    return ""


class ReplayedNeighbours:
    def __init__(self, capture: Capture, selection: Selection, by: str) -> None:
        self._selection, self._by = selection, by
        self._singles = Singles(capture, capture.head, whole=False)
        self._overlap = Overlap()

    def take(self, found: Records, is_inside: Callable[[int], bool] | None) -> None:
        """Waits are those of what is selected; who had the device meanwhile may be anybody."""
        add, selection = self._overlap.add, self._selection
        spans = self._singles.spans(found, self._by)
        if is_inside is None and not selection:
            for span in spans:
                if span is not None:
                    add(span)
            return
        for event, span in zip(self._singles.of(found), spans):
            if span is not None and selection.is_on(span.dev):
                add(span, is_inside is None or is_inside(event.end_ns), selection.has(event))

    def figures(self, whole: Report | None, books: Mapping[str, Book], top: int) -> tuple[Counters, dict[str, Book]]:
        """Return counters and books; the `whole` report knows how many requests there were."""
        counters = self._overlap.counters()
        counted = sum(counts[COUNT] for group, counts in counters.items() if group.kind is HAD)
        finished = sum(
            found[TOTAL].count
            for group, found in (whole.cells.items() if whole is not None else ())
            if group.kind is REQUEST and self._selection.is_on(str(group.values[0]))
        )
        book = books[REQUESTS].copy() if REQUESTS in books else Book()
        for cause, count in ((NEIGHBOUR_UNKNOWN, finished - counted), (NEIGHBOUR_LATE, self._overlap.late)):
            if count > 0:
                book.note(cause, count)
        return neighbours.folded(counters, top), {**books, REQUESTS: book}


def with_owners(verdict: Verdict, other: Verdict) -> Verdict:
    """Take the findings about owners and neighbours from the other verdict; keep the rest."""
    kept = [one for one in verdict.findings if one.rule not in _RULES]
    new = [one for one in other.findings if one.rule in _RULES]
    last = [one for one in kept if one.rule == "lost"]
    findings = (*(one for one in kept if one.rule != "lost"), *new, *last)
    return verdict._replace(findings=findings)
