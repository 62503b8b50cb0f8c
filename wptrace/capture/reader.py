# SPDX-License-Identifier: Apache-2.0
"""Reads a capture, a frame at a time: one whose trace was cut off, and one that is still on its way, as well.

It trusts nothing of what it reads.
"""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

from wptrace.capture import columns, spec
from wptrace.capture.frames import (
    LONGEST_TEXT,
    LOST,
    SEGMENT,
    DamagedError,
    Frame,
    Kind,
    Reader,
    Stream,
    TornError,
    unpacked,
)
from wptrace.capture.layout import Described
from wptrace.capture.records import HEADER
from wptrace.errors import WptraceError
from wptrace.model import kind as model
from wptrace.model.anchor import Anchor, Outer
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL, Group
from wptrace.model.report import Event, InFlight, Report, Start, arranged

_Label = TypeVar("_Label")

# In a segment, and of all of them that differ.
_MOST_LAYOUTS, _MOST_DIFFERENT = 8, 64
_STACK_NUMBERS, _MOST_FUNCTIONS = 1 << 16, 128
_MOST_LABELS = 1 << 18
# The limits for the tables of a flight recorder.
_MOST_TASKS, _MOST_FILES, _MOST_ROWS = 1 << 16, 1 << 14, (1 << 14) + 1
_MOST_ANCHORS = 1 << 10
# Characters of all names that are known at a time, and of one layout.
_MOST_TEXT = 1 << 25
_LONGEST_LAYOUT = 1 << 18
# The longest name of a cgroup: a path has 4096 bytes at most.
_LONGEST_NAME = 1 << 13
_SHOWN = {"per_device": bool, "exact": bool, "hist": str, "top": int}
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error)
"""Errors raised by bytes that no writer wrote."""


class Records(NamedTuple):
    number: int
    wall_offset_ns: int
    rows: bytearray


class Found(NamedTuple):
    """Requests in flight at a moment."""

    ts_ns: int
    found: list[InFlight]


class NextTrace(NamedTuple):
    """The items behind it are those of another trace: captures were put one behind the other."""


Item = Union[Records, "list[Event]", Found, Report, NextTrace]


class Head(NamedTuple):
    """Facts about the whole capture."""

    start: Start
    view: str
    """The name of the view."""
    verdict_kinds: tuple[model.Kind, ...]
    shown: dict[str, Any]
    """Wanted parts of tables, by the names of outputs.registry.Wanted."""
    each: bool
    """Every event was to be recorded."""
    intervals: bool
    """The user chose an interval."""
    has_events: bool
    """There are events in it."""
    whole: bool
    """Whether it has its end."""
    began_ns: int
    """Time of day."""
    anchors: tuple[Anchor, ...] = ()
    boot: str = ""
    """The boot id of its machine."""
    traces: int = 1
    """How many traces follow one another."""
    partial: Collection[int] = ()
    """The traces that lack segments."""
    of_events: bool = False
    """Its figures are those of its events."""


