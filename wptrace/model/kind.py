# SPDX-License-Identifier: Apache-2.0
"""Kinds of objects that flows follow, the labels that distinguish them, and the metrics of each.

All of it is data. Tables, JSON, exports, the man page and the docs read names, units, nouns and meanings here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Union
from weakref import WeakValueDictionary

TOTAL = "total"
UNATTRIBUTED = "unattributed"
REQUESTS, OPERATIONS = "requests", "operations"
"""Names of books: what a flow follows, and the operations that wait for it where the flow sees those."""


class _All:
    """A label's value that stands for all values, added up."""

    def __repr__(self) -> str:
        return "ALL"


ALL = _All()

DEVICE, OPERATION, CPU, TASK, CGROUP, PASID, STACK = "device", "operation", "cpu", "task", "cgroup", "pasid", "stack"
COMM, FILE, CALL, STATEMENT = "comm", "file", "call", "statement"
UNIT = "unit"
TEXTS = (STATEMENT, UNIT)
"""Labels that are the text of what a program works on."""
NUMBER, TEXT = "number", "text"
OWNER = "owner"
"""Another name of the label that says whose something is."""
OTHERS = "others"
"""A label's value that stands for all without a row of their own."""
NOBODY = "nobody"
"""The owner of what belongs to the kernel itself, or to nobody known."""


class Label(NamedTuple):
    """A label that keeps rows apart."""

    name: str
    """Its field in JSON."""
    type: str
    alias: str = ""
    """A field in which it stands as text as well."""

    def shown(self, value: Any) -> str:
        """Return the value for people; empty if it stands for all."""
        if value is ALL:
            return ""
        if self.type == CPU and isinstance(value, int):
            return f"cpu{value}"
        if self.type == PASID:
            return value if isinstance(value, str) else f"pasid {'-' if value is None else value}"
        return str(value)

    def titled(self, value: Any) -> str:
        """Return it for headings and sentences: a number alone would count something, and an empty text be all."""
        if self.type == NUMBER and isinstance(value, int):
            return f"{self.name} {value}"
        return f"no {self.name}" if self.type == TEXT and value == "" else self.shown(value)

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the value for programs."""
        if value is ALL:
            return {self.alias or self.name: ""}
        plain: Any = value
        if isinstance(value, (Comm, Task)):
            plain = value.plain
        elif hasattr(value, "_asdict"):
            plain = value._asdict()
        if isinstance(value, str) and (
            self.type in (CPU, TASK, PASID, NUMBER) or (self.alias == OWNER and value in (OTHERS, NOBODY))
        ):
            # The value stands for all that found no row of its own.
            plain = None
        if self.type in TEXTS and isinstance(value, Comm):
            # A task that works on no statement or unit has none.
            plain = None
        return {**({self.alias: self.shown(value)} if self.alias else {}), self.name: plain}


class Task(NamedTuple):
    """A process, or a thread where it has a number."""

    comm: str
    pid: int
    tid: int = 0
    again: int = 0
    """From 2 on if the kernel gave the pid to several tasks of this name, one after another."""

    def __str__(self) -> str:
        number = f"{self.pid}/{self.tid}" if self.tid else str(self.pid)
        return f"{self.comm}[{number}]#{self.again}" if self.again else f"{self.comm}[{number}]"

    @property
    def plain(self) -> dict[str, str | int]:
        fields: dict[str, str | int] = {"comm": self.comm, "pid": self.pid, "tid": self.tid}
        return {**fields, "again": self.again} if self.again else fields


class Comm(NamedTuple):
    """All threads of a name."""

    comm: str

    def __str__(self) -> str:
        return self.comm

    @property
    def plain(self) -> str:
        return self.comm


class Noun(NamedTuple):
    one: str
    many: str = ""

    def of(self, count: int) -> str:
        return f"{count:,} {self.one if count == 1 else self.plural}"

    @property
    def plural(self) -> str:
        return self.many or f"{self.one}s"


class Point(NamedTuple):
    """A moment in the life of an object, such as D, issued."""

    letter: str
    name: str


class Stage(NamedTuple):
    """The time between two points. The stages of a kind share out its total."""

    name: str
    start: Point
    end: Point
    description: str
    meaning: str
    """The meaning of a large value."""
    advice: str = ""
    """Where to look next, if the meaning does not say it."""
    rare: bool = False
    """Whether it only has a row if it took some time."""

    @property
    def unit(self) -> str:
        return "ns"

    @property
    def part(self) -> bool:
        return True


class Metric(NamedTuple):
    """Further metrics, which are no part of the total."""

    name: str
    description: str
    meaning: str
    unit: str = "ns"
    interference: bool = False
    """Whether its time is inside the stages, like that of an interrupt meanwhile."""
    part: bool = True
    """Whether it is a part of the total, which the sleep between two turns of a task is not."""
    rare: bool = False
    start: Point | None = None
    end: Point | None = None

    @property
    def advice(self) -> str:
        """None beyond its meaning."""
        return ""


Measured = Union[Stage, Metric]


class EventField(NamedTuple):
    """A text, a number or a flag that events have beside labels and stages. What has parts is in JSON alone."""

    name: str
    """The name in JSON, where docs/schema.json describes it."""
    type: type = int

    def value(self, event_fields: Mapping[str, Any]) -> Any:
        """Return the value in an event's fields; None if it is missing or of another type."""
        found = event_fields.get(self.name)
        return found if type(found) is self.type else None


