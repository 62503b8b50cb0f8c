# SPDX-License-Identifier: Apache-2.0
"""docs/cpu.md, docs/progs.md and their man pages agree with the code; the JSON of both matches the schema."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.docs.pages import man_text, section, tables, text
from tests.unit.docs.test_json import VALIDATOR, fields, of_kind, unknown, without
from tests.unit.docs.test_stages import as_row
from tests.unit.outputs.samples import reported
from tests.unit.outputs.test_progs import activity, usage
from tests.unit.outputs.text.test_turns import cell, report, wait
from wptrace.analysis.verdict import TIMED, Case, judge
from wptrace.flows import cpu
from wptrace.flows.cpu import CGROUP, CPU, KINDS, PROCESS, THREAD, CpuFlow
from wptrace.model.book import EXITED, REMOVED, Cause
from wptrace.model.kind import ALL, Task
from wptrace.model.report import InFlight, Report, Source, Start
from wptrace.outputs.progs import ProgsJson

(TURN,) = CpuFlow.kinds


def test_the_stages_are_those_of_the_table() -> None:
    points, stages = tables(section("cpu.md", "## Stages"))
    assert stages == [as_row(stage) for stage in (*TURN.measured, TURN.total)]
    letters = dict.fromkeys(point.letter for stage in TURN.measured for point in (stage.start, stage.end) if point)
    assert [letter for letter, _ in points] == list(letters)


def test_the_hooks_are_those_of_the_flow() -> None:
    (rows,) = tables(section("cpu.md", "## By which hooks"))
    documented = {hook: programs.partition(" on ")[0] for _, hook, programs in rows}
    assert documented == {hook.name: ", ".join(map(str, hook.programs)) for hook in CpuFlow.hooks}


def test_the_causes_of_loss_are_those_of_the_flow() -> None:
    (rows,) = tables(section("cpu.md", "## Loss"))
    known = {cause.name for cause in vars(cpu).values() if isinstance(cause, Cause)}
    known -= {"recursion"}  # no program at a switch can interrupt another one
    known |= {EXITED.name, REMOVED.name}  # of each flow with --pid and --cgroup
    assert {name for name, _ in rows} == known
    for name, words in rows:
        assert words.startswith("lost" if name in {cause.name for cause in cpu._LOST} else "noted"), name


def test_the_bounds_are_those_of_the_code() -> None:
    page = text("cpu.md")
    assert f"{cpu._TASKS:,}" in page
    assert f"{cpu._ROWS}\nrows" in page or f"{cpu._ROWS} rows" in page
    assert f"{cpu._ROW_BYTES >> 20} MiB" in page


def test_the_man_page_has_the_stages() -> None:
    words = man_text("wptrace-cpu.1")
    for stage in TURN.measured:
        assert stage.description in words, stage.name
        assert f"{stage.name} From " in words


ROWS: dict[str, Any] = {CPU: 0, PROCESS: Task("dd", 3), THREAD: Task("dd", 3, 4), CGROUP: "/x"}


def with_verdict(summary: Report, by: str) -> Report:
    return summary._replace(verdict=judge(Case(summary, KINDS[by][:1]), TIMED))


def lines() -> Iterator[dict[str, Any]]:
    sources = [Source(stage.name, "tp_btf/x") for stage in TURN.measured]
    yield from reported(
        Start("cpu", "", "6.12", {"by": "thread", "pid": 3, "comm": "x"}, sources, (TURN,), []),
        wait(),
        wait(instead=None),
        *(wait()._replace(group=KINDS[by][1].group(row)) for by, row in ROWS.items()),
        *(report({row: cell([1], [2], [3])}, by=by) for by, row in ROWS.items()),
        *(with_verdict(report({row: cell([1], [2], [3])}, "summary", by=by), by) for by, row in ROWS.items()),
        report({"others": cell([1], [2], [3])}, by=THREAD),
        [InFlight(TURN.group(ALL), 5, "wait", {"pid": 1, "tid": 1, "comm": "dd"})],
    )
    stream = io.StringIO()
    ProgsJson(stream).show(activity(usage(), usage(2, own=False, attached=())))
    yield from map(json.loads, stream.getvalue().splitlines())


LINES = list(lines())


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_lines_keep_to_the_schema(line: dict[str, Any]) -> None:
    VALIDATOR.validate(line)
    assert unknown(line) == []


@pytest.mark.parametrize("line", [line for line in LINES if line["kind"] in ("wait", "programs")], ids=str)
def test_no_field_can_go_without_notice(line: dict[str, Any]) -> None:
    for path in fields(line):
        if path in (("instead",), ("task",), ("cgroup",)):
            continue  # nothing ran instead; rows are about something else
        assert not of_kind(line["kind"]).is_valid(without(line, path)), path
