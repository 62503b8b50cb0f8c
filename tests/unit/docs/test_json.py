# SPDX-License-Identifier: Apache-2.0
"""The schema is valid, and the package's output and the examples in docs/json.md match it."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Callable

import jsonschema
import pytest

from tests.thorough import cases
from tests.unit.analysis import made_sides
from tests.unit.docs.pages import DOCS, blocks, section, tables, text
from tests.unit.outputs import path as whole_path
from wptrace.analysis.condition import judge as judge_one
from wptrace.analysis.condition import parse
from wptrace.analysis.diff import difference
from wptrace.analysis.reasons import blame
from wptrace.analysis.verdict import TIMED, Case, judge
from wptrace.analysis.waits import OWNED_WAIT, WAIT, WORK
from wptrace.engine import filters
from wptrace.engine.filters import Filter
from wptrace.flows import discover
from wptrace.flows.io import block as io_block
from wptrace.flows.io.guests.joined import JOINED
from wptrace.flows.io.kinds import KINDS, SLEEP, WITHIN
from wptrace.flows.io.options import FS, SAMPLE, SAVINGS
from wptrace.flows.io.parts import owners
from wptrace.kernel.cgroups import Cgroup
from wptrace.kernel.mounts import Place
from wptrace.model.book import Book
from wptrace.model.budget import Change, Cost, Spending, Step
from wptrace.model.diagnosis import Attempt, Check, Diagnosis, FlowFinding, HookFinding, Seen, StageFinding
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL, names
from wptrace.model.report import BYTES, UNTIMED, Event, Overhead, Report, Source, Start, arranged
from wptrace.outputs import diff
from wptrace.outputs.doctor import as_json
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.diff import Ending

Line = dict[str, Any]

SCHEMA: Line = json.loads((DOCS / "schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def is_about(schema: Line, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator({**schema, "$defs": SCHEMA["$defs"]}).is_valid(value))


def parts(schema: Line, branch: Callable[[Line], bool] = lambda schema: True) -> Iterator[Line]:
    """Generate all that the schema says of a value, following only branches that apply."""
    yield schema
    if "$ref" in schema:
        yield from parts(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], branch)
    for one in schema.get("allOf", ()):
        yield from parts(one, branch)
    for one in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        if branch(one):
            yield from parts(one, branch)


def inside(every: Sequence[Line], key: str) -> list[Line]:
    """Return the descriptions of a field."""
    found = [part["properties"][key] for part in every if key in part.get("properties", {})]
    return found or [part["additionalProperties"] for part in every if part.get("additionalProperties")]


def items(every: Sequence[Line]) -> list[Line]:
    return [part["items"] for part in every if part.get("items")]


@cache
def about(kind: str) -> Line:
    """Leave the schema only what can be about a line of this kind: a validator tries each branch to its end."""
    return {**SCHEMA, "oneOf": [one for one in SCHEMA["oneOf"] if any(is_kind(part, kind) for part in parts(one))]}


@cache
def of_kind(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(about(kind))


def is_kind(schema: Line, kind: str) -> bool:
    return "kind" in schema.get("properties", {}) and is_about(schema["properties"]["kind"], kind)


def unknown(line: Line) -> list[tuple[Any, ...]]:
    """Return the fields that the schema does not have, at any depth."""
    return list(unlisted(line, [about(line["kind"])], ()))


def unlisted(value: Any, every: Sequence[Line], path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    every = [part for schema in every for part in parts(schema, lambda branch: is_about(branch, value))]
    if isinstance(value, dict):
        for key, inner in value.items():
            found = inside(every, key)
            if not found:
                yield (*path, key)
            yield from unlisted(inner, found, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from unlisted(inner, items(every), (*path, place))


EXAMPLES: list[Line] = [json.loads(block) for block in blocks(text("json.md"), "json")]
OVERHEAD = Overhead(1, 2, 3, 4, 5, 6)
BLOCK = io_block.BlockFlow.kinds


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("line", EXAMPLES, ids=lambda line: line["kind"])
def test_examples_keep_to_the_schema(line: Line) -> None:
    VALIDATOR.validate(line)


def test_each_kind_has_an_example() -> None:
    kinds = set(SCHEMA["properties"]["kind"]["enum"])
    # An interval looks like a summary, and a hit like an operation.
    assert {line["kind"] for line in EXAMPLES} | {"interval", "hit"} == kinds


def made() -> Iterator[Line]:
    """Generate lines as the package writes them."""
    stream = io.StringIO()
    output = NdjsonOutput(stream, Wanted())
    output.start(Start("io", "block", "6.12", {"dev": ["sda"]}, [Source("queue", "tp_btf/x")], BLOCK, ["a note"]))
    values = {name: Distribution() for name in (*names(BLOCK), TOTAL)}
    for found in values.values():
        found.add(1000)
    group = BLOCK[0].group("sda", "read")
    books = {REQUESTS: Book.read(3, 2, {io_block._NO_CELL: 1}, {})}
    report = Report("interval", 1, 2, books, arranged({group: values}, BLOCK), {group: {BYTES: 4096}}, OVERHEAD)
    output.interval(report)
    verdict = judge(Case(report, BLOCK), TIMED)
    output.summary(report._replace(kind="summary", verdict=verdict))
    fields = {"sector": 8, "bytes": 4096, "rwbs": "R", "maj_min": "8:0", "complete_cpu": 0, "error": 0}
    output.event(Event(group, 1, 2, {"queue": 1, "device": 1}, fields))
    output.start(whole_path.start())
    few = {whole_path.OPERATION.group("sda", "read"): whole_path.cell(("fs", "device"), 5, extra=("preempted",))}
    whole = whole_path.report(few, "summary", lost=1)
    verdict = judge(Case(whole, (whole_path.OPERATION,)), TIMED)
    output.summary(whole._replace(verdict=verdict))
    incident = whole_path.incident(whole_path.operation())
    output.summary(whole._replace(incident=incident._replace(others=incident.under_way[0]._replace(owner="", op=""))))
    cost = Cost(0.04, 0.01)
    changes = (Change(1, 2, Step(SAMPLE, 4), True, cost),)
    spending = Spending(0.05, cost, 0.05, (Step(FS), Step(SAMPLE, 4)), dict.fromkeys(SAVINGS, 1), changes)
    group = whole_path.REQUEST.group("sda", "read")
    requests = whole_path.report({group: whole_path.requests(5)})
    output.interval(requests._replace(budget=spending, counters={group: {UNTIMED: 3}}))
    output.event(whole_path.operation(interference=[whole_path.interference("irq_off", 5)]))
    output.event(whole_path.operation(whole_path.HIT))
    output.event(whole_path.in_time())
    output.event(whole_path.request())
    output.in_flight([whole_path.waiting()._replace(fields={"pid": 1, "tid": 1, "comm": "dd"})], 5)
    yield from (json.loads(line) for line in stream.getvalue().splitlines())
    load = made_sides.Load(100, {"device": (100_000.0, 0.1)})
    slow, rand = load._replace(stages={"device": (200_000.0, 0.1)}), made_sides.seeded(1)
    a, b = made_sides.side([load], rand), made_sides.side([slow, load._replace(op="write")], rand, kernel="6.18")
    both = difference(a, b, WITHIN)
    ending = Ending(blame(both, {}), [judge_one(parse("read.mean > +5%"), both)])
    yield json.loads(json.dumps(diff.as_json(both, ending)))
    check = Check("BTF", "ok", "there")
    hook = HookFinding("C", "ok", None, [Attempt("complete", "tp_btf/x", True, "")])
    flow = FlowFinding("io", "block", True, "", [StageFinding("queue", "ok", "tp_btf/x", [])], [hook], [check], [check])
    seen = [Seen("irq", "entry", "tp_btf/irq_handler_entry", 5)]
    diagnosis = Diagnosis("6.12", "x86_64", True, [check], [check], [flow], [check], seen, 1.0)
    yield json.loads(json.dumps(as_json(diagnosis, "io")))


LINES = list(made())


# tests/kernel/test_golden.py compares lines of the real commands with these.
GOLDEN = sorted((DOCS.parent / "tests/kernel/golden").glob("*.json"))


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_what_the_commands_write_is_in_the_schema(file: Path) -> None:
    for kind, entries in json.loads(file.read_text()).items():
        lines = about(kind)["oneOf"]
        assert lines
        for path in {entry.removeprefix("? ").partition(":")[0] for entry in entries if " = " not in entry}:
            found = lines
            for key, listed in re.findall(r"([^.\[]+)((?:\[[^\]]*\])*)(?:\.|$)", path):
                found = inside([part for one in found for part in parts(one)], key)
                assert found, f"{kind} line: {path}"
                for _ in range(listed.count("[")):
                    found = items([part for one in found for part in parts(one)])


def test_each_kind_has_fields_that_stay() -> None:
    golden = [json.loads(file.read_text()) for file in GOLDEN]
    assert {kind for lines in golden for kind in lines} == set(SCHEMA["properties"]["kind"]["enum"])


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_what_the_package_writes_keeps_to_the_schema(line: Line) -> None:
    VALIDATOR.validate(line)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_no_field_can_go_without_notice(line: Line) -> None:
    """Every field that is written is required, at any depth, unless its name is data."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for path in fields(line):
        # Items of a list are alike, so a few of them are enough.
        shape = tuple("*" if isinstance(step, int) else step for step in path)
        seen[shape] += 1
        absent = (
            ("operations",),
            ("verdict",),
            ("budget",),
            ("incident",),
            ("incident", "others"),
            ("incident", "beginning"),
        )
        if path in absent or path[-1] == "timed" or seen[shape] > cases(3, 1):
            continue  # some flows and lines lack them
        assert not of_kind(line["kind"]).is_valid(without(line, path)), path


