# SPDX-License-Identifier: Apache-2.0
"""Parses a definition, or lists everything that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, ClassVar, TypeVar

from wptrace.engine.definition import consistency, keys, source, syntax
from wptrace.engine.definition import definition as d
from wptrace.engine.definition.definition import Definition, LabelSpec, PointSpec, Target
from wptrace.engine.definition.expression import Comparison, Expression
from wptrace.engine.definition.faults import DefinitionError, Fault, Place, did_you_mean, quoted
from wptrace.engine.definition.places import Places

T = TypeVar("T")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz"
_MAX_FAULTS = 20
Way = tuple[Any, ...]
Parts = tuple[Expression, ...]


def read(path: Path) -> Definition:
    return parse(source.read(path), str(path))


def parse(text: str, file: str) -> Definition:
    """Parse a definition, or raise DefinitionError."""
    reader = Reader(source.tables(text, file), Places(text), file)
    found = reader.definition()
    if reader.faults:
        raise DefinitionError(file, sorted(reader.faults, key=lambda fault: fault.place)[:_MAX_FAULTS])
    return found


class Reader:
    """Collects faults; a part with a fault counts as missing."""

    texts: ClassVar[Mapping[str, tuple[str, str]]] = {
        keys.NAME: (keys.NAME_PATTERN, "a name of up to 24 letters, digits, - and _"),
        "word": (keys.WORD_PATTERN, "a name as C has them"),
        keys.LETTER: ("[A-Za-z0-9]", "one letter or digit"),
    }
    """Kinds of values that match a pattern, with their description."""
    lists: ClassVar[Mapping[str, str]] = {
        keys.COMPARISONS: keys.COMPARISON,
        keys.WORDS: "word",
        keys.WAYS: keys.PARTS,
        keys.TARGETS: "target",
        keys.LABELS: "label",
    }
    """Kinds of lists, by the kind of their values."""

    def __init__(self, tables: dict[str, Any], places: Places, file: str) -> None:
        self._tables = tables
        self._places = places
        self._file = file
        self.faults: list[Fault] = []

    def _fault(self, message: str, place: Place) -> None:
        self.faults.append(Fault(message, place))

    def definition(self) -> Definition:
        has = self._table(self._tables, (), keys.DEFINITION, "the definition")
        one, many = has.get("noun") or ("object", "objects")
        ways: tuple[Parts, ...] = has.get("keys", ())
        if "key" in has:
            if ways:
                self._fault("there are both key and keys", self._places.key("keys"))
            ways = (has["key"],)
        found = Definition(
            has.get("name", ""),
            self._all_points(has.get("point", []), ways),
            has.get("about", ""),
            one,
            many,
            has.get("nest", ""),
            has.get("module", ()),
            self._file,
        )
        if not self.faults:
            self.faults.extend(consistency.faults(found))
        return found

    # Values by their kinds

    def _table(self, table: Any, way: Way, known: Sequence[keys.Key], what: str) -> dict[str, Any]:
        if not isinstance(table, dict):
            self._fault(f"{what} is a table, not {_kind(table)}", self._places.value(*way))
            return {}
        by_name = {key.name: key for key in known}
        found = {}
        for name, value in table.items():
            if name not in by_name:
                hint = did_you_mean(name, by_name)
                self._fault(f"{what} has no key {quoted(name)}{hint}", self._places.key(*way, name))
                continue
            read = self._value(by_name[name], value, (*way, name), by_name[name].kind)
            if read is not None:
                found[name] = read
        for key in known:
            if key.required and key.name not in table:
                self._fault(f"{what} lacks {key.name}: {key.about}", self._places.key(*way))
        return found

    def _value(self, key: keys.Key, value: Any, way: Way, kind: str) -> Any:
        """Read a value of this kind; all others have a method of their own."""
        if kind in self.texts:
            return self._matching(key, value, way, *self.texts[kind])
        if kind in self.lists:
            return self._list(key, value, way, self.lists[kind])
        read: Callable[[keys.Key, Any, Way], Any] = getattr(self, f"_{kind}")
        return read(key, value, way)

    def _wrong(self, key: keys.Key, wanted: str, value: Any, way: Way) -> None:
        self._fault(f"{key.name} is {wanted}, not {_kind(value)}", self._places.value(*way))

    def _text(self, key: keys.Key, value: Any, way: Way, wanted: str = "a text") -> str | None:
        if isinstance(value, str):
            return value
        self._wrong(key, wanted, value, way)
        return None

    def _matching(self, key: keys.Key, value: Any, way: Way, pattern: str, wanted: str) -> str | None:
        text = self._text(key, value, way, wanted)
        if text is None or re.fullmatch(pattern, text, re.ASCII):
            return text
        self._fault(f"{key.name} is {wanted}, not {quoted(text)}", self._places.value(*way))
        return None

    def _line(self, key: keys.Key, value: Any, way: Way) -> str | None:
        text = self._text(key, value, way, "one line of text")
        if text is None:
            return None
        if not text.isprintable():
            self._fault(f"{key.name} is one line of plain text", self._places.value(*way))
            return None
        if len(text) > keys.LINE_LENGTH:
            room = f"there is room for {keys.LINE_LENGTH}"
            self._fault(f"{key.name} has {len(text)} characters; {room}", self._places.value(*way))
            return None
        return text

    def _flag(self, key: keys.Key, value: Any, way: Way) -> bool | None:
        if isinstance(value, bool):
            return value
        self._wrong(key, "true or false", value, way)
        return None

    def _choice(self, key: keys.Key, value: Any, way: Way) -> str | None:
        wanted = " or ".join(key.choices)
        text = self._text(key, value, way, wanted)
        if text is None or text in key.choices:
            return text
        hint = did_you_mean(text, key.choices)
        self._fault(f"{key.name} is {wanted}, not {quoted(text)}{hint}", self._places.value(*way))
        return None

    def _written(self, read: Callable[[str, Place], T], key: keys.Key, value: Any, way: Way) -> T | None:
        text = self._text(key, value, way, "an expression in quotes" if key.kind != keys.COMPARISON else "a comparison")
        if text is None:
            return None
        place = self._places.value(*way)
        try:
            return read(text, place)
        except syntax.TextError as error:
            self._fault(f"{key.name}: {error.message}", place._replace(column=place.column + error.at))
            return None

    def _expression(self, key: keys.Key, value: Any, way: Way) -> Expression | None:
        return self._written(syntax.expression, key, value, way)

    def _comparison(self, key: keys.Key, value: Any, way: Way) -> Comparison | None:
        return self._written(syntax.comparison, key, value, way)

    def _list(self, key: keys.Key, value: Any, way: Way, kind: str) -> tuple[Any, ...]:
        """Read values of this kind; a single one stands for a list of one."""
        if not isinstance(value, list):
            found = self._value(key, value, way, kind)
            return () if found is None else (found,)
        if not value:
            self._fault(f"{key.name} is empty", self._places.value(*way))
        elif len(value) > key.most:
            self._fault(f"{key.name} has {len(value)}; there is room for {key.most}", self._places.value(*way))
        found = [self._value(key, one, (*way, number), kind) for number, one in enumerate(value[: key.most])]
        return tuple(one for one in found if one is not None)

    def _parts(self, key: keys.Key, value: Any, way: Way) -> Parts | None:
        return self._list(key._replace(most=keys.MAX_PARTS), value, way, keys.EXPRESSION) or None

    def _noun(self, key: keys.Key, value: Any, way: Way) -> tuple[str, str] | None:
        found = self._list(key, value, way, keys.LINE)
        if isinstance(value, list) and len(value) != 2:
            self._fault("noun is what one is called, or what one and many are", self._places.value(*way))
            return None
        if not all(name.strip() for name in found):
            self._fault("noun is blank", self._places.value(*way))
            return None
        return None if not found else (found[0], found[-1] if len(found) == 2 else f"{found[0]}s")

    def _target(self, key: keys.Key, value: Any, way: Way) -> Target | None:
        text = self._text(key, value, way)
        if text is None:
            return None
        place = self._places.value(*way)
        kind, colon, name = text.partition(":")
        wanted = "at is tp:TRACEPOINT, fn:FUNCTION, ret:FUNCTION, event:CATEGORY/NAME"
        wanted += ", ufn:PATH:SYMBOL, uret:PATH:SYMBOL or usdt:PATH:PROVIDER:NAME"
        if not colon or kind not in d.PLACES:
            hint = did_you_mean(kind, d.PLACES) if colon else ""
            self._fault(f"{wanted}, not {quoted(text)}{hint}", place)
            return None
        if not re.fullmatch(keys.TARGET_PATTERN, text, re.ASCII):
            self._fault(f"{wanted}, not {quoted(text)}", place)
            return None
        return Target(kind, name, place)

    def _label(self, key: keys.Key, value: Any, way: Way) -> LabelSpec | None:
        place = self._places.value(*way)
        if isinstance(value, str):
            found = self._expression(key, value, way)
            return None if found is None else LabelSpec(_last_name(found), found, at=place)
        if not isinstance(value, dict):
            self._wrong(key, "an expression in quotes or a table", value, way)
            return None
        has = self._table(value, way, keys.LABEL, "a label")
        if "value" not in has:
            return None
        shown = has.get("as", d.ENUM if "enum" in has else d.AUTO)
        if "enum" in has and shown != d.ENUM:
            self._fault(f"a label with the names of an enum is not shown as {shown}", self._places.key(*way, "as"))
        name = has.get("name") or _last_name(has["value"])
        return LabelSpec(name, has["value"], shown, has.get("enum", ()), place, has.get("optional", False))

    def _points(self, key: keys.Key, value: Any, way: Way) -> list[Any] | None:
        if not isinstance(value, list) or not value:
            self._fault("points are tables: [[point]]", self._places.key(*way))
            return None
        if len(value) > key.most:
            self._fault(
                f"there are {len(value)} points; there is room for {key.most}", self._places.key("point", key.most)
            )
        return value[: key.most]

    def _all_points(self, tables: list[Any], ways: tuple[Parts, ...]) -> tuple[PointSpec, ...]:
        read = [
            (number, self._table(table, ("point", number), keys.POINT, "a point"))
            for number, table in enumerate(tables)
        ]
        read = [(number, has) for number, has in read if "name" in has and has.get("at")]
        roles = _roles([has for _, has in read])
        letters = self._letters(read)
        found = []
        for (number, has), role in zip(read, roles):
            place = self._places.key("point", number)
            mine = (has["key"],) if "key" in has else ways
            if not mine and "key" not in tables[number] and not {"key", "keys"} & self._tables.keys():
                self._fault(f"the point {has['name']} has no key, and the definition has none for all points", place)
            passes = role in (d.BEGIN, d.PASS)
            outcome = has.get("outcome", has["name"] if role == d.DROP else "")
            texts = {name: has.get(name, "") for name in ("description", "meaning", "advice", "repeat", "after")}
            found.append(
                PointSpec(
                    name=has["name"],
                    letter=letters[has["name"]],
                    targets=has["at"],
                    keys=mine,
                    role=role,
                    becomes=has.get("becomes"),
                    begins=has.get("begins", False),
                    outcome=outcome,
                    optional=has.get("optional", False),
                    quiet=has.get("quiet", False),
                    filters=has.get("filter", ()),
                    value=has.get("value"),
                    unit=has.get("unit", "bytes"),
                    labels=has.get("labels", ()),
                    mark=has.get("mark"),
                    reached=has.get("reached"),
                    failed=has.get("failed"),
                    stage=has.get("stage", has["name"]) if passes else "",
                    at=place,
                    **texts,
                )
            )
        if any(point.filters for point in found if point.role == d.BEGIN or point.begins):
            # Otherwise every object that the filter leaves out would be unmatched.
            found = [point._replace(quiet=point.role != d.BEGIN) for point in found]
        return tuple(found)

    def _letters(self, read: list[tuple[int, dict[str, Any]]]) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, has in read:
            name, letter = has["name"], has.get("letter")
            if letter is None:
                continue
            place = self._places.value("point", number, "letter")
            if found.get(name, letter) != letter:
                self._fault(f"the point {name} has the letter {found[name]} already", place)
            elif letter in [other for owner, other in found.items() if owner != name]:
                self._fault(f"another point has the letter {letter}", place)
            else:
                found[name] = letter
        for _, has in read:
            name = has["name"]
            wanted = (*name.upper(), *name, *_LETTERS)
            taken = set(found.values())
            found.setdefault(name, next((one for one in wanted if one.isalnum() and one not in taken), "?"))
        return found


def _roles(points: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for has in points:
        if "role" in has:
            found.append(has["role"])
        elif "outcome" in has:
            found.append(d.END)
        else:
            found.append(d.BEGIN if has["name"] == points[0]["name"] else d.PASS)
    if d.END not in found:
        plain = [at for at, has in enumerate(points) if "role" not in has and found[at] == d.PASS]
        name = points[plain[-1]]["name"] if plain else ""
        for at in plain:
            if points[at]["name"] == name:
                found[at] = d.END
    return found


def _last_name(expression: Expression) -> str:
    """The last name of the first alternative."""
    path = expression.choices[0][0]
    names = [step.name for step in path.steps if step.name]
    while not names and not isinstance(path.root, (str, int)):
        path = path.root
        names = [step.name for step in path.steps if step.name]
    return (names[-1] if names else str(path.root))[:24]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    for kind, words in ((str, "a text"), (int, "a number"), (float, "a number"), (list, "a list"), (dict, "a table")):
        if isinstance(value, kind):
            return words
    return "a time"
