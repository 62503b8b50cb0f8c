#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of fields into docs/json.md and other pages, from docs/schema.json; `make fields`.

What may happen to a request comes into the schema itself, from the counters that its kind declares.

Between `<!-- fields: NAME -->` and `<!-- end -->` comes what the schema defines under that name, between
`<!-- causes: LEVEL -->` and `<!-- end -->` why `wptrace io` with that level loses something.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import marks  # noqa: E402 - run as a script, it finds them by that path
from wptrace.flows.io import block, causes, kinds  # noqa: E402
from wptrace.model.book import EXITED, Cause  # noqa: E402

DOCS = ROOT / "docs"
PAGES = ("json.md", "size.md", "stacks.md")

Schema = dict[str, Any]

_REF = "#/$defs/"
# Where the counters of requests begin.
_EVENTS = """    "events": {
      "description": "what else happened to requests on their way; what did not happen is left out",
      "type": "object",
      "minProperties": 1,
      "properties": {
"""


class Row(NamedTuple):
    field: str
    type: str
    meaning: str


class Tables:
    """The tables of a schema on some pages, by their names."""

    def __init__(self, schema: Schema, pages: dict[str, str]) -> None:
        self._defined: dict[str, Schema] = schema["$defs"]
        self._pages = pages
        self.places = {
            name: (page, _anchor(text, name)) for page, text in pages.items() for name in marks.named(text, "fields")
        }
        """Of each definition that has a table: on which page, below which heading."""

    def written(self, page: str) -> str:
        text = self._pages[page]
        for name in marks.named(text, "fields"):
            text = marks.filled(text, f"fields: {name}", self._table(name, page))
        for name in marks.named(text, "causes"):
            text = marks.filled(text, f"causes: {name}", _causes(name))
        return text

    def _table(self, name: str, page: str) -> str:
        rows = _joined(list(self.rows(name, page)))
        return _markdown(Row("field", "type", "meaning"), rows)

    def rows(self, name: str, page: str) -> Iterator[Row]:
        return self._fields(self._defined[name], "", page, {name})

    def _fields(self, schema: Schema, prefix: str, page: str, reported: set[str]) -> Iterator[Row]:
        """Of an object. A definition with a table of its own is told there, and every other one once in a table."""
        own = schema.get("properties", {})
        for key, field in own.items():
            yield from self._field(prefix + key, field, page, reported)
        for base in schema.get("allOf", ()):
            name = _name(base)
            if name not in self.places and name not in reported:
                reported.add(name)
                rest = {key: value for key, value in self._defined[name]["properties"].items() if key not in own}
                yield from self._fields({**self._defined[name], "properties": rest}, prefix, page, reported)

    def _field(self, path: str, field: Schema, page: str, reported: set[str]) -> Iterator[Row]:
        inner, names = self._followed(field)
        if items := inner.get("items"):
            inner, more = self._followed(items)
            names += more
        yield Row(path, self._type(field, page), self.meaning(field))
        if ("properties" in inner or "allOf" in inner) and not {*names} & (reported | self.places.keys()):
            reported.update(names)
            yield from self._fields(inner, f"{path}{'[]' if items else ''}.", page, reported)

    def _followed(self, schema: Schema) -> tuple[Schema, list[str]]:
        """The schemas at the end of references, without null, and their names."""
        names = []
        while True:
            some = [one for one in schema.get("oneOf", ()) if one.get("type") != "null"]
            if "$ref" in schema:
                names.append(_name(schema))
                schema = self._defined[names[-1]]
            elif len(some) == 1:
                (schema,) = some
            else:
                return schema, names

    def meaning(self, schema: Schema) -> str:
        """A description beside a reference is said instead of what it refers to, with the values of that."""
        if "$ref" in schema and "description" not in schema:
            return self.meaning(self._defined[_name(schema)])
        about: str = schema.get("description", "")
        values = self._values(schema)
        if not values and schema.get("items"):
            values = self._values(self._followed(schema["items"])[0])
        listed = _listed(values)
        return f"{about}: {listed}" if about and listed else about or listed

    def _values(self, schema: Schema) -> list[tuple[str, str]]:
        """Each with what it means, which may be nothing."""
        if isinstance(schema.get("const"), str):
            return [(schema["const"], "")]
        if "enum" in schema:
            return [(value, "") for value in schema["enum"]]
        if "$ref" in schema and "description" not in schema:
            return self._values(self._defined[_name(schema)])
        found = [(one, self._values(one)) for one in schema.get("oneOf", ())]
        return [(value, one.get("description", about)) for one, values in found for value, about in values]

    def _type(self, schema: Schema, page: str) -> str:
        if "$ref" in schema:
            name = _name(schema)
            if name in self.places:
                there, anchor = self.places[name]
                return f"[{name}]({'' if there == page else there}#{anchor})"
            return self._type(self._defined[name], page)
        if "const" in schema:
            return "string" if isinstance(schema["const"], str) else json.dumps(schema["const"])
        if "enum" in schema:
            return "string"
        type_ = schema.get("type", [])
        kinds = [type_] if isinstance(type_, str) else type_
        if "array" in kinds:
            of = f" of {_many(self._type(schema['items'], page))}" if schema["items"] else ""
            kinds = [f"list{of}" if kind == "array" else kind for kind in kinds]
        if not kinds:
            kinds = [self._type(one, page) for one in (*schema.get("oneOf", ()), *schema.get("anyOf", ()))]
        return " or ".join(dict.fromkeys(kinds)) or "object"


