# SPDX-License-Identifier: Apache-2.0
"""Recordings of made-up loads: requests of some classes, second by second."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wptrace.analysis.diff import Difference, Side, difference
from wptrace.analysis.measured import DEV, OWNED_BY, SIZE, Measured, Stretch, columns_of
from wptrace.analysis.split import Class, Sums
from wptrace.flows.io.kinds import KINDS, OPERATION, WITHIN
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution, index
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL, Group, Kind
from wptrace.model.report import BYTES, Overhead, Report, Source, Start, arranged
from wptrace.model.units import size as sized

LABELS = (DEV, OWNED_BY, SIZE)
COLUMNS = columns_of(OPERATION)
SECOND = 1_000_000_000


class Load(NamedTuple):
    """Requests of one class: how many in a second, and by stage the median of their times and its spread."""

    rate: float
    stages: Mapping[str, tuple[float, float]]
    op: str = "read"
    dev: str = "sda"
    owner: str = "app"
    bytes: int = 4096


def compared(a: Side, b: Side) -> Difference:
    return difference(a, b, WITHIN)


def seeded(number: int) -> random.Random:
    """Return a random generator that is the same each time."""
    return random.Random(number)  # noqa: S311 - for loads, not for secrets


def side(
    loads: Sequence[Load],
    rand: random.Random,
    seconds: int = 10,
    unsteady: float = 0.0,
    name: str = "a",
    kind: Kind = OPERATION,
    **start: object,
) -> Side:
    """Make a recording. Times of each second are scaled by a factor around 1, which `unsteady` spreads."""
    stretches = []
    columns = columns_of(kind)
    for second in range(seconds):
        classes: dict[str, dict[Class, Sums]] = {}
        factor = rand.lognormvariate(0.0, unsteady) if unsteady else 1.0
        for load in loads:
            # Arrivals are independent.
            count = max(round(rand.gauss(load.rate, load.rate**0.5)), 0)
            if count:
                key = (load.dev, load.owner, sized(load.bytes))
                into = classes.setdefault(load.op, {})
                made = _sums(load, count, factor, rand, columns)
                into.setdefault(key, Sums(len(columns))).add(made)
        stretches.append(Stretch((second + 1) * SECOND, SECOND, classes))
    return of_stretches(stretches, name, kind, **start)


def of_stretches(stretches: Sequence[Stretch], name: str = "a", kind: Kind = OPERATION, **start: object) -> Side:
    columns = columns_of(kind)
    whole: dict[str, dict[Class, Sums]] = {}
    for stretch in stretches:
        for op, inner in stretch.classes.items():
            for key, one in inner.items():
                whole.setdefault(op, {}).setdefault(key, Sums(len(columns))).add(one)
    cells: dict[Group, dict[str, Distribution]] = {}
    counters: dict[Group, dict[str, int]] = {}
    for op, inner in whole.items():
        for key, one in inner.items():
            group = kind.group(key[0], op)
            there = cells.setdefault(group, {})
            for place, metric in enumerate((TOTAL, *columns[:-1])):
                found = Distribution()
                found.count, found.sum, found.sumsq = one.count, one.times[place], one.squares[place]
                found.max = found.sum
                for slot, count in one.buckets.items() if not place else ():
                    found.buckets[slot] = count
                there.setdefault(metric, Distribution()).merge(found)
            counters.setdefault(group, {BYTES: 0})[BYTES] += one.bytes
    count = sum(one.count for inner in whole.values() for one in inner.values())
    books = {OPERATIONS: Book.read(count, count, {}, {}), REQUESTS: Book()}
    duration = sum(one.duration_ns for one in stretches)
    report = Report("summary", duration, duration, books, arranged(cells, KINDS), counters, Overhead(0, 0, 0, 0, 0, 0))
    sources = [Source(stage, "tp") for stage in columns[:-1]]
    begin = Start("io", "path", "6.12.0", {"dev": ["sda"]}, sources, KINDS, [], file=f"{name}.wpt")._replace(**start)  # type: ignore[arg-type]
    measured = {kind.name: Measured(kind, LABELS, columns, whole, stretches)}
    return Side(f"{name}.wpt", begin, report, SECOND, measured)


def _sums(load: Load, count: int, factor: float, rand: random.Random, columns: Sequence[str]) -> Sums:
    sums = Sums(len(columns))
    sums.count, sums.bytes = count, count * load.bytes
    totals = [0] * count
    for stage, (median, spread) in load.stages.items():
        at = columns.index(stage) + 1
        values = [round(median * factor * rand.lognormvariate(0.0, spread)) for _ in range(count)]
        sums.times[at], sums.squares[at] = sum(values), sum(value * value for value in values)
        totals = [one + two for one, two in zip(totals, values)]
    sums.times[0], sums.squares[0] = sum(totals), sum(value * value for value in totals)
    for value in totals:
        slot = index(value)
        sums.buckets[slot] = sums.buckets.get(slot, 0) + 1
    return sums
