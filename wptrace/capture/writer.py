# SPDX-License-Identifier: Apache-2.0
"""Writes a capture: an output beside others, which a flow hands its records besides, as they lie in the ring."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from wptrace.bpf.ring import HEADER as ENTRY
from wptrace.capture import columns, spec, zstd
from wptrace.capture.frames import LONGEST_TEXT, Kind, Writer, packed
from wptrace.capture.layout import facts
from wptrace.capture.records import HEADER, Names, Raw
from wptrace.kernel.clock import boot_id, day_and_time, realtime_error_ns, time_below, wall_offset_ns
from wptrace.kernel.files import first_line
from wptrace.model import kind as model
from wptrace.model.book import Cause
from wptrace.model.report import Event, InFlight, Report, Start

# The limits of what is not in the file yet: bytes of records or characters of events, and its age.
_BUFFERED = 1 << 21
_PIECE = 1 << 20
_OLDEST_S = 1.0
# Clocks drift: seldom by more than a microsecond in that time.
_ANCHORED_S = 10.0
# The number of entries that are kept of a list that nobody reads to its end.
_LISTED = 4096
# A segment is no larger and no older, by much.
_SEGMENT_BYTES, _SEGMENT_S = 64 << 20, 600.0
_PART = LONGEST_TEXT // 4
_MOST_NAMES = 1 << 16
# The largest number of tasks, files or rows in one frame.
_NAMED = 512
_MACHINE_ID = Path("/etc/machine-id")


class About(NamedTuple):
    """Facts about the command that a replay needs."""

    view: str
    """The name of the flow's view."""
    verdict_kinds: Sequence[model.Kind] = ()
    """Kinds for the verdict."""
    each: bool = False
    """Every event is recorded."""
    intervals: bool = False
    """The user chose an interval."""
    shown: Mapping[str, Any] = {}
    """Wanted parts of tables, by the names of outputs.registry.Wanted."""
    began_ns: int | None = None
    """The time of day at its begin, where it is made of what was traced before."""
    clocks: bool = True
    """Its times are those of this machine's clocks."""
    of_events: bool = False
    """Its figures are those of its events: there are no reports but the last one, which has the books."""


