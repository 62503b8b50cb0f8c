# SPDX-License-Identifier: Apache-2.0
"""`wptrace diff`: read the figures of two recordings, or of two stretches of one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter, mul, sub
from typing import Any, Callable, NamedTuple

from wptrace.analysis import measured
from wptrace.analysis.diff import Side
from wptrace.analysis.measured import DEV, OWNED_BY, SIZE, STRETCHES, Measured, Stretch, joined_stretches
from wptrace.analysis.split import Class, Sums, put
from wptrace.capture.layout import Described
from wptrace.capture.reader import Capture, Head, NextTrace, Records
from wptrace.capture.recording import NoIntervalError, Window
from wptrace.flows.io import kinds, records
from wptrace.flows.io.block import ONE_STAMP
from wptrace.flows.io.options import CGROUP, COMM, DIR, FILE
from wptrace.flows.io.records import Made
from wptrace.flows.io.state import path
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.tasks import comm
from wptrace.model import units
from wptrace.model.distribution import index
from wptrace.model.kind import NOBODY, OTHERS, TOTAL, Kind
from wptrace.model.report import QuietOutput, Report, Start
from wptrace.tools import dumped
from wptrace.tools.dumped import Dumped
from wptrace.tools.singles import NONSENSE, NonsenseError

BY = (COMM, CGROUP, FILE, DIR)
"""Owners that are the same in two recordings: numbers of processes are not."""
# The limit of a recording: further classes belong to the others.
_MOST_CLASSES = 1024
_AT_ONCE = 1 << 14

Classes = dict[str, dict[Class, Sums]]


class Wanted(NamedTuple):
    name: str
    since_ns: int | None = None
    until_ns: int | None = None
    by: str = ""
    """Owners of single operations; empty: those of the rows, or names of tasks."""
    singles: bool = True
    """Single operations are looked at, where it has all of them."""


def has_singles(head: Head) -> bool:
    """Whether its operations are compared one by one: requests of operations are in their records, and have rows."""
    return head.each and head.start.flow == "io" and head.start.level == "path" and not head.of_events


def read(capture: Capture, wanted: Wanted) -> Side:
    try:
        return _Reading(capture, wanted).side()
    except NONSENSE as error:
        raise NonsenseError(capture.head.start.file) from error


class _Rows:
    """Rows of intervals, one after the other."""

    def __init__(self, found: Sequence[Kind]) -> None:
        self.kinds = [kind for kind in found if measured.is_timed(kind)]
        self._stretches: dict[Kind, list[Stretch]] = {kind: [] for kind in self.kinds}
        self._known: dict[Kind, set[Class]] = {kind: set() for kind in self.kinds}
        self.began_ns = 0

    def add(self, report: Report) -> None:
        self.began_ns = self.began_ns or report.ts_ns - report.duration_ns
        for kind, found in self._stretches.items():
            _append(found, Stretch(report.ts_ns, report.duration_ns, self._classes(report, kind)))

    def of(self, kind: Kind, report: Report) -> Measured:
        """All of it."""
        classes = self._classes(report, kind)
        return Measured(kind, measured.labels_of(kind), measured.columns_of(kind), classes, self._stretches[kind])

    def _classes(self, report: Report, kind: Kind) -> Classes:
        """Group a report's objects; if there are very many owners or stacks, the rest is one class."""
        found, known = measured.classes(report.cells, report.counters, kind), self._known[kind]
        for classes in found.values():
            for key in [key for key in classes if key not in known]:
                if len(known) < _MOST_CLASSES:
                    known.add(key)
                    continue
                put(classes, (OTHERS,) * len(key), classes.pop(key))
        return found


def _mixed(start: Start) -> Mapping[str, str]:
    """Stages that lost time to others on this kernel.

    Since da4c8c3d0975 ("block: cache current nsec time in struct blk_plug", 6.9) the kernel may stamp a request with a
    time before it was allocated. A capture has no types of its kernel to ask, so for levels that do not note it the
    release decides: if a distribution is ahead of it, the stages are compared as they are.
    """
    if any(note.startswith(ONE_STAMP) for note in start.notes):
        return {"queue": "device"}
    release = _RELEASE.match(start.kernel)
    if start.level in ("path", "request") and release is not None:
        return {"throttle": "queue"} if (int(release[1]), int(release[2])) >= (6, 9) else {}
    return {}


_RELEASE = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


