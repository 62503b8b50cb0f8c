# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the latest objects of a flow, unread until a dump (bpf_src/lib/recorder.h)."""

from __future__ import annotations

import mmap
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Callable, NamedTuple

from wptrace.bpf.maps import Map
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import HEADER as ENTRY
from wptrace.capture.records import Names, Raw
from wptrace.capture.writer import About, CaptureOutput
from wptrace.engine.devices import Slots
from wptrace.engine.recorder_size import RecorderSize
from wptrace.errors import UsageError
from wptrace.kernel import cpus, memory
from wptrace.model.book import EARLIER, OVERWRITTEN, TORN, UNNAMED, Book
from wptrace.model.diagnosis import DEGRADED, OK, Check
from wptrace.model.kind import Kind
from wptrace.model.report import Overhead, Report, Start
from wptrace.model.units import size as human

# The fewest records of a CPU, also those of one that is offline.
_FEWEST = _OFFLINE = 1 << 10
WORD, HALF = 8, 4
_HALF_WORD = 0xFFFFFFFF
_HEAD_BYTES = 64
# The number of record numbers to compare at once.
_COMPARED = 4096
# The number of records to write at once.
_AT_ONCE = 8192
# The share of available memory that must stay free.
_SPARE = 1 / 4
# A dump takes a copy, and the order of its records.
_OF_DUMP = 2
SMALLER = "name a smaller size with --recorder, such as 16M"


class Area(NamedTuple):
    """The records of a CPU."""

    first: int
    room: int


class Whole(NamedTuple):
    """The complete records of an area, oldest first."""

    runs: Sequence[tuple[int, int]]
    """Runs of complete records in the copy: where each begins, and its length."""
    written: int
    torn: int
    wrapped: bool
    """Older records were overwritten."""

    @property
    def there(self) -> int:
        return sum(count for _, count in self.runs)


class Piece(NamedTuple):
    """Records that have the same names of devices."""

    devices: Sequence[str]
    order: Sequence[int]


class Dump(NamedTuple):
    path: Path
    records: int
    since_ns: int
    """The time of day from which on the dump is complete."""
    until_ns: int


