# SPDX-License-Identifier: Apache-2.0
"""The verdict on a summary: rules over its rows and over the history of the trace. docs/verdict.md describes them.

A flow says which rules are its own; those here know nothing but kinds, stages and books.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Callable, NamedTuple

from wptrace.analysis import growth
from wptrace.analysis.history import Stretch
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL, UNATTRIBUTED, Group, Kind
from wptrace.model.report import Finding, Report, Verdict, everywhere

PLACE_SHARE = 0.5
"""A device, or another place, with this share of the time is named."""
TAIL = 5.0
"""The 99th percentile is at least so many times the median,"""
TAIL_COUNT = 200
"""with at least this many samples."""
OUTLIER_SHARE = 0.5
"""A single one is reported that took at least this share of the time of all,"""
OUTLIER_COUNT = 16
"""of which there are at least so many."""
INSIDE_SHARE = 0.1
"""Interference that takes at least this share of the time is reported."""
LOST_SHARE, SAMPLE_SHARE = 0.0001, 0.01
"""With so many of all lost a figure could be another one: a tenth of those that p99.9 leaves out; and with so many the
others are no more than a sample."""

Stages = dict[str, Distribution]


class _Facts(NamedTuple):
    report: Report
    kinds: Sequence[Kind]
    """Kinds for the verdict, which is about the first that anything happened to."""
    stretches: Sequence[Stretch] = ()
    wall_offset_ns: int = 0


class Case(_Facts):
    """The input of rules."""

    @cached_property
    def cells(self) -> dict[Group, Stages]:
        """All places added up; those that nothing happened to are left out."""
        merged = everywhere(self.report.cells)
        return {group: stages for group, stages in merged.items() if stages[TOTAL].count}

    def of_kind(self, kind: Kind) -> dict[Group, Stages]:
        return {group: stages for group, stages in self.cells.items() if group.kind is kind}

    def heaviest(self, kind: Kind) -> tuple[Group, Stages] | None:
        """The group that took the most time."""
        return max(self.of_kind(kind).items(), key=lambda item: item[1][TOTAL].sum, default=None)

    @cached_property
    def main(self) -> tuple[Group, Stages] | None:
        """The group that the verdict is about."""
        return next(filter(None, map(self.heaviest, self.kinds)), None)


def parts(group: Group, stages: Stages) -> Stages:
    """The stages that make up the whole, and what none of them covers."""
    names = (*(stage.name for stage in group.kind.stages), UNATTRIBUTED)
    return {name: stages[name] for name in names if name in stages and stages[name].sum}


def share_of(ns: int, whole_ns: int) -> float:
    """The share of a stage. A cell that is read while its CPU writes it may have a stage newer than its total."""
    return ns / max(whole_ns, ns)


Rule = Callable[[Case], "Finding | None"]


class Rules(NamedTuple):
    first: Sequence[Rule]
    """The first one that applies,"""
    more: Sequence[Rule]
    """and all of these."""
    advice: Mapping[str, str] = {}
    """Advice by rule or stage, if the stage has no better one."""


def judge(case: Case, rules: Rules) -> Verdict:
    findings = [next(found for rule in rules.first if (found := rule(case)) is not None)]
    findings += [found for rule in rules.more if (found := rule(case)) is not None]
    findings = [found._replace(advice=found.advice or _advice(found, rules.advice)) for found in findings]
    return Verdict(tuple(findings), findings[0].advice)


def _advice(found: Finding, advice: Mapping[str, str]) -> str:
    for name in (found.rule, found.stage):
        if name in advice:
            return advice[name]
    if found.group is None or found.stage not in found.group.kind:
        return ""
    stage = found.group.kind[found.stage]
    return stage.advice or stage.meaning


def idle(case: Case) -> Finding | None:
    if case.main is not None:
        return None
    return Finding("idle", in_flight(case.report))


def in_flight(report: Report) -> dict[str, float]:
    """What is in flight in all, and of each book where there are several: requests may be those of the operations."""
    found: dict[str, float] = {f"{name}_in_flight": book.in_flight for name, book in report.books.items()}
    return {"in_flight": sum(found.values()), **(found if len(found) > 1 else {})}


def unmeasured(case: Case) -> Finding | None:
    if case.main is None or parts(*case.main):
        return None
    return Finding("unmeasured", {"count": case.main[1][TOTAL].count}, case.main[0])


def largest(case: Case) -> Finding | None:
    """The stage with the most time."""
    if case.main is None:
        return None
    group, stages = case.main
    found = parts(group, stages)
    stage = max(found, key=lambda name: found[name].sum)
    where, share = _place(case, group)
    figures = {
        "count": stages[TOTAL].count,
        "share": share_of(found[stage].sum, stages[TOTAL].sum),
        "mean_ns": found[stage].mean,
        "p99_ns": found[stage].percentile(99),
        "dev_share": share,
        "queue_depth": _queue_depth(case),
    }
    return Finding("largest", figures, where, stage)


def _place(case: Case, group: Group) -> tuple[Group, float]:
    """Return the group that has most of it; everywhere if it is spread over many."""
    places: dict[Group, int] = {}
    for place, found in case.report.cells.items():
        if place.everywhere == group:
            places[place] = found[TOTAL].sum
    most = max(places, key=places.__getitem__)
    share = places[most] / (sum(places.values()) or 1)
    return (most, share) if share >= PLACE_SHARE else (group, 0.0)


def _queue_depth(case: Case) -> float:
    """The mean number in flight, by Little's law."""
    times = sum(stages[TOTAL].sum for group, stages in case.cells.items() if group.kind.book == REQUESTS)
    return times / case.report.duration_ns if case.report.duration_ns else 0.0


