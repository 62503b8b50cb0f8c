# SPDX-License-Identifier: Apache-2.0
"""What a flow tells the outputs: how it observes, what each interval held, single requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from wptrace.model.book import Accounting
from wptrace.model.budget import Spending
from wptrace.model.distribution import Distribution
from wptrace.model.stages import StageTable


class Source(NamedTuple):
    """How a stage is observed on this kernel; `how` is empty where it is not."""

    stage: str
    how: str


class Start(NamedTuple):
    flow: str
    level: str
    kernel: str
    filters: Mapping[str, Any]
    sources: list[Source]
    stages: StageTable
    notes: list[str]
    """What the reader must know to read the figures: stages that degrade, and why."""
    file: str = ""
    """From which it is told, and not from a kernel."""


OPERATION, HIT, LAYER, REQUEST, WRITEBACK = "operation", "hit", "layer", "request", "writeback"
KINDS = (OPERATION, HIT, LAYER, REQUEST, WRITEBACK)
"""What rows and single records are about: a system call that waited for a device, one that the page cache served, a bio
of a device made of others, a request of the block layer (or whatever else a flow follows), data of a file that went
from the page cache to a device."""


class Group(NamedTuple):
    """What rows are kept apart by."""

    dev: str
    op: str
    kind: str = REQUEST
    key: Hashable = None
    """Whatever else a flow tells apart, such as a stack."""


class Overhead(NamedTuple):
    """What the tracing itself cost. BPF times are 0 unless the kernel's statistics are on."""

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
    accounting: Accounting
    cells: dict[Group, dict[str, Distribution]]
    """Distributions by stage name."""
    bytes: dict[Group, int]
    failed: int
    overhead: Overhead
    operations: Accounting | None = None
    """Of system calls, operations and hits alike, where the flow sees them; `accounting` is that of requests."""
    failed_operations: int = 0
    untimed: Mapping[Group, int] = {}
    """Of the finished: those that a budget had counted alone. The distributions are scaled up to contain them."""
    behind: Mapping[str, int] = {}
    """By who had put most into them: how long operations that were told waited for commits of others."""
    events: Mapping[Group, Mapping[str, int]] = {}
    """What else happened to requests on their way, such as merges: how often."""


class Row(NamedTuple):
    group: Group
    stage: str
    distribution: Distribution
    share: float
    """Of the time of all requests of the group."""


class Finding(NamedTuple):
    """What one rule of the verdict found."""

    rule: str
    figures: Mapping[str, float]
    """By the names of docs/verdict.md; times in nanoseconds."""
    group: Group | None = None
    stage: str = ""
    who: str = ""
    """The task that it blames, if any."""


class Verdict(NamedTuple):
    findings: tuple[Finding, ...]
    advice: str
    """What to look at next; may be empty."""

    @property
    def stage(self) -> str:
        """The stage that took the time; empty where there is none."""
        return self.findings[0].stage if self.findings else ""


class Report(NamedTuple):
    """An interval, or the summary of all of them."""

    kind: str
    ts_ns: int
    """Time of day at its end."""
    duration_ns: int
    accounting: Accounting
    rows: list[Row]
    bytes: dict[Group, int]
    failed: int
    overhead: Overhead
    operations: Accounting | None = None
    failed_operations: int = 0
    verdict: Verdict | None = None
    """Of a summary alone."""
    untimed: Mapping[Group, int] = {}
    """As in a snapshot."""
    budget: Spending | None = None
    events: Mapping[Group, Mapping[str, int]] = {}
    """As in a snapshot."""

    @property
    def request_bytes(self) -> int:
        """What went to and came from devices; an operation's bytes are those of its requests, or of the page cache."""
        return sum(count for group, count in self.bytes.items() if group.kind == REQUEST)


class Request(NamedTuple):
    """One finished request or operation, with its stages in nanoseconds."""

    end_ns: int
    """Time of day."""
    dev: str
    op: str
    fields: Mapping[str, Any]
    total_ns: int
    stages: Mapping[str, int]
    kind: str = REQUEST


class InFlight(NamedTuple):
    """Something that has not finished yet."""

    kind: str
    dev: str
    op: str
    age_ns: int
    stage: str
    """Where it is: the stage that it entered last."""
    fields: Mapping[str, Any]


class Output(Protocol):
    def start(self, start: Start) -> None: ...
    def request(self, request: Request) -> None: ...

    def flush(self) -> None:
        """All requests of a batch have come."""

    def in_flight(self, found: list[InFlight], at_ns: int) -> None: ...
    def interval(self, report: Report) -> None: ...
    def summary(self, report: Report) -> None: ...
    def close(self) -> None: ...


def rows_of(cells: Mapping[Group, Mapping[str, Distribution]], table: StageTable) -> list[Row]:
    """Rows in the order of devices, operations and stages, with each stage's share of the group's time."""
    rows = []
    for group in sorted(cells, key=_order):
        stages = cells[group]
        whole = stages[table.total.name].sum
        for stage in table.rows:
            if stage.name in stages and not (stage.rare and not stages[stage.name].sum):
                found = stages[stage.name]
                share = found.sum / whole if whole and not stage.outside else 0.0
                rows.append(Row(group, stage.name, found, share))
    return rows


def _order(group: Group) -> tuple[str, int, str]:
    return group.dev, KINDS.index(group.kind), group.op


def since(now: Snapshot, earlier: Snapshot) -> tuple[dict[Group, dict[str, Distribution]], dict[Group, int]]:
    """The distributions and bytes that came between two snapshots; groups in which nothing happened are left out."""
    cells: dict[Group, dict[str, Distribution]] = {}
    for group, stages in now.cells.items():
        before = earlier.cells.get(group, {})
        grown = {name: found.delta(before[name]) if name in before else found.copy() for name, found in stages.items()}
        if any(found.count or found.shrunk for found in grown.values()):
            cells[group] = grown
    grown_bytes = {group: count - earlier.bytes.get(group, 0) for group, count in now.bytes.items()}
    return cells, {group: count for group, count in grown_bytes.items() if count}


def untimed_since(now: Snapshot, earlier: Snapshot) -> dict[Group, int]:
    grown = {group: count - earlier.untimed.get(group, 0) for group, count in now.untimed.items()}
    return {group: count for group, count in grown.items() if count}


def events_since(now: Snapshot, earlier: Snapshot) -> dict[Group, dict[str, int]]:
    grown: dict[Group, dict[str, int]] = {}
    for group, counts in now.events.items():
        before = earlier.events.get(group, {})
        new = {name: count - before.get(name, 0) for name, count in counts.items() if count != before.get(name, 0)}
        if new:
            grown[group] = new
    return grown


def without_device(
    rows: Iterable[tuple[Group, dict[str, Distribution]]],
) -> dict[Group, dict[str, Distribution]]:
    """The same without the devices, which are merged."""
    merged: dict[Group, dict[str, Distribution]] = {}
    for group, stages in rows:
        into = merged.setdefault(group._replace(dev=""), {})
        for name, found in stages.items():
            into.setdefault(name, Distribution()).merge(found)
    return merged
