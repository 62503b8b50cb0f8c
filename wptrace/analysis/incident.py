# SPDX-License-Identifier: Apache-2.0
"""The slowest event of a recording, who was under way when its request was queued, and when it began to be slow.

A request waits for those that its device had before it, so what was under way then says more than what ended
meanwhile. It began with the first of those that were slow before it and follow one another closely: with no longer a
pause than the slowest itself took. It lasted until the last of those that followed it in the same way.

If all others of its kind came with it, their median says how long it takes while it is slow, and not how long as a
rule. Then the median of other operations before them is all there is to compare with; it is no measure for this kind,
so only other kinds may have become slow before the slowest did.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from math import isqrt
from typing import NamedTuple

from wptrace.analysis.overlap import Span
from wptrace.model.kind import OTHERS, Task
from wptrace.model.report import Beginning, Event, Incident, UnderWay

BEFORE, DEVICE, OUTSIDE = "before", "device", "outside"
MOST = 1 << 20
"""The most events whose times are kept; the older half is dropped when there are more."""
UNUSUAL = 4
"""A beginning is looked for if an event took this many times as long as usual."""
_SHORTEST_NS, _NEVER = 1_000, 1 << 64
_OWNERS = 20
_FEW = 8
_MOST_NAMES = 1 << 16


class _Alike(NamedTuple):
    """The attributes that many events share."""

    dev: str
    op: str
    owner: str


class _Part(NamedTuple):
    """The start and length of an event."""

    at: int
    begin_ns: int
    ns: int

    @property
    def end_ns(self) -> int:
        return self.begin_ns + self.ns


class _Columns(NamedTuple):
    """Times by the monotonic clock. Operations with no request or several have 0."""

    alike: array[int]
    """The number of the attributes that it shares with others."""
    queued: array[int]
    issued: array[int]
    completed: array[int]
    end: array[int]
    bytes: array[int]
    outside: array[int]
    """How long it had no request in flight; -1 for a request."""


_WIDE = len(_Columns._fields)


class Incidents:
    """Takes all events in the order of their end."""

    def __init__(self, waited_for: Collection[str], on_device: Collection[str], most: int = MOST) -> None:
        """Name the kinds that somebody waits for, and the stages of requests."""
        self._waited_for, self._on_device, self._most = waited_for, on_device, most
        self._slowest: tuple[Event, Span | None] | None = None
        # Its index in the columns; it may have been dropped.
        self._own = -1
        self._left = 0
        self._names: list[_Alike] = []
        self._numbers: dict[_Alike, int] = {}
        self._rows = array("q")
        """The values of `_Columns` for each event."""

    def add(self, event: Event, span: Span | None, asked: bool = True) -> None:
        """`asked`: it may be the slowest one."""
        if asked and self._is_slower(event):
            self._slowest, self._own = (event, span), len(self._rows) // _WIDE
        waited = event.group.kind.name in self._waited_for
        end_ns = event.fields["clock"]["end_ns"]
        if span is None:
            fields, label = event.fields, event.group.label
            owner = str(Task(fields.get("comm", ""), fields.get("pid", 0), 0))
            number = self._number(_Alike(str(label("dev")), str(label("op")), owner))
            self._rows.fromlist([number, 0, 0, 0, end_ns, 0, self._apart(event) if waited else -1])
        else:
            dev, op, owner, size, queued, issued, completed = span
            apart = event.total_ns - (completed - queued) if waited else -1
            number = self._number(_Alike(dev, op, owner))
            self._rows.fromlist([number, queued, issued, completed, end_ns, size, apart])
        if len(self._rows) > self._most * _WIDE:
            half = self._most // 2
            del self._rows[: half * _WIDE]
            self._left += half
            self._own -= half

    def _number(self, alike: _Alike) -> int:
        number = self._numbers.get(alike)
        if number is None:
            if len(self._names) >= _MOST_NAMES and alike.owner != OTHERS:
                return self._number(alike._replace(owner=OTHERS))
            number = self._numbers[alike] = len(self._names)
            self._names.append(alike)
        return number

    def _is_slower(self, event: Event) -> bool:
        """Whether an event is the slowest so far; one that a task waited for outranks any that none did."""
        if self._slowest is None:
            return True
        best = self._slowest[0]
        waited = event.group.kind.name in self._waited_for
        if waited != (best.group.kind.name in self._waited_for):
            return waited
        return event.total_ns > best.total_ns

    def _apart(self, event: Event) -> int:
        stages = event.stages
        return event.total_ns - sum(stages[name] for name in self._on_device if name in stages)

    def found(self) -> Incident | None:
        if self._slowest is None:
            return None
        columns = _Columns(*(self._rows[at::_WIDE] for at in range(_WIDE)))
        event, span = self._slowest
        apart = self._apart(event) if event.group.kind.name in self._waited_for else -1
        return _Look(columns, self._names, self._own, event, span, apart).incident(self._left)


class _Look(NamedTuple):
    """A view of the slowest event, `apart` for its time outside of the columns, and of the others."""

    columns: _Columns
    names: Sequence[_Alike]
    own: int
    """Its index in the columns, unless it was dropped."""
    event: Event
    span: Span | None
    apart: int

    def incident(self, left: int) -> Incident:
        event, dev = self.event, self.dev
        request = self.own if self.span is not None else self._longest_of()
        parts = self._parts(request)
        part = max(parts, key=lambda name: parts[name].ns)
        whole = _Part(request, _end(event) - event.total_ns, event.total_ns)
        if part != OUTSIDE:
            queued_ns = parts[BEFORE].begin_ns
            whole = _Part(request, queued_ns, parts[DEVICE].end_ns - queued_ns)
        shown, others = self._under_way(whole)
        alike = [one for one in self._all(part) if one.at != self.own]
        usual = self._usual(alike)
        op = self._name(request, str(event.group.label("op"))).op
        before = 0 if part == OUTSIDE else self._before(parts[part], op, alike, usual)
        beginning = self._beginning(parts[part], op, alike, usual, known=not before)
        wall_ns = event.end_ns - _end(event)
        return Incident(
            event,
            dev,
            part,
            parts[part].ns,
            usual.get(op, 0),
            whole.begin_ns + wall_ns,
            shown,
            others,
            None
            if beginning is None
            else beginning._replace(begin_ns=beginning.begin_ns + wall_ns, until_ns=beginning.until_ns + wall_ns),
            left,
            before,
        )

    @property
    def dev(self) -> str:
        return str(self.event.group.label("dev")) if self.span is None else self.span.dev

    def _name(self, at: int, op: str = "") -> _Alike:
        """Return what the object is; it may be in no column."""
        return self.names[self.columns.alike[at]] if at >= 0 else _Alike(self.dev, op, "")

    def _longest_of(self) -> int:
        """Return the task's request that took longest meanwhile; -1 for none."""
        fields = self.event.fields
        until, task = _end(self.event), str(Task(fields.get("comm", ""), fields.get("pid", 0), 0))
        since, dev = until - self.event.total_ns, self.dev
        mine = [one.dev == dev and one.owner == task for one in self.names]
        best, longest = -1, 0
        for at, (number, queued, _, completed, *_others) in enumerate(zip(*self.columns)):
            if queued >= since and completed <= until and completed - queued > longest and mine[number]:
                best, longest = at, completed - queued
        return best

    def _parts(self, request: int) -> dict[str, _Part]:
        found = {}
        if self.apart >= 0:
            found[OUTSIDE] = _Part(self.own, _end(self.event) - self.event.total_ns, self.apart)
        if self.span is not None:
            queued, issued, completed = self.span[-3:]
        elif request >= 0:
            columns = self.columns
            queued, issued, completed = columns.queued[request], columns.issued[request], columns.completed[request]
        else:
            # For a lone request whose times are not known, all of it counts.
            return found or {OUTSIDE: _Part(self.own, _end(self.event) - self.event.total_ns, self.event.total_ns)}
        found[BEFORE], found[DEVICE] = (
            _Part(request, begin, end - begin) for begin, end in ((queued, issued), (issued, completed))
        )
        return found

    def _on(self) -> list[bool]:
        """Whether each number of a name is of this device."""
        dev = self.dev
        return [one.dev == dev for one in self.names]

    def _all(self, part: str) -> Iterator[_Part]:
        """Generate the same part of all objects on the device."""
        on, columns = self._on(), self.columns
        if part == OUTSIDE:
            for at, (number, end, ns) in enumerate(zip(columns.alike, columns.end, columns.outside)):
                if ns >= 0 and on[number]:
                    yield _Part(at, end - ns, ns)
            return
        points = (columns.queued, columns.issued) if part == BEFORE else (columns.issued, columns.completed)
        for at, (number, begin, end) in enumerate(zip(columns.alike, *points)):
            if begin and on[number]:
                yield _Part(at, begin, end - begin)

    def _usual(self, parts: Collection[_Part]) -> dict[str, int]:
        """The medians, by operation; of a few that of all, as all of them may be slow ones."""
        found: dict[str, list[int]] = {}
        ops = [found.setdefault(one.op, []) for one in self.names]
        for part in parts:
            ops[self.columns.alike[part.at]].append(part.ns)
        whole = _median([ns for values in found.values() for ns in values])
        return {op: _median(values) if len(values) >= _FEW else whole for op, values in found.items()}

    def _before(self, slowest: _Part, op: str, parts: Collection[_Part], usual: dict[str, int]) -> int:
        """The median of other kinds before the first of its own; 0 if its own kind has a baseline, or they have none.

        It has none if all of them took about as long, other kinds took much less before, and that was the longer time.
        """
        alike, names = self.columns.alike, self.names
        mine = [one.begin_ns for one in parts if names[alike[one.at]].op == op]
        if not mine or self._is_unusual(slowest.ns, usual.get(op, 0)):
            return 0
        first_ns, last_ns = min(*mine, slowest.begin_ns), max(*mine, slowest.begin_ns)
        earlier = [one for one in parts if one.end_ns <= first_ns]
        if len(earlier) < _FEW or first_ns - min(one.begin_ns for one in earlier) <= last_ns - first_ns:
            return 0
        found = _median([one.ns for one in earlier])
        return found if self._is_unusual(usual.get(op, 0), found) else 0

    @staticmethod
    def _is_unusual(ns: int, usual: int) -> bool:
        return ns >= UNUSUAL * max(usual, _SHORTEST_NS)

    def _under_way(self, slow: _Part) -> tuple[list[UnderWay], UnderWay | None]:
        """Return what others had under way during a slow one."""
        on, names = self._on(), self.names
        since_ns, until_ns = slow.begin_ns, slow.end_ns
        found: dict[int, list[int]] = {}
        for at, (number, queued, issued, completed, _, size, _) in enumerate(zip(*self.columns)):
            if queued and queued < until_ns and completed > since_ns and at != slow.at and on[number]:
                counts = found.setdefault(number, [0] * 5)
                first = 0 if queued <= since_ns else 3
                counts[first] += 1
                counts[first + 1] += size
                counts[2] += issued <= since_ns
        rows = [UnderWay(names[number].owner, names[number].op, *counts) for number, counts in found.items()]
        rows.sort(key=lambda one: (-one.requests, -one.later))
        shown, rest = rows[:_OWNERS], rows[_OWNERS:]
        return shown, UnderWay(OTHERS, "", *map(sum, zip(*(one[2:] for one in rest)))) if rest else None

    def _beginning(
        self, slowest: _Part, op: str, parts: Collection[_Part], usual: dict[str, int], known: bool
    ) -> Beginning | None:
        """Unless it is `known` how long its own kind takes, only others may have begun it."""
        if not parts or (known and not self._is_unusual(slowest.ns, usual.get(op, 0))):
            return None
        # The limit is in the middle between the usual time and the slowest one, as factors are compared.
        limits = {name: isqrt(max(ns, _SHORTEST_NS) * slowest.ns) for name, ns in usual.items()}
        if not known:
            limits[op] = _NEVER
        least = [limits[one.op] for one in self.names]
        before = [one for one in parts if one.begin_ns <= slowest.begin_ns]
        every = [one for one in parts if one.ns >= least[self.columns.alike[one.at]]]
        slow = [one for one in every if one.begin_ns <= slowest.begin_ns]
        first = slowest
        for one in sorted(slow, key=lambda one: -one.end_ns):
            if one.end_ns < first.begin_ns - slowest.ns:
                break
            if one.begin_ns < first.begin_ns:
                first = one
        if first is slowest and not known:
            return None
        after, until_ns = 0, slowest.end_ns
        for one in sorted(every, key=lambda one: one.begin_ns)[len(slow) :]:
            if one.begin_ns > until_ns + slowest.ns:
                break
            after, until_ns = after + 1, max(until_ns, one.end_ns)
        name = self._name(first.at, op)
        return Beginning(
            first.begin_ns,
            name.op,
            name.owner,
            first.ns,
            sum(one.begin_ns >= first.begin_ns for one in slow) + 1,
            sum(one.begin_ns >= first.begin_ns for one in before) + 1,
            after,
            until_ns,
        )


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0


def _end(event: Event) -> int:
    """Return the end by the monotonic clock."""
    found: int = event.fields["clock"]["end_ns"]
    return found
