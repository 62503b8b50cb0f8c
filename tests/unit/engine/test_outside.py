# SPDX-License-Identifier: Apache-2.0
"""A stage that lies outside the total, such as the sleep between two turns of a task."""

from __future__ import annotations

from wptrace.analysis.verdict import Case, judge
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution
from wptrace.model.results import Group, Row, rows_of
from wptrace.model.stages import Point, Stage, StageTable

W, R, L = Point("W", "wakes"), Point("R", "runs"), Point("L", "leaves")
WAIT, RUN = Stage("wait", W, R, "it waits", "few CPUs"), Stage("run", R, L, "it runs", "much work")
OFF = Stage("off", L, R, "it is off", "it sleeps", partition=False, outside=True)
NOISE = Stage("noise", R, L, "an interrupt", "a driver", partition=False)


def rows(table: StageTable) -> list[Row]:
    cell = {stage.name: Distribution() for stage in (*table, table.total)}
    for name, value in (("wait", 10), ("run", 30), ("off", 4000), ("noise", 20), ("total", 40)):
        if name in cell:
            cell[name].add(value)
    return rows_of({Group("cpu0", "turn"): cell}, table)


def test_it_has_no_share() -> None:
    shares = {row.stage: row.share for row in rows(StageTable((WAIT, RUN, OFF)))}
    assert shares == {"wait": 0.25, "run": 0.75, "off": 0.0, "total": 1.0}


def test_it_is_no_interference() -> None:
    outside, inside = StageTable((WAIT, RUN, OFF)), StageTable((WAIT, RUN, OFF, NOISE))
    book = Book.read(1, 1, {}, {})
    assert [found.rule for found in judge(Case(rows(outside), outside, 100, book)).findings] == ["largest"]
    found = judge(Case(rows(inside), inside, 100, book)).findings
    assert [(one.rule, one.stage) for one in found] == [("largest", "run"), ("inside", "noise")]