class Following(QuietOutput):
    """An output that gathers the figures of a running trace for a comparison."""

    def __init__(self) -> None:
        self._start: Start | None = None
        self._rows = _Rows(())
        self.side: Side | None = None
        """The figures, after the end of the trace."""

    def start(self, start: Start) -> None:
        self._start, self._rows = start, _Rows(start.kinds)

    def interval(self, report: Report) -> None:
        self._rows.add(report)

    def summary(self, report: Report) -> None:
        if self._start is not None:
            found = {kind.name: self._rows.of(kind, report) for kind in self._rows.kinds}
            there = {name: one for name, one in found.items() if one.classes}
            began_ns = self._rows.began_ns or report.ts_ns - report.duration_ns
            self.side = Side("this trace", self._start, report, began_ns, there, mixed=_mixed(self._start))


class _Reading:
    def __init__(self, capture: Capture, wanted: Wanted) -> None:
        self._capture, self._wanted = capture, wanted
        head = self._head = capture.head
        self._window = Window(head, wanted.since_ns, wanted.until_ns)
        self._start = dumped.start(head.start) if head.of_events else head.start
        self._dumped = Dumped(capture) if head.of_events else None
        self._rows = _Rows(self._start.kinds)
        by = wanted.by or str(head.start.filters.get("by", ""))
        named = {kind.name: kind for kind in self._rows.kinds}
        self._singles = _Singles(capture, named, by) if has_singles(head) and wanted.singles else None
        self._single: dict[str, list[Stretch]] = {kinds.OPERATION.name: [], kinds.HIT.name: []}

    def side(self) -> Side:
        singles, dump = self._singles, self._dumped
        for item in self._capture.items(singles is not None or dump is not None):
            if isinstance(item, NextTrace):
                self._window.begin()
                if dump is not None:
                    dump.next_trace()
            elif isinstance(item, Records):
                if singles is not None:
                    singles.take(item)
                elif dump is not None:
                    for report in dump.take(item):
                        self._interval(report)
            elif isinstance(item, Report) and dump is not None:
                self._window.add(dump.rest(item))
            elif isinstance(item, Report) and item.kind == "interval":
                self._interval(item)
            elif isinstance(item, Report):
                self._window.end(item)
                self._cut(item.ts_ns, 0)
        whole = self._window.report
        if whole is None:
            raise NoIntervalError(self._wanted.name, self._window)
        notes = list(self._notes(whole)) if singles is not None else []
        damaged = self._capture.damaged
        if damaged:
            notes.append(f"{damaged:,} of its frames {'is' if damaged == 1 else 'are'} damaged, and left out")
        began_ns = self._rows.began_ns or self._head.began_ns
        found = {kind.name: self._measured(kind, whole) for kind in self._rows.kinds}
        there = {name: one for name, one in found.items() if one.classes}
        start = self._start
        return Side(self._wanted.name, start, whole, began_ns, there, tuple(notes), damaged, _mixed(start))

    def _interval(self, report: Report) -> None:
        if self._window.add(report):
            self._rows.add(report)
        self._cut(report.ts_ns, report.duration_ns)

    def _cut(self, ts_ns: int, duration_ns: int) -> None:
        """Close a stretch with the single operations since the previous interval; drop those outside the window."""
        if self._singles is None:
            return
        found = self._singles.drain()
        if not self._window.has(ts_ns):
            return
        for name, stretches in self._single.items():
            if duration_ns or name in found:
                _append(stretches, Stretch(ts_ns, duration_ns, found.get(name, {})))

    def _notes(self, report: Report) -> Iterator[str]:
        """Generate a note if there are not as many single operations as the rows count."""
        kind = kinds.OPERATION
        counted = sum(stages[TOTAL].count for group, stages in report.cells.items() if group.kind.name == kind.name)
        classes = [found for stretch in self._single[kind.name] for found in stretch.classes.values()]
        listed = sum(one.count for found in classes for one in found.values())
        if abs(listed - counted) > counted // 100:
            yield f"{listed:,} of {counted:,} {kind.noun.plural} are there one by one: owners and sizes are theirs"

    def _measured(self, kind: Kind, report: Report) -> Measured:
        stretches = self._single.get(kind.name, [])
        if not any(one.classes for one in stretches):
            return self._rows.of(kind, report)
        (whole,) = joined_stretches(stretches, 1)
        return Measured(kind, (DEV, OWNED_BY, SIZE), measured.columns_of(kind), whole.classes, stretches)


def _append(found: list[Stretch], one: Stretch) -> None:
    """Append a stretch, and keep as few as are needed: those of a long recording join several intervals."""
    found.append(one)
    if len(found) >= 3 * STRETCHES:
        found[:] = joined_stretches(found, STRETCHES)


