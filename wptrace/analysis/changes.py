# SPDX-License-Identifier: Apache-2.0
"""Changes between two recordings of a kind: each figure with its noise, and the change of means split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wptrace.analysis import chance
from wptrace.analysis.chance import FEWEST, NEVER, Noise, Odds
from wptrace.analysis.measured import OWNED_BY, REST, Measured, joined_stretches
from wptrace.analysis.split import (
    Class,
    Classes,
    PercentileSplit,
    Split,
    Sums,
    added,
    merged,
    reasons,
    split,
    split_percentile,
)
from wptrace.model.distribution import index
from wptrace.model.kind import Kind

BUCKET = 0.0625
"""The relative error of a percentile, from the width of a bucket."""
LEAST = {"mean": 0.01, "p99": BUCKET, "rate": 0.03}
"""A smaller change of a figure is no finding, even if it is significant; for a stage:"""
LEAST_OF_STAGE, LEAST_OF_WHOLE = 0.03, 0.001
_P99_FEWEST = 500
"""Fewer objects have no usable p99."""


class Figure(NamedTuple):
    a: float
    b: float
    odds: Odds
    real: bool = False
    """Whether the change is significant."""

    @property
    def change(self) -> float:
        return self.b - self.a

    @property
    def relative(self) -> float | None:
        return self.change / self.a if self.a else None


class Change(NamedTuple):
    """The change of all objects of a kind and operation, or of those of an owner."""

    kind: Kind
    op: str
    owner: str
    a: Sums
    b: Sums
    columns: tuple[str, ...]
    figures: Mapping[str, Figure]
    """mean, p99, rate, and each stage by its name."""
    split: Split
    p99: PercentileSplit | None
    errors: Mapping[tuple[str, int], float]
    """Standard errors of the parts of the split, by reason and column; of column 0, of a reason in all of them."""

    @property
    def real(self) -> bool:
        return any(figure.real for figure in self.figures.values())


class _Subject(NamedTuple):
    """The objects of an operation, or of its owner, in one recording."""

    classes: Classes
    stretches: Sequence[tuple[int, Classes]]
    """Each with how long it is."""
    duration_ns: int


def between(a: Measured, b: Measured) -> tuple[list[Change], int]:
    found, few = [], 0
    for op in dict.fromkeys((*a.classes, *b.classes)):
        owners = [""]
        if OWNED_BY in a.labels:
            at = a.labels.index(OWNED_BY)
            names = [{key[at] for key in side.classes.get(op, {})} for side in (a, b)]
            # A single owner has the figures of the total.
            if len(names[0] | names[1]) > 1:
                owners += sorted(names[0] & names[1])
        for owner in owners:
            # The total of all owners is a kind of its own.
            if not owner and a.kind.ranked and OWNED_BY in a.labels:
                continue
            sides = [_subject(side, op, owner) for side in (a, b)]
            counts = [sum(one.count for one in side.classes.values()) for side in sides]
            if min(counts) < FEWEST:
                few += bool(min(counts))
                continue
            found.append(_change(a, sides[0], sides[1], op, owner))
    return found, few


def _subject(side: Measured, op: str, owner: str) -> _Subject:
    at = side.labels.index(OWNED_BY) if owner else 0

    def of(classes: Mapping[str, Classes]) -> Classes:
        found = classes.get(op, {})
        return {key: one for key, one in found.items() if key[at] == owner} if owner else found

    stretches = [(one.duration_ns, of(one.classes)) for one in joined_stretches(side.stretches)]
    return _Subject(of(side.classes), stretches, sum(one.duration_ns for one in side.stretches))


def _change(measured: Measured, a: _Subject, b: _Subject, op: str, owner: str) -> Change:
    columns = len(measured.columns)
    sums = [added(side.classes.values(), columns) for side in (a, b)]
    stretches = [[(duration, added(found.values(), columns)) for duration, found in side.stretches] for side in (a, b)]
    figures = {"mean": _mean(sums, stretches, 0)}
    labels = tuple(label for label in measured.labels if not (owner and label == OWNED_BY))
    mine = [_without_owner(measured, side.classes) if owner else side.classes for side in (a, b)]
    p99 = None
    if min(one.count for one in sums) >= _P99_FEWEST and all(one.buckets for one in sums):
        p99 = split_percentile(mine[0], mine[1])
        figures["p99"] = _percentile(sums, stretches)
    figures["rate"] = _rate((a, b), sums, stretches)
    for column, name in enumerate(measured.columns, 1):
        if name != REST and any(one.times[column] for one in sums):
            figures[name] = _mean(sums, stretches, column)
    made = split(mine[0], mine[1], labels, (a.duration_ns, b.duration_ns))
    return Change(
        measured.kind,
        op,
        owner,
        sums[0],
        sums[1],
        measured.columns,
        figures,
        made,
        p99,
        _errors(measured, labels, a, b, mine, owner),
    )


def _without_owner(measured: Measured, classes: Classes) -> dict[Class, Sums]:
    at = measured.labels.index(OWNED_BY)
    return {(*key[:at], *key[at + 1 :]): one for key, one in classes.items()}


def _mean(sums: Sequence[Sums], stretches: Sequence[Sequence[tuple[int, Sums]]], column: int) -> Figure:
    noise, levels = [], []
    for whole, side in zip(sums, stretches):
        tops, bottoms = [one.times[column] for _, one in side], [one.count for _, one in side]
        noise.append(chance.of_ratio(tops, bottoms, whole.variance(column)))
        levels.append(chance.of_levels(tops, bottoms, whole.variance(column)))
    a, b = (one.mean(column) for one in sums)
    found = chance.odds(b - a, *noise)
    one, other = levels
    if one is not None and other is not None:
        found = chance.either(found, chance.odds(other[0] - one[0], one[1], other[1]))
    return Figure(a, b, found)


def _rate(
    subjects: Sequence[_Subject], sums: Sequence[Sums], stretches: Sequence[Sequence[tuple[int, Sums]]]
) -> Figure:
    """Objects a second."""
    rates, noise = [], []
    for subject, whole, side in zip(subjects, sums, stretches):
        duration = subject.duration_ns
        rates.append(whole.count * 1e9 / duration if duration else 0.0)
        single = whole.count / duration**2 if duration else 0.0
        found = chance.of_ratio([one.count for _, one in side], [ns for ns, _ in side], single)
        noise.append(Noise(found.variance * 1e18, found.freedom))
    if not all(rates):
        return Figure(rates[0], rates[1], NEVER)
    return Figure(rates[0], rates[1], chance.odds(rates[1] - rates[0], *noise))


def _percentile(sums: Sequence[Sums], stretches: Sequence[Sequence[tuple[int, Sums]]]) -> Figure:
    """Compare how many of both are beyond the p99 of one, which varies less than the percentile itself."""
    found = [_beyond(sums, stretches, index(round(one.percentile(99)))) for one in sums]
    return Figure(sums[0].percentile(99), sums[1].percentile(99), chance.either(*found))


def _beyond(sums: Sequence[Sums], stretches: Sequence[Sequence[tuple[int, Sums]]], edge: int) -> Odds:
    def beyond(one: Sums) -> int:
        return sum(count for slot, count in one.buckets.items() if slot > edge)

    shares, noise = [], []
    for whole, side in zip(sums, stretches):
        share = beyond(whole) / whole.count
        shares.append(share)
        # If nothing is beyond it, that may be chance.
        likely = max(share * (1 - share), 1 / whole.count)
        found = [one for _, one in side]
        noise.append(
            chance.of_ratio([beyond(one) for one in found], [one.count for one in found], likely / whole.count)
        )
    return chance.odds(shares[1] - shares[0], *noise)


def _errors(
    measured: Measured, labels: tuple[str, ...], a: _Subject, b: _Subject, whole: Sequence[Classes], owner: str
) -> dict[tuple[str, int], float]:
    """Estimate errors by leaving out one stretch after the other."""
    if not labels or min(len(a.stretches), len(b.stretches)) < chance.STRETCHES:
        return {}
    variance: dict[tuple[str, int], float] = {}
    for side in (a, b):
        parts = [_without_owner(measured, found) if owner else found for _, found in side.stretches]
        every = merged(parts)
        mine = []
        for left_out in parts:
            rest = _less(every, left_out)
            if not rest:
                return {}
            found = reasons(rest, whole[1], labels) if side is a else reasons(whole[0], rest, labels)
            for reason in {reason for reason, _ in found}:
                # In all columns.
                found[reason, 0] = sum(ns for (of, _), ns in found.items() if of == reason)
            mine.append(found)
        for key in {key for found in mine for key in found}:
            noise = chance.of_parts([found.get(key, 0.0) for found in mine])
            variance[key] = variance.get(key, 0.0) + noise.variance
    return {key: found**0.5 for key, found in variance.items()}


def _less(whole: Classes, left_out: Classes) -> dict[Class, Sums]:
    found = {}
    for key, one in whole.items():
        gone = left_out.get(key)
        if gone is None:
            found[key] = one
        elif one.count > gone.count:
            rest = found[key] = Sums(len(one.times) - 1)
            rest.count = one.count - gone.count
            rest.times = [x - y for x, y in zip(one.times, gone.times)]
    return found


def mark_real(changes: Sequence[Change], counts_are_others: bool, least_ns: float = 0.0) -> list[Change]:
    """Mark the figures whose change is significant, among all that were tested; times by at least `least_ns`."""
    places = [
        (at, name)
        for at, change in enumerate(changes)
        for name in change.figures
        if name != "rate" or not counts_are_others
    ]
    verdicts = chance.real([changes[at].figures[name].odds for at, name in places])
    made = [dict(change.figures) for change in changes]
    for (at, name), is_real in zip(places, verdicts):
        figure = made[at][name]
        enough = name == "rate" or abs(figure.change) >= least_ns
        made[at][name] = figure._replace(real=is_real and enough and _matters(name, figure, changes[at]))
    return [change._replace(figures=figures) for change, figures in zip(changes, made)]


def _matters(name: str, figure: Figure, change: Change) -> bool:
    if name in LEAST:
        return abs(figure.change) >= LEAST[name] * max(figure.a, figure.b)
    whole = max(change.a.mean(), change.b.mean())
    return abs(figure.change) >= max(LEAST_OF_STAGE * max(figure.a, figure.b), LEAST_OF_WHOLE * whole)