def without(line: Line, path: tuple[Any, ...], added: bool = False) -> Line:
    """Return a copy that lacks a field, or has one more next to it."""
    found: Line = json.loads(json.dumps(line))
    at: Any = found
    for step in path[:-1]:
        at = at[step]
    if added:
        at["added"] = 1
    else:
        del at[path[-1]]
    return found


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if path == ("loss",) or path[-1:] in (("stages",), ("filters",), ("labels",), ("joined",)):
                continue
            yield (*path, key)
            yield from fields(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from fields(inner, (*path, place))


@pytest.mark.parametrize("definition", ["row", "object_row", "size_row", "stack_row"])
def test_buckets_are_pairs_in_rows_of_all_sorts(definition: str) -> None:
    assert SCHEMA["$defs"][definition]["properties"]["buckets"] == {"$ref": "#/$defs/buckets"}
    stream = io.StringIO()
    few = {whole_path.OPERATION.group("sda", "read"): whole_path.cell(("fs", "device"), 5)}
    NdjsonOutput(stream, Wanted(buckets=True)).interval(whole_path.report(few))
    line = json.loads(stream.getvalue())
    assert all(sum(count for _, count in row["buckets"]) == row["count"] for row in line["rows"])
    VALIDATOR.validate(line)
    every: list[object] = [[[1]], [[1, 0]], [[-1, 1]], [[1, 2, 3]], [1, 2], {}]
    for wrong in every:
        line["rows"][0]["buckets"] = wrong
        assert not VALIDATOR.is_valid(line)


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
    for request in [line for line in LINES if line["kind"] == "request"]:
        assert not VALIDATOR.is_valid({**request, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -1},
        {"result": "EIO"},
        {"path": None},
        {"cpus": {}},
        {"interference": [{"kind": "preempted"}]},
        {"sector": None},
    ],
    ids=str,
)
def test_a_wrong_operation_is_refused(change: Line) -> None:
    for operation in [line for line in LINES if line["kind"] in ("operation", "hit")]:
        VALIDATOR.validate({**operation, "offset": None, "result": -5, "path": ""})
        assert not VALIDATOR.is_valid({**operation, **change})


