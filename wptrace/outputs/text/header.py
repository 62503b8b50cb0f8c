# SPDX-License-Identifier: Apache-2.0
"""The first lines of a report, and the last: what happened in all, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.book import Accounting, Cause
from wptrace.model.results import HIT, OPERATION, Report
from wptrace.outputs.text.tables import Style, counted, tables, whole
from wptrace.outputs.text.words import wrapped


def header(report: Report, style: Style) -> Iterator[str]:
    when = clock_time(report.ts_ns, style.dates).partition(".")[0]
    book, books = report.accounting, report.operations
    size = units.size(report.request_bytes)
    took = units.duration(report.duration_ns)
    if books is None:
        head = f"{when}  {counted(book.finished, 'request')} in {took}, {size}, {book.in_flight:,} in flight"
        yield head + (f", {report.failed:,} failed" if report.failed else "")
        return
    operations = counted(_finished(report, OPERATION), "operation")
    parts = [
        f"in {took}: {operations}{_state(books, report.failed_operations)}",
        counted(_finished(report, HIT), "page-cache hit"),
        f"{counted(book.finished, 'request')}{_state(book, report.failed)}",
        size,
    ]
    first, *rest = wrapped(parts, style.width, " " * (len(when) + 2), ", ")
    yield from [f"{when}  {first.lstrip()}", *rest]


def _finished(report: Report, kind: str) -> int:
    return sum(whole(rows).count for _, rows in tables(report, kind))


def _state(book: Accounting, failed: int) -> str:
    failures = f", {failed:,} failed" if failed else ""
    return f" ({book.in_flight:,} in flight{failures})"


def law(report: Report) -> Iterator[str]:
    """started = finished + in flight + lost."""
    books = {"requests": report.accounting}
    if report.operations is not None:
        books = {"system calls": report.operations, **books}
    for name, book in books.items():
        parts = f"{book.finished:,} finished + {book.in_flight:,} in flight + {book.lost_total:,} lost"
        yield f"{name}: {book.started:,} started = {parts}"


def losses(report: Report) -> Iterator[str]:
    if report.operations is not None:
        yield from _causes(report.operations.lost, "lost", " system calls")
        yield from _causes(report.operations.noted, "noted")
    yield from _causes(report.accounting.lost, "lost", "" if report.operations is None else " requests")
    yield from _causes(report.accounting.noted, "noted")


def _causes(causes: Mapping[Cause, int], verb: str, what: str = "") -> Iterator[str]:
    for cause, count in causes.items():
        if count:
            yield f"{verb}: {count:,}{what} x {cause.name}: {cause.description}"
