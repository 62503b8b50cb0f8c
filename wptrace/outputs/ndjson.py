# SPDX-License-Identifier: Apache-2.0
"""One JSON object a line, as docs/schema.json describes. Times are integer nanoseconds, the unit is in the key."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, TextIO

from wptrace import __version__
from wptrace.engine.results import Report, Request, Row, Start

_PERCENTILES = (("p50_ns", 50), ("p90_ns", 90), ("p99_ns", 99), ("p999_ns", 99.9))


class NdjsonOutput:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _write(self, line: dict[str, Any]) -> None:
        # Flushed line by line, so that whoever reads the pipe sees each interval when it ends. Names from the kernel
        # may hold anything: json escapes control characters, and everything that is not ASCII.
        self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")
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
            }
        )

    def request(self, request: Request) -> None:
        stages = {f"{name}_ns": value for name, value in request.stages.items()}
        self._write(
            {
                "kind": "request",
                "ts_ns": request.end_ns,
                "dev": request.dev,
                "op": request.op,
                "total_ns": request.total_ns,
                "stages": stages,
                **request.fields,
            }
        )

    def interval(self, report: Report) -> None:
        self._report(report)

    def summary(self, report: Report) -> None:
        self._report(report)

    def _report(self, report: Report) -> None:
        book = report.accounting
        requests = {
            "started": book.started,
            "finished": book.finished,
            "in_flight": book.in_flight,
            "lost": book.lost_total,
            "carried": book.carried,
            "failed": report.failed,
        }
        causes = Counter(book.lost)
        causes.update(book.noted)
        self._write(
            {
                "kind": report.kind,
                "ts_ns": report.ts_ns,
                "duration_ns": report.duration_ns,
                "requests": requests,
                "loss": {cause.name: count for cause, count in causes.items()},
                "rows": [_row(row) for row in report.rows],
                "bytes": sum(report.bytes.values()),
                "overhead": report.overhead._asdict(),
            }
        )

    def close(self) -> None:
        self._stream.flush()


def _row(row: Row) -> dict[str, Any]:
    found = row.distribution
    return {
        "dev": row.group.dev,
        "op": row.group.op,
        "stage": row.stage,
        "count": found.count,
        "sum_ns": found.sum,
        "min_ns": found.min,
        "max_ns": found.max,
        "mean_ns": round(found.mean),
        "stddev_ns": round(found.stddev),
        **{key: found.percentile(percent) for key, percent in _PERCENTILES},
        "share": round(row.share, 4),
    }