class _Labels(OrderedDict[int, _Label]):
    """The meanings of numbers in records; the oldest are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self._text = 0

    def learn(self, number: int, label: _Label) -> None:
        self._text += len(str(label)) - len(str(self.pop(number, "")))
        self[number] = label

    def forget(self) -> None:
        while len(self) > _MOST_LABELS or self._text > _MOST_TEXT:
            self._text -= len(str(self.popitem(last=False)[1]))


class _Frames:
    """Decodes frames, wherever they come from."""

    most_bytes = columns.MOST_BYTES
    """The limit of the records in a frame."""

    def __init__(self, file: Reader | Stream) -> None:
        self._from = file
        self.layouts: list[Described] = []
        self._begin_segment()
        self.cgroups: _Labels[str] = _Labels()
        self.statements: _Labels[Any] = _Labels()
        """Labels of owners by what records have; None for a program by its name."""
        self.stacks: dict[int, tuple[str, Sequence[str]]] = {}
        """Stacks of waits by the number in records: reason and functions."""
        self.tasks: dict[int, tuple[int, str, str]] = {}
        """Process, cgroup and name by thread."""
        self.files: dict[tuple[int, int], str] = {}
        """Paths by device and inode."""
        self.rows: dict[int, Sequence[Any]] = {}
        """Values of labels by the number of a row, in a dump of objects."""
        self.anchors: list[Anchor] = []
        self._boot = ""
        self._learnt = self._stack_text = 0

    def _begin_segment(self) -> None:
        self._known = spec.Known()
        self._numbers: list[int] = []
        """The index of each of the segment's layouts among all layouts."""

    def close(self) -> None:
        self._from.close()

    def _read_head(self, has: dict[str, Any], known: spec.Known, began_ns: int) -> Head:
        shown = spec.mapping(has["shown"])
        if any(type(shown.get(name, of())) is not of for name, of in _SHOWN.items()) or shown.keys() - _SHOWN:
            raise ValueError("an option of what was shown is unknown")
        start = spec.start(has, known, str(self._from.path))
        if not any(kind.book == REQUESTS for kind in start.kinds):
            raise ValueError("the trace has no kind of what it follows")
        return Head(
            start,
            spec.text(has["view"]),
            tuple(known.kind(number) for number in spec.sequence(has["judged"])),
            shown,
            spec.flag(has["each"]),
            spec.flag(has["intervals"]),
            has_events=False,
            whole=False,
            began_ns=spec.moment(has["began_ns"]) if "began_ns" in has else began_ns,
            of_events=spec.flag(has.get("of_events", False)),
        )

    def _item(self, frame: Frame, parts: _Parts, records: bool, intervals: bool = False) -> Item | None:
        if frame.kind == Kind.INTERVAL and not intervals:
            return None
        if frame.kind == Kind.NAMES:
            self._names(unpacked(self._from.payload(frame), LONGEST_TEXT))
        elif frame.kind == Kind.LAYOUT:
            self._described(_json(unpacked(self._from.payload(frame), _LONGEST_LAYOUT)))
        elif frame.kind in (Kind.RECORDS, Kind.EVENTS) and not records:
            return None
        elif frame.kind == Kind.RECORDS:
            return self._records(self._from.payload(frame))
        elif frame.kind == Kind.EVENTS:
            return [spec.event(one, self._known) for one in spec.sequence(self._json(frame))]
        elif frame.kind == Kind.IN_FLIGHT:
            has = self._json(frame)
            found = [spec.in_flight(one, self._known) for one in spec.sequence(has["found"])]
            return Found(spec.moment(has["ts_ns"]), found)
        elif frame.kind in (Kind.INTERVAL, Kind.SUMMARY):
            return parts.add(spec.mapping(self._json(frame)), self._known)
        else:
            # A frame of a kind that says nothing more here is part of what was written all the same.
            self._from.payload(frame)
        return None

    def _names(self, text: bytes) -> None:
        has = _json(text)
        self._known.learn(has)
        if has.get("kinds") or has.get("groups") or has.get("forget"):
            self._learnt = len(text) + (0 if has.get("forget") else self._learnt)
        if self._learnt > _MOST_TEXT:
            raise ValueError("there are too many names")
        for number, name in spec.mapping(has.get("cgroups", {})).items():
            key = spec.integer(int(number))
            if len(spec.text(name)) > _LONGEST_NAME:
                raise ValueError("no cgroup has this name")
            self.cgroups.learn(key, name)
        for number, label in spec.mapping(has.get("statements", {})).items():
            key, owner = spec.integer(int(number)), spec.value(label)
            if len(str(owner)) > _LONGEST_NAME:
                raise ValueError("too long a statement")
            self.statements.learn(key, owner)
        for number, stack in spec.mapping(has.get("waits", {})).items():
            reason, *functions = map(spec.text, spec.sequence(stack))
            key = spec.integer(int(number))
            before = self.stacks.get(key)
            self._stack_text += _length(reason, functions) - (0 if before is None else _length(*before))
            if len(functions) > _MOST_FUNCTIONS or self._stack_text > _MOST_TEXT or not 0 < key < _STACK_NUMBERS:
                raise ValueError("there are too many waits")
            if any(len(name) > _LONGEST_NAME for name in (reason, *functions)):
                raise ValueError("no function has this name")
            self.stacks[key] = reason, functions
        for number, task in spec.mapping(has.get("tasks", {})).items():
            pid, cgroup, comm = spec.sequence(task)
            self.tasks[spec.integer(int(number))] = spec.integer(pid), spec.path(cgroup), spec.path(comm)
        for file, path in spec.mapping(has.get("files", {})).items():
            dev, _, inode = file.partition(":")
            self.files[spec.integer(int(dev)), spec.integer(int(inode))] = spec.path(path)
        for number, values in spec.mapping(has.get("rows", {})).items():
            self.rows[spec.integer(int(number))] = [_of_label(one) for one in spec.sequence(values)]
        if len(self.tasks) > _MOST_TASKS or len(self.files) > _MOST_FILES or len(self.rows) > _MOST_ROWS:
            raise ValueError("there are too many names")
        for number, devices in spec.mapping(has.get("devices", {})).items():
            # The decoder of the layout's records shares this list.
            names = self.layouts[self._numbers[spec.integer(int(number))]].names
            found = [spec.text(name) for name in spec.sequence(devices)]
            if len(found) != len(names) or any(len(name) > _LONGEST_NAME for name in found):
                raise ValueError("there are other slots")
            names[:] = found
        self.cgroups.forget()
        self.statements.forget()

    def _clock(self, has: Mapping[str, Any]) -> int:
        """The time of day. One that is computed from others says no more."""
        day = spec.moment(has["realtime_ns"])
        if "monotonic_ns" in has and len(self.anchors) < _MOST_ANCHORS:
            self._boot = self._boot or spec.text(has.get("boot_id", ""))
            error, below = has.get("error_ns"), has.get("below")
            self.anchors.append(
                Anchor(
                    spec.integer(has["monotonic_ns"]),
                    day,
                    None if error is None else spec.integer(error),
                    None if below is None else Outer(*map(spec.integer, spec.sequence(below))),
                )
            )
        return day

    def _described(self, has: Mapping[str, Any]) -> None:
        if has["number"] != len(self._numbers) or len(self._numbers) >= _MOST_LAYOUTS:
            raise ValueError("layouts are not in order")
        found = Described(has)
        place = next((at for at, one in enumerate(self.layouts) if one == found and at not in self._numbers), None)
        if place is None:
            place = len(self.layouts)
            self.layouts.append(found)
        if place >= _MOST_DIFFERENT:
            raise ValueError("there are too many layouts")
        # The decoder of its records shares this list.
        self.layouts[place].names[:] = found.names
        self._numbers.append(place)

    def _records(self, data: bytes) -> Records:
        number, count, offset = HEADER.unpack_from(data)
        number = self._numbers[number]
        stride = self.layouts[number].stride
        if not 0 < count * stride <= self.most_bytes:
            raise ValueError("there are too many records")
        found = unpacked(data[HEADER.size :], columns.longest(stride, count))
        return Records(number, offset, columns.unpack(found, stride, count))

    def _json(self, frame: Frame) -> Any:
        return _json(unpacked(self._from.payload(frame), LONGEST_TEXT))

    @contextmanager
    def _sound(self, frame: Frame) -> Iterator[None]:
        try:
            yield
        except _NONSENSE:
            raise DamagedError(self._from.path, frame.place) from None


