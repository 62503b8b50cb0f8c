# SPDX-License-Identifier: Apache-2.0
"""`wptrace diff`: read what two recordings, or two stretches of one, are compared by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter, mul, sub
from typing import Any, Callable, NamedTuple

from wptrace.analysis import measured
from wptrace.analysis.diff import Side
from wptrace.analysis.measured import DEV, OWNED_BY, SIZE, STRETCHES, Measured, Stretch, joined_stretches
from wptrace.analysis.split import Class, Sums
from wptrace.capture.layout import Described
from wptrace.capture.reader import Capture, NextTrace, Records
from wptrace.capture.recording import Window
from wptrace.errors import WptraceError
from wptrace.flows.io import kinds, records
from wptrace.flows.io.options import CGROUP, COMM, DIR, FILE
from wptrace.flows.io.records import Made
from wptrace.flows.io.state import path
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.tasks import comm
from wptrace.model import units
from wptrace.model.distribution import index
from wptrace.model.kind import NOBODY, OTHERS, TOTAL, Kind
from wptrace.model.report import Report
from wptrace.tools.singles import NONSENSE, NonsenseError

BY = (COMM, CGROUP, FILE, DIR)
"""Owners that are the same in two recordings: numbers of processes are not."""
# Of a recording: what is beyond belongs to others.
_MOST_CLASSES = 1024
_AT_ONCE = 1 << 14

Classes = dict[str, dict[Class, Sums]]


class Wanted(NamedTuple):
    name: str
    since_ns: int | None = None
    until_ns: int | None = None
    by: str = ""
    """Owners of single operations; empty: those of the rows, or names of tasks."""


def read(capture: Capture, wanted: Wanted) -> Side:
    try:
        return _Reading(capture, wanted).side()
    except NONSENSE as error:
        raise NonsenseError(capture.head.start.file) from error


class _Reading:
    def __init__(self, capture: Capture, wanted: Wanted) -> None:
        self._capture, self._wanted = capture, wanted
        head = self._head = capture.head
        self._window = Window(head, wanted.since_ns, wanted.until_ns)
        self._kinds = [kind for kind in head.start.kinds if measured.is_timed(kind)]
        self._stretches: dict[Kind, list[Stretch]] = {kind: [] for kind in self._kinds}
        # Requests of operations are in records of these, and have rows of their own.
        each = head.each and head.start.flow == "io" and head.start.level == "path" and not head.of_events
        by = wanted.by or str(head.start.filters.get("by", ""))
        self._singles = _Singles(capture, {kind.name: kind for kind in self._kinds}, by) if each else None
        self._single: dict[str, list[Stretch]] = {kinds.OPERATION.name: [], kinds.HIT.name: []}
        self._known: dict[Kind, set[Class]] = {kind: set() for kind in self._kinds}
        self._began_ns = 0

    def side(self) -> Side:
        singles = self._singles
        for item in self._capture.items(singles is not None):
            if isinstance(item, NextTrace):
                self._window.begin()
            elif isinstance(item, Records):
                if singles is not None:
                    singles.take(item)
            elif isinstance(item, Report) and item.kind == "interval":
                self._interval(item)
            elif isinstance(item, Report):
                self._window.end(item)
                if singles is not None and self._window.has(item.ts_ns):
                    self._cut(item.ts_ns, 0)
        report = self._window.report
        if report is None:
            raise WptraceError(
                f"{self._wanted.name} has no interval in that time",
                "wptrace replay shows when its intervals end",
            )
        notes = list(singles.notes(report)) if singles is not None else []
        began_ns = self._began_ns or self._head.began_ns
        return Side(self._wanted.name, self._head.start, report, began_ns, dict(self._measured(report)), tuple(notes))

    def _interval(self, report: Report) -> None:
        inside = self._window.add(report)
        if inside:
            self._began_ns = self._began_ns or report.ts_ns - report.duration_ns
            for kind, found in self._stretches.items():
                _append(found, Stretch(report.ts_ns, report.duration_ns, self._classes(report, kind)))
        if self._singles is not None:
            if inside:
                self._cut(report.ts_ns, report.duration_ns)
            else:
                self._singles.taken()

    def _cut(self, ts_ns: int, duration_ns: int) -> None:
        """What came of single ones since the interval before."""
        found = {} if self._singles is None else self._singles.taken()
        for name, stretches in self._single.items():
            if duration_ns or name in found:
                _append(stretches, Stretch(ts_ns, duration_ns, found.get(name, {})))

    def _classes(self, report: Report, kind: Kind) -> Classes:
        """Those of rows; of very many owners or stacks the rest is one."""
        found, known = measured.classes(report.cells, report.counters, kind), self._known[kind]
        for classes in found.values():
            for key in list(classes):
                if key in known:
                    continue
                if len(known) < _MOST_CLASSES:
                    known.add(key)
                    continue
                others = (OTHERS,) * len(key)
                left = classes.pop(key)
                if others in classes:
                    classes[others].add(left)
                else:
                    classes[others] = left
        return found

    def _measured(self, report: Report) -> Iterator[tuple[str, Measured]]:
        for kind in self._kinds:
            stretches = self._single.get(kind.name, [])
            if any(one.classes for one in stretches):
                classes: Classes = {}
                for one in joined_stretches(stretches, 1):
                    classes = {op: dict(inner) for op, inner in one.classes.items()}
                labels: tuple[str, ...] = (DEV, OWNED_BY, SIZE)
            else:
                stretches, labels = self._stretches[kind], measured.labels_of(kind)
                classes = self._classes(report, kind)
            if classes:
                yield kind.name, Measured(kind, labels, measured.columns_of(kind), classes, stretches)


def _append(found: list[Stretch], one: Stretch) -> None:
    """As many as are needed are kept; of a long recording each is that of several intervals."""
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
        self._counts: Counter[str] = Counter()

    def taken(self) -> dict[str, Classes]:
        """Those that came since it was asked the last time."""
        found, self._found = self._found, {}
        for name, classes in found.items():
            self._counts[name] += sum(one.count for inner in classes.values() for one in inner.values())
        return found

    def notes(self, report: Report) -> Iterator[str]:
        """Where they are not as many as the rows count."""
        kind = kinds.OPERATION
        counted = sum(stages[TOTAL].count for group, stages in report.cells.items() if group.kind.name == kind.name)
        told = self._counts[kind.name]
        if abs(told - counted) > counted // 100:
            yield f"{told:,} of {counted:,} {kind.noun.plural} are there one by one: owners and sizes are theirs"

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
        classes = self._found.setdefault(kind.name, {}).setdefault(op, {})
        if key in classes:
            classes[key].add(sums)
        else:
            classes[key] = sums


class _Columns(NamedTuple):
    """Where in a row times are."""

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