def grew(case: Case) -> Finding | None:
    """The stage that took longer for a while."""
    if case.main is None:
        return None
    group, stages = case.main
    found = growth.largest(case.stretches, group, parts(group, stages), TOTAL)
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
    """The stage that makes a few take much longer than most."""
    if case.main is None:
        return None
    group, stages = case.main
    total, found = stages[TOTAL], parts(group, stages)
    median, slow = total.percentile(50), total.percentile(99)
    if total.count < TAIL_COUNT or slow < max(TAIL * median, 1) or not found:
        return None
    stage = max(found, key=lambda name: found[name].percentile(99) - found[name].percentile(50))
    figures = {"ratio": slow / max(median, 1), "p50_ns": median, "p99_ns": slow}
    return Finding("tail", {**figures, "stage_p99_ns": found[stage].percentile(99)}, group, stage)


def outlier(case: Case) -> Finding | None:
    """Find a single one that took most of the time, which no share or mean of all tells."""
    if case.main is None:
        return None
    group, stages = case.main
    total = stages[TOTAL]
    if not total.exact or total.count < OUTLIER_COUNT or total.max < max(OUTLIER_SHARE * total.sum, 1):
        return None
    rest = max(total.sum - total.max, 0) / (total.count - 1)
    figures = {"share": share_of(total.max, total.sum), "max_ns": total.max, "count": total.count}
    return Finding("outlier", {**figures, "rest_mean_ns": rest}, group)


def inside(case: Case) -> Finding | None:
    """Find interference that took CPU time from the stages."""
    if case.main is None:
        return None
    group, stages = case.main
    whole = stages[TOTAL].sum
    sums = {metric.name: stages[metric.name].sum for metric in group.kind.interference if metric.name in stages}
    name = max(sums, key=sums.__getitem__, default="")
    if not name or not whole or sums[name] < INSIDE_SHARE * whole:
        return None
    return Finding("inside", {"share": share_of(sums[name], whole), "sum_ns": sums[name]}, group, name)


def lost(case: Case) -> Finding | None:
    books = case.report.books
    figures = {name: book.lost_total for name, book in books.items()}
    if not any(figures.values()):
        return None
    return Finding("lost", {**figures, **{f"{name}_started": book.started for name, book in books.items()}})


_ADVICE = {
    "idle": "whether the filters let through what you look for",
    "unmeasured": "wptrace doctor -v: how each stage is observed here",
    "unattributed": "wptrace doctor: a hook is missing here, or the path is not known",
}
TIMED = Rules((idle, unmeasured, largest), (grew, tail, outlier, inside, lost), _ADVICE)
"""The rules for any flow with stages."""
