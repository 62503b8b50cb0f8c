# SPDX-License-Identifier: Apache-2.0
"""A parsed definition, checked for consistency but not against any kernel.

Expressions and filters are parsed here, and resolved on a kernel later (resolution.py).
"""

from __future__ import annotations

from typing import NamedTuple

from wptrace.engine.definition.expression import Comparison, Expression
from wptrace.engine.definition.faults import Place

MAX_COLUMNS = 8
"""The most time stamps of an object: one for each name of points that begin or pass, and one for its end."""
MAX_POINTS = 24
MAX_OUTCOMES = 7
MAX_LABEL_WORDS = 4
TEXT_WORDS = 2
"""A text label takes this many words: 16 bytes."""

BEGIN, PASS, END, DROP = "begin", "pass", "end", "drop"
"""Roles of points. A dropped object is counted under its outcome and has no stages."""
FIRST, RESTART = "first", "restart"
"""The effect of a second begin of an object in flight: it is ignored, or the object begins again. With `repeat = ""`
the end of the old object was not seen."""
OUTER = "outer"
"""Of nested calls with the same key only the outermost counts."""

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
"""Units of values."""
TRACEPOINT, FUNCTION, RETURN, EVENT = "tp", "fn", "ret", "event"
USER_FUNCTION, USER_RETURN, STATIC_PROBE = "ufn", "uret", "usdt"
IN_PROGRAMS = (USER_FUNCTION, USER_RETURN, STATIC_PROBE)
"""Places in programs and libraries, not in the kernel."""
PLACES = (TRACEPOINT, FUNCTION, RETURN, EVENT, *IN_PROGRAMS)


class Target(NamedTuple):
    """An entry of a point's `at`."""

    kind: str
    """One of PLACES."""
    name: str
    """The name of the target; with EVENT "category/name", in a program "path:function" or "path:provider:name"."""
    at: Place
    site: int = 0
    """Of a static probe at several places, which one."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class LabelSpec(NamedTuple):
    name: str
    value: Expression
    type: str = AUTO
    enums: tuple[str, ...] = ()
    """Enums for the names of values, the first one that BTF has; empty: the enum of the field."""
    at: Place = Place()
    optional: bool = False
    """On a kernel that lacks it, the value is 0; otherwise that is an error."""


class PointSpec(NamedTuple):
    """A [[point]]. Points with the same name share a column."""

    name: str
    letter: str
    """One character, unique among the names of a definition."""
    targets: tuple[Target, ...]
    """The first one that exists is used."""
    keys: tuple[tuple[Expression, ...], ...]
    """Ways to find the object: the first one that works at all points is used. A key of several values has a part for
    each."""
    role: str
    becomes: Expression | None = None
    """The key of the object from here on."""
    begins: bool = False
    """A passing point that also begins objects that were not seen before."""
    outcome: str = ""
    """For an end or a drop: what it is counted under; empty: finished."""
    optional: bool = False
    """The flow works without it on a kernel that lacks it; otherwise that is an error."""
    quiet: bool = False
    """An object that was not seen to begin is not counted as unmatched here."""
    filters: tuple[Comparison, ...] = ()
    """All must hold."""
    value: Expression | None = None
    """A number to add up, such as bytes."""
    unit: str = "bytes"
    labels: tuple[LabelSpec, ...] = ()
    repeat: str = ""
    """FIRST, RESTART or empty."""
    after: str = ""
    """Counts only objects that have passed the point of this name; ignores others."""
    mark: Expression | None = None
    """A number that the object carries from here on."""
    reached: Expression | None = None
    """The point is passed only once this is at least the mark (compared as 32-bit numbers that wrap)."""
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
    """A description in one line."""
    noun: str = "object"
    nouns: str = "objects"
    nest: str = ""
    """OUTER or empty."""
    modules: tuple[str, ...] = ()
    """Modules whose types are searched for targets, in addition to the kernel's own."""
    file: str = ""

    def in_program(self, path: str) -> Definition:
        """The same with this program or library at all points in programs."""

        def moved(target: Target) -> Target:
            if target.kind not in IN_PROGRAMS:
                return target
            return target._replace(name=f"{path}:{target.name.partition(':')[2]}")

        def targets(point: PointSpec) -> tuple[Target, ...]:
            # Those that differed in the path are one now.
            found = {str(target): target for target in map(moved, point.targets)}
            return tuple(found.values())

        return self._replace(points=tuple(point._replace(targets=targets(point)) for point in self.points))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names that have a time stamp, in order; the end has the column after them."""
        return tuple(dict.fromkeys(point.name for point in self.points if point.role in (BEGIN, PASS)))

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of all labels, in order: labels of the same name at several points are one."""
        return tuple(dict.fromkeys(label.name for point in self.points for label in point.labels))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes other than the plain end."""
        return tuple(dict.fromkeys(point.outcome for point in self.points if point.outcome))

    @property
    def value(self) -> PointSpec | None:
        """The first point that has a value."""
        return next((point for point in self.points if point.value is not None), None)
