# SPDX-License-Identifier: Apache-2.0
"""Layouts of records as data: written from the BTF of an object, and read where there is no such object.

A type is a list: `["u", 8]` and `["i", 8]` are integers, `["?", 1]` is a bool, `["c", 16]` text, `["b", 16]` bytes,
`["[]", type, count]` an array, and `["{}", size, [[name, offset, type], ...]]` a struct.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wptrace.bpf.layout import Boolean, Bytes, Codec, Integer, Place, Structure, Text, Tuple
from wptrace.capture.records import Raw
from wptrace.capture.spec import sequence, signed, text
from wptrace.errors import WptraceError

_DEEPEST = 8
_LONGEST = 1 << 14
"""Bytes of a record; the largest of today has some 1,200."""
_FIELDS = 2048
_WORD = 8
# Constants that numbers are shifted by: a large one makes numbers of gigabytes.
_SHIFTS, _MOST_BITS = ("_BITS", "_SHIFT"), 63


def description(codec: Codec, without: Collection[str] = ()) -> list[Any]:
    """`without` members that are not kept: there are holes in their places."""
    if isinstance(codec, Structure):
        fields = [[one.name, one.offset, description(one.codec)] for one in codec.places if one.name not in without]
        return ["{}", codec.size, fields]
    if isinstance(codec, Tuple):
        return ["[]", description(codec.element), codec.count]
    for kind, name in ((Text, "c"), (Bytes, "b"), (Boolean, "?")):
        if isinstance(codec, kind):
            return [name, codec.size]
    if isinstance(codec, Integer):
        return ["i" if codec.signed else "u", codec.size]
    raise WptraceError(f"records with {codec.name} cannot be captured")


def structure(description: Any) -> Structure:
    """Raises ValueError where it makes no sense."""
    found = _codec(description, 0)
    if not isinstance(found, Structure) or found.flat is None or len(found.fields) > _FIELDS:
        raise ValueError("a record is a plain struct")
    return found


def _codec(found: Any, depth: int) -> Codec:
    if not isinstance(found, list) or depth > _DEEPEST or not found or not isinstance(found[0], str):
        raise ValueError("it is not a type")
    kind, *rest = found
    if kind == "{}":
        return _structure(rest, depth)
    if kind == "[]":
        inner, count = rest
        element = _codec(inner, depth + 1)
        _number(count, _LONGEST // max(element.size, 1))
        return Tuple("array", element, count)
    (size,) = rest
    _number(size, _LONGEST)
    if kind in ("c", "b"):
        return (Text if kind == "c" else Bytes)(kind, size)
    if size not in ((1,) if kind == "?" else (1, 2, 4, 8)):
        raise ValueError("there are no numbers of that size")
    if kind == "?":
        return Boolean(kind)
    if kind in ("u", "i"):
        return Integer(kind, size, kind == "i")
    raise ValueError("the type is unknown")


def _structure(rest: list[Any], depth: int) -> Structure:
    size, fields = rest
    _number(size, _LONGEST)
    if not isinstance(fields, list) or len(fields) > _FIELDS:
        raise ValueError("it has no fields")
    places, end, names = [], 0, set()
    for name, offset, inner in fields:
        codec = _codec(inner, depth + 1)
        _number(offset, size)
        if not isinstance(name, str) or name in names or offset < end or offset + codec.size > size:
            raise ValueError("a field lies outside, or where another one is")
        names.add(name)
        end = offset + codec.size
        places.append(Place(name, offset, codec))
    return Structure("struct record", size, places)


def _number(value: Any, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("the number is out of range")


class Described:
    """An object as far as its records need it, from a capture. A missing part raises LookupError."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """Raises ValueError, TypeError or LookupError where they make no sense."""
        self.record = text(facts["record"])
        self.names = [text(name) for name in sequence(facts["names"])]
        """Names of devices by slot."""
        self.layout = structure(facts["struct"])
        self.constants = {text(name): signed(value) for name, value in dict(facts["constants"]).items()}
        for name, value in self.constants.items():
            if name.endswith(_SHIFTS):
                _number(value, _MOST_BITS)
        self._enums = {
            text(name): [text(one) for one in sequence(values)] for name, values in dict(facts["enums"]).items()
        }
        self._facts = {**facts, "names": None, "number": None}
        self.stride = (self.layout.size + _WORD - 1) // _WORD * _WORD

    def __eq__(self, other: object) -> bool:
        """Whether records mean the same, but for the names of devices."""
        return isinstance(other, Described) and self._facts == other._facts

    __hash__ = None  # type: ignore[assignment]

    def enum(self, name: str) -> list[str]:
        return self._enums[name]

    def struct(self, name: str) -> Structure:
        if name != self.record:
            raise KeyError(name)
        return self.layout

    def rows(self, layout: packing.Struct) -> packing.Struct:
        """Return the format that unpacks rows as they are kept, in whole words."""
        return packing.Struct(f"{layout.format}{self.stride - layout.size}x")


def facts(obj: Any, what: Raw, names: Sequence[str]) -> dict[str, Any]:
    """Parts of `Described`."""
    return {
        "record": what.record,
        "struct": description(what.struct(obj), what.without),
        "enums": {**{name: obj.enum(name) for name in what.enums}, **what.words},
        "constants": {**{name: obj.constants[name] for name in what.constants}, **what.more},
        "names": list(names),
    }
