# SPDX-License-Identifier: Apache-2.0
"""docs/irqoff.md, docs/iopf.md and their man pages agree with the code; the JSON of both matches the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.docs.pages import man_text, section, tables, text
from tests.unit.docs.test_json import VALIDATOR, fields, of_kind, unknown, without
from tests.unit.docs.test_stages import as_row
from tests.unit.outputs.samples import reported
from tests.unit.outputs.text import test_faults as faults
from tests.unit.outputs.text import test_periods as periods
from wptrace.engine.flow import Flow
from wptrace.flows import iopf, irqoff
from wptrace.flows.iopf import FAULT, IopfFlow
from wptrace.flows.irqoff import PERIOD, IrqoffFlow
from wptrace.model.book import Cause
from wptrace.model.kind import names
from wptrace.model.report import InFlight, Source, Start
from wptrace.outputs import log, logfile

SOURCE = Path(__file__).resolve().parents[3] / "bpf_src"
PAGES = pytest.mark.parametrize(("page", "flow"), [("irqoff.md", IrqoffFlow), ("iopf.md", IopfFlow)])


@PAGES
def test_the_stages_are_those_of_the_table(page: str, flow: type[Flow]) -> None:
    points, stages = tables(section(page, "## Stages"))
    # A single stage is the total.
    (kind,) = flow.kinds
    shown = kind.stages if len(kind.stages) == 1 else (*kind.measured, kind.total)
    assert stages == [as_row(stage) for stage in shown]
    named = dict.fromkeys(point for stage in kind.stages for point in (stage.start, stage.end))
    assert points == [[point.letter, point.name] for point in named]


@PAGES
def test_the_hooks_are_those_of_the_flow(page: str, flow: type[Flow]) -> None:
    found = [row for table in tables(section(page, "## By which hooks")) for row in table]
    hooks = {hook.name: hook for hook in flow.hooks}
    reported = {row[0]: row[1] for row in found if row[0] in hooks}
    assert set(reported) == set(hooks)
    for name, programs in reported.items():
        ways = [program for way in hooks[name].ways for program in way.programs]
        assert re.findall(r"\w+_(?:tp_btf|raw_tp|fentry|fexit|kprobe|kretprobe|perf_event)", programs) == ways


@pytest.mark.parametrize(
    ("page", "modules", "lost"),
    [
        ("irqoff.md", (irqoff, log), set()),
        ("iopf.md", (iopf,), {"state_full", "refused", "unmatched_start"}),
    ],
)
def test_the_causes_of_loss_are_those_of_the_flow(page: str, modules: tuple[ModuleType, ...], lost: set[str]) -> None:
    (rows,) = tables(section(page, "## Loss"))
    known = {cause.name for module in modules for cause in vars(module).values() if isinstance(cause, Cause)}
    assert {name for name, _ in rows} == known
    assert {name for name, words in rows if words.startswith("lost")} == lost
    assert all(words.startswith(("lost: ", "noted: ")) for _, words in rows)


def test_the_bounds_are_those_of_the_code() -> None:
    page = " ".join(text("irqoff.md").split())
    assert f"every {irqoff._SHORTEST_TICK_NS // 1000} µs at most" in page
    assert f"held back for {irqoff._SETTLE_NS // 1_000_000} ms" in page
    assert f"rotated at {logfile.LARGEST >> 20} MiB" in page
    assert logfile.KEPT == 4
    assert "with four old ones" in page
    page = " ".join(text("iopf.md").split())
    assert f"each of up to {iopf._MOST}" in page
    assert f"more than {iopf._CELLS_BYTES >> 20} MiB, but at least {iopf._FEWEST}" in page
    assert iopf.rows(5360, 24) == iopf._MOST > iopf.rows(5360, 25)
    source = (SOURCE / "iommu/iopf.bpf.c").read_text()
    (lanes,) = re.findall(r"#define LANES (\d+)", source)
    assert f"up to {lanes} faults of a PASID" in page
    (pending,) = re.findall(
        r"max_entries, (\d+)\);\n\t__type\(key, struct iopf_key\);\n\t__type\(value, struct iopf_s", source
    )
    assert f"{int(pending):,}" in page


@pytest.mark.parametrize("stage", names(IopfFlow.kinds))
def test_the_man_page_has_the_stages(stage: str) -> None:
    words = man_text("wptrace-iopf.1")
    assert FAULT[stage].description in words
    assert f"{stage} From " in words


def irqoff_lines() -> Iterator[dict[str, Any]]:
    filters = {"min_ns": 10_000_000, "cpus": [0, 1]}
    offenders = {"offenders": [{"comm": "dd", "function": "hold", "count": 1, "sum_ns": 5, "max_ns": 5}]}
    yield from reported(
        Start("irqoff", "", "6.12", filters, [Source("irqoff", "tp_btf/x")], (PERIOD,), ["software"]),
        periods.period(),
        periods.period(stack=[]),
        [InFlight(PERIOD.group(1), 5, "irqoff", {"cpu": 1})],
        periods.report({1: [20_000_000]}, kind="interval"),
        periods.report({1: [20_000_000]})._replace(lists=offenders),
    )


def iopf_lines() -> Iterator[dict[str, Any]]:
    sources = [Source(stage.name, "") for stage in FAULT.stages]
    report = faults.report({("a", 5): faults.cell([5]), ("other", "other"): faults.cell([5])})
    yield from reported(
        Start("iopf", "", "6.12", {"dev": ["a"], "pasid": [5]}, sources, (FAULT,), []),
        [faults.open_fault()],
        report._replace(lists=faults.unanswered(faults.open_fault())),
    )


LINES = [*irqoff_lines(), *iopf_lines()]
OURS = ("offenders", "unanswered")


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_lines_keep_to_the_schema(line: dict[str, Any]) -> None:
    VALIDATOR.validate(line)
    assert unknown(line) == []


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_no_field_can_go_without_notice(line: dict[str, Any]) -> None:
    for path in fields(line):
        # Another test damages the lines that all flows have; this one is about fields that these flows add.
        if line["kind"] != "irqoff" and not (path[0] in OURS and len(path) == 3):
            continue
        assert not of_kind(line["kind"]).is_valid(without(line, path)), path