# --- Single operations ------------------------------------------------------------------------------------------------


class _Singles:
    """Adds up operations by device, owner and size."""

    def __init__(self, capture: Capture, kinds: Mapping[str, Kind], by: str) -> None:
        self._capture, self._kinds = capture, kinds
        self._by = by if by in BY else COMM
        self._decoders: dict[int, Callable[[bytearray], None]] = {}
        self._found: dict[str, Classes] = {}
        self._known: set[tuple[Any, ...]] = set()

    def drain(self) -> dict[str, Classes]:
        """Return the operations since the last call."""
        found, self._found = self._found, {}
        return found

    def take(self, found: Records) -> None:
        decode = self._decoders.get(found.number)
        if decode is None:
            layout = self._capture.layouts[found.number]
            if layout.record != records.RECORDS.record:
                return
            decode = self._decoders[found.number] = self._decoder(layout)
        decode(found.rows)

    def _decoder(self, layout: Described) -> Callable[[bytearray], None]:
        owner = {COMM: ("comm",), CGROUP: ("cgroup",)}.get(self._by, ("path", "path_end", "path_cut"))
        fields = ("kind", "slot", "op", *owner)
        # Few of their bytes are needed.
        part, names = layout.layout.only((*fields, "start_ns", "end_ns", "length", "stages")).packed()
        rows, at = layout.rows(part), {name: place for place, name in enumerate(names)}
        stages = layout.enum("op_stage")[:-1]
        columns = _Columns(at["start_ns"], at["end_ns"], at["length"], [at[f"stages[{n}]"] for n in range(len(stages))])
        key_of, length = itemgetter(*(at[name] for name in fields)), at["length"]
        # Requests of operations are in their records: rows count all of them.
        wanted = [self._kinds.get(name) if name != "request" else None for name in layout.enum("record_kind")]
        ops, devices = layout.enum("op_kind"), layout.names
        owners = Made(self._owner)

        def decode(data: bytearray) -> None:
            view = memoryview(data)
            owners.clear()
            for begin in range(0, len(data), _AT_ONCE * layout.stride):
                by_key: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
                for row in rows.iter_unpack(view[begin : begin + _AT_ONCE * layout.stride]):
                    size = row[length]
                    alike = (key_of(row), (size - 1).bit_length() if size else -1)
                    if alike in by_key:
                        by_key[alike].append(row)
                    else:
                        by_key[alike] = [row]
                for (of, bits), found in by_key.items():
                    kind = wanted[of[0]]
                    if kind is not None:
                        key = (devices[of[1]], owners[of[3:]], "-" if bits < 0 else units.size(1 << bits))
                        self._add(kind, ops[of[2]], key, columns.sums(kind, found, stages))

        return decode

    def _owner(self, key: tuple[Any, ...]) -> str:
        if self._by == COMM:
            return comm(key[0]) or NOBODY
        if self._by == CGROUP:
            return str(CgroupNames(known=self._capture.cgroups).of(key[0])) or NOBODY
        name = path(key[0][: key[1]], key[2] != 0)
        return (name if self._by == FILE else name.rpartition("/")[0]) or NOBODY

    def _add(self, kind: Kind, op: str, key: tuple[str, str, str], sums: Sums) -> None:
        if (kind.name, op, key) not in self._known:
            if len(self._known) < _MOST_CLASSES:
                self._known.add((kind.name, op, key))
            else:
                key = (key[0], OTHERS, key[2])
        put(self._found.setdefault(kind.name, {}).setdefault(op, {}), key, sums)


class _Columns(NamedTuple):
    """The indices of times in a row."""

    start: int
    end: int
    length: int
    stages: Sequence[int]

    def sums(self, kind: Kind, rows: Sequence[tuple[Any, ...]], stages: Sequence[str]) -> Sums:
        columns = measured.columns_of(kind)
        sums = Sums(len(columns))
        turned = list(zip(*rows))
        totals = list(map(sub, turned[self.end], turned[self.start]))
        sums.count, sums.bytes = len(rows), sum(turned[self.length])
        sums.times[0] = rest = sum(totals)
        sums.squares[0] = sum(map(mul, totals, totals))
        for name, place in zip(stages, self.stages):
            values = turned[place]
            total = sum(values)
            if total and name in columns:
                at = columns.index(name) + 1
                sums.times[at], sums.squares[at] = total, sum(map(mul, values, values))
                rest -= total
        sums.times[-1] = rest
        sums.buckets = dict(Counter(map(index, totals)))
        return sums