class CaptureOutput:
    def __init__(self, path: Path, about: About) -> None:
        self._file = Writer(path)
        self.about = about
        """It may be set until the start."""
        self._numbers = spec.Numbering()
        self._raw: list[_Buffer] = []
        self._texts: list[str] = []
        self._size = self._written = self._reports = 0
        self._since = time.monotonic()
        self._anchored = 0.0
        self._started = self._ended = False
        self._table_names: list[Mapping[str, Any]] = []
        self._trace, self._segment = os.urandom(8).hex(), 0

    @property
    def size(self) -> int:
        """The bytes that it has written."""
        return self._file.size

    # --- What an output is --------------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        self._start = start
        self._begin_segment()
        self._started = True

    def _begin_segment(self) -> None:
        """Nothing before it is needed to read it."""
        self._file.begin()
        self._segment_since, self._segment_from = time.monotonic(), self._file.size
        self._anchor()
        self._numbers = spec.Numbering()
        fields = spec.of_start(self._start, self._numbers)
        fields |= {
            "trace": self._trace,
            "segment": self._segment,
            "view": self.about.view,
            "judged": [self._numbers.kind(one) for one in self.about.verdict_kinds],
            "each": self.about.each,
            "intervals": self.about.intervals,
            "shown": dict(self.about.shown),
            **({"of_events": True} if self.about.of_events else {}),
            **({} if self.about.began_ns is None else {"began_ns": self.about.began_ns}),
        }
        self._write_new_names()
        self._json(Kind.START, fields)
        for names in self._table_names:
            self._json(Kind.NAMES, names)
        for number, one in enumerate(self._raw):
            self._json(Kind.LAYOUT, {"number": number, **one.facts, "names": list(one.names)})
            for named in one.named:
                named.known.clear()
            one.stacks.clear()
        self._segment += 1

    def _cut(self) -> None:
        """Begin another segment where this one is large or old."""
        size, age = self._file.size - self._segment_from, time.monotonic() - self._segment_since
        if size > _SEGMENT_BYTES or age > _SEGMENT_S:
            self._begin_segment()

    def event(self, event: Event) -> None:
        line = _text(spec.of_event(event, self._numbers))
        if self._size + len(line) > LONGEST_TEXT // 2:
            self._put_events()
        self._texts.append(line)
        self._size += len(line)

    def flush(self) -> None:
        if self._size > _BUFFERED or time.monotonic() - self._since > _OLDEST_S:
            self._put()

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._put()
        fields = [spec.of_in_flight(one, self._numbers) for one in found[:_LISTED]]
        self._write_new_names()
        self._json(Kind.IN_FLIGHT, {"ts_ns": at_ns, "found": fields})

    def interval(self, report: Report) -> None:
        self._report(report)

    def losses(self) -> Mapping[Cause, int]:
        """A file that takes no more ends the trace."""
        return {}

    def summary(self, report: Report) -> None:
        self._report(report)
        self._anchor()
        self._json(Kind.END, {"told": self._written})
        self._ended = True

    def close(self) -> None:
        try:
            if self._started and not self._ended:
                self._put()
        finally:
            self._file.close()

    # --- Records ------------------------------------------------------------------------------------------------------

    def raw(
        self,
        obj: Any,
        what: Raw,
        names: Sequence[str],
        cgroup_of: Callable[[int], str] | None = None,
        stacks_now: Callable[[], Mapping[int, tuple[str, Sequence[str]]]] = dict,
        statement_of: Callable[[int], Any] | None = None,
    ) -> Callable[[memoryview], None]:
        """Before the start: what takes the memory in which records lie in the ring, with their headers.

        `names` are those of devices, by the slots in records; a slot may become that of another device. Cgroups get the
        names that they have when they come, statements their labels. Stacks of waits have a reason and functions, by
        the number in records.
        """
        layout = what.struct(obj)
        made = _Buffer(facts(obj, what, names), layout, what)
        made.names = written = list(names)
        number = len(self._raw)
        self._raw.append(made)
        places = {one.name: one.offset for one in layout.places}
        if cgroup_of is not None and what.cgroup:
            made.named.append(_Named("cgroups", places[what.cgroup], cgroup_of))
        if statement_of is not None and what.statement:
            made.named.append(_Named("statements", places[what.statement], lambda of: spec.of_value(statement_of(of))))

        def take(entries: memoryview) -> None:
            if written != (now := list(names)):
                self._put()
                written[:] = now
                self._json(Kind.NAMES, {"devices": {str(number): written}})
            while entries:
                entries = made.take(entries)
                if made.full:
                    self._put()
            if time.monotonic() - self._since > _OLDEST_S:
                self._put()

        def name(rows: bytearray) -> None:
            new_stacks = {one: stack for one, stack in stacks_now().items() if made.stacks.get(one) != stack}
            if new_stacks:
                made.stacks.update(new_stacks)
                self._json(Kind.NAMES, {"waits": {str(one): [reason, *of] for one, (reason, of) in new_stacks.items()}})
            for one in made.named:
                words = memoryview(rows).cast("Q")[(ENTRY + one.place) // 8 :: made.entry // 8]
                # Nearly always it is one and the same.
                alike = one.place // columns.WORD not in made.packer.changed
                new = sorted(set(words[:1].tolist() if alike else words.tolist()) - one.known)
                if len(one.known) > _MOST_NAMES:
                    one.known.clear()
                one.known.update(new)
                for at in range(0, len(new), _NAMED):
                    self._json(Kind.NAMES, {one.table: {str(of): one.name(of) for of in new[at : at + _NAMED]}})

        made.number, made.learn = number, name
        return take

    def name(self, names: Names) -> None:
        """After the start: names of what records have numbers for."""
        rows = {number: list(map(spec.of_value, values)) for number, values in names.rows.items()}
        files = {f"{dev}:{inode}": path for (dev, inode), path in names.files.items()}
        frames = []
        for table, found in (("tasks", names.tasks), ("files", files), ("rows", rows)):
            some = list(found.items())
            frames += [{table: dict(some[at : at + _NAMED])} for at in range(0, len(some), _NAMED)]
        for frame in frames:
            self._json(Kind.NAMES, frame)
        self._table_names += frames

    # --- Frames -------------------------------------------------------------------------------------------------------

    def _put(self) -> None:
        """All that is not in the file yet."""
        self._since = time.monotonic()
        offset = wall_offset_ns()
        for one in self._raw:
            rows, holes = one.drain()
            if not rows:
                continue
            found = one.packer.pack(rows, holes)
            one.learn(rows)
            count = len(rows) // one.entry
            self._written += count
            head = HEADER.pack(one.number, count, offset)
            self._file.add(Kind.RECORDS, head + packed(found, zstd.COLUMNS))
        self._put_events()
        self._cut()

    def _put_events(self) -> None:
        self._write_new_names()
        if self._texts:
            self._written += len(self._texts)
            self._file.add(Kind.EVENTS, packed(f"[{','.join(self._texts)}]".encode()))
            self._texts, self._size = [], 0
        if self._numbers.full:
            self._numbers.forget()

    def _report(self, report: Report) -> None:
        self._put()
        if time.monotonic() - self._anchored > _ANCHORED_S:
            self._anchor()
        rows = [_text(spec.of_cells(group, stages, self._numbers)) for group, stages in report.cells.items()]
        counters = [_text([self._numbers.group(group), dict(counts)]) for group, counts in report.counters.items()]
        # The number of the report tells a reader what belongs together, also where a frame is damaged.
        self._reports += 1
        fields: dict[str, Any] = {
            "report": self._reports,
            "kind": report.kind,
            "ts_ns": report.ts_ns,
            "duration_ns": report.duration_ns,
            "books": {name: spec.of_book(book) for name, book in report.books.items()},
            "overhead": list(report.overhead),
            "lists": {name: list(found[:_LISTED]) for name, found in report.lists.items()},
        }
        if report.verdict is not None:
            fields["verdict"] = spec.of_verdict(report.verdict, self._numbers)
        if report.budget is not None:
            fields["budget"] = spec.of_spending(report.budget)
        self._write_new_names()
        # A report is over with the frame that has its kind.
        kind = Kind.SUMMARY if report.kind == "summary" else Kind.INTERVAL
        fields["parts"] = self._many(kind, "rows", rows, self._reports)
        fields["parts"] += self._many(kind, "counters", counters, self._reports)
        self._json(kind, fields)
        if self._numbers.full:
            self._numbers.forget()

    def _anchor(self) -> None:
        self._anchored = time.monotonic()
        if not self.about.clocks:
            self._json(Kind.CLOCK, {"realtime_ns": self.about.began_ns})
            return
        day, now = day_and_time()
        ids = {"boot_id": boot_id(), "machine_id": first_line(_MACHINE_ID)}
        fields: dict[str, Any] = {"monotonic_ns": now, "realtime_ns": day, **ids}
        error, below = realtime_error_ns(), time_below()
        if error is not None:
            fields["error_ns"] = error
        if below is not None:
            fields["below"] = list(below)
        self._json(Kind.CLOCK, fields)

    def _write_new_names(self) -> None:
        """Kinds and groups before what is said of them."""
        found = self._numbers.new_names()
        groups = found.pop("groups", [])
        if found:
            self._json(Kind.NAMES, found)
        self._many(Kind.NAMES, "groups", map(_text, groups))

    def _many(self, kind: Kind, name: str, found: Iterable[str], report: int = 0) -> int:
        """Write as many frames as are needed."""
        number = f'"report":{report},' if report else ""
        frames = [packed(f'{{{number}"{name}":[{",".join(some)}]}}'.encode()) for some in _parted(found)]
        for frame in frames:
            self._file.add(kind, frame)
        return len(frames)

    def _json(self, kind: Kind, fields: Mapping[str, Any]) -> None:
        self._file.add(kind, packed(_text(fields).encode()))


class _Named:
    """A member of records that stands for a name."""

    def __init__(self, table: str, place: int, name: Callable[[int], Any]) -> None:
        self.table, self.place, self.name = table, place, name
        self.known: set[int] = set()
        """Owners whose names the reader knows."""


class _Buffer:
    """Records of one struct, until they are in the file."""

    number: int
    learn: Callable[[bytearray], None]
    names: list[str]
    """Names of devices that the reader knows."""

    def __init__(self, fields: Mapping[str, Any], layout: Any, what: Raw) -> None:
        self.facts = fields
        self.named: list[_Named] = []
        self.stacks: dict[int, tuple[str, Sequence[str]]] = {}
        """And stacks of waits, by number."""
        self._length = layout.size.to_bytes(4, sys.byteorder)
        stride = (layout.size + 7) // 8 * 8
        self.entry = ENTRY + stride
        self.packer = columns.Packer(stride, ENTRY // columns.WORD)
        self._tail = None if what.tail is None else what.tail.of(layout)
        left_out = [one for one in layout.places if one.name in what.without]
        self.holes = {word for one in left_out for word in _words(one.offset, one.offset + one.codec.size)}
        # The same memory again and again: the kernel clears what is new, which takes longer than to fill it. It is gone
        # through many times, so it is no more than the caches of a CPU hold.
        self._room = bytearray(max(_PIECE // self.entry, 1) * self.entry)
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size == len(self._room)

    def take(self, entries: memoryview) -> memoryview:
        """Returns those for which there is no more room."""
        some = entries[: len(self._room) - self._size]
        # Assigned to a slice of the bytearray itself, they would be copied twice.
        memoryview(self._room)[self._size : self._size + len(some)] = some
        self._size += len(some)
        return entries[len(some) :]

    def drain(self) -> tuple[bytearray, set[int]]:
        """Return the records as in the ring, without discarded ones, and the words that are not kept."""
        rows = self._whole(self._room if self.full else self._room[: self._size])
        self._size = 0
        return rows, self.holes | self._unused(rows) if rows else self.holes

    def _whole(self, rows: bytearray) -> bytearray:
        count = len(rows) // self.entry
        if all(rows[at :: self.entry] == self._length[at : at + 1] * count for at in range(len(self._length))):
            return rows
        found = (rows[at : at + self.entry] for at in range(0, len(rows), self.entry))
        return bytearray().join(one for one in found if one.startswith(self._length))

    def _unused(self, rows: bytearray) -> set[int]:
        """Words behind all texts."""
        if self._tail is None:
            return set()
        text, end, length = self._tail
        longest = columns.cleared(rows, self.entry, ENTRY + text, ENTRY + end, length)
        return set(_words(text + longest, text + length))


def _words(begin: int, end: int) -> range:
    """Return the words between two places."""
    return range((begin + columns.WORD - 1) // columns.WORD, end // columns.WORD)


def _parted(found: Iterable[str]) -> Iterator[list[str]]:
    """Split into lists of a length that a reader accepts."""
    some: list[str] = []
    size = 0
    for one in found:
        if some and size + len(one) > _PART:
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one) + 1
    if some:
        yield some


def _text(fields: Any) -> str:
    return _ENCODER.encode(fields)


_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
