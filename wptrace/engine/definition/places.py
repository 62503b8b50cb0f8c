# SPDX-License-Identifier: Apache-2.0
"""The places of keys and values in a TOML file, which Python's reader does not report.

The text has been parsed before, so it is well-formed; only the constructs that a definition may use are found.
"""

from __future__ import annotations

import re
from typing import Union

from wptrace.engine.definition.faults import Place

Keys = tuple[Union[str, int], ...]
"""The path of a value: names of tables and indices of lists."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"[A-Za-z0-9_-]+|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
_STRING = re.compile(r"\"\"\"(?:[^\\]|\\.)*?\"\"\"+|'''.*?'''+|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\r\n]+")


class Places:
    """The places of keys and of their values; for a text, the place of its first character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._keys: dict[Keys, int] = {}
        self._values: dict[Keys, int] = {}
        self._lists: dict[Keys, int] = {}
        try:
            self._document()
        except (IndexError, ValueError, RecursionError):
            # A key that is not found has no place, which is no error.
            return

    def key(self, *way: str | int) -> Place:
        return self._nearest(self._keys, way)

    def value(self, *way: str | int) -> Place:
        return self._nearest(self._values, way)

    def _nearest(self, places: dict[Keys, int], way: Keys) -> Place:
        """The place of the nearest enclosing table if it has none itself."""
        while way:
            found = places.get(way, self._keys.get(way, -1))
            if found >= 0:
                before = self._text[:found]
                return Place(before.count("\n") + 1, found - (before.rfind("\n") + 1) + 1)
            way = way[:-1]
        return Place(1, 1)

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self._at)
        if found:
            self._at = found.end()

    def _document(self) -> None:
        table: Keys = ()
        self._skip()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip()

    def _header(self) -> Keys:
        start = self._at
        several = self._text.startswith("[[", self._at)
        self._at += 1 + several
        way = self._dotted()
        self._at = self._text.index("]", self._at) + 1 + several
        if several:
            number = self._lists.get(way, -1) + 1
            self._lists[way] = number
            self._keys.setdefault(way, start)
            way = (*way, number)
        self._keys[way] = start
        return way

    def _dotted(self) -> Keys:
        names: list[str | int] = []
        while True:
            self._skip()
            found = _KEY.match(self._text, self._at)
            if found is None:
                return tuple(names)
            name = found.group()
            names.append(name[1:-1] if name[0] in "\"'" else name)
            self._at = found.end()
            self._skip()
            if self._text[self._at] != ".":
                return tuple(names)
            self._at += 1

    def _pair(self, table: Keys) -> None:
        start = self._at
        way = (*table, *self._dotted())
        self._keys[way] = start
        self._at = self._text.index("=", self._at) + 1
        self._value(way)

    def _value(self, way: Keys) -> None:
        self._skip()
        self._values[way] = self._at
        sign = self._text[self._at]
        if sign in "[{":
            self._at += 1
            number = 0
            while True:
                self._skip()
                if self._text[self._at] == ",":
                    self._at += 1
                elif self._text[self._at] in "]}":
                    self._at += 1
                    return
                elif sign == "[":
                    self._value((*way, number))
                    number += 1
                else:
                    self._pair(way)
        elif sign in "\"'":
            found = _STRING.match(self._text, self._at)
            self._values[way] += 3 if self._text.startswith(sign * 3, self._at) else 1
            self._at = found.end() if found else len(self._text)
        else:
            found = _SCALAR.match(self._text, self._at)
            self._at = found.end() if found else len(self._text)
