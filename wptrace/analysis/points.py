# SPDX-License-Identifier: Apache-2.0
"""Kinds of which one recording sees more points than the other: figures between the points that both see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wptrace.analysis.measured import REST, Measured, converted, of_sum
from wptrace.analysis.split import Class, Sums
from wptrace.model.distribution import Distribution
from wptrace.model.kind import TOTAL, Group, Kind
from wptrace.model.report import Report


class Narrowing(NamedTuple):
    """How a kind maps to another one that covers a part of it."""

    kind: Kind
    into: Kind
    parts: Mapping[str, Sequence[str]]
    """For each stage of the other kind, the stages of this one that share out its time."""

    @property
    def left_out(self) -> list[str]:
        used = {name for names in self.parts.values() for name in names}
        return [stage.name for stage in self.kind.stages if stage.name not in used]


def narrowing(kind: Kind, into: Kind) -> Narrowing | None:
    """None where the stages of one do not cover those of the other, point by point."""
    labels = [[(label.name, label.type) for label in one.labels] for one in (kind, into)]
    if labels[0] != labels[1] or not into.stages:
        return None
    left = list(kind.stages)
    while left and left[0].start != into.stages[0].start:
        left.pop(0)
    parts: dict[str, list[str]] = {}
    for wanted in into.stages:
        mine = parts[wanted.name] = []
        at = wanted.start
        while at != wanted.end:
            if not left or left[0].start != at:
                return None
            mine.append(left[0].name)
            at = left.pop(0).end
    return Narrowing(kind, into, parts)


def narrowed(found: Measured, way: Narrowing) -> Measured:
    columns = (*way.parts, REST)
    places = [[found.columns.index(name) + 1 for name in names] for names in way.parts.values()]

    def made(key: Class, one: Sums) -> tuple[Class, Sums]:
        sums = Sums(len(columns))
        sums.count, sums.bytes = one.count, one.bytes
        times = [sum(one.times[at] for at in group) for group in places]
        squares = [of_sum([one.squares[at] for at in group]) for group in places]
        sums.times, sums.squares = [sum(times), *times, 0], [of_sum(squares), *squares, 0]
        if sums.times[0] == one.times[0]:
            # Nothing was left out.
            sums.squares[0], sums.buckets = one.squares[0], one.buckets
        return key, sums

    return converted(found, made)._replace(kind=way.into, columns=columns)


def narrowed_rows(report: Report, way: Narrowing) -> Report:
    cells: dict[Group, Mapping[str, Distribution]] = {}
    for group, stages in report.cells.items():
        if group.kind is not way.kind or TOTAL not in stages:
            cells[group] = stages
            continue
        parts = {
            name: _added([stages[one] for one in names if one in stages], stages[TOTAL].count)
            for name, names in way.parts.items()
        }
        whole, total = stages[TOTAL], _added(list(parts.values()), stages[TOTAL].count)
        cells[way.into.group(*group.values)] = {**parts, TOTAL: whole if whole.sum == total.sum else total}
    counters = {
        way.into.group(*group.values) if group.kind is way.kind else group: counts
        for group, counts in report.counters.items()
    }
    return report._replace(cells=cells, counters=counters)


def _added(found: Sequence[Distribution], count: int) -> Distribution:
    """Add up several times. Their joint distribution is unknown, so there are no buckets unless all but one are 0."""
    some = [one for one in found if one.sum]
    if len(some) == 1:
        return some[0]
    made = Distribution()
    made.count, made.exact = count, False
    made.sum, made.sumsq = sum(one.sum for one in some), of_sum([one.sumsq for one in some])
    return made
