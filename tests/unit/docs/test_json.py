# SPDX-License-Identifier: Apache-2.0
"""The schema is one, the examples in docs/json.md keep to it, and the page names every field and cause."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.unit.docs.pages import DOCS, blocks, section, tables, text
from wptrace.engine.accounting import Accounting, Cause
from wptrace.engine.diagnosis import Check, Diagnosis, FlowFinding, HookFinding, StageFinding, Way
from wptrace.engine.distribution import Distribution
from wptrace.engine.results import Group, Overhead, Report, Request, Source, Start, rows_of
from wptrace.flows import io_block
from wptrace.outputs.diagnosis import as_json
from wptrace.outputs.ndjson import NdjsonOutput

Line = dict[str, Any]

SCHEMA: Line = json.loads((DOCS / "schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
EXAMPLES: list[Line] = [json.loads(block) for block in blocks(text("json.md"), "json")]
OVERHEAD = Overhead(1, 2, 3, 4, 5, 6)
TABLE = io_block.BlockFlow.stages


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: line["kind"])
def test_examples_keep_to_the_schema(line: Line) -> None:
    VALIDATOR.validate(line)


def test_each_kind_has_an_example() -> None:
    kinds = set(SCHEMA["properties"]["kind"]["enum"])
    assert {line["kind"] for line in EXAMPLES} | {"interval"} == kinds


def made() -> Iterator[Line]:
    """Lines as the package writes them."""
    stream = io.StringIO()
    output = NdjsonOutput(stream)
    output.start(Start("io", "block", "6.12", {"dev": ["sda"]}, [Source("queue", "tp_btf/x")], TABLE, ["a note"]))
    values = {name: Distribution() for name in (*TABLE.names, TABLE.total.name)}
    for found in values.values():
        found.add(1000)
    group = Group("sda", "read")
    book = Accounting.read(3, 2, {io_block._NO_CELL: 1}, {})
    report = Report("interval", 1, 2, book, rows_of({group: values}, TABLE), {group: 4096}, 0, OVERHEAD)
    output.interval(report)
    output.summary(report._replace(kind="summary"))
    fields = {"sector": 8, "bytes": 4096, "rwbs": "R", "maj_min": "8:0", "complete_cpu": 0, "error": 0}
    output.request(Request(1, "sda", "read", fields, 2, {"queue": 1, "device": 1}))
    yield from (json.loads(line) for line in stream.getvalue().splitlines())
    check = Check("BTF", "ok", "there")
    hook = HookFinding("C", "ok", None, [Way("complete", "tp_btf/x", True, "")])
    flow = FlowFinding("io", "block", True, [StageFinding("queue", "ok", "tp_btf/x", [])], [hook], [check], [check])
    yield json.loads(json.dumps(as_json(Diagnosis("6.12", "x86_64", True, [check], [check], [flow]))))


LINES = list(made())


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_what_the_package_writes_keeps_to_the_schema(line: Line) -> None:
    VALIDATOR.validate(line)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_no_field_can_go_without_notice(line: Line) -> None:
    """Every field that is written is required, at each depth; only names that are data are free."""
    for path in fields(line):
        damaged = json.loads(json.dumps(line))
        at = damaged
        for step in path[:-1]:
            at = at[step]
        del at[path[-1]]
        assert not VALIDATOR.is_valid(damaged), path


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if path in (("filters",), ("loss",)) or path[-1:] == ("stages",):
                continue
            yield (*path, key)
            yield from fields(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from fields(inner, (*path, place))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"ts_ns": 1.5},
        {"ts_ns": -1},
        {"stages": {"queue": 1}},
        {"op": "trim"},
        {"maj_min": "sda"},
    ],
    ids=str,
)
def test_a_wrong_request_is_refused(change: Line) -> None:
    (request,) = [line for line in LINES if line["kind"] == "request"]
    assert not VALIDATOR.is_valid({**request, **change})


def test_fields_may_be_added() -> None:
    for line in LINES:
        VALIDATOR.validate({**line, "added": 1})


def test_the_page_explains_every_field() -> None:
    named = set()
    for row in (row for table in tables(text("json.md")) for row in table):
        named |= set(re.findall(r"\w+", row[0]))
    for line in LINES:
        for path in fields(line):
            # What is obvious, or told in the text before the table.
            known = named | {
                "kind",
                "stage",
                "name",
                "detail",
                "machine",
                "works",
                "hook",
                "program",
                "section",
                "reason",
            }
            known |= {"lacks", "fields", "checks", "flow"}
            assert path[-1] in known or isinstance(path[-1], int), path


def test_the_causes_of_loss_are_those_of_the_flow() -> None:
    causes = {value for value in vars(io_block).values() if isinstance(value, Cause)}
    table = next(rows for rows in tables(section("json.md", "## interval and summary")) if rows[0][0] == "state_full")
    assert dict(table) == {cause.name: cause.description for cause in causes}
    assert {name for name, _ in table[:3]} == {cause.name for cause in io_block._LOST}


def test_every_operation_is_in_the_schema() -> None:
    """The schema and the enum of the BPF source have the same operations."""
    source = (DOCS.parent / "bpf_src" / "lib" / "block.h").read_text()
    (body,) = re.findall(r"enum block_op \{(.*?)\}", source, re.S)
    names = [name.lower() for name in re.findall(r"BLOCK_OP_(\w+),", body)]
    assert SCHEMA["$defs"]["row"]["properties"]["op"]["enum"] == names
    assert SCHEMA["$defs"]["request"]["properties"]["op"]["enum"] == names
