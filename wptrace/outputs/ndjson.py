# SPDX-License-Identifier: Apache-2.0
"""JSON objects, one a line, as in docs/schema.json. Times are integer nanoseconds with the unit in the key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TextIO

from wptrace import __version__
from wptrace.analysis import load, neighbours, waits
from wptrace.model.book import Book, Cause
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL
from wptrace.model.report import BYTES, UNTIMED, Event, InFlight, QuietOutput, Report, Row, Start
from wptrace.model.rows import Number, Rows
from wptrace.model.tally import Tally
from wptrace.outputs.forms import Form, Forms
from wptrace.outputs.json_line import encoded
from wptrace.outputs.registry import Wanted

_PERCENTILES = (("p50", 50), ("p90", 90), ("p99", 99), ("p999", 99.9))


class _Keys(dict[str, str]):
    """Keys of stages. There may be a hundred thousand requests a second with ten each."""

    def __missing__(self, name: str) -> str:
        key = self[name] = f"{name}_ns"
        return key


_KEYS = _Keys()
_KNOWN = 1024


class NdjsonOutput(QuietOutput):
    def __init__(self, stream: TextIO, wanted: Wanted) -> None:
        self._stream = stream
        self._wanted = wanted
        self._title = {"flow": wanted.title} if wanted.title else {}
        # All events of a group have the same labels; there is no end of threads.
        self._labels = lru_cache(_KNOWN)(lambda group: {**self._title, **group.fields})
        self._forms = Forms(self._form, self._line, lambda _, value: encoded(value))

    def _write(self, line: Mapping[str, Any]) -> None:
        self._stream.write(encoded(line) + "\n")
        # A reader of the pipe sees each line at once; events may be many, and come in batches.
        self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def start(self, start: Start) -> None:
        self._write(
            {
                "kind": "start",
                "version": __version__,
                "kernel": start.kernel,
                "flow": start.flow,
                "level": start.level,
                "filters": dict(start.filters),
                "stages": [{"stage": source.stage, "how": source.how} for source in start.sources],
                "notes": start.notes,
                **({"file": start.file} if start.file else {}),
            }
        )

    def event(self, event: Event) -> None:
        self._stream.write(self._line(event))

    def rows(self, rows: Rows) -> bool:
        return self._forms.write(rows, self._stream)

    def _line(self, event: Event) -> str:
        return encoded(line_of(event, self._labels(event.group))) + "\n"

    def _form(self, event: Event, form: Form) -> Form | None:
        codes: list[tuple[str, str]] = []

        def marked(value: Any) -> Any:
            if isinstance(value, Number):
                return mark("%d", value.code)
            return {name: marked(one) for name, one in value.items()} if isinstance(value, dict) else value

        def mark(how: str, code: str) -> str:
            codes.append((how, code))
            return f"\0{len(codes) - 1}\0"

        line = {
            name: mark("%s", code) if (code := form.part(name)) else marked(value)
            for name, value in line_of(event, self._labels(event.group)).items()
        }
        text = encoded(line) + "\n"
        for place, (how, code) in enumerate(codes):
            before, found, text = text.partition(f'"\\u0000{place}\\u0000"')
            # Some name may be called so.
            if not found or found in text:
                return None
            form.text(before)
            form.add(how, code)
        form.text(text)
        return form

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._write(
            {
                "kind": "in_flight",
                **self._title,
                "ts_ns": at_ns,
                "found": [{"kind": one.group.kind.name, **one.plain} for one in found],
            }
        )

    def interval(self, report: Report) -> None:
        if self._wanted.intervals:
            self._report(report)

    def summary(self, report: Report) -> None:
        self._report(report)

    def _report(self, report: Report) -> None:
        causes: Counter[Cause] = Counter()
        for book in report.books.values():
            causes.update(book.lost)
            causes.update(book.noted)
        self._write(
            {
                "kind": report.kind,
                **self._title,
                "ts_ns": report.ts_ns,
                "duration_ns": report.duration_ns,
                **{name: _book(report.books[name]) for name in (REQUESTS, OPERATIONS) if name in report.books},
                "loss": {cause.name: count for cause, count in causes.items()},
                "rows": [_row(row, report, self._wanted.buckets) for row in self._shown(report)],
                "bytes": report.bytes,
                "overhead": report.overhead._asdict(),
                **({} if not (loads := load.as_json(report)) else {"devices": loads}),
                **({} if not (waiters := neighbours.as_json(report.counters)) else {"neighbours": waiters}),
                **_found(report),
                **report.lists,
            }
        )

    def _shown(self, report: Report) -> list[Row]:
        """Those of the first groups where these are ranked, if the user limits their number; owners have `others`."""
        top = self._wanted.top
        ranked = [group for group in report.cells if group.kind.ranked and group.kind.owner_place is None]
        left = set(ranked[top:] if top else ())
        return [row for row in report.rows if row.group not in left]

    def close(self) -> None:
        self._stream.flush()


def create(stream: TextIO, view: str, wanted: Wanted) -> NdjsonOutput:
    return NdjsonOutput(stream, wanted)


def line_of(event: Event, labels: Mapping[str, Any]) -> dict[str, Any]:
    keys = _KEYS
    return {
        "kind": event.group.kind.name,
        "ts_ns": event.end_ns,
        **labels,
        "total_ns": event.total_ns,
        "stages": {keys[name]: value for name, value in event.stages.items()},
        **event.fields,
        **(_segments(event) if event.segments or event.children else {}),
    }


def _segments(event: Event) -> dict[str, Any]:
    return {
        "segments": [one._asdict() for one in event.segments],
        "more_segments": event.more,
        "children": [
            {**one.fields, **{_KEYS[name]: value for name, value in one.times.items()}} for one in event.children
        ],
    }


def _book(book: Book) -> dict[str, int]:
    return {
        "started": book.started,
        "finished": book.finished,
        "in_flight": book.in_flight,
        "lost": book.lost_total,
        "carried": book.carried,
        "failed": book.failed,
    }


def _found(report: Report) -> dict[str, Any]:
    """Parts that not each report has: the budget, and at the end the verdict."""
    if report.budget is None and report.verdict is None and report.incident is None:
        return {}
    # A start need not wait for them.
    from wptrace.outputs.text import budget, incident, verdict

    return {
        **({} if report.budget is None else {"budget": budget.as_json(report.budget)}),
        **({} if report.verdict is None else {"verdict": verdict.as_json(report.verdict)}),
        **({} if report.incident is None else {"incident": incident.as_json(report.incident)}),
    }


def _row(row: Row, report: Report, buckets: bool) -> dict[str, Any]:
    found, kind = row.distribution, row.group.kind
    unit = kind[row.metric].unit
    untimed, events = report.counter(row.group, UNTIMED), report.events(row.group)
    return {
        "kind": kind.name,
        **row.group.fields,
        "stage": row.metric,
        "count": found.count,
        f"sum_{unit}": found.sum,
        f"min_{unit}": found.min,
        f"max_{unit}": found.max,
        f"mean_{unit}": round(found.mean),
        **({f"stddev_{unit}": round(found.stddev)} if kind.squares else {}),
        **{f"{key}_{unit}": found.percentile(percent) for key, percent in _PERCENTILES},
        "share": round(row.share, 4),
        **({"buckets": [[low, count] for low, _, count in found.filled()]} if buckets else {}),
        **({"counts": dict(sorted(found.counts.items()))} if isinstance(found, Tally) else {}),
        **({"timed": max(found.count - untimed, 0)} if untimed else {}),
        **({"events": events} if events and row.metric == TOTAL else {}),
        **({BYTES: report.counter(row.group, BYTES)} if kind.ranked else {}),
        **waits.of_row(report, row),
    }
