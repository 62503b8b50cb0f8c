# SPDX-License-Identifier: Apache-2.0
"""A metric outside the total, such as the sleep between two turns of a task."""

from __future__ import annotations

from tests.unit.outputs.samples import OVERHEAD, distribution
from wptrace.analysis.verdict import TIMED, Case, judge
from wptrace.model.book import Book
from wptrace.model.kind import CPU, REQUESTS, Kind, Label, Metric, Noun, Point, Stage
from wptrace.model.report import Report, arranged

W, R, L = Point("W", "wakes"), Point("R", "runs"), Point("L", "leaves")
STAGES = (Stage("wait", W, R, "it waits", "few CPUs"), Stage("run", R, L, "it runs", "much work"))
OFF = Metric("off", "it is off", "it sleeps", part=False)
HARDIRQ = Metric("hardirq", "an interrupt", "a driver", interference=True)


def report(*metrics: Metric) -> Report:
    kind = Kind("request", Noun("turn"), [Label("cpu", CPU)], STAGES, metrics)
    values = {"wait": 10, "run": 30, "off": 4000, "hardirq": 20, "total": 40}
    cells = {kind.group(0): {name: distribution([value]) for name, value in values.items() if name in kind}}
    return Report("summary", 0, 100, {REQUESTS: Book.read(1, 1, {}, {})}, arranged(cells, [kind]), {}, OVERHEAD)


def found(made: Report) -> list[tuple[str, str]]:
    kinds = [made.rows[0].group.kind]
    return [(one.rule, one.stage) for one in judge(Case(made, kinds), TIMED).findings]


def test_it_has_no_share() -> None:
    shares = {row.metric: row.share for row in report(OFF).rows}
    assert shares == {"wait": 0.25, "run": 0.75, "off": 0.0, "total": 1.0}


def test_it_is_no_interference() -> None:
    assert found(report(OFF)) == [("largest", "run")]
    assert found(report(OFF, HARDIRQ)) == [("largest", "run"), ("inside", "hardirq")]
