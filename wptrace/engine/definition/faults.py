# SPDX-License-Identifier: Apache-2.0
"""Faults of a definition, with their places in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from wptrace.errors import UsageError

_MANY = 2000
"""To look through all functions of a kernel would take seconds."""


class Place(NamedTuple):
    """Where something stands in the file, from 1; (0, 0) is nowhere."""

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
    """The first of the faults is what it says."""

    check: ClassVar[str] = "wptrace flow --check"
    """The command that shows all of them."""

    def __init__(self, file: str, faults: Sequence[Fault]) -> None:
        more = len(faults) - 1
        hint = f"{self.check} shows {more} more" if more else None
        super().__init__(f"{file}: {faults[0]}" if file else str(faults[0]), hint)
        self.file = file
        self.faults = tuple(faults)


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """A half sentence, or nothing where nothing is near."""
    from difflib import get_close_matches  # which most starts do not need

    candidates = list(known)
    if len(candidates) > _MANY:
        candidates = [name for name in candidates if name[:2] == wanted[:2] and abs(len(name) - len(wanted)) < 4]
    # Among hundreds something is always a little alike.
    alike = 0.6 if len(candidates) < 100 else 0.8
    near = get_close_matches(wanted[:64], candidates[:_MANY], 1, alike)
    return f"; did you mean {near[0]}?" if near else ""
