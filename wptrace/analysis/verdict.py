# SPDX-License-Identifier: Apache-2.0
"""What a summary comes to: rules that look at its rows and at how the trace went. docs/verdict.md describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Callable, NamedTuple

from wptrace.analysis import growth
from wptrace.analysis.advice import advice
from wptrace.analysis.history import Stretch
from wptrace.model.book import Accounting
from wptrace.model.distribution import Distribution
from wptrace.model.results import HIT, OPERATION, REQUEST, Finding, Group, Row, Verdict
from wptrace.model.stages import StageTable

DEVICE_SHARE = 0.5
"""A device with so much of the time is named."""
TAIL = 5.0
"""The 99th percentile is at least so many times the median,"""
TAIL_COUNT = 200
"""among so many."""
INSIDE_SHARE = 0.1
"""Interference with so much of the time is told."""
BEHIND_SHARE = 0.1
"""So are commits of others that were waited for so long."""


Cells = dict[Group, dict[str, Distribution]]


class _Facts(NamedTuple):
    rows: Sequence[Row]
    table: StageTable
    duration_ns: int
    requests: Accounting
    operations: Accounting | None = None
    stretches: Sequence[Stretch] = ()
    wall_offset_ns: int = 0
    behind: Mapping[str, int] = {}


class Case(_Facts):
    """All that rules look at."""

    @cached_property
    def cells(self) -> Cells:
        """By kind and operation, all else added up; those that nothing happened to are left out."""
        merged: Cells = {}
        for row in self.rows:
            into = merged.setdefault(Group("", row.group.op, row.group.kind), {})
            into.setdefault(row.stage, Distribution()).merge(row.distribution)
        return {group: stages for group, stages in merged.items() if stages[self.table.total.name].count}

    def of_kind(self, kind: str) -> Cells:
        return {group: stages for group, stages in self.cells.items() if group.kind == kind}

    def heaviest(self, kind: str) -> tuple[Group, dict[str, Distribution]] | None:
        """The group that took the most time."""
        total = self.table.total.name
        return max(self.of_kind(kind).items(), key=lambda item: item[1][total].sum, default=None)

    @cached_property
    def main(self) -> tuple[Group, dict[str, Distribution]] | None:
        """What the verdict is about: system calls that waited, or else requests."""
        return self.heaviest(OPERATION) or self.heaviest(REQUEST)

    def parts(self, stages: dict[str, Distribution]) -> dict[str, Distribution]:
        """The stages that make up the whole, and what none of them covers."""
        names = (*(stage.name for stage in self.table.partition), self.table.unattributed.name)
        return {name: stages[name] for name in names if name in stages and stages[name].sum}


def judge(case: Case) -> Verdict:
    """The first rule of `FIRST` that applies, and all of `MORE`."""
    findings = [next(found for rule in FIRST if (found := rule(case)) is not None)]
    findings += [found for rule in MORE if (found := rule(case)) is not None]
    return Verdict(tuple(findings), advice(findings[0].rule, findings[0].stage, case.table))


def idle(case: Case) -> Finding | None:
    if case.cells:
        return None
    books = [case.requests, *([case.operations] if case.operations is not None else [])]
    return Finding("idle", {"in_flight": sum(book.in_flight for book in books)})


def cached(case: Case) -> Finding | None:
    found = case.heaviest(HIT)
    if found is None or case.main is not None:
        return None
    group, stages = found
    total = stages[case.table.total.name]
    return Finding("cached", {"count": total.count, "mean_ns": total.mean, "p99_ns": total.percentile(99)}, group)


def unmeasured(case: Case) -> Finding | None:
    if case.main is None or case.parts(case.main[1]):
        return None
    return Finding("unmeasured", {"count": case.main[1][case.table.total.name].count}, case.main[0])


def largest(case: Case) -> Finding | None:
    """Where the time went."""
    if case.main is None:
        return None
    group, stages = case.main
    parts = case.parts(stages)
    stage = max(parts, key=lambda name: parts[name].sum)
    dev, dev_share = _device(case, group)
    figures = {
        "share": parts[stage].sum / stages[case.table.total.name].sum,
        "mean_ns": parts[stage].mean,
        "p99_ns": parts[stage].percentile(99),
        "dev_share": dev_share,
        "queue_depth": _queue_depth(case),
    }
    return Finding("largest", figures, group._replace(dev=dev), stage)


def _device(case: Case, group: Group) -> tuple[str, float]:
    """Where most of it happened; without a name where it is spread over many."""
    total = case.table.total.name
    by_device: dict[str, int] = {}
    for row in case.rows:
        if row.stage == total and (row.group.op, row.group.kind) == (group.op, group.kind):
            by_device[row.group.dev] = by_device.get(row.group.dev, 0) + row.distribution.sum
    dev = max(by_device, key=by_device.__getitem__)
    share = by_device[dev] / (sum(by_device.values()) or 1)
    return (dev, share) if share >= DEVICE_SHARE else ("", 0.0)


def _queue_depth(case: Case) -> float:
    """By Little's law: the requests that were on their way at a time."""
    times = (stages[case.table.total.name].sum for stages in case.of_kind(REQUEST).values())
    return sum(times) / case.duration_ns if case.duration_ns else 0.0


