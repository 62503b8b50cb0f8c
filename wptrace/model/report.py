# SPDX-License-Identifier: Apache-2.0
"""Reports of a flow for the outputs: how it observes, what each interval held, single events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Protocol

from wptrace.model.book import Book, Cause
from wptrace.model.budget import Spending
from wptrace.model.distribution import Distribution
from wptrace.model.kind import ALL, BYTES_FIELD, REQUESTS, TOTAL, UNTIMED_FIELD, EventField, Group, Kind, fields_of

BYTES, UNTIMED = BYTES_FIELD.name, UNTIMED_FIELD.name
"""Counters that any kind may have: what was transferred, and how many a budget had counted alone. All others say what
happened to objects on their way."""

Cells = Mapping[Group, Mapping[str, Distribution]]
"""Distributions by the name of what was measured."""
Counters = Mapping[Group, Mapping[str, int]]


class Source(NamedTuple):
    """How a stage is observed on this kernel; `how` is empty if it is not."""

    stage: str
    how: str


class Resource(NamedTuple):
    """The machine and the command of a trace."""

    host: str = ""
    """The name of the machine."""
    machine: str = ""
    """Its architecture."""
    boot: str = ""
    """The machine's boot_id."""
    version: str = ""
    """The version of wptrace."""
    command: tuple[str, ...] = ()
    """The command line."""


class Start(NamedTuple):
    flow: str
    level: str
    kernel: str
    filters: Mapping[str, Any]
    sources: list[Source]
    kinds: Sequence[Kind]
    """Kinds in the order in which they are shown."""
    notes: list[str]
    """Notes for who reads the figures: stages that degrade, and why."""
    file: str = ""
    """The file it comes from, instead of a kernel."""
    resource: Resource = Resource()
    fields: Sequence[EventField] = ()
    """Fields that events have in addition to those of their kinds, because the user chose an option."""

    @property
    def event_fields(self) -> list[EventField]:
        return [*fields_of(self.kinds), *self.fields]


class Overhead(NamedTuple):
    """The cost of the tracing itself. BPF times are 0 unless the kernel's statistics are on."""

    bpf_ns: int
    bpf_runs: int
    reader_cpu_ns: int
    rss_bytes: int
    map_bytes: int
    records: int

    def since(self, earlier: Overhead) -> Overhead:
        """Times and counts grow; memory is a level."""
        return Overhead(
            self.bpf_ns - earlier.bpf_ns,
            self.bpf_runs - earlier.bpf_runs,
            self.reader_cpu_ns - earlier.reader_cpu_ns,
            self.rss_bytes,
            self.map_bytes,
            self.records - earlier.records,
        )


class Snapshot(NamedTuple):
    """Everything counted so far, at one moment of the monotonic clock."""

    at_ns: int
    books: Mapping[str, Book]
    """Books by name; each kind names its book."""
    cells: dict[Group, dict[str, Distribution]]
    """Distributions of finished objects, including those that a budget had only counted."""
    counters: Counters
    overhead: Overhead
    folded: Mapping[Group, int] = {}
    """How often the counts of an owner were added to those of the others."""


class Row(NamedTuple):
    group: Group
    metric: str
    distribution: Distribution
    share: float
    """The share of the group's total."""


class Finding(NamedTuple):
    """The finding of one rule of the verdict."""

    rule: str
    figures: Mapping[str, float]
    """Figures by the names of docs/verdict.md; times are in nanoseconds."""
    group: Group | None = None
    stage: str = ""
    who: str = ""
    """The task, or other owner, that it blames, if any."""
    advice: str = ""
    """Where to look next for this finding; may be empty."""
    parts: Sequence[tuple[str, float]] = ()
    """The parts of the stage, each with its share, the largest first."""
    dirtied_by: str = ""
    """If writers wait: the owner who dirtied most of what is written back."""


class Verdict(NamedTuple):
    findings: tuple[Finding, ...]
    advice: str
    """Where to look next, for the first finding; may be empty."""

    @property
    def stage(self) -> str:
        """The stage that took the time; empty where there is none."""
        return self.findings[0].stage if self.findings else ""


