# SPDX-License-Identifier: Apache-2.0
"""Fields that kinds declare for their events are in docs/schema.json, with the same types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.docs.pages import ROOT
from wptrace.engine.definition import shipped
from wptrace.engine.definition.kinds import kind_of
from wptrace.flows import cpu, irqoff
from wptrace.flows.io import block, kinds
from wptrace.flows.io.guests.joined import JOINED
from wptrace.model.kind import Kind

SCHEMA = json.loads((ROOT / "docs/schema.json").read_text())["$defs"]
TYPES = {"string": str, "integer": int, "boolean": bool}


def properties(definition: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Generate the properties of a definition and of its parts."""
    yield from definition.get("properties", {}).items()
    for part in (*definition.get("allOf", ()), *definition.get("anyOf", ()), *definition.get("oneOf", ())):
        yield from properties(resolved(part))


def resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**SCHEMA[part["$ref"].rpartition("/")[2]], **part} if "$ref" in part else part


def types(part: Mapping[str, Any]) -> set[type]:
    part = resolved(part)
    if "const" in part or "enum" in part or "oneOf" in part:
        values = part.get("enum", [part.get("const")])
        values += [one.get("const") for one in part.get("oneOf", ())]
        return {type(value) for value in values if value is not None}
    found = part["type"] if isinstance(part["type"], list) else [part["type"]]
    return {TYPES[one] for one in found if one != "null"}


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (kinds.OPERATION, ["operation", "request"]),
        (kinds.HIT, ["operation", "request"]),
        (kinds.REQUEST, ["operation", "request"]),
        (block.REQUEST, ["operation", "request"]),
        (JOINED, ["joined"]),
        (irqoff.EVENT, ["irqoff"]),
        (irqoff.PERIOD, ["irqoff"]),
        *((kind, ["wait"]) for both in cpu.KINDS.values() for kind in both),
        (kind_of(shipped.find("rpc"), []), ["object"]),
    ],
    ids=str,
)
def test_declared_fields_are_those_of_the_schema(kind: Kind, line: list[str]) -> None:
    described = {name: part for one in line for name, part in properties(SCHEMA[one])}
    assert kind.fields
    for field in kind.fields:
        assert types(described[field.name]) == {field.type}, field


@pytest.mark.parametrize("by", kinds.TEXT_FIELDS)
def test_fields_of_texts_are_those_of_the_schema(by: str) -> None:
    for line in ("operation", "request"):
        described = dict(properties(SCHEMA[line]))
        assert [types(described[field.name]) for field in kinds.TEXT_FIELDS[by]] == [{str}, {str}]