def grew(case: Case) -> Finding | None:
    """Which stage took longer for a while."""
    if case.main is None:
        return None
    group, stages = case.main
    total = case.table.total.name
    found = growth.largest(case.stretches, (group.kind, group.op), case.parts(stages), total)
    if found is None:
        return None
    figures = {
        "factor": found.factor,
        "ts_ns": found.end_ns + case.wall_offset_ns,
        "duration_ns": found.end_ns - found.start_ns,
        "mean_ns": found.inside.mean,
        "rest_mean_ns": found.rest.mean,
    }
    return Finding("grew", figures, group, found.stage)


def tail(case: Case) -> Finding | None:
    """Which stage makes a few take so much longer than most."""
    if case.main is None:
        return None
    group, stages = case.main
    total = stages[case.table.total.name]
    median, slow = total.percentile(50), total.percentile(99)
    parts = case.parts(stages)
    if total.count < TAIL_COUNT or slow < TAIL * median or not parts:
        return None
    stage = max(parts, key=lambda name: parts[name].percentile(99) - parts[name].percentile(50))
    figures = {"ratio": slow / max(median, 1), "p50_ns": median, "p99_ns": slow}
    return Finding("tail", {**figures, "stage_p99_ns": parts[stage].percentile(99)}, group, stage)


def inside(case: Case) -> Finding | None:
    """What else had the CPU while the stages lasted."""
    if case.main is None:
        return None
    group, stages = case.main
    whole = stages[case.table.total.name].sum
    noise = {stage.name: stages[stage.name].sum for stage in case.table.inside if stage.name in stages}
    name = max(noise, key=noise.__getitem__, default="")
    if not name or not whole or noise[name] < INSIDE_SHARE * whole:
        return None
    return Finding("inside", {"share": noise[name] / whole, "sum_ns": noise[name]}, group, name)


def behind(case: Case) -> Finding | None:
    """Whose commits others had to wait for."""
    if not case.behind:
        return None
    total = case.table.total.name
    whole = sum(stages[total].sum for stages in case.of_kind(OPERATION).values())
    who = max(case.behind, key=case.behind.__getitem__)
    waited = case.behind[who]
    if not whole or waited < BEHIND_SHARE * whole:
        return None
    return Finding("behind", {"share": waited / whole, "sum_ns": waited}, stage="journal", who=who)


def lost(case: Case) -> Finding | None:
    figures = {"requests": case.requests.lost_total, "requests_started": case.requests.started}
    if case.operations is not None:
        figures["operations"] = case.operations.lost_total
        figures["operations_started"] = case.operations.started
    return Finding("lost", figures) if figures["requests"] or figures.get("operations") else None


Rule = Callable[[Case], "Finding | None"]

FIRST: tuple[Rule, ...] = (idle, cached, unmeasured, largest)
MORE: tuple[Rule, ...] = (grew, tail, inside, behind, lost)
