# SPDX-License-Identifier: Apache-2.0
"""One JSON object a line, as docs/schema.json describes. Times are integer nanoseconds, the unit is in the key."""

from __future__ import annotations

from collections import Counter
from typing import Any, TextIO

from wptrace import __version__
from wptrace.model.book import Accounting, Cause
from wptrace.model.results import KINDS, InFlight, Report, Request, Row, Start
from wptrace.model.stages import StageTable
from wptrace.model.tally import Tally
from wptrace.outputs.json_line import encoded
from wptrace.outputs.text import budget, verdict

_PERCENTILES = (("p50", 50), ("p90", 90), ("p99", 99), ("p999", 99.9))


class _Keys(dict[str, str]):
    """Of stages. There may be a hundred thousand requests a second with ten each."""

    def __missing__(self, name: str) -> str:
        key = self[name] = f"{name}_ns"
        return key


_KEYS = _Keys()


class NdjsonOutput:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stages: StageTable | None = None

    def _write(self, line: dict[str, Any]) -> None:
        self._stream.write(encoded(line) + "\n")
        # Whoever reads the pipe sees each interval when it ends. Requests may be many, and come in batches.
        if line["kind"] not in KINDS:
            self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()

    def start(self, start: Start) -> None:
        self._stages = start.stages
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

    def request(self, request: Request) -> None:
        keys = _KEYS
        stages = {keys[name]: value for name, value in request.stages.items()}
        self._write(
            {
                "kind": request.kind,
                "ts_ns": request.end_ns,
                "dev": request.dev,
                "op": request.op,
                "total_ns": request.total_ns,
                "stages": stages,
                **request.fields,
            }
        )

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._write({"kind": "in_flight", "ts_ns": at_ns, "found": [_one_in_flight(one) for one in found]})

    def interval(self, report: Report) -> None:
        self._report(report)

    def summary(self, report: Report) -> None:
        self._report(report)

    def _report(self, report: Report) -> None:
        books = [book for book in (report.accounting, report.operations) if book is not None]
        causes: Counter[Cause] = Counter()
        for book in books:
            causes.update(book.lost)
            causes.update(book.noted)
        found = {"requests": _book(report.accounting, report.failed)}
        if report.operations is not None:
            found["operations"] = _book(report.operations, report.failed_operations)
        self._write(
            {
                "kind": report.kind,
                "ts_ns": report.ts_ns,
                "duration_ns": report.duration_ns,
                **found,
                "loss": {cause.name: count for cause, count in causes.items()},
                "rows": [self._more(self.row(row), row, report) for row in report.rows],
                "bytes": report.request_bytes,
                "overhead": report.overhead._asdict(),
                **({} if report.budget is None else {"budget": budget.as_json(report.budget)}),
                **({} if report.verdict is None else {"verdict": verdict.as_json(report.verdict)}),
            }
        )

    def _more(self, line: dict[str, Any], row: Row, report: Report) -> dict[str, Any]:
        untimed, events = report.untimed.get(row.group), report.events.get(row.group)
        if untimed:
            line["timed"] = max(row.distribution.count - untimed, 0)
        if events and self._stages is not None and row.stage == self._stages.total.name:
            line["events"] = dict(events)
        return line

    def row(self, row: Row) -> dict[str, Any]:
        return _row(row, self._stages[row.stage].unit if self._stages is not None else "ns")

    def close(self) -> None:
        self._stream.flush()


def _book(book: Accounting, failed: int) -> dict[str, int]:
    return {
        "started": book.started,
        "finished": book.finished,
        "in_flight": book.in_flight,
        "lost": book.lost_total,
        "carried": book.carried,
        "failed": failed,
    }


def _one_in_flight(one: InFlight) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "dev": one.dev,
        "op": one.op,
        "age_ns": one.age_ns,
        "stage": one.stage,
        **one.fields,
    }


def _row(row: Row, unit: str) -> dict[str, Any]:
    found = row.distribution
    return {
        "kind": row.group.kind,
        "dev": row.group.dev,
        "op": row.group.op,
        "stage": row.stage,
        "count": found.count,
        f"sum_{unit}": found.sum,
        f"min_{unit}": found.min,
        f"max_{unit}": found.max,
        f"mean_{unit}": round(found.mean),
        f"stddev_{unit}": round(found.stddev),
        **{f"{key}_{unit}": found.percentile(percent) for key, percent in _PERCENTILES},
        "share": round(row.share, 4),
        **({"counts": dict(sorted(found.counts.items()))} if isinstance(found, Tally) else {}),
    }