class UnderWay(NamedTuple):
    """Requests of an owner on the device of a slow one."""

    owner: str
    op: str
    requests: int
    """Requests that were under way when the slow one was queued,"""
    bytes: int
    issued: int
    """and so many of them the device had by then."""
    later: int = 0
    """Requests that were queued while it was under way."""
    later_bytes: int = 0


class Beginning(NamedTuple):
    """The first one that was slow, of those that led to the slowest without a pause."""

    begin_ns: int
    """Time of day at which it began to be slow."""
    op: str
    owner: str
    ns: int
    slow: int
    """How many were slow from then on, up to the slowest,"""
    among: int
    """of so many."""
    after: int
    """How many slow ones followed the slowest without a pause,"""
    until_ns: int
    """and the time of day at which the last of all ended."""


class Incident(NamedTuple):
    """The slowest event of a recording in which there is every event, and what led to it."""

    event: Event
    dev: str
    part: str
    """Where most of its time was: in the `device`, `before` the device had it, or `outside` of both."""
    part_ns: int
    usual_ns: int
    """The median of the same part of all others that are alike; 0: there are none."""
    moment_ns: int
    """Time of day at which its request was queued; where its time was outside of the device, at which it began."""
    under_way: Sequence[UnderWay]
    """The owners of requests under way, those with the most requests first."""
    others: UnderWay | None
    """The rest of them, in one."""
    beginning: Beginning | None
    """Unless it took no longer than usual."""
    left: int = 0
    """How many events, the oldest ones, were left out."""
    before_ns: int = 0
    """If all similar operations came with it and took as long: the median of other operations before them."""


class Report(NamedTuple):
    """An interval, or the summary of all of them."""

    kind: str
    ts_ns: int
    """Time of day at its end."""
    duration_ns: int
    books: Mapping[str, Book]
    cells: Cells
    """Distributions in the order of rows, without metrics that have no row (`arranged`)."""
    counters: Counters
    overhead: Overhead
    verdict: Verdict | None = None
    """The verdict, only of a summary."""
    budget: Spending | None = None
    lists: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    """Further parts of a summary, by their names in JSON."""
    sums: Mapping[Kind, int] = {}
    """The totals of ranked kinds whose rows are not all left."""
    incident: Incident | None = None
    """The incident, only of a summary."""

    @property
    def book(self) -> Book:
        """The book of the objects that the flow follows."""
        return self.books[REQUESTS]

    @property
    def bytes(self) -> int:
        """The bytes of these objects; those of operations are their requests' or the page cache's."""
        return sum(found.get(BYTES, 0) for group, found in self.counters.items() if group.kind.book == REQUESTS)

    def counter(self, group: Group, name: str) -> int:
        return self.counters.get(group, {}).get(name, 0)

    def events(self, group: Group) -> dict[str, int]:
        """Events that objects met on their way."""
        return {name: count for name, count in self.counters.get(group, {}).items() if name not in (BYTES, UNTIMED)}

    @property
    def rows(self) -> list[Row]:
        """The rows, with the share of each in the total of its group, or of all groups if these are ranked."""
        ranked, rows = self._ranked(), []
        for group, found in self.cells.items():
            whole = ranked[group.kind] if group.kind.ranked else found[TOTAL].sum
            for metric in group.kind.rows:
                if metric.name in found:
                    one = found[metric.name]
                    rows.append(Row(group, metric.name, one, one.sum / whole if whole and metric.part else 0.0))
        return rows

    def _ranked(self) -> Mapping[Kind, int]:
        found = Counter[Kind]()
        for group, metrics in self.cells.items():
            if group.kind.ranked:
                found[group.kind] += metrics[TOTAL].sum
        return {**found, **self.sums}

    def only(self, groups: Iterable[Group]) -> Report:
        """Return the report with these groups in this order. Their shares stay."""
        return self._replace(cells={group: self.cells[group] for group in groups}, sums=self._ranked())

    def everywhere(self) -> Report:
        """Return the report without the first label, which names the device."""
        return self._merged(lambda group: group.everywhere)

    def without(self, names: Collection[str], kinds: Collection[Kind] | None = None) -> Report:
        """Return the report without these labels (of these kinds), with rows added up."""
        return self._merged(lambda group: group.all_of(*names) if kinds is None or group.kind in kinds else group)

    def _merged(self, into: Callable[[Group], Group]) -> Report:
        counters: dict[Group, Counter[str]] = {}
        for group, counts in self.counters.items():
            counters.setdefault(into(group), Counter()).update(counts)
        kinds = list(dict.fromkeys(group.kind for group in self.cells))
        return self._replace(cells=arranged(merged(self.cells, into), kinds), counters=counters)


