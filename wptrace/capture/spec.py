# SPDX-License-Identifier: Apache-2.0
"""Kinds, groups, distributions, books, reports and single events as JSON, and back.

Reading raises ValueError, TypeError or LookupError where something makes no sense; numbers are bounded, so that
whatever is made of them can be shown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Callable

from wptrace.analysis.neighbours import Owner
from wptrace.model.book import Book, Cause
from wptrace.model.budget import Change, Cost, Saving, Spending, Step
from wptrace.model.distribution import SLOTS, Distribution
from wptrace.model.kind import (
    ALL,
    BYTES_FIELD,
    TASK_FIELDS,
    Comm,
    CounterField,
    EventField,
    Group,
    Kind,
    Label,
    Metric,
    Noun,
    Point,
    Stage,
    Task,
)
from wptrace.model.report import Child, Event, Finding, InFlight, Overhead, Resource, Segment, Source, Start, Verdict
from wptrace.model.stack import Stack
from wptrace.model.tally import Tally

_WORD, _WIDE, _SQUARES = 1 << 64, 1 << 96, 1 << 192
_MOST_KINDS = 64
# The limits of a kind: stages, and metrics.
_MOST_MEASURED, _MOST_LABELS = 128, 32
# Characters of a name, and of any other text.
_LONGEST_NAME, _LONGEST_PATH, _LONGEST_TEXT = 256, 1 << 13, 1 << 16
LATEST_NS = 1 << 62
"""No time of day is later: it is in the year 2116, and every format has room for it."""
_MOST_GROUPS = 1 << 16
"""How many groups are known at a time, until both sides forget them."""

Json = Any
Cells = Mapping[Group, Mapping[str, Distribution]]


# Filters that are shown with their units.
_BOUNDS = {"min_bytes", "max_bytes", "min_ns", "waits_ns"}


def integer(value: Any, most: int = _WORD, least: int = 0) -> int:
    if type(value) is not int or not least <= value < most:
        raise ValueError("the number is out of range")
    return value


def signed(value: Any) -> int:
    return integer(value, _WORD, -_WORD)


def text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise ValueError("it is not a text, or too long")
    return value


def name(value: Any) -> str:
    """Check a name that wptrace or a definition gives: other than those of files, it is UTF-8."""
    if len(text(value)) > _LONGEST_NAME:
        raise ValueError("the name is too long")
    # Formats of exports have it as a key. The error is a ValueError.
    value.encode()
    return str(value)


def path(value: Any) -> str:
    """Check the path of a file or a cgroup, which has at most 4096 bytes."""
    if len(text(value)) > _LONGEST_PATH:
        raise ValueError("too long a path")
    return str(value)


def moment(value: Any) -> int:
    """A time of day that can be shown."""
    return integer(value, LATEST_NS)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it is neither true nor false")
    return value


def real(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < _SQUARES:
        raise ValueError("the number is out of range")
    return float(value) if isinstance(value, float) else int(value)


def sequence(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("it is not a list")
    return value


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


# --- Kinds ------------------------------------------------------------------------------------------------------------


_TYPES: dict[type, str] = {str: "text", int: "number", bool: "flag"}
_TYPE_OF = {word: one for one, word in _TYPES.items()}
_IO_FIELDS = ("cgroup", "path", "offset", "length", "result", "sector", "bytes", "rwbs", "error")
_OBJECT_FIELDS = ("cgroup", "key", "value", "unit", "begin_cpu", "end_cpu", "outcome")
_TEXTS = {"cgroup", "path", "rwbs", "key", "unit", "outcome"}


def of_kind(kind: Kind) -> Json:
    return {
        "name": kind.name,
        "noun": list(kind.noun),
        "labels": [list(label) for label in kind.labels],
        "stages": [_plain(one) for one in kind.stages],
        "metrics": [_plain(one) for one in kind.metrics],
        "unit": kind.total.unit,
        "book": kind.book,
        "ranked": kind.ranked,
        "sized": kind.sized,
        "squares": kind.squares,
        "constants": kind.constants,
        "nested": kind.nested,
        "fields": _of_fields(kind.fields),
        "counters": [list(one) for one in kind.counters],
    }


def _of_fields(fields: Sequence[EventField]) -> Json:
    return [[one.name, _TYPES[one.type]] for one in fields]


def _plain(one: Stage | Metric) -> Json:
    return {**one._asdict(), "start": _of_point(one.start), "end": _of_point(one.end)}


def _of_point(point: Point | None) -> Json:
    return None if point is None else list(point)


def kind(found: Json) -> Kind:
    has = mapping(found)
    labels, stages, metrics = (sequence(has[part]) for part in ("labels", "stages", "metrics"))
    if len(labels) > _MOST_LABELS or max(len(stages), len(metrics)) > _MOST_MEASURED:
        raise ValueError("too many labels, stages or metrics")
    return Kind(
        name(has["name"]),
        Noun(*map(name, has["noun"])),
        [Label(*map(name, label)) for label in labels],
        [_stage(mapping(one)) for one in stages],
        [_metric(mapping(one)) for one in metrics],
        unit=name(has["unit"]),
        book=name(has["book"]),
        ranked=flag(has["ranked"]),
        sized=flag(has["sized"]),
        squares=flag(has["squares"]),
        constants={name(key): text(value) for key, value in mapping(has["constants"]).items()},
        nested=flag(has["nested"]),
        fields=_fields(has),
        counters=_counters(has),
    )


def _fields(has: dict[str, Any]) -> Sequence[EventField]:
    """Earlier versions did not write them: what their events may have."""
    if "fields" not in has:
        names = _OBJECT_FIELDS if has["nested"] else _IO_FIELDS
        return (*TASK_FIELDS, *(EventField(one, str if one in _TEXTS else int) for one in names))
    return _declared(has["fields"])


def _declared(fields: Json) -> Sequence[EventField]:
    found = sequence(fields)
    if len(found) > _MOST_MEASURED:
        raise ValueError("too many fields")
    return [EventField(name(one), _TYPE_OF[of]) for one, of in found]


def _counters(has: dict[str, Any]) -> Sequence[CounterField]:
    """Without that of bytes, which follows from another field. Earlier versions did not write them."""
    found = sequence(has.get("counters", []))
    if len(found) > _MOST_MEASURED:
        raise ValueError("too many counters")
    made = [CounterField(name(one), text(about), name(unit)) for one, about, unit in found]
    return [one for one in made if one != BYTES_FIELD]


def _stage(has: dict[str, Any]) -> Stage:
    start, end = _point(has["start"]), _point(has["end"])
    if start is None or end is None:
        raise ValueError("a stage has two points")
    description, meaning, advice = (text(has[name]) for name in ("description", "meaning", "advice"))
    return Stage(name(has["name"]), start, end, description, meaning, advice, flag(has["rare"]))


def _metric(has: dict[str, Any]) -> Metric:
    description, meaning = text(has["description"]), text(has["meaning"])
    # Captures of before it was called so have it as "inside".
    interference = flag(has["interference"] if "interference" in has else has["inside"])
    part, rare = flag(has["part"]), flag(has["rare"])
    start, end = _point(has["start"]), _point(has["end"])
    return Metric(name(has["name"]), description, meaning, name(has["unit"]), interference, part, rare, start, end)


def _point(found: Json) -> Point | None:
    return None if found is None else Point(*map(name, sequence(found)))


# --- Values of labels -------------------------------------------------------------------------------------------------


def of_value(value: Any) -> Json:
    if isinstance(value, Owner):
        return {"owner": [str(value), value.seen]}
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Task):
        return {"task": list(value if value.again else value[:3])}
    if isinstance(value, Comm):
        return {"comm": value.comm}
    if isinstance(value, Stack):
        return {"stack": [list(value.kernel), list(value.user), value.process]}
    return {"all": True} if value is ALL else str(value)


def value(found: Json) -> Hashable:
    if found is None:
        return None
    if isinstance(found, str):
        return text(found)
    if not isinstance(found, dict):
        return signed(found)
    ((name, of),) = found.items()
    return _VALUES[name](of)


def _task(found: Json) -> Task:
    comm, pid, tid, *again = found
    return Task(text(comm), integer(pid), integer(tid), *map(integer, again))


def _stack(found: Json) -> Stack:
    kernel, user, process = found
    return Stack(tuple(map(text, sequence(kernel))), tuple(map(text, sequence(user))), text(process))


def _owner(found: Json) -> Owner:
    name, seen = found
    made = Owner(text(name))
    made.seen = text(seen)
    return made


_VALUES: dict[str, Callable[[Json], Hashable]] = {
    "task": _task,
    "comm": lambda found: Comm(text(found)),
    "stack": _stack,
    "owner": _owner,
    "all": lambda _: ALL,
}


class Numbering:
    """The writer's numbers of kinds and groups, and what a reader has to be told of them."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, int] = {}
        self._groups: dict[Group, int] = {}
        self._new: dict[str, Any] = {}
        self._from = [0, 0]
        """How many kinds and groups the reader knows."""

    def kind(self, kind: Kind) -> int:
        number = self._kinds.get(kind)
        if number is None:
            number = self._kinds[kind] = len(self._kinds)
            self._new.setdefault("kinds", []).append(of_kind(kind))
        return number

    def group(self, group: Group) -> int:
        number = self._groups.get(group)
        if number is None:
            of = self.kind(group.kind)
            number = self._groups[group] = len(self._groups)
            self._new.setdefault("groups", []).append([of, *map(of_value, group.values)])
        return number

    @property
    def full(self) -> bool:
        return len(self._groups) >= _MOST_GROUPS

    def forget(self) -> None:
        """The groups that a reader knows."""
        self._groups.clear()
        self._new = {"forget": True}
        self._from[1] = 0

    def new_names(self) -> dict[str, Any]:
        """Return what has come since the last call."""
        found, self._new = self._new, {}
        if found:
            found["from"], self._from = self._from, [len(self._kinds), len(self._groups)]
        return found


