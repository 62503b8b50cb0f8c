# SPDX-License-Identifier: Apache-2.0
"""Reports of a part of a capture: of some intervals, of some rows, of some events."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any, Callable

from wptrace.model.book import Book
from wptrace.model.distribution import Distribution, bounds, index, merge_stages
from wptrace.model.kind import TOTAL, Bounded, Group, Kind
from wptrace.model.report import BYTES, Event, Overhead, Report, arranged, since
from wptrace.model.report import Snapshot as Sums

_NOTHING = Overhead(0, 0, 0, 0, 0, 0)
# The largest number of distributions, with 2.6 kB each.
_MOST = 1 << 16


class Intervals:
    """Adds up reports, each of the time behind that of the one before it."""

    def __init__(self) -> None:
        self._bounded = Bounded(_MOST)
        self._cells: dict[Group, dict[str, Distribution]] = {}
        self._counters: dict[Group, Counter[str]] = {}
        self._books: dict[str, Book] = {}
        self._overhead = _NOTHING
        self.duration_ns = self.ts_ns = 0
        self.count = 0

    def add(self, report: Report) -> None:
        self.count += 1
        self.ts_ns = report.ts_ns
        self.duration_ns += report.duration_ns
        for group, stages in report.cells.items():
            merge_stages(self._cells, self._bounded.of(group), stages)
        for group, counts in report.counters.items():
            self._counters.setdefault(self._bounded.of(group), Counter()).update(counts)
        for name, book in report.books.items():
            self._books[name] = _joined(self._books.get(name), book)
        cost, last = self._overhead, report.overhead
        self._overhead = Overhead(
            cost.bpf_ns + last.bpf_ns,
            cost.bpf_runs + last.bpf_runs,
            cost.reader_cpu_ns + last.reader_cpu_ns,
            last.rss_bytes,
            last.map_bytes,
            cost.records + last.records,
        )

    def report(self, kinds: Sequence[Kind]) -> Report:
        return Report(
            "summary",
            self.ts_ns,
            self.duration_ns,
            self._books,
            arranged(self._cells, kinds),
            self._counters,
            self._overhead,
        )

    def rest(self, whole: Report, kinds: Sequence[Kind]) -> Report:
        """Return the rest of the whole that came after the last interval."""
        cells = {group: dict(stages) for group, stages in whole.cells.items()}
        now = Sums(0, whole.books, cells, whole.counters, whole.overhead)
        was = Sums(0, self._books, *self._as_in(now), self._overhead)
        cells, counters = since(now, was)
        return Report(
            "interval",
            whole.ts_ns,
            max(whole.duration_ns - self.duration_ns, 0),
            {name: book.interval(self._books.get(name, Book())) for name, book in whole.books.items()},
            arranged(cells, kinds),
            counters,
            whole.overhead.since(self._overhead),
        )

    def _as_in(self, now: Sums) -> tuple[dict[Group, dict[str, Distribution]], dict[Group, Counter[str]]]:
        """Return the sums without owners that the whole has among the others, and with those that came back."""
        cells, counters = dict(self._cells), dict(self._counters)
        for group, stages in self._cells.items():
            others, last = group.of_others, now.cells.get(group)
            if others == group or last is None or last[TOTAL].count >= stages[TOTAL].count:
                continue
            into = cells[others] = {name: found.copy() for name, found in cells.get(others, {}).items()}
            for name, found in stages.items():
                into.setdefault(name, Distribution()).merge(found.delta(last[name]) if name in last else found)
            cells[group] = last
            had, has = counters.get(group, Counter()), Counter(now.counters.get(group, {}))
            counters[others] = counters.get(others, Counter()) + (had - has)
            counters[group] = has
        return cells, counters


def _joined(before: Book | None, book: Book) -> Book:
    """Add two books; what was carried into the first is carried into the sum."""
    made = Book.total([book] if before is None else [before, book])
    if before is not None:
        made.carried = before.carried
        made.started -= book.carried
    return made


def part(report: Report, kinds: Sequence[Kind], keeps: Callable[[Group], bool], plain: Mapping[Kind, Kind]) -> Report:
    """Rows of some groups. Of what was started, and lost, nobody knows more than that these have finished.

    Rows by owner of the kinds in `plain` alone answer: their sums are the rows of the kinds without owners.
    """
    cells = {group: dict(stages) for group, stages in report.cells.items() if keeps(group)}
    counters = {group: Counter(counts) for group, counts in report.counters.items() if keeps(group)}
    for group in [one for one in cells if one.kind in plain]:
        merge_stages(cells, plain[group.kind].group(*group.values[:-1]), {TOTAL: cells[group][TOTAL]})
    for group in [one for one in counters if one.kind in plain]:
        counters.setdefault(plain[group.kind].group(*group.values[:-1]), Counter()).update(counters[group])
    books = {}
    for name, book in report.books.items():
        made = books[name] = Book()
        mine = [stages for group, stages in cells.items() if group.kind.book == name]
        made.finished = made.started = sum(stages[TOTAL].count for stages in mine)
        made.noted = dict(book.noted)
    # Its lists are of everything.
    return report._replace(books=books, cells=arranged(cells, kinds), counters=counters, lists={})


class _Row:
    """Events of a group: times that are not added up yet, and what else is counted of them."""

    __slots__ = ("bytes", "counts", "times")

    def __init__(self) -> None:
        self.times: list[tuple[Mapping[str, int], int]] = []
        self.bytes = 0
        self.counts = Counter[str]()

    def add(self, fields: Mapping[str, Any]) -> None:
        """Add an object of a definition."""
        value, unit, outcome = fields.get("value"), fields.get("unit"), fields.get("outcome")
        if type(value) is int and isinstance(unit, str):
            self.counts[unit] += value
        if isinstance(outcome, str):
            self.counts[outcome] += 1


class Singles:
    """Adds up events as the programs of the kernel would have."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._order = kinds
        self._bounded = Bounded(_MOST)
        self._rows: dict[Group, _Row] = {}
        self._cells: dict[Group, dict[str, Distribution]] = {}
        self._failed: Counter[str] = Counter()
        self._held = 0
        self.count = 0

    def add(self, event: Event) -> None:
        group, fields = event.group, event.fields
        row = self._rows.get(group) or self._rows.setdefault(self._bounded.of(group), _Row())
        row.times.append((event.stages, event.total_ns))
        size = fields.get("result") if "length" in fields else fields.get(BYTES)
        if type(size) is int and size > 0:
            row.bytes += size
        if group.kind.nested:
            row.add(fields)
        if fields.get("error") or fields.get("failed"):
            self._failed[group.kind.book] += 1
        self.count += 1
        self._held += 1
        if self._held > _HELD:
            self._count()

    def _count(self) -> None:
        """Count many values at once, which takes a small part of the time."""
        self._held = 0
        for group, row in self._rows.items():
            found, row.times = row.times, []
            if not found:
                continue
            cells = self._cells.setdefault(group, {})
            columns: dict[str, Sequence[int]] = {TOTAL: [total for _, total in found]}
            keys = found[0][0].keys()
            if all(stages.keys() == keys for stages, _ in found):
                columns.update(zip(keys, zip(*(stages.values() for stages, _ in found))))
            else:
                for name in {name for stages, _ in found for name in stages if name in group.kind}:
                    columns[name] = [stages[name] for stages, _ in found if name in stages]
            for name, values in columns.items():
                if name in group.kind:
                    cells.setdefault(name, Distribution()).merge(_of(values))

    def report(self, ts_ns: int, duration_ns: int, books: Mapping[str, Book]) -> Report:
        self._count()
        cells, counters = {}, {}
        for group, stages in self._cells.items():
            kind = self._kinds.get(group.kind.name)
            if kind is None or len(kind.labels) != len(group.values):
                continue
            of = Group(kind, group.values)
            whole = stages[TOTAL].count
            cells[of] = {name: found for name, found in stages.items() if name in kind}
            # Stages that are rare leave out what took no time.
            for found in cells[of].values():
                found.add_zeros(whole - found.count)
            row = self._rows[group]
            if kind.nested:
                declared = {one.name for one in kind.counters}
                counters[of] = {name: count for name, count in row.counts.items() if name in declared}
            elif kind.sized:
                counters[of] = {BYTES: row.bytes}
        made = {}
        for name, book in books.items():
            made[name] = Book()
            made[name].finished = made[name].started = sum(
                stages[TOTAL].count for group, stages in cells.items() if group.kind.book == name
            )
            made[name].failed = self._failed[name]
            made[name].noted = dict(book.noted)
        return Report("summary", ts_ns, duration_ns, made, arranged(cells, self._order), counters, _NOTHING)


_HELD = 1 << 16


def _of(values: Sequence[int]) -> Distribution:
    """Make a distribution of sorted values, which takes a search for each bucket and not for each value."""
    ordered = sorted(values)
    made = Distribution()
    made.min, made.max = ordered[0], ordered[-1]
    below = 0
    for slot in range(index(made.min), index(made.max) + 1):
        under = bisect_left(ordered, bounds(slot)[1], below)
        made.buckets[slot], below = under - below, under
    made.count, made.sum, made.sumsq = len(ordered), sum(ordered), sum(map(mul, ordered, ordered))
    return made
