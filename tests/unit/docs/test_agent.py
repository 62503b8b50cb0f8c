# SPDX-License-Identifier: Apache-2.0
"""docs/agent.md has all settings of the agent, and its example files are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.agent.test_config import make
from tests.unit.docs.pages import blocks, section, tables, text
from tests.unit.outputs.samples import cell, distribution
from tests.unit.outputs.test_prometheus import PROCESS, snapshot
from wptrace.agent import collector, condition, config, sender
from wptrace.analysis.load import LOAD, STAMPED
from wptrace.flows.io import kinds
from wptrace.flows.io.parts.owners import KINDS as OWNED
from wptrace.flows.size import REQUEST as SIZES
from wptrace.model.kind import TOTAL
from wptrace.model.report import BYTES
from wptrace.outputs.metrics import Delivery, Fired, Loaded, Owners, Source
from wptrace.outputs.prometheus import Metrics


def test_every_setting_has_a_row_with_what_it_is_without_one() -> None:
    (rows,) = tables(section("agent.md", "## The file"))
    named, table = [], ""
    for row in rows:
        table = row[0] or table
        # Options of a command are on that command's page.
        if row[1] != "options":
            named.append((table, row[1], row[2]))
    whole = [
        *config.TABLES,
        config.TRIGGER._replace(name="trigger.NAME"),
        config.ON_TRIGGER._replace(name="on_trigger.COMMAND"),
    ]
    keys = [(table.name, key) for table in whole for key in table.keys]
    assert named == [(name, key.name, "" if key.needed else key.shown.strip('"')) for name, key in keys]


def test_every_metric_is_on_the_page_and_vice_versa() -> None:
    rows = tables(section("agent.md", "## Prometheus"))[0]
    said = {name.replace("FLOW", "io") for row in rows for name in re.findall(r"wptrace_\w+", row[0])}
    cells = {kinds.REQUEST.group("sda", "read"): cell([1000], [1000])}
    counters = {kinds.REQUEST.group("sda", "read"): {BYTES: 1}, LOAD.group("sda"): {STAMPED: 1}}
    sizes = {SIZES.group("sda", "read"): {TOTAL: distribution([1])}}
    sources = [Source("io", "block", (kinds.REQUEST,), {"hook": "why"}), Source("io", "", (SIZES,), {})]
    operation, _, request = OWNED["cgroup"]
    sources.append(Source("io", "", (operation, request), {}))
    owned = {
        operation.group("sda", "read", "/a"): {TOTAL: distribution([1])},
        request.group("sda", "read", "/a"): {TOTAL: distribution([1]), "under_way": distribution([1])},
    }
    moved = {operation.group("sda", "read", "/a"): {BYTES: 1}}
    metrics = Metrics(sources)
    metrics.own(Owners(("unit",), lambda owner: (str(owner),), 1, lambda: [("sda", "pvc-1", "shop")]))
    text = metrics.text(
        [snapshot(cells, counters), snapshot(sizes), snapshot(owned, moved)],
        PROCESS._replace(
            triggers=[Fired("slow", 1, 2, True)],
            deliveries=[Delivery("traces", 1, {"limit": 1}, 1)],
            waits={"dumps": 71.4},
            on_trigger=[Loaded("io", True, 1, 0.5, {"budget": 1})],
        ),
    )
    made = set(re.findall(r"^# TYPE (\w+)", text, re.M)) - {"wptrace_io_stage_bytes"}
    assert made == said


@pytest.mark.parametrize("file", blocks(text("agent.md"), "toml"))
def test_the_files_of_the_page_are_right(file: str) -> None:
    config.parse(file, "agent.md", make)


def test_every_statistic_is_on_the_page() -> None:
    rows = dict(tables(section("agent.md", "## Triggers"))[0])
    assert re.findall(r"p\d+|mean|max|rate", rows["STATISTIC"].partition(", how")[0]) == list(condition._STATISTICS)


def test_causes_of_loss_and_variables_are_on_the_page() -> None:
    page = section("agent.md", "## OTLP")
    assert set(sender.CAUSES) <= set(re.findall(r"\(?`(\w+)`", page))
    said = set(re.findall(r"OTEL_[A-Z_]+[A-Z]", page))
    known = set(re.findall(r"OTEL_[A-Z_]+[A-Z]", Path(collector.__file__).read_text()))
    names = re.findall(r'"([A-Z]+)"\)', Path(collector.__file__).read_text())
    known |= {f"OTEL_EXPORTER_OTLP_{name}" for name in names} | {"OTEL_METRICS_EXPORTER", "OTEL_TRACES_EXPORTER"}
    assert said - {"OTEL_EXPORTER_OTLP_METRICS"} == known - {"OTEL_EXPORTER_OTLP"}
