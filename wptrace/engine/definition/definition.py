# SPDX-License-Identifier: Apache-2.0
"""A flow as its definition says it, checked in itself but not against any kernel.

Expressions and filters are parsed; what they are on a kernel is resolved later (resolution.py).
"""

from __future__ import annotations

from typing import NamedTuple

from wptrace.engine.definition.expression import Comparison, Expression
from wptrace.engine.definition.faults import Place

MAX_COLUMNS = 8
"""Stamps of an object: the different names of points that begin or pass, and one for its end."""
MAX_POINTS = 24
MAX_OUTCOMES = 7
MAX_LABEL_WORDS = 4
TEXT_WORDS = 2
"""A label that is text takes so many words: 16 bytes."""

BEGIN, PASS, END, DROP = "begin", "pass", "end", "drop"
"""Roles of points. What is dropped is counted under its outcome and has no stages."""
FIRST, RESTART = "first", "restart"
"""The effect of a second begin of an object that is on its way: none, or it begins anew. Else it is `repeat = ""`: what
was there is counted as replaced."""
OUTER = "outer"
"""Of calls inside calls with the same key only the outermost counts."""

AUTO, TEXT, NUMBER, HEX, SYMBOL, CGROUP, ENUM, CPU, DEVICE, ADDRESS, SYSCALL = (
    "auto",
    "text",
    "number",
    "hex",
    "symbol",
    "cgroup",
    "enum",
    "cpu",
    "device",
    "address",
    "syscall",
)
"""How a label is shown; `auto` is decided by its type in BTF. A `device` is a dev_t, an `address` IPv4 of a packet."""
LABEL_TYPES = (AUTO, TEXT, NUMBER, HEX, SYMBOL, CGROUP, ENUM, CPU, DEVICE, ADDRESS, SYSCALL)
UNITS = ("bytes", "ns", "count", "pages")
"""Of values."""
TRACEPOINT, FUNCTION, RETURN, EVENT = "tp", "fn", "ret", "event"
PLACES = (TRACEPOINT, FUNCTION, RETURN, EVENT)


class Target(NamedTuple):
    """One of the `at` of a point."""

    kind: str
    """One of PLACES."""
    name: str
    """With EVENT "category/name"."""
    at: Place

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class LabelSpec(NamedTuple):
    name: str
    value: Expression
    type: str = AUTO
    enums: tuple[str, ...] = ()
    """The first of these that BTF has gives the names of the values; empty: that of the field."""
    at: Place = Place()
    optional: bool = False
    """A kernel that lacks it has 0 there; else that is an error."""


class PointSpec(NamedTuple):
    """One [[point]]. Those with the same name are branches of one column."""

    name: str
    letter: str
    """One character, its own among the names of a definition."""
    targets: tuple[Target, ...]
    """The first that exists is used."""
    keys: tuple[tuple[Expression, ...], ...]
    """Ways to find the object: of all points the first that all have is used. One has several parts where it is not one
    value alone."""
    role: str
    becomes: Expression | None = None
    """From here on this is the key of the object."""
    begins: bool = False
    """A point that passes, and begins what was not seen before."""
    outcome: str = ""
    """Of an end or a drop: under what it is counted; empty: plainly finished."""
    optional: bool = False
    """Where the kernel lacks it, the flow does without; else that is an error."""
    quiet: bool = False
    """An object that was not seen to begin is not counted as unmatched here."""
    filters: tuple[Comparison, ...] = ()
    """All must hold."""
    value: Expression | None = None
    """A number that is added up, such as bytes."""
    unit: str = "bytes"
    labels: tuple[LabelSpec, ...] = ()
    repeat: str = ""
    """FIRST, RESTART or empty."""
    after: str = ""
    """The object counts here only if it has passed the point of this name; else nothing happens."""
    mark: Expression | None = None
    """A number that the object has from here on,"""
    reached: Expression | None = None
    """and the point is passed only once this is at least as much (as 32-bit numbers that wrap)."""
    failed: Comparison | None = None
    """An end counts as failed if this holds."""
    stage: str = ""
    """The name of the stage that begins here; empty at ends."""
    description: str = ""
    meaning: str = ""
    advice: str = ""
    at: Place = Place()


class Definition(NamedTuple):
    name: str
    points: tuple[PointSpec, ...]
    about: str = ""
    """One line."""
    noun: str = "object"
    nouns: str = "objects"
    nest: str = ""
    """OUTER or empty."""
    modules: tuple[str, ...] = ()
    """In whose types targets are looked for besides the kernel's own."""
    file: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that have a stamp, in order; the end has the one behind them."""
        return tuple(dict.fromkeys(point.name for point in self.points if point.role in (BEGIN, PASS)))

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of all, in order: a label of one name is the same at each point that has it."""
        return tuple(dict.fromkeys(label.name for point in self.points for label in point.labels))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Without the plain end."""
        return tuple(dict.fromkeys(point.outcome for point in self.points if point.outcome))

    @property
    def value(self) -> PointSpec | None:
        """The first point that has a value."""
        return next((point for point in self.points if point.value is not None), None)