TASK_FIELDS = (EventField("comm", str), EventField("pid"), EventField("tid"))
"""The task that an event belongs to."""


class CounterField(NamedTuple):
    """A counter of each group. It only grows, so a window has the difference of two snapshots."""

    name: str
    description: str
    unit: str = ""
    """None where it is how often something happened."""


BYTES_FIELD = CounterField("bytes", "bytes that were transferred", "bytes")
UNTIMED_FIELD = CounterField("untimed", "how many were counted and not timed, as a budget asked")


class Kind:
    """A kind of objects: operation, request, packet, period. Equal kinds are the same object."""

    name: str
    noun: Noun
    labels: tuple[Label, ...]
    stages: tuple[Stage, ...]
    metrics: tuple[Metric, ...]
    book: str
    ranked: bool
    sized: bool
    squares: bool
    constants: dict[str, str]
    nested: bool
    place: dict[str, int]
    owner_place: int | None
    """The index of the owner among its labels, if it has one."""
    total: Metric
    unattributed: Metric
    rows: tuple[Measured, ...]
    """Every line of a complete table."""
    fields: tuple[EventField, ...]
    """Fields of its events, in the order in which they are shown."""
    counters: tuple[CounterField, ...]
    _by_name: dict[str, Measured]

    def __new__(
        cls,
        name: str,
        noun: Noun,
        labels: Iterable[Label],
        stages: Iterable[Stage] = (),
        metrics: Iterable[Metric] = (),
        *,
        unit: str = "ns",
        book: str = REQUESTS,
        ranked: bool = False,
        sized: bool = False,
        squares: bool = True,
        constants: Mapping[str, str] | None = None,
        nested: bool = False,
        fields: Iterable[EventField] = (),
        counters: Iterable[CounterField] = (),
    ) -> Kind:
        """`book` is the one in which it is counted, if in any; `unit` that of the total where there are no stages.

        `sized` ones have bytes, a counter beside `counters`. Where rows are `ranked`, those with the most come first,
        and their shares are those of all of them together. Without `squares` there is no standard deviation. In JSON
        all have the fields of `constants`; `nested` labels, whose names may be any, are in a field of their own.
        `fields` and `counters` do not keep two kinds apart: captures of earlier versions do not have them.
        """
        labels, stages, metrics, constants = tuple(labels), tuple(stages), tuple(metrics), dict(constants or {})
        fixed, counters = tuple(sorted(constants.items())), (*((BYTES_FIELD,) if sized else ()), *counters)
        key = (name, noun, labels, stages, metrics, unit, book, ranked, sized, squares, fixed, nested)
        found = _kinds.get(key)
        if found is not None:
            found.fields = found.fields or tuple(fields)
            found.counters = max(found.counters, counters, key=len)
            return found
        self = super().__new__(cls)
        self.name = name
        self.noun = noun
        self.labels = labels
        self.stages = stages
        self.metrics = metrics
        self.book = book
        self.ranked = ranked
        self.sized = sized
        self.squares = squares
        self.constants = constants
        self.nested = nested
        self.fields = tuple(fields)
        self.counters = counters
        self.place = {label.name: place for place, label in enumerate(labels)}
        self.owner_place = next((place for place, label in enumerate(labels) if label.alias == OWNER), None)
        start, end = (self.stages[0].start, self.stages[-1].end) if self.stages else (None, None)
        way = f", from {start.name} to {end.name}" if start and end else ""
        self.total = Metric(
            TOTAL, f"the whole{way}", "it was slow: its largest stage says why", unit, start=start, end=end
        )
        self.unattributed = Metric(
            UNATTRIBUTED,
            f"time of the {noun.one} that no stage covers",
            "a hook is missing here or a path is not known: see wptrace doctor",
            unit,
            rare=True,
            start=start,
            end=end,
        )
        self.rows = (*self.stages, *self.metrics, self.unattributed, self.total)
        self._by_name = {}
        for one in self.rows:
            if one.name in self._by_name:
                raise ValueError(f"{one.name!r} is measured twice")
            self._by_name[one.name] = one
        _kinds[key] = self
        return self

    def __repr__(self) -> str:
        return f"Kind({self.name!r})"

    def __getitem__(self, name: str) -> Measured:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def group(self, *values: Hashable) -> Group:
        if len(values) != len(self.labels):
            raise ValueError(f"a {self.noun.one} has {len(self.labels)} labels, not {len(values)}")
        return Group(self, values)

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Stages and other metrics, without the total and what of it is in none."""
        return (*self.stages, *self.metrics)

    @property
    def interference(self) -> tuple[Metric, ...]:
        return tuple(metric for metric in self.metrics if metric.interference)


def fields_of(kinds: Iterable[Kind]) -> list[EventField]:
    """Return the fields of all kinds, each once."""
    return list({field.name: field for kind in kinds for field in kind.fields}.values())


# All kinds by their contents, as long as one is in use. Groups are compared so often that it has to be by identity.
_kinds: WeakValueDictionary[tuple[Hashable, ...], Kind] = WeakValueDictionary()


class Group(NamedTuple):
    """All objects with the same labels; they have one row."""

    kind: Kind
    values: tuple[Hashable, ...]

    def label(self, name: str) -> Any:
        return self.values[self.kind.place[name]]

    def all_of(self, *names: str) -> Group:
        """Return the group that contains this one once these labels are added up."""
        places = {self.kind.place[name] for name in names if name in self.kind.place}
        return Group(self.kind, tuple(ALL if at in places else value for at, value in enumerate(self.values)))

    @property
    def everywhere(self) -> Group:
        """Its first label says where it is."""
        return Group(self.kind, (ALL, *self.values[1:]) if self.values else ())

    @property
    def others(self) -> Group:
        """The group for this one if there are too many of its kind."""
        return Group(self.kind, tuple(ALL if label.type == STACK else OTHERS for label in self.kind.labels))

    @property
    def of_others(self) -> Group:
        """The group for all other owners."""
        at = self.kind.owner_place
        return self if at is None else Group(self.kind, (*self.values[:at], OTHERS, *self.values[at + 1 :]))

    @property
    def shown(self) -> str:
        found = (label.titled(value) for label, value in zip(self.kind.labels, self.values))
        return " ".join(filter(None, found))

    @property
    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for label, value in zip(self.kind.labels, self.values):
            found.update(label.fields(value))
        return {**({"labels": found} if self.kind.nested else found), **self.kind.constants}


class Bounded:
    """Groups that somebody else chooses: beyond so many distributions the rest of them are `others` of their kind."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._known: set[Group] = set()

    def of(self, group: Group) -> Group:
        if group in self._known:
            return group
        self._left -= len(group.kind.rows)
        if self._left < 0:
            return group.others
        self._known.add(group)
        return group


def names(kinds: Iterable[Kind]) -> list[str]:
    """Return the names of all metrics except totals, in the order in which they are shown."""
    return list(dict.fromkeys(one.name for kind in kinds for one in kind.measured))