def test_an_operation_without_a_request_of_its_own_has_no_sector() -> None:
    operation = next(line for line in LINES if line["kind"] == "operation")
    for name in ("sector", "bytes", "rwbs", "maj_min"):
        del operation[name]
    VALIDATOR.validate(operation)


def test_the_findings_of_the_schema_have_the_figures_of_the_rules() -> None:
    rules = [row for table in tables(section("verdict.md", "## Rules")) for row in table]
    documented = {rule: set(figures.split(", ")) for rule, _, figures in rules}
    required = {
        one["properties"]["rule"]["const"]: {*one["required"], *one.get("dependentRequired", {})}
        for one in SCHEMA["$defs"]["finding"]["oneOf"]
    }
    assert documented == required


def test_fields_may_be_added() -> None:
    for line in LINES:
        VALIDATOR.validate({**line, "added": 1})


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["kind"])
def test_every_field_is_in_the_schema(line: Line) -> None:
    assert unknown(line) == []


def test_a_field_that_the_schema_does_not_have_is_found() -> None:
    for line in (line for line in LINES if line["kind"] in ("operation", "doctor")):
        for path in fields(line):
            if isinstance(path[-1], str):
                assert unknown(without(line, path, added=True)) == [(*path[:-1], "added")]


def test_the_causes_that_cost_a_request_come_first() -> None:
    assert "The first four each cost a request" in section("json.md", "### loss")
    block, _ = tables(section("json.md", "### loss"))
    assert {name for name, _ in block[:4]} == {cause.name for cause in io_block._LOST}


