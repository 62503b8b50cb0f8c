# SPDX-License-Identifier: Apache-2.0
"""Faults of a definition, with their places in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from wptrace.errors import UsageError

_MANY = 2000
"""With more candidates than this, a search for similar names would take seconds."""


class Place(NamedTuple):
    """A place in the file, counted from 1; (0, 0) is unknown."""

    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class Fault(NamedTuple):
    message: str
    place: Place = Place()

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place.line else self.message


class DefinitionError(UsageError):
    """The message is that of the first fault."""

    check: ClassVar[str] = "wptrace flow --check"
    """The command that shows all of them."""

    def __init__(self, file: str, faults: Sequence[Fault]) -> None:
        more = len(faults) - 1
        hint = f"{self.check} shows {more} more" if more else None
        super().__init__(f"{file}: {faults[0]}" if file else str(faults[0]), hint)
        self.file = file
        self.faults = tuple(faults)


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """A suggestion to append to a message; empty if no name is similar."""
    from difflib import get_close_matches  # Imported late: most starts do not need it.

    candidates = list(known)
    if len(candidates) > _MANY:
        candidates = [name for name in candidates if name[:2] == wanted[:2] and abs(len(name) - len(wanted)) < 4]
    # Among hundreds of names, some are always slightly similar.
    alike = 0.6 if len(candidates) < 100 else 0.8
    near = get_close_matches(wanted[:64], candidates[:_MANY], 1, alike)
    return f"; did you mean {near[0]}?" if near else ""


def quoted(text: str) -> str:
    """Foreign text, quoted for a message."""
    short = text if len(text) <= 40 else f"{text[:37]}..."
    return short if short.isprintable() and short else repr(short)