class Segment(NamedTuple):
    """A stretch of a stage, in nanoseconds from the start of the object that was in it."""

    stage: str
    from_ns: int
    to_ns: int


class Child(NamedTuple):
    """A piece of work done for an object, as a request for an operation."""

    times: Mapping[str, int]
    """When it passed its points, in nanoseconds from the start of the object; before that it is less than 0."""
    fields: Mapping[str, Any]


class Event(NamedTuple):
    """A single object that is over, with what each stage took in nanoseconds."""

    group: Group
    end_ns: int
    """Time of day."""
    total_ns: int
    stages: Mapping[str, int]
    fields: Mapping[str, Any]
    segments: Sequence[Segment] = ()
    """Segments from the start on, without a gap; none if only sums are known."""
    more: int = 0
    """The number of further segments, of which only sums are known."""
    children: Sequence[Child] = ()

    @property
    def start_ns(self) -> int:
        return self.end_ns - self.total_ns


class InFlight(NamedTuple):
    """An object that is not over yet."""

    group: Group
    age_ns: int
    stage: str
    """The stage that it entered last."""
    fields: Mapping[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        """All that is known of it, by names."""
        return {**self.group.fields, "age_ns": self.age_ns, "stage": self.stage, **self.fields}


class Output(Protocol):
    def start(self, start: Start) -> None: ...
    def event(self, event: Event) -> None: ...

    def flush(self) -> None:
        """All events of a batch have come."""

    def in_flight(self, found: list[InFlight], at_ns: int) -> None: ...
    def interval(self, report: Report) -> None: ...
    def losses(self) -> Mapping[Cause, int]:
        """The number of events that could not be written so far."""

    def summary(self, report: Report) -> None: ...
    def close(self) -> None: ...


class QuietOutput:
    """An output that does nothing; a subclass takes what it wants of a trace."""

    def start(self, start: Start) -> None:
        pass

    def event(self, event: Event) -> None:
        pass

    def flush(self) -> None:
        pass

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        pass

    def interval(self, report: Report) -> None:
        pass

    def losses(self) -> Mapping[Cause, int]:
        """No losses: what cannot be written ends the trace."""
        return {}

    def summary(self, report: Report) -> None:
        pass

    def close(self) -> None:
        pass


class Controls(Protocol):
    """A user in front of an output, who asks for something while it runs."""

    @property
    def fd(self) -> int:
        """Readable when something was asked; negative while nobody can."""

    def take(self) -> bool:
        """Answers it; False where it is to end."""

    def leave(self) -> None:
        """Nobody can ask any more. A signal handler may call it."""


def arranged(cells: Cells, kinds: Iterable[Kind]) -> Cells:
    """Return cells in the order of places, kinds and other labels, without what has no row."""
    place = {kind: at for at, kind in enumerate(kinds)}
    return {
        group: {
            metric.name: cells[group][metric.name]
            for metric in group.kind.rows
            if metric.name in cells[group] and not (metric.rare and not cells[group][metric.name].sum)
        }
        for group in sorted(cells, key=lambda group: _order(group, place, cells))
    }


def _order(group: Group, place: Mapping[Kind, int], cells: Cells) -> tuple[Any, ...]:
    first, *others = map(_sortable, group.values) if group.values else ((),)
    if group.kind.ranked:
        return 1, place[group.kind], -cells[group][TOTAL].sum, first, *others
    return 0, first, place[group.kind], *others


def _sortable(value: object) -> tuple[Any, ...]:
    """Values of a label are of one type, but for what stands for all of them or for none."""
    if value is ALL or value is None:
        return (0,)
    return (2, value) if isinstance(value, str) else (1, value)


def since(now: Snapshot, earlier: Snapshot) -> tuple[dict[Group, dict[str, Distribution]], dict[Group, dict[str, int]]]:
    """Distributions and counters that came between two snapshots; groups in which nothing happened are left out.

    Something may happen to what is not over yet, or to what has no times at all, as a flush that is asked for.
    """
    cells_before, counters_before = _as_folded(earlier, now)
    counters: dict[Group, dict[str, int]] = {}
    for group, counts in now.counters.items():
        was = counters_before.get(group, {})
        if counts is was or counts == was:
            continue
        new = {name: count - was.get(name, 0) for name, count in counts.items() if count != was.get(name, 0)}
        if new:
            counters[group] = new
    cells: dict[Group, dict[str, Distribution]] = {}
    for group, stages in now.cells.items():
        before = cells_before.get(group, {})
        happened = counters[group].keys() - {BYTES, UNTIMED} if group in counters else ()
        if stages is before and not happened:
            continue
        # A new one is the same object, as thousands of owners may be new.
        grown = {name: found.delta(before[name]) if name in before else found for name, found in stages.items()}
        if happened or any(found.count or found.shrunk for found in grown.values()):
            cells[group] = grown
    return cells, counters


def _as_folded(earlier: Snapshot, now: Snapshot) -> tuple[Cells, Counters]:
    """The counts of the earlier snapshot, with owners among the others whom the later one has there."""
    again, had = now.folded, earlier.folded
    # Of thousands of groups few are: operations on sets do not look at each.
    known = set(earlier.cells).union(earlier.counters)
    folded = {group for group in known.difference(now.cells, now.counters) if group.of_others != group}
    if again != had:
        folded |= {group for group in known.intersection(again) if again[group] != had.get(group)}
    if not folded:
        return earlier.cells, earlier.counters
    gone = [group for group in dict.fromkeys((*earlier.cells, *earlier.counters)) if group in folded]
    # All other groups stay the same objects: that they did not change shows without a look into them.
    cells, counters = dict(earlier.cells), dict(earlier.counters)
    into: dict[Group, list[Group]] = {}
    for group in gone:
        into.setdefault(group.of_others, []).append(group)
    for others, left in into.items():
        parts = [others, *left]
        cells[others] = of_one_row(cells.pop(one, {}) for one in parts)
        sums: Counter[str] = Counter()
        for one in parts:
            sums.update(counters.pop(one, {}))
        counters[others] = sums
    return cells, counters


def everywhere(cells: Cells) -> dict[Group, dict[str, Distribution]]:
    """Return cells without the first label, added up."""
    return merged(cells, lambda group: group.everywhere)


def merged(cells: Cells, into: Callable[[Group], Group]) -> dict[Group, dict[str, Distribution]]:
    """Add up cells that become one group; a group that stays alone keeps its object."""
    parts: dict[Group, list[Mapping[str, Distribution]]] = {}
    for group, stages in cells.items():
        parts.setdefault(into(group), []).append(stages)
    return {group: of_one_row(found) for group, found in parts.items()}


def of_one_row(rows: Iterable[Mapping[str, Distribution]]) -> dict[str, Distribution]:
    """All of them added up; what only one of them has is the same object."""
    parts: dict[str, list[Distribution]] = {}
    for stages in rows:
        for name, one in stages.items():
            parts.setdefault(name, []).append(one)
    return {name: added_up(found) for name, found in parts.items()}


def added_up(found: Sequence[Distribution]) -> Distribution:
    """Add up distributions; a single one stays the same object."""
    if len(found) == 1:
        return found[0]
    of_all = type(found[0])()
    for one in found:
        of_all.merge(one)
    return of_all