def _name(schema: Schema) -> str:
    found: str = schema["$ref"].removeprefix(_REF)
    return found


def _anchor(page: str, name: str) -> str:
    """Return the fragment that GitHub makes of the heading above a table."""
    above = page.partition(f"<!-- fields: {name} -->")[0]
    heading = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", above, flags=re.M | re.S), re.M)[-1]
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _many(kind: str) -> str:
    return kind if kind.startswith("[") or kind.endswith("s") else re.sub(r"^\w+", r"\g<0>s", kind)


def _listed(values: list[tuple[str, str]]) -> str:
    """`a`, `b` or `c`; with meanings `a`: this; `b`, `c`: that."""
    quoted = [f"`{value}`" for value, _ in values]
    if not any(about for _, about in values):
        return " or ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))
    groups: list[tuple[list[str], str]] = []
    for word, (_, about) in zip(quoted, values):
        if groups and groups[-1][1] == about:
            groups[-1][0].append(word)
        else:
            groups.append(([word], about))
    return "; ".join(", ".join(words) + (f": {about}" if about else "") for words, about in groups)


def _joined(rows: list[Row]) -> list[Row]:
    """Neighbours of which the same is said share a row; what is before the last dot is said once."""
    found: list[Row] = []
    before: Row | None = None
    for row in rows:
        prefix, _, last = row.field.rpartition(".")
        if before and before[1:] == row[1:] and before.field.rpartition(".")[0] == prefix:
            found[-1] = found[-1]._replace(field=f"{found[-1].field}, `{last}`")
        else:
            found.append(row._replace(field=f"`{row.field}`"))
        before = row
    return found


def _markdown(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("|" + "|".join(row) + "|" if row[0] == "---" else f"| {' | '.join(row)} |" for row in lines)


def _causes(level: str) -> str:
    """With the level block, those that cost a request come first."""
    module, first = {"block": (block, block._LOST), "path": (causes, ())}[level]
    # Any flow with --pid has that one.
    every = sorted({EXITED, *(value for value in vars(module).values() if isinstance(value, Cause))})
    rows = [(f"`{cause.name}`", cause.description) for cause in dict.fromkeys([*first, *every])]
    return _markdown(("cause", "meaning"), rows)


def schema() -> str:
    """The text of docs/schema.json, with the counters that are declared now."""
    named = {one.name: {"description": one.description, "$ref": f"{_REF}times"} for one in kinds.REQUEST_EVENTS}
    lines = ",\n".join(f'        "{name}": {{ {json.dumps(field)[1:-1]} }}' for name, field in named.items())
    before, start, rest = (DOCS / "schema.json").read_text(encoding="utf-8").partition(_EVENTS)
    _, end, after = rest.partition("\n      },\n")
    return f"{before}{start}{lines}{end}{after}"


def tables() -> Tables:
    """As the tree has them."""
    return Tables(json.loads(schema()), {page: (DOCS / page).read_text(encoding="utf-8") for page in PAGES})


def main() -> None:
    (DOCS / "schema.json").write_text(schema(), encoding="utf-8")
    made = tables()
    for page in PAGES:
        (DOCS / page).write_text(made.written(page), encoding="utf-8")


if __name__ == "__main__":
    main()
