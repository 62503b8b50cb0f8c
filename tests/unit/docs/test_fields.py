# SPDX-License-Identifier: Apache-2.0
"""The tables of fields are those that `make fields` writes, and the schema describes every field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.docs.pages import ROOT, script, tables, text
from tests.unit.docs.test_json import SCHEMA
from wptrace.flows.io import block, causes, kinds
from wptrace.model.book import EXITED, Cause

FIELDS = script("fields")
DEFINED = SCHEMA["$defs"]


@pytest.mark.parametrize("page", FIELDS.PAGES)
def test_the_tables_are_those_of_the_schema(page: str) -> None:
    assert text(page) == FIELDS.tables().written(page), "run make fields"


def test_the_counters_of_requests_are_those_that_are_declared() -> None:
    assert text("schema.json") == FIELDS.schema(), "run make fields"
    (body,) = re.findall(r"struct event_counts \{(.*?)\n\}", (ROOT / "bpf_src/lib/block.h").read_text(), re.S)
    assert re.findall(r"__u64 (\w+);", body) == [one.name for one in kinds.REQUEST_EVENTS]


def properties(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Generate the properties at any depth, without those of branches that narrow others."""
    if isinstance(schema, dict):
        for name, field in schema.get("properties", {}).items():
            yield (*path, name), field
            yield from properties(field, (*path, name))
        yield from properties(schema.get("items"), path)


EVERY = [
    *properties(SCHEMA),
    *(found for name, schema in DEFINED.items() for found in properties(schema, (name,))),
]


def test_every_field_is_described() -> None:
    made = FIELDS.tables()
    # Values alone are no description.
    about = [(path, {key: field[key] for key in field.keys() - {"const", "enum"}}) for path, field in EVERY]
    assert [".".join(path) for path, field in about if not made.meaning(field)] == []
    assert len(EVERY) > 400


def narrowed(schema: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Generate the properties of branches, with the object that has the branch."""
    if isinstance(schema, dict):
        for branch in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
            for name in branch.get("properties", {}):
                yield schema, name
        for value in schema.values():
            yield from narrowed(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from narrowed(value)


def test_what_branches_narrow_is_described_beside_them() -> None:
    found = list(narrowed(SCHEMA))
    assert {name for _, name in found} >= {"rule", "kind", "op"}
    assert all(name in schema["properties"] for schema, name in found)


def test_every_field_is_in_a_table() -> None:
    """It is in the table of its own definition, or of one that contains it."""
    made = FIELDS.tables()
    shown = {(row.field.rpartition(".")[2], row.meaning) for name in made.places for row in made.rows(name, "json.md")}
    reported = {(path[-1], made.meaning(field)) for path, field in EVERY if len(path) > 1 and path[0] != "of_group"}
    assert reported - shown == set()


def test_a_page_says_why_something_is_lost() -> None:
    first, second = (dict(one) for one in tables(text("json.md")) if one[0][0] in ("state_full", "bio_full"))
    for table, module in ((first, block), (second, causes)):
        known = {EXITED, *(value for value in vars(module).values() if isinstance(value, Cause))}
        assert table == {cause.name: cause.description for cause in known}


PAGE = """# One

```
# none
```

<!-- fields: a -->
<!-- end -->

## Its parts

<!-- fields: part -->
<!-- end -->
"""


def made(properties: dict[str, Any], **more: Any) -> list[tuple[str, str, str]]:
    defined = {
        "a": {"properties": properties},
        "part": {"properties": {"x": {"description": "of a part", "type": "integer"}}},
        "ns": {"description": "a time", "type": "integer"},
        "pair": {"description": "two", "type": "object", "properties": {"one": {"$ref": "#/$defs/ns"}}},
        **more,
    }
    written = FIELDS.Tables({"$defs": defined}, {"one.md": PAGE}).written("one.md")
    return [(name, kind, words) for name, kind, words in tables(written)[0]]


def ref(name: str, **more: Any) -> dict[str, Any]:
    return {**more, "$ref": f"#/$defs/{name}"}


def test_a_description_beside_a_reference_comes_first() -> None:
    assert made({"x": ref("ns")}) == [("x", "integer", "a time")]
    assert made({"x": ref("ns", description="when")}) == [("x", "integer", "when")]


def test_what_has_a_table_is_a_link_and_what_has_none_is_reported_once() -> None:
    link = "[part](#its-parts)"
    assert made(
        {"x": ref("part", description="it"), "l": {"description": "all", "type": "array", "items": ref("part")}}
    ) == [
        ("x", link, "it"),
        ("l", f"list of {link}", "all"),
    ]
    assert made({"x": ref("pair"), "l": {"description": "all", "type": "array", "items": ref("pair")}}) == [
        ("x", "object", "two"),
        ("x.one", "integer", "a time"),
        ("l", "list of objects", "all"),
    ]
    assert made({"l": {"description": "all", "type": ["array", "null"], "items": ref("pair")}}) == [
        ("l", "list of objects or null", "all"),
        ("l[].one", "integer", "a time"),
    ]


def test_neighbours_of_one_meaning_share_a_row() -> None:
    inner = {"description": "in it", "type": "object", "properties": {"b": ref("ns"), "c": ref("ns")}}
    assert made({"a": ref("ns"), "b": ref("ns"), "x": inner, "d": ref("ns")}) == [
        ("a, b", "integer", "a time"),
        ("x", "object", "in it"),
        ("x.b, c", "integer", "a time"),
        ("d", "integer", "a time"),
    ]


def test_values_have_their_meaning() -> None:
    few = {"description": "it", "enum": ["a", "b", "c"]}
    assert made({"x": few}) == made({"x": ref("few")}, few=few) == [("x", "string", "it: a, b or c")]
    assert made({"x": ref("few", description="no")}, few=few) == [("x", "string", "no")]
    every = {"description": "all", "type": "array", "items": ref("few")}
    assert made({"x": every}, few={"enum": ["a", "b"]}) == [("x", "list of strings", "all: a or b")]
    some = {"oneOf": [{"const": "a", "description": "this"}, {"const": "b", "description": "this"}, {"const": "c"}]}
    assert made({"x": some}) == [("x", "string", "a, b: this; c")]
    assert made({"x": {"description": "it", "const": True}}) == [("x", "true", "it")]
    assert made({"x": {"oneOf": [ref("pair"), {"type": "null"}], "description": "or none"}}) == [
        ("x", "object or null", "or none"),
        ("x.one", "integer", "a time"),
    ]


def test_what_an_object_has_of_another_one_is_in_its_table() -> None:
    whole = {"allOf": [ref("pair"), ref("part")], "properties": {"two": ref("ns", description="more")}}
    assert made({"x": {"description": "it", **whole}}) == [
        ("x", "object", "it"),
        ("x.two", "integer", "more"),
        ("x.one", "integer", "a time"),
    ]


def test_a_mark_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing ends <!-- fields: a -->"):
        FIELDS.Tables({"$defs": {"a": {"properties": {}}}}, {"one.md": "# x\n<!-- fields: a -->\n"}).written("one.md")
