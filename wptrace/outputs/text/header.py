# SPDX-License-Identifier: Apache-2.0
"""The first lines of a report, and the last: what happened in all, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from wptrace.kernel.clock import clock_seconds
from wptrace.model import units
from wptrace.model.book import Book, Cause
from wptrace.model.kind import OPERATIONS, REQUESTS, Kind, Noun
from wptrace.model.report import Report
from wptrace.outputs.text.tables import Style, tables, whole, wide
from wptrace.outputs.text.words import wrapped

_REQUEST = Noun("request")


def time(report: Report, style: Style) -> str:
    return clock_seconds(report.ts_ns, style.dates)


def one_book(report: Report, style: Style, kind: Kind) -> str:
    book, took = report.book, units.duration(report.duration_ns)
    line = f"{time(report, style)}  {kind.noun.of(book.finished)} in {took}"
    line += f", {units.size(report.bytes)}" if kind.sized else ""
    return f"{line}, {book.in_flight:,} in flight" + (f", {book.failed:,} failed" if book.failed else "")


def header(report: Report, style: Style, kinds: tuple[Kind, ...]) -> Iterator[str]:
    if not wide(report):
        yield one_book(report, style, next(kind for kind in kinds if kind.book == REQUESTS))
        return
    when, took = time(report, style), units.duration(report.duration_ns)
    parts: list[str] = []
    for kind in kinds:
        if kind.book == OPERATIONS:
            count = kind.noun.of(sum(whole(rows).count for _, rows in tables(report, kind)))
            parts.append(f"{count}{_state(report.books[OPERATIONS])}" if not parts else count)
    parts[0] = f"in {took}: {parts[0]}"
    parts += [f"{_REQUEST.of(report.book.finished)}{_state(report.book)}", units.size(report.bytes)]
    first, *rest = wrapped(parts, style.width, " " * (len(when) + 2), ", ")
    yield from [f"{when}  {first.lstrip()}", *rest]


def _state(book: Book) -> str:
    failures = f", {book.failed:,} failed" if book.failed else ""
    return f" ({book.in_flight:,} in flight{failures})"


def law(report: Report, kinds: Iterable[Kind] = ()) -> Iterator[str]:
    """started = finished + in flight + lost; of what the `kinds` call it."""
    nouns = _nouns(kinds)
    for name in sorted(report.books):
        book = report.books[name]
        name = nouns.get(name, name)
        parts = f"{book.finished:,} finished + {book.in_flight:,} in flight + {book.lost_total:,} lost"
        yield f"{name}: {book.started:,} started = {parts}"


def _nouns(kinds: Iterable[Kind]) -> dict[str, str]:
    """Return the nouns of books that are of one kind with a noun of its own."""
    found: dict[str, str] = {}
    for kind in kinds:
        if kind.book and kind.nested:
            found.setdefault(kind.book, kind.noun.plural)
    return found


def losses(report: Report, kinds: Iterable[Kind] = ()) -> Iterator[str]:
    nouns = _nouns(kinds)
    for name in sorted(report.books):
        what = nouns.get(name, name if wide(report) else "")
        yield from causes(report.books[name].lost, "lost", f" {what}" if what else "")
        yield from causes(report.books[name].noted, "noted")


def causes(found: Mapping[Cause, int], verb: str, what: str = "") -> Iterator[str]:
    for cause, count in found.items():
        if count:
            yield f"{verb}: {count:,}{what} x {cause.name}: {cause.description}"