class Known:
    """The reader's kinds and groups by number."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self._groups: list[Group | None] = []
        self._unsure = False
        """Names are missing, and nobody knows how many."""

    def lose(self) -> None:
        """A frame that may have had names is gone."""
        self._unsure = True

    def learn(self, found: Json) -> None:
        has = mapping(found)
        if has.get("forget"):
            self._groups.clear()
        if self._unsure and "from" in has:
            self._skip(*map(integer, sequence(has["from"])))
        if self._unsure:
            # The numbers of these kinds are not known.
            return
        self.kinds += map(kind, sequence(has.get("kinds", [])))
        for of, *values in sequence(has.get("groups", [])):
            self._groups.append(self.kind(of).group(*map(value, values)))
        if len(self.kinds) > _MOST_KINDS or len(self._groups) > 2 * _MOST_GROUPS:
            raise ValueError("there are too many kinds or rows")

    def _skip(self, kinds: int, groups: int) -> None:
        """Up to the numbers that come now; what a lost frame had named is known to be missing."""
        if kinds != len(self.kinds) or groups > 2 * _MOST_GROUPS:
            raise ValueError("a kind is missing")
        self._groups += [None] * (groups - len(self._groups))
        self._unsure = False

    def kind(self, number: Any) -> Kind:
        return self.kinds[integer(number)]

    def group(self, number: Any) -> Group:
        found = None if self._unsure else self._groups[integer(number)]
        if found is None:
            raise LookupError("its name is in a frame that is lost")
        return found


# --- Figures ----------------------------------------------------------------------------------------------------------


def of_distribution(found: Distribution) -> Json:
    if isinstance(found, Tally):
        return {"counts": [number for pair in found.counts.items() for number in pair]}
    buckets = [number for slot, count in enumerate(found.buckets) if count for number in (slot, count)]
    return [found.count, found.sum, found.sumsq, found.min, found.max, int(found.exact), found.shrunk, *buckets]


def distribution(found: Json) -> Distribution:
    if isinstance(found, dict):
        counts = sequence(found["counts"])
        return Tally({integer(one): integer(count) for one, count in zip(counts[::2], counts[1::2])})
    count, total, squares, least, most, exact, shrunk, *buckets = sequence(found)
    made = Distribution()
    for slot, number in zip(buckets[::2], buckets[1::2]):
        made.buckets[integer(slot, SLOTS)] = integer(number)
    made.count, made.sum, made.sumsq = integer(count), integer(total, _WIDE), integer(squares, _SQUARES)
    made.min, made.max, made.exact, made.shrunk = integer(least), integer(most), bool(exact), integer(shrunk)
    # A cell that was read while its CPU wrote it may not add up.
    return made


def of_book(book: Book) -> Json:
    def causes(found: Mapping[Cause, int]) -> Json:
        return [[*cause, count] for cause, count in found.items()]

    return [book.started, book.finished, book.failed, book.carried, causes(book.lost), causes(book.noted)]


def book(found: Json) -> Book:
    made = Book()
    started, finished, failed, carried, lost, noted = sequence(found)
    made.started, made.finished, made.failed, made.carried = map(signed, (started, finished, failed, carried))
    made.lost, made.noted = _causes(lost), _causes(noted)
    return made


def _causes(found: Json) -> dict[Cause, int]:
    return {Cause(name(cause), text(words)): signed(count) for cause, words, count in sequence(found)}


def overhead(found: Json) -> Overhead:
    return Overhead(*map(signed, sequence(found)))


def of_spending(spent: Spending) -> Json:
    def step(one: Step) -> Json:
        return [savings.index(one.kind), one.one_in]

    steps = (*spent.shed, *(change.step for change in spent.changes))
    savings = list(dict.fromkeys((*spent.off_ns, *(one.kind for one in steps))))
    return {
        "limit": spent.limit,
        "cost": list(spent.cost),
        "worst": spent.worst,
        "savings": [[*one[:3], list(one.rates)] for one in savings],
        "shed": [step(one) for one in spent.shed],
        "off_ns": list(spent.off_ns.values()),
        "changes": [[one.at_ns, one.ts_ns, step(one.step), one.shed, list(one.cost)] for one in spent.changes],
        "refused": spent.refused,
        "exhausted": spent.exhausted,
    }


def spending(found: Json) -> Spending:
    has = mapping(found)
    savings = [
        Saving(text(name), text(less), text(gone), tuple(map(integer, sequence(rates))))
        for name, less, gone, rates in sequence(has["savings"])
    ]

    def step(one: Json) -> Step:
        number, one_in = one
        return Step(savings[integer(number)], integer(one_in))

    return Spending(
        real(has["limit"]),
        _cost(has["cost"]),
        real(has["worst"]),
        tuple(map(step, sequence(has["shed"]))),
        {saving: integer(ns) for saving, ns in zip(savings, sequence(has["off_ns"]))},
        tuple(
            Change(signed(at), signed(ts), step(one), flag(shed), _cost(cost))
            for at, ts, one, shed, cost in sequence(has["changes"])
        ),
        text(has["refused"]),
        flag(has["exhausted"]),
    )


def _cost(found: Json) -> Cost:
    programs, reader = found
    return Cost(None if programs is None else real(programs), real(reader))


def of_verdict(verdict: Verdict, numbers: Numbering) -> Json:
    return {
        "advice": verdict.advice,
        "findings": [
            [one.rule, one.figures, None if one.group is None else numbers.group(one.group), *one[3:]]
            for one in verdict.findings
        ],
    }


def verdict(found: Json, known: Known) -> Verdict:
    has = mapping(found)
    findings = []
    for rule, figures, group, stage, who, advice, *more in sequence(has["findings"]):
        numbers = {text(name): real(figure) for name, figure in mapping(figures).items()}
        of = None if group is None else known.group(group)
        # Captures of earlier versions lack them.
        parts = tuple((text(name), real(share)) for name, share in sequence(more[0] if more else []))
        findings.append(Finding(text(rule), numbers, of, text(stage), text(who), text(advice), parts))
    return Verdict(tuple(findings), text(has["advice"]))


def of_cells(group: Group, stages: Mapping[str, Distribution], numbers: Numbering) -> Json:
    return [numbers.group(group), {name: of_distribution(found) for name, found in stages.items()}]


def cells(found: Json, known: Known) -> tuple[Group, dict[str, Distribution]]:
    number, stages = found
    group = known.group(number)
    made = {text(name): distribution(one) for name, one in mapping(stages).items()}
    if any(name not in group.kind for name in made) or group.kind.total.name not in made:
        raise ValueError("it has a stage that is none of its kind, or no total")
    return group, made


# --- Starts and events ------------------------------------------------------------------------------------------------


def of_start(start: Start, numbers: Numbering) -> Json:
    return {
        "flow": start.flow,
        "level": start.level,
        "kernel": start.kernel,
        "filters": dict(start.filters),
        "sources": [list(one) for one in start.sources],
        "kinds": [numbers.kind(one) for one in start.kinds],
        "notes": list(start.notes),
        **({"fields": _of_fields(start.fields)} if start.fields else {}),
        **start.resource._asdict(),
    }


def _resource(has: Mapping[str, Any]) -> Resource:
    """Earlier versions wrote less of it."""
    host, machine, boot, version = (text(has.get(one, "")) for one in ("host", "machine", "boot", "version"))
    return Resource(host, machine, boot, version, tuple(map(text, sequence(has.get("command", [])))))


def start(found: Json, known: Known, file: str) -> Start:
    has = mapping(found)
    filters = mapping(has["filters"])
    if not all(map(_is_filter, filters.values())) or not _are_texts(filters.get("dev", [])):
        raise ValueError("the kind of a filter is unknown")
    for bound in filters.keys() & _BOUNDS:
        integer(filters[bound])
    return Start(
        name(has["flow"]),
        name(has["level"]),
        text(has["kernel"]),
        filters,
        [Source(text(stage), text(how)) for stage, how in sequence(has["sources"])],
        [known.kind(number) for number in sequence(has["kinds"])],
        [text(note) for note in sequence(has["notes"])],
        file,
        _resource(has),
        _declared(has.get("fields", [])),
    )


def _is_filter(found: Any) -> bool:
    """A word or a number, or a list of such, or of what has some of them by names."""
    if isinstance(found, list):
        return all(_is_plain(one) or (isinstance(one, dict) and all(map(_is_plain, one.values()))) for one in found)
    return _is_plain(found)


def _is_plain(found: Any) -> bool:
    return isinstance(found, (str, int))


def _are_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def of_event(event: Event, numbers: Numbering) -> Json:
    number = numbers.group(event.group)
    fields: list[Json] = [number, event.end_ns, event.total_ns, dict(event.stages), dict(event.fields)]
    if event.segments or event.children:
        children = [[dict(one.times), dict(one.fields)] for one in event.children]
        fields.append({"segments": [list(one) for one in event.segments], "more": event.more, "children": children})
    return fields


def event(found: Json, known: Known) -> Event:
    number, end_ns, total_ns, stages, fields, *trail = found
    times = {text(name): integer(ns) for name, ns in mapping(stages).items()}
    made = Event(known.group(number), moment(end_ns), integer(total_ns), times, mapping(fields))
    if not trail:
        return made
    (fields,) = map(mapping, trail)
    segments = [_segment(*one) for one in fields["segments"]]
    if any(one.to_ns != after.from_ns for one, after in zip(segments, segments[1:])):
        raise ValueError("segments do not follow one another")
    children = [_child(*one) for one in fields["children"]]
    return made._replace(segments=segments, more=integer(fields["more"]), children=children)


def _segment(stage: Json, from_ns: Json, to_ns: Json) -> Segment:
    found = Segment(text(stage), integer(from_ns), integer(to_ns))
    if not found.from_ns < found.to_ns:
        raise ValueError("a segment ends before it begins")
    return found


def _child(times: Json, fields: Json) -> Child:
    return Child({text(name): signed(ns) for name, ns in mapping(times).items()}, mapping(fields))


def of_in_flight(one: InFlight, numbers: Numbering) -> Json:
    return [numbers.group(one.group), one.age_ns, one.stage, dict(one.fields)]


def in_flight(found: Json, known: Known) -> InFlight:
    number, age_ns, stage, fields = found
    return InFlight(known.group(number), signed(age_ns), text(stage), mapping(fields))


def lists(found: Json) -> dict[str, Sequence[Mapping[str, Any]]]:
    return {text(name): [mapping(one) for one in sequence(some)] for name, some in mapping(found).items()}