class Recorder:
    """A recorder; `what` is what its records are of, and `names` reads what they refer to."""

    _notes_of_dump: Sequence[str] = ()

    def __init__(
        self,
        size: RecorderSize,
        slow_ns: int | None,
        kinds: Sequence[Kind],
        records: Raw,
        what: str,
        names: Callable[[], Names] = Names,
        statement_of: Callable[[int], Any] | None = None,
        lists: Callable[[], Mapping[str, Sequence[Mapping[str, Any]]]] = dict,
    ) -> None:
        self._lists = lists
        self.what, self._names, self._statement_of = what, names, statement_of
        self._size, self._slow_ns, self._kinds, self._records = size, slow_ns, kinds, records

    # --- The start ------------------------------------------------------------------------------------------------

    def prepare(self, obj: BpfObject) -> None:
        """Set constants of the programs and sizes of maps, before the load."""
        self._record = self._records.struct(obj)
        self._number = next(one.offset for one in self._record.places if one.name == "number") // HALF
        self._online = cpus.online()
        numbers = min(cpus.numbers(), obj.length("recorder_heads"))
        self._areas = _areas(self._size.bytes // self._record.size, numbers, self._online)
        count = sum(area.room for area in self._areas)
        self._bytes = count * self._record.size
        lacking = does_not_fit(self._bytes)
        if lacking:
            raise UsageError(lacking, SMALLER)
        # The variable may be a constant of the compiler.
        if not obj.constants.get("recording"):
            obj.rodata.recording = True
        obj.maps["recorded"].max_entries = count
        obj.maps["recorded"].value_size = self._record.size
        if self._slow_ns is not None:
            obj.data.recorder_slow_ns = self._slow_ns

    def start(self, obj: BpfObject, devices: Slots | None = None) -> None:
        """Give each CPU its area, after the load."""
        self._obj, self._devices = obj, Slots(()) if devices is None else devices
        heads = self._obj.view("recorder_heads")
        for cpu, area in enumerate(self._areas):
            words = heads[cpu * _HEAD_BYTES : (cpu + 1) * _HEAD_BYTES].cast("I")
            words[2], words[3] = area.first, area.room - 1
        self._start_ns = time.monotonic_ns()

    def notes(self) -> list[str]:
        room = max(area.room for area in self._areas)
        self._notes = [
            f"the recorder takes {human(self._bytes)}: the last {room:,} {self.what} of "
            f"each of {len(self._online)} CPUs; wptrace dump {os.getpid()} writes them to a file"
        ]
        return self._notes

    # --- A dump ---------------------------------------------------------------------------------------------------

    @property
    def slow_seen_ns(self) -> int:
        """The time of the last slow event; 0 if there was none."""
        return int(self._obj.bss.recorder_slow_seen)

    def copied(self, start: Start, view: str) -> Callable[[Path], Dump]:
        """Copy the records. Return what writes the copy to a capture, in any thread; the recorder goes on meanwhile."""
        size = self._record.size
        rows, areas = self._copy()
        ends = memoryview(rows).cast("Q")[:: size // WORD]
        oldest = [ends[one.runs[0][0]] for one in areas if one.wrapped and one.runs]
        now = time.monotonic_ns()
        begin_ns = max(self._start_ns, now - self._size.window_ns, self._devices.known_since_ns, *oldest)
        order, earlier = _ordered(ends, areas, begin_ns)
        pieces, names = self._by_devices(ends, order, begin_ns), self._names()
        statement_of, lists = self._statements(rows, order), self._lists()
        offset = time.time_ns() - now
        count = len(order)
        notes = [
            f"a dump of the flight recorder: {(now - begin_ns) / 1e9:.1f} s, {count:,} records",
            *self._notes_of_dump,
        ]
        start = start._replace(notes=[*(one for one in start.notes if one not in self._notes), *notes])
        about = About(view, self._kinds, each=True, of_events=True, began_ns=begin_ns + offset)

        def write(path: Path) -> Dump:
            unnamed = 0
            output = CaptureOutput(path, about)
            try:
                devices = list(pieces[0].devices)
                sink = output.raw(self._obj, self._records, devices, statement_of=statement_of)
                output.start(start)
                output.name(names)
                for piece in pieces:
                    devices[:] = piece.devices
                    for entries in _entries(rows, size, piece.order):
                        sink(memoryview(entries))
                        unnamed += self._unnamed(entries, names)
                output.flush()
                noted = {
                    OVERWRITTEN: sum(one.written - one.there - one.torn for one in areas),
                    TORN: sum(one.torn for one in areas),
                    EARLIER: earlier,
                    UNNAMED: unnamed,
                }
                books = {kind.book: Book() for kind in self._kinds if kind.book}
                for cause, number in noted.items():
                    if number:
                        next(iter(books.values())).note(cause, number)
                nothing = Overhead(0, 0, 0, 0, self._bytes, count)
                report = Report("summary", now + offset, now - begin_ns, books, {}, {}, nothing, lists=lists)
                output.summary(report)
            finally:
                output.close()
            return Dump(path, count, begin_ns + offset, now + offset)

        return write

    def _statements(self, rows: mmap.mmap | bytearray, order: Sequence[int]) -> Callable[[int], Any] | None:
        """Return a lookup of the labels that the statements of these records have now."""
        if self._statement_of is None:
            return None
        place = next(one.offset for one in self._record.places if one.name == self._records.statement)
        words = memoryview(rows).cast("Q")[place // WORD :: self._record.size // WORD]
        return {word: self._statement_of(word) for word in {words[at] for at in order}}.__getitem__

    def _by_devices(self, ends: memoryview, order: Sequence[int], since_ns: int) -> list[Piece]:
        """Split records by the names that devices had when they ended; they are in order of that."""
        periods = list(self._devices.since(since_ns))
        if len(periods) == 1:
            return [Piece(periods[0][1], order)]
        times = [ends[place] for place in order]
        found, until = [], len(order)
        for ns, names in periods:
            begin = bisect_left(times, ns, 0, until)
            found.append(Piece(names, order[begin:until]))
            until = begin
        return found[::-1]

    def _unnamed(self, entries: bytearray, names: Names) -> int:
        """How many records lack the name of their thread, or of their file."""
        return 0

    def _copy(self) -> tuple[mmap.mmap, list[Whole]]:
        """Copy the areas of all CPUs, while programs go on writing."""
        size = self._record.size
        heads = self._obj.view("recorder_heads").cast("Q")[:: _HEAD_BYTES // WORD]
        used = [min(heads[cpu], area.room) for cpu, area in enumerate(self._areas)]
        rows, areas, at = _room(sum(used) * size), [], 0
        with mapped(self._obj.maps["recorded"]) as shared, memoryview(shared) as memory, memoryview(rows) as copy:
            numbers = copy.cast("I")[self._number :: size // HALF]
            for cpu, (area, count) in enumerate(zip(self._areas, used)):
                # Records since then are not in the copy, unless they overwrote older ones.
                before = heads[cpu] if count == area.room else count
                copy[at * size : (at + count) * size] = memory[area.first * size : (area.first + count) * size]
                areas.append(_whole(numbers, at, area.room, before, heads[cpu]))
                at += count
        return rows, areas


def takes(size: int) -> str:
    """Describe the memory that a recorder of this size takes."""
    return f"takes {human(size)} of the kernel's memory, and a dump of it {human(_OF_DUMP * size)} for a moment"


def does_not_fit(size: int) -> str:
    """Why it does not fit; empty if it does. A dump without memory would end the trace when it is needed most."""
    room = memory.room()
    if (1 + _OF_DUMP) * size <= room.bytes * (1 - _SPARE):
        return ""
    return f"a recorder does not fit that {takes(size)}: {room.whose} has {human(room.bytes)} free"


def check() -> Check:
    """Check for the size that the manual names."""
    size = RecorderSize.of_time(30_000_000_000).bytes
    lacking = does_not_fit(size)
    if lacking:
        return Check("recorder", DEGRADED, lacking, SMALLER)
    return Check("recorder", OK, f"--recorder 30s {takes(size)}")


def _areas(records: int, numbers: int, online: Sequence[int]) -> list[Area]:
    """A power of two for each number of a CPU; those that are not online get little room."""
    each = _FEWEST
    while 2 * each * len(online) <= records:
        each *= 2
    found, first = [], 0
    for cpu in range(numbers):
        count = each if cpu in online else _OFFLINE
        found.append(Area(first, count))
        first += count
    return found


def _whole(numbers: memoryview, at: int, room: int, before: int, after: int) -> Whole:
    """The records of an area, which begins `at`, that were not overwritten during the copy.

    `numbers` are those of all records in the copy; `before` and `after` count the records before and after it.
    """
    used = min(before, room)
    oldest = before - used
    # A slot that may have been reused since then has a newer record.
    first = max(oldest, min(after - room, before))
    torn, runs = 0, []
    # In order of places: up to the end of the area, and from its start on.
    split = before & (room - 1) if before > room else 0
    for number, begin, end in ((oldest, split, used), (oldest + used - split, 0, split)):
        begin += min(max(first - number, 0), end - begin)
        found = list(_runs(numbers, at + begin, at + end, max(number, first)))
        torn += end - begin - sum(count for _, count in found)
        runs += found
    return Whole(runs, before, torn, after > room)


def _runs(numbers: memoryview, begin: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Runs of records that have the expected number: where each begins, and its length."""
    since = begin
    for place in range(begin, end, _COMPARED):
        until = min(place + _COMPARED, end)
        wanted = _numbers(number + place - begin + 1, until - place)
        found = numbers[place:until]
        if found.tobytes() == wanted.tobytes():
            continue
        for at, (one, other) in enumerate(zip(found.tolist(), wanted), place):
            if one != other:
                if at > since:
                    yield since, at - since
                since = at + 1
    if end > since:
        yield since, end - since


def _numbers(first: int, count: int) -> array[int]:
    """So many consecutive numbers as records have them, with 32 bits."""
    first &= _HALF_WORD
    found = range(first, first + count)
    # To look at each of them takes three times as long.
    return array("I", found if found.stop - 1 <= _HALF_WORD else map(_HALF_WORD.__and__, found))


def _ordered(ends: memoryview, areas: Sequence[Whole], since_ns: int) -> tuple[Sequence[int], int]:
    """The places of all records in order of their end, and how many were too old."""
    by_place = ends.tolist()
    places = chain.from_iterable(range(begin, begin + count) for one in areas for begin, count in one.runs)
    order = sorted(places, key=by_place.__getitem__)
    earlier = sum(map(since_ns.__gt__, map(by_place.__getitem__, order)))
    return order[earlier:], earlier


def _entries(rows: mmap.mmap | bytearray, size: int, order: Sequence[int]) -> Iterator[bytearray]:
    """Yield records as a ring has them, few enough at a time for a CPU's caches."""
    head = size.to_bytes(HALF, "little") + bytes(ENTRY - HALF)
    for at in range(0, len(order), _AT_ONCE):
        some = [rows[place * size : (place + 1) * size] for place in order[at : at + _AT_ONCE]]
        yield bytearray(head.join([b"", *some]))


def mapped(table: Map) -> mmap.mmap:
    """Map it briefly: it counts as memory of this process."""
    length = -(-table.max_entries * table.value_size // mmap.PAGESIZE) * mmap.PAGESIZE
    return mmap.mmap(table.fd, length, mmap.MAP_SHARED, mmap.PROT_READ)


def _room(length: int) -> mmap.mmap:
    """Memory for a copy, with huge pages if possible: clearing the pages takes most of the time."""
    found = mmap.mmap(-1, max(length, mmap.PAGESIZE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        found.madvise(mmap.MADV_HUGEPAGE)
    return found