class _Made:
    """Facts about a capture, segment by segment."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.head: Head | None = None
        self.started = False
        """The start of this segment was there."""
        self.seen: set[int] = set()
        self.began_ns = self.traces = self.ends = 0
        self.partial: set[int] = set()
        self._trace, self._next = "", 0
        self._filters: list[Mapping[str, Any]] = []

    def add(self, head: Head, trace: str, segment: int) -> None:
        self.started = True
        if not trace or trace != self._trace or self.head is None:
            self.traces += 1
            self._trace, self._next = trace, 0
            if head.start.filters not in self._filters and len(self._filters) < 2:
                self._filters.append(head.start.filters)
        if segment != self._next:
            self.partial.add(self.traces - 1)
        self._next = segment + 1
        if self.head is None:
            self.head = head
        elif _followed(head) != _followed(self.head):
            raise WptraceError(f"{self._file} has traces of different flows: replay them one by one")

    def notes(self) -> list[str]:
        found = []
        if self.traces > 1:
            found.append(f"the capture was put together from {self.traces} traces")
        if len(self._filters) > 1:
            found.append("they had different filters: those of the first one are shown")
        if self.partial:
            found.append("segments of the capture are missing: figures are those of the intervals that are there")
        if self.ends < self.traces:
            whose = "its trace was" if self.traces == 1 else f"{self.traces - self.ends} of them were"
            found.append(f"the capture has no end: {whose} cut off, and its last results may be missing")
        return found


def _followed(head: Head) -> Any:
    return head.start.flow, head.start.level, head.start.kinds


def _segment(has: Any) -> tuple[str, int]:
    """Return the trace of a segment and its number; earlier versions wrote one segment without a name."""
    found = spec.mapping(has)
    return spec.text(found.get("trace", "")), spec.integer(found.get("segment", 0))


class Capture(_Frames):
    head: Head
    damaged = 0
    """Frames that could not be read by the last iteration: damaged ones, and those that need names of these."""

    def __init__(self, path: Path) -> None:
        self._file = Reader(path)
        super().__init__(self._file)
        try:
            self.head = self._head()
        except WptraceError:
            self.close()
            raise

    def _head(self) -> Head:
        made = _Made(str(self._file.path))
        first: Frame | None = None
        torn = False
        try:
            for frame in self._file.frames():
                if frame.kind == SEGMENT:
                    self._begin_segment()
                    made.started = False
                if frame.kind in (LOST, Kind.START):
                    first = frame
                torn = torn or frame.kind == LOST or (frame.kind == Kind.SUMMARY and not self._file.sound(frame))
                with suppress(TornError), self._sound(frame):
                    self._read_about(frame, made)
        except DamagedError:
            # The file is whole up to there.
            if made.head is None:
                raise
        if made.head is None and first is not None:
            raise DamagedError(self._file.path, first.place)
        if made.head is None:
            raise WptraceError(f"{self._file.path} has no start: its trace was cut off before it began")
        start = made.head.start
        return made.head._replace(
            start=start._replace(notes=[*start.notes, *made.notes()]),
            whole=made.ends == made.traces and not torn and not made.partial,
            has_events=bool(made.seen & {Kind.RECORDS, Kind.EVENTS}),
            anchors=tuple(self.anchors),
            boot=self._boot,
            traces=made.traces,
            partial=frozenset(made.partial),
        )

    def _read_about(self, frame: Frame, made: _Made) -> None:
        made.seen.add(frame.kind)
        if frame.kind == Kind.END:
            made.ends += 1
        elif frame.kind == Kind.NAMES and not made.started:
            self._known.learn(self._json(frame))
        elif frame.kind == Kind.CLOCK:
            day = self._clock(self._json(frame))
            made.began_ns = made.began_ns if made.head is not None else day
        elif frame.kind == Kind.START and not made.started:
            has = self._json(frame)
            made.add(self._read_head(has, self._known, made.began_ns), *_segment(has))

    def items(self, records: bool = True, intervals: bool = True) -> Iterator[Item]:
        """Generate the items in the order in which they were written, without unwanted ones."""
        self._begin_segment()
        parts = _Parts()
        self.damaged = 0
        trace: str | None = None
        for frame in self._file.frames():
            found: Item | None = None
            if frame.kind == SEGMENT:
                self._begin_segment()
                parts = _Parts()
                continue
            if frame.kind == LOST:
                self._lose(frame, parts)
                continue
            try:
                with self._sound(frame):
                    if frame.kind == Kind.START:
                        before, (trace, _) = trace, _segment(self._json(frame))
                        found = NextTrace() if before is not None and (not trace or trace != before) else None
                    else:
                        found = self._item(frame, parts, records, intervals)
            except TornError:
                self._lose(frame, parts)
            except DamagedError:
                # Without what a lost frame had named, others make no sense; where no frame was lost, somebody has
                # forged them.
                if not self.damaged:
                    raise
                self._lose(frame, parts)
            if found is not None:
                yield found

    def _lose(self, frame: Frame, parts: _Parts) -> None:
        self.damaged += 1
        if frame.kind in (LOST, Kind.INTERVAL, Kind.SUMMARY):
            parts.lose()
        if frame.kind in (LOST, Kind.NAMES):
            self._known.lose()


class Arriving(_Frames):
    """A capture that arrives through a channel. Its head is known once the start has come."""

    # The bytes that are decoded at once, while nobody looks at the host's own ring. A writer packs half of it.
    most_bytes = 1 << 21

    def __init__(self, path: Path) -> None:
        self._stream = Stream(path)
        super().__init__(self._stream)
        self._began_ns = 0
        self._trace = ""
        self.head: Head | None = None
        self.ended = False
        """Its trace is over."""

    def feed(self, data: bytes) -> Iterator[Records]:
        """Return the events in these bytes; reports and requests in flight are passed over."""
        for frame in self._stream.feed(data):
            if frame.kind == SEGMENT:
                self._begin_segment()
                continue
            with self._sound(frame):
                found = self._of(frame)
            if found is not None:
                yield found
            if self.ended:
                return

    def _of(self, frame: Frame) -> Records | None:
        if frame.kind == Kind.CLOCK:
            day = self._clock(self._json(frame))
            self._began_ns = self._began_ns or day
        elif frame.kind == Kind.START:
            has = self._json(frame)
            trace, _ = _segment(has)
            if self.head is not None and (not trace or trace != self._trace):
                raise WptraceError(f"another trace begins in {self._from.path}", "each needs a channel of its own")
            self._trace = trace
            if self.head is None:
                self.head = self._read_head(has, self._known, self._began_ns)._replace(has_events=True)
        elif frame.kind == Kind.END:
            self.ended = True
        elif frame.kind in (Kind.NAMES, Kind.LAYOUT, Kind.RECORDS):
            return self._item(frame, _Parts(), records=True)  # type: ignore[return-value]
        else:
            self._from.payload(frame)
        return None


def _of_label(value: Any) -> str | int:
    return spec.path(value) if isinstance(value, str) else spec.signed(value)


def _length(reason: str, functions: Sequence[str]) -> int:
    return len(reason) + sum(map(len, functions))


def _json(text: bytes) -> Any:
    return json.loads(text, parse_constant=_no_number)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


class _Parts:
    """Frames of a report, until it is whole."""

    _MOST = 1 << 16

    def __init__(self) -> None:
        self._count = 0
        self._cells: dict[Group, dict[str, Distribution]] = {}
        self._counters: dict[Group, dict[str, int]] = {}
        self._torn = False
        self._number: int | None = None
        self._there = 0
        """How many frames there are of the report with this number."""

    def lose(self) -> None:
        """A frame that may have been a part of the report is gone: what it had is not a report any more."""
        self._torn = True

    def add(self, has: Mapping[str, Any], known: spec.Known) -> Report | None:
        number = has.get("report")
        if number is not None and number != self._number:
            # The end of the one before is lost.
            self._cells, self._counters, self._count, self._there = {}, {}, 0, 0
            self._number = spec.integer(number)
        for one in spec.sequence(has.get("rows", [])):
            group, stages = spec.cells(one, known)
            if TOTAL not in stages:
                raise ValueError("it has no total")
            self._cells[group] = stages
            self._count += len(stages)
        for number, counts in spec.sequence(has.get("counters", [])):
            found = {spec.text(name): spec.signed(count) for name, count in spec.mapping(counts).items()}
            self._counters[known.group(number)] = found
        if self._count + len(self._counters) > self._MOST:
            raise ValueError("there are too many rows")
        if "kind" not in has:
            self._there += 1
            return None
        if "parts" in has:
            self._torn = self._torn and has["parts"] != self._there
        cells, counters, torn = self._cells, self._counters, self._torn
        self._cells, self._counters, self._count, self._torn = {}, {}, 0, False
        if torn:
            return None
        if has["kind"] not in ("interval", "summary"):
            raise ValueError("the kind of report is unknown")
        books = {spec.text(name): spec.book(found) for name, found in spec.mapping(has["books"]).items()}
        if REQUESTS not in books:
            raise ValueError("it has no book of what is followed")
        return Report(
            has["kind"],
            spec.moment(has["ts_ns"]),
            spec.integer(has["duration_ns"]),
            books,
            arranged(cells, known.kinds),
            counters,
            spec.overhead(has["overhead"]),
            verdict=spec.verdict(has["verdict"], known) if "verdict" in has else None,
            budget=spec.spending(has["budget"]) if "budget" in has else None,
            lists=spec.lists(has["lists"]),
        )