def test_every_filter_is_in_the_schema() -> None:
    place = Place("/srv/db", 1, 2, 0, None)
    task = {"pid": 1, "tid": 2, "comm": "db", "cgroup": Cgroup("/x", 1, 1, None)}
    every = Filter(**task, file=place, dir=place, op="read", size=(0, 4096), dev=("x",), pasid=(3,), cpu=(0, 8))
    predicates = {one.name: one for flow in discover() for one in flow.filters}
    assert predicates.keys() == set(every)
    reported = filters.describe(every, tuple(predicates.values()))
    assert len(reported) == len(every) + 1, "a size has two bounds"
    (start,) = [line for line in LINES if line["kind"] == "start" and line["flow"] == "io"][:1]
    start = {**start, "filters": {**start["filters"], **reported}}
    VALIDATOR.validate(start)
    assert unknown(start) == []


def values(definition: str) -> list[str]:
    return [one["const"] for one in SCHEMA["$defs"][definition]["oneOf"]]


def test_every_operation_is_in_the_schema() -> None:
    """The schema and the enum of the BPF source have the same operations."""
    source = (DOCS.parent / "bpf_src" / "lib" / "block.h").read_text()
    (body,) = re.findall(r"enum block_op \{(.*?)\}", source, re.S)
    names = [name.lower() for name in re.findall(r"BLOCK_OP_(\w+),", body)]
    # Operations of the block layer are followed by those of other flows.
    listed = values("op")
    assert listed[: len(names)] == names
    (body,) = re.findall(r"enum op_kind \{(.*?)\}", (DOCS.parent / "bpf_src/block/path/shared.h").read_text(), re.S)
    assert {name.lower() for name in re.findall(r"OP_KIND_(\w+),", body)} <= set(listed)


def test_every_step_of_a_budget_is_in_the_schema_and_on_its_page() -> None:
    names = [one.name for one in SAVINGS]
    assert SCHEMA["$defs"]["step"]["enum"] == names
    assert SCHEMA["$defs"]["budget"]["properties"]["off_ns"]["required"] == names
    steps, _ = tables(text("budget.md"))
    assert [name for _, name, _ in steps] == names


def test_every_kind_of_group_is_in_the_schema() -> None:
    assert values("group") == [kind.name for kind in (*KINDS, SLEEP, WAIT, WORK, JOINED)]
    for owned in owners.KINDS.values():
        assert values("owned") == [*(kind.name for kind in owned), OWNED_WAIT]
