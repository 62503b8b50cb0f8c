# SPDX-License-Identifier: Apache-2.0
"""Events that are rows of numbers still, as they came from a ring or a capture.

Whoever goes through them gets events. An output of lines need not: rows that are alike but for some numbers have lines
that are alike but for these. Code that computes them is made once for all rows of a shape, and which number stands
where is seen in the event of one of them: each is a `Number`, which knows its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Protocol, overload

from wptrace.model.report import Event

Row = tuple[Any, ...]


class Number(int):
    """A number, with the code that computes it of any row `r` of the same shape. No text of a capture is in that."""

    code: str

    @classmethod
    def of(cls, value: int, code: str) -> Number:
        self = cls(value)
        self.code = code
        return self

    def __add__(self, other: int) -> Number:
        return Number.of(int(self) + int(other), f"({self.code} + {code_of(other)})")

    __radd__ = __add__

    def __sub__(self, other: int) -> Number:
        return Number.of(int(self) - int(other), f"({self.code} - {code_of(other)})")


def code_of(number: int) -> str:
    return number.code if isinstance(number, Number) else str(int(number))


def numbered(row: Row, places: frozenset[int]) -> Row:
    """The row, with a `Number` in each of these places. A TypeError where something else is there."""
    if any(type(row[at]) is not int for at in places):
        raise TypeError("no program writes that")
    return tuple(Number.of(one, f"r[{at}]") if at in places else one for at, one in enumerate(row))


class Part(NamedTuple):
    """A field that is made of a part of a row."""

    code: str
    """The code of that part."""
    make: Callable[[Any], Any]


class Shape(NamedTuple):
    """The fields that rows share, as code about a row `r`."""

    variables: tuple[str, ...]
    """Further names that the code uses, set for some rows at a time."""
    constants: Mapping[str, Any]
    usual: str
    """Whether a row is one of those that are many. Others become events."""
    key: str
    """Usual rows with the same one differ in numbers and parts alone."""
    parts: Mapping[str, Part]
    """Parts by the names of fields."""


class Source(Protocol):
    """Makes events of rows."""

    @property
    def shape(self) -> Shape | None:
        """None where all rows become events."""

    def variables(self) -> tuple[Any, ...]:
        """The current variables of the shape."""

    def made(self, rows: Sequence[Row], variables: tuple[Any, ...]) -> Iterator[Event]:
        """An event of each."""

    def numbered(self, row: Row, variables: tuple[Any, ...]) -> Event:
        """The event of a usual row, of which `Number`s are all that may be different in another one of its key."""


class Rows(Sequence[Event]):
    def __init__(self, rows: Sequence[Row], source: Source) -> None:
        self.rows, self.source = rows, source
        self.variables = source.variables()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Event]:
        return self.source.made(self.rows, self.variables)

    @overload
    def __getitem__(self, at: int) -> Event: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Event]: ...
    def __getitem__(self, at: int | slice) -> Event | Sequence[Event]:
        return list(self)[at]


def offer_rows(output: Any, events: Sequence[Event]) -> bool:
    """Offer events to the output as rows; false if it wants each event by itself."""
    take = getattr(output, "rows", None)
    return take is not None and isinstance(events, Rows) and bool(take(events))


def items(places: Iterable[int]) -> str:
    """Code of these places of a row, one by one: that is quicker than slices."""
    return ", ".join(f"r[{at}]" for at in places)
