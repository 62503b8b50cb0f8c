# SPDX-License-Identifier: Apache-2.0
"""Lines of rows without an event for each: the line of the first of those that are alike is the form of all others.

They are made as bytes, in which numbers are formatted in three quarters of the time that texts take.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Sequence
from typing import Any, Callable, TextIO

from wptrace.model.report import Event
from wptrace.model.rows import Part, Row, Rows, Shape, Source

_Filled = Callable[..., bytes]

# With more tasks or files than this, lines are made more slowly.
_MOST_FORMS, _MOST_TEXT = 1 << 14, 1 << 24
_MOST_TEXTS = 1 << 12
_MOST_CODES = 1 << 8
# The number of layouts that a capture may have, and more.
_MOST_SHAPES = 1 << 7

_LINES = """
def lines(rows, forms, learn, {variables}):
    found, others = [], []
    add = found.append
    for r in rows:
        if {usual}:
            key = ({key})
            form = forms.get(key)
            if form is None:
                form = learn(key, r)
            if form:
                add(form(r, {variables}))
                continue
        others.append((len(found), r))
        add(b"")
    return found, others
"""
_FILLED = """
def make(template, k):
    return lambda r, {variables}: template % ({codes},)
"""
_DAMAGED = (ArithmeticError, LookupError, OSError, TypeError, ValueError)
"""Errors raised by forged rows."""


def encoded(text: str) -> bytes:
    """Encode as the streams of outputs do."""
    return text.encode("utf-8", "backslashreplace")


class Texts(dict[Any, bytes]):
    """Texts by what they are made of, so many at most."""

    def __init__(self, make: Callable[[Any], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> bytes:
        text = encoded(self._make(key))
        if len(self) >= _MOST_TEXTS:
            self.clear()
        self[key] = text
        return text


class Form:
    """A line, of which some is not known yet."""

    def __init__(self, shape: Shape) -> None:
        self._parts = {name: f"part_{place}[{one.code}]" for place, (name, one) in enumerate(shape.parts.items())}
        self.template = ""
        self.codes: list[str] = []
        self.constants: list[Any] = []

    def text(self, text: str) -> None:
        self.template += text.replace("%", "%%")

    def add(self, how: str, *codes: str) -> None:
        """Append text whose % directives take the values of this code."""
        self.template += how
        self.codes += codes

    def constant(self, value: Any) -> str:
        """Its code."""
        self.constants.append(value)
        return f"k[{len(self.constants) - 1}]"

    def part(self, name: str) -> str:
        """The code of the text of a field that is made of a part of a row; empty where it is none."""
        return self._parts.get(name, "")


class Forms:
    def __init__(
        self,
        make: Callable[[Event, Form], Form | None],
        line: Callable[[Event], str],
        part: Callable[[str, Any], str],
        **names: Any,
    ) -> None:
        """Fill a form by an event whose numbers are of type `Number`, or make none where there is none; make the line
        of an event; make the text of a field. Codes may have these names."""
        self._make, self._line, self._part, self._names = make, line, part, names
        self._known: dict[Source, _Known] = {}

    def write(self, rows: Rows, stream: TextIO) -> bool:
        """Write their lines; false, and none of them, where they cannot be made for all rows."""
        lines = self._lines(rows)
        if lines is None:
            return False
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "utf-8":
            # What was written as text is before them.
            stream.flush()
            stream.buffer.write(lines)
        else:
            stream.write(lines.decode())
        return True

    def _lines(self, rows: Rows) -> bytes | None:
        source, shape = rows.source, rows.source.shape
        if shape is None:
            return None
        known = self._known.get(source)
        if known is None:
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()
            known = self._known[source] = _Known(shape, source, self._make, self._part, self._names)
        try:
            found, others = known.lines(rows.rows, rows.variables)
            if others:
                events = source.made([row for _, row in others], rows.variables)
                for (place, _), event in zip(others, events):
                    found[place] = encoded(self._line(event))
        except _DAMAGED:
            return None
        return b"".join(found)


class _Known:
    """Forms of rows of one shape."""

    def __init__(
        self,
        shape: Shape,
        source: Source,
        make: Callable[[Event, Form], Form | None],
        part: Callable[[str, Any], str],
        names: dict[str, Any],
    ) -> None:
        self._shape, self._source, self._make = shape, source, make
        self._names = {**names, **shape.constants}
        for place, (name, one) in enumerate(shape.parts.items()):
            self._names[f"part_{place}"] = _texts(name, one, part)
        self._variables = ", ".join(shape.variables)
        self._lines = self._compiled(_LINES, "lines", usual=shape.usual, key=shape.key)
        self._forms: dict[Any, _Filled | bool | None] = {}
        self._codes: dict[str, Callable[[bytes, Sequence[Any]], _Filled]] = {}
        self._size = 0

    def lines(self, rows: Sequence[Row], variables: tuple[Any, ...]) -> tuple[list[bytes], list[tuple[int, Row]]]:
        def learn(key: Any, row: Row) -> _Filled | bool:
            return self._learnt(key, row, variables)

        found: tuple[list[bytes], list[tuple[int, Row]]] = self._lines(rows, self._forms, learn, *variables)
        return found

    def _learnt(self, key: Any, row: Row, variables: tuple[Any, ...]) -> _Filled | bool:
        """The form of all rows with this key, once a second one comes: of many there is one alone."""
        if key not in self._forms:
            if len(self._forms) >= _MOST_FORMS or self._size > _MOST_TEXT:
                self._forms.clear()
                self._size = 0
            self._forms[key] = None
            return False
        form = self._make(self._source.numbered(row, variables), Form(self._shape))
        filled: _Filled | bool = False
        if form is not None:
            self._size += len(form.template)
            filled = self._filled(form)
        self._forms[key] = filled
        return filled

    def _filled(self, form: Form) -> _Filled:
        codes = ", ".join(form.codes)
        make = self._codes.get(codes)
        if make is None:
            if len(self._codes) >= _MOST_CODES:
                self._codes.clear()
            make = self._codes[codes] = self._compiled(_FILLED, "make", codes=codes)
        return make(encoded(form.template), form.constants)

    def _compiled(self, source: str, name: str, **parts: str) -> Callable[..., Any]:
        """All parts are codes of this package, in which numbers alone depend on what was read."""
        found = dict(self._names)
        exec(source.format(variables=self._variables, **parts), found)  # noqa: S102 - see above
        made: Callable[..., Any] = found[name]
        return made


def _texts(name: str, of: Part, part: Callable[[str, Any], str]) -> Texts:
    return Texts(lambda key: part(name, of.make(key)))
