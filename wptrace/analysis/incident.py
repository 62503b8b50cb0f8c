# SPDX-License-Identifier: Apache-2.0
"""The slowest event of a recording, who was under way when its request was queued, and when it began to be slow.

A request waits for those that its device had before it, so what was under way then says more than what ended
meanwhile. It began with the first of those that were slow before it and follow one another closely: with no longer a
pause than the slowest itself took.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from math import isqrt
from typing import NamedTuple

from wptrace.analysis.overlap import Span
from wptrace.model.kind import OTHERS, Task
from wptrace.model.report import Beginning, Event, Incident, UnderWay

BEFORE, DEVICE, OUTSIDE = "before", "device", "outside"
MOST = 1 << 20
"""Of so many events it is known when they were where; the older half of them gives way to others."""
UNUSUAL = 4
"""What took so many times as long as usual has a beginning."""
_SHORTEST_NS = 1_000
_OWNERS = 20
_FEW = 8
_MOST_NAMES = 1 << 16


class _Alike(NamedTuple):
    """What many events have in common."""

    dev: str
    op: str
    owner: str


class _Part(NamedTuple):
    """Of an event: from when on, and how long."""

    at: int
    begin_ns: int
    ns: int

    @property
    def end_ns(self) -> int:
        return self.begin_ns + self.ns


class Incidents:
    """Takes all events in the order of their end."""

    def __init__(self, waited_for: Collection[str], on_device: Collection[str], most: int = MOST) -> None:
        """Name the kinds that somebody waits for, and the stages of requests."""
        self._waited_for, self._on_device, self._most = waited_for, on_device, most
        self._slowest: tuple[Event, Span | None] | None = None
        # Where it is in the columns; it may have given way.
        self._own = -1
        self._left = 0
        self._names: list[_Alike] = []
        self._numbers: dict[_Alike, int] = {}
        self._alike = array("i")
        # By the monotonic clock. One that made no request, or several, has 0.
        self._queued, self._issued, self._completed = array("q"), array("q"), array("q")
        self._end, self._bytes = array("q"), array("q")
        # How long it had no request under way; of what is a request itself -1.
        self._outside = array("q")
        self._columns = (
            self._alike, self._queued, self._issued, self._completed, self._end, self._bytes, self._outside,
        )  # fmt: skip

    def add(self, event: Event, span: Span | None, asked: bool = True) -> None:
        """`asked`: it may be the slowest one."""
        if asked and self._is_slower(event):
            self._slowest, self._own = (event, span), len(self._end)
        if span is None:
            fields, label = event.fields, event.group.label
            owner = str(Task(fields.get("comm", ""), fields.get("pid", 0), 0))
            row = (self._number(_Alike(str(label("dev")), str(label("op")), owner)), 0, 0, 0)
        else:
            row = (
                self._number(_Alike(span.dev, span.op, span.owner)), span.queued_ns, span.issued_ns, span.completed_ns,
            )  # fmt: skip
        more = (_end(event), 0 if span is None else span.bytes, self._apart(event))
        for column, value in zip(self._columns, (*row, *more)):
            column.append(value)
        if len(self._end) > self._most:
            half = self._most // 2
            for column in self._columns:
                del column[:half]
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
        """What somebody waited for comes before what nobody did."""
        if self._slowest is None:
            return True
        best = self._slowest[0]
        waited = event.group.kind.name in self._waited_for
        if waited != (best.group.kind.name in self._waited_for):
            return waited
        return event.total_ns > best.total_ns

    def _apart(self, event: Event) -> int:
        if event.group.kind.name not in self._waited_for:
            return -1
        stages = event.stages
        return event.total_ns - sum(stages[name] for name in self._on_device if name in stages)

    # --- What was found -----------------------------------------------------------------------------------------------

    def found(self) -> Incident | None:
        if self._slowest is None:
            return None
        event, span = self._slowest
        dev = str(event.group.label("dev")) if span is None else span.dev
        own = self._own
        if span is None:
            own = self._longest_of(event, dev)
        parts = self._parts_of(own, event)
        part = max(parts, key=lambda name: parts[name].ns)
        whole = _Part(own, _end(event) - event.total_ns, event.total_ns)
        if BEFORE in parts:
            queued_ns = parts[BEFORE].begin_ns
            whole = _Part(own, queued_ns, parts[DEVICE].end_ns - queued_ns)
        met, others = self._under_way(dev, whole, own)
        alike = [one for one in self._all(dev, part) if one.at != self._own]
        usual = self._usual(alike)
        op = self._names[self._alike[own]].op if own >= 0 else str(event.group.label("op"))
        wall_ns = event.end_ns - _end(event)
        return Incident(
            event,
            dev,
            part,
            parts[part].ns,
            usual.get(op, 0),
            whole.begin_ns + wall_ns,
            met,
            others,
            self._beginning(parts[part], op, alike, usual, wall_ns),
            self._left,
        )

    def _longest_of(self, event: Event, dev: str) -> int:
        """Of several requests of its task the one that took the longest meanwhile; -1: there is none."""
        until, task = _end(event), str(Task(event.fields.get("comm", ""), event.fields.get("pid", 0), 0))
        since = until - event.total_ns
        best, longest = -1, 0
        for at, queued in enumerate(self._queued):
            if queued >= since and self._completed[at] <= until and self._completed[at] - queued > longest:
                names = self._names[self._alike[at]]
                if names.dev == dev and names.owner == task:
                    best, longest = at, self._completed[at] - queued
        return best

    def _parts_of(self, own: int, event: Event) -> dict[str, _Part]:
        begin_ns, apart = _end(event) - event.total_ns, self._apart(event)
        found = {} if apart < 0 else {OUTSIDE: _Part(self._own, begin_ns, apart)}
        span = self._slowest[1] if self._slowest is not None else None
        if own >= 0 and self._queued[own]:
            queued, issued, completed = self._queued[own], self._issued[own], self._completed[own]
        elif span is not None:
            queued, issued, completed = span.queued_ns, span.issued_ns, span.completed_ns
        else:
            return found or {OUTSIDE: _Part(self._own, begin_ns, event.total_ns)}
        return {**found, BEFORE: _Part(own, queued, issued - queued), DEVICE: _Part(own, issued, completed - issued)}

    def _on(self, dev: str) -> list[bool]:
        """Whether it is this device, by the numbers of names."""
        return [one.dev == dev for one in self._names]

    def _all(self, dev: str, part: str) -> Iterator[_Part]:
        """The same part of all that are on the device."""
        on = self._on(dev)
        if part == OUTSIDE:
            for at, (number, end, ns) in enumerate(zip(self._alike, self._end, self._outside)):
                if ns >= 0 and on[number]:
                    yield _Part(at, end - ns, ns)
            return
        begins, ends = (self._queued, self._issued) if part == BEFORE else (self._issued, self._completed)
        for at, (number, begin, end) in enumerate(zip(self._alike, begins, ends)):
            if begin and on[number]:
                yield _Part(at, begin, end - begin)

    def _usual(self, parts: Collection[_Part]) -> dict[str, int]:
        """The medians, by operation; of a few that of all, as all of them may be slow ones."""
        found: dict[str, list[int]] = {}
        ops = [found.setdefault(one.op, []) for one in self._names]
        for part in parts:
            ops[self._alike[part.at]].append(part.ns)
        whole = _median([ns for values in found.values() for ns in values])
        return {op: _median(values) if len(values) >= _FEW else whole for op, values in found.items()}

    def _under_way(self, dev: str, slow: _Part, own: int) -> tuple[list[UnderWay], UnderWay | None]:
        """Of the others, while a slow one was on its way."""
        on = self._on(dev)
        since_ns, until_ns = slow.begin_ns, slow.end_ns
        found: dict[int, list[int]] = {}
        for at, (queued, completed) in enumerate(zip(self._queued, self._completed)):
            if queued and queued < until_ns and completed > since_ns and at != own and on[self._alike[at]]:
                counts = found.setdefault(self._alike[at], [0] * 5)
                first = 0 if queued <= since_ns else 3
                counts[first] += 1
                counts[first + 1] += self._bytes[at]
                counts[2] += self._issued[at] <= since_ns
        names = self._names
        rows = [UnderWay(names[number].owner, names[number].op, *counts) for number, counts in found.items()]
        rows.sort(key=lambda one: (-one.requests, -one.later))
        met, rest = rows[:_OWNERS], rows[_OWNERS:]
        return met, UnderWay(OTHERS, "", *map(sum, zip(*(one[2:] for one in rest)))) if rest else None

    def _beginning(
        self, slowest: _Part, op: str, parts: Collection[_Part], usual: dict[str, int], wall_ns: int
    ) -> Beginning | None:
        if slowest.ns < UNUSUAL * max(usual.get(op, 0), _SHORTEST_NS):
            return None
        # In the middle between what is usual and the slowest, as factors are compared.
        limits = {name: isqrt(max(ns, _SHORTEST_NS) * slowest.ns) for name, ns in usual.items()}
        least = [limits[one.op] for one in self._names]
        before = [one for one in parts if one.begin_ns <= slowest.begin_ns]
        slow = [one for one in before if one.ns >= least[self._alike[one.at]]]
        first = slowest
        for one in sorted(slow, key=lambda one: -one.end_ns):
            if one.end_ns < first.begin_ns - slowest.ns:
                break
            if one.begin_ns < first.begin_ns:
                first = one
        names = self._names[self._alike[first.at]] if first.at >= 0 else _Alike("", op, "")
        return Beginning(
            first.begin_ns + wall_ns,
            names.op,
            names.owner,
            first.ns,
            sum(one.begin_ns >= first.begin_ns for one in slow) + 1,
            sum(one.begin_ns >= first.begin_ns for one in before) + 1,
        )


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0


def _end(event: Event) -> int:
    """By the monotonic clock."""
    found: int = event.fields["clock"]["end_ns"]
    return found
