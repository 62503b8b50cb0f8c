# SPDX-License-Identifier: Apache-2.0
"""Objects of a recording by class, as they are compared with those of another one: only what both know counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from wptrace.analysis.split import Class, Classes, Sums, merged, put
from wptrace.model.kind import (
    ALL,
    CALL,
    CGROUP,
    COMM,
    CPU,
    DEVICE,
    FILE,
    OPERATION,
    OWNER,
    PASID,
    STACK,
    TASK,
    TEXTS,
    TOTAL,
    Group,
    Kind,
    Label,
    Task,
)
from wptrace.model.report import BYTES, Cells
from wptrace.model.stack import Stack

REST = "rest"
"""The column of time that no stage covers."""
DEV, OWNED_BY, SIZE = "dev", OWNER, "size"
"""Labels of classes, of what has these."""
STRETCHES = 16
"""Noise is that of at most so many stretches, so that each is long enough not to depend on the one before it."""


class Stretch(NamedTuple):
    """The figures of a recording's interval: classes by operation."""

    end_ns: int
    duration_ns: int
    classes: Mapping[str, Classes]


class Measured(NamedTuple):
    """A kind of object in a recording."""

    kind: Kind
    labels: tuple[str, ...]
    """The labels of classes; operations are separate already."""
    columns: tuple[str, ...]
    classes: Mapping[str, Classes]
    """Classes by operation; the name is empty for kinds without one."""
    stretches: Sequence[Stretch]


def named(group: Group) -> tuple[str, ...]:
    """Values of labels as text. A task is its name: numbers of processes are others each time."""
    return tuple(_named(label, value) for label, value in zip(group.kind.labels, group.values))


def _named(label: Label, value: Any) -> str:
    if isinstance(value, Task):
        return value.comm
    if isinstance(value, Stack):
        return value._replace(process=_NUMBER.sub("", value.process)).folded()
    return label.shown(value)


_NUMBER = re.compile(r"\[[0-9]+\]$")


_BY_TYPE = {
    DEVICE: DEV,
    CPU: CPU,
    STACK: STACK,
    PASID: PASID,
    **dict.fromkeys((TASK, COMM, CGROUP, FILE, CALL, *TEXTS), OWNED_BY),
}


def label_name(label: Label) -> str:
    """Return the name of a label by its type, because some flows use other names in their lines."""
    return label.alias if label.alias == OWNER else _BY_TYPE.get(label.type, label.name)


def labels_of(kind: Kind) -> tuple[str, ...]:
    """Return the labels that keep the classes of a kind apart."""
    return tuple(label_name(label) for label in kind.labels if label.type != OPERATION)


def columns_of(kind: Kind) -> tuple[str, ...]:
    return (*(stage.name for stage in kind.stages), REST)


def is_timed(kind: Kind) -> bool:
    """Whether its total is a time of each object, and no part of a stage that others have."""
    return kind.total.unit == "ns" and bool(kind.stages or kind.ranked or kind.book)


def classes(cells: Cells, counters: Mapping[Group, Mapping[str, int]], kind: Kind) -> dict[str, dict[Class, Sums]]:
    """Return classes of rows by operation."""
    found: dict[str, dict[Class, Sums]] = {}
    columns = len(kind.stages) + 1
    at = next((at for at, label in enumerate(kind.labels) if label.type == OPERATION), None)
    for group, stages in cells.items():
        if group.kind is not kind or TOTAL not in stages or not stages[TOTAL].count:
            continue
        if any(value is ALL for value in group.values):
            continue
        values = named(group)
        op = "" if at is None else values[at]
        key = values if at is None else (*values[:at], *values[at + 1 :])
        total = stages[TOTAL]
        sums = Sums(columns)
        sums.count, sums.bytes = total.count, counters.get(group, {}).get(BYTES, 0)
        parts = [stages.get(stage.name) for stage in kind.stages]
        times = [0 if one is None else one.sum for one in parts]
        sums.times = [total.sum, *times, total.sum - sum(times)]
        sums.squares = [total.sumsq, *(0 if one is None else one.sumsq for one in parts), 0]
        sums.buckets = {slot: count for slot, count in enumerate(total.buckets) if count}
        put(found.setdefault(op, {}), key, sums)
    return found


def joined_stretches(found: Sequence[Stretch], most: int = STRETCHES) -> list[Stretch]:
    """Return at most `most` stretches, by joining neighbouring ones."""
    many = -(-len(found) // most)
    if many <= 1:
        return list(found)
    made = []
    for first in range(0, len(found), many):
        some = found[first : first + many]
        ops = dict.fromkeys(op for stretch in some for op in stretch.classes)
        classes = {op: merged(stretch.classes.get(op, {}) for stretch in some) for op in ops}
        made.append(Stretch(some[-1].end_ns, sum(one.duration_ns for one in some), classes))
    return made


# --- What both know ---------------------------------------------------------------------------------------------------


def seen_stages(found: Iterable[Measured], observed: Mapping[str, bool]) -> set[str]:
    """Stages that are observed; of one that every object passes, on these disks as well."""
    seen = {stage for stage, is_seen in observed.items() if is_seen}
    for measured in found:
        for stage in measured.kind.stages:
            if stage.name in measured.columns and not stage.rare:
                at = measured.columns.index(stage.name) + 1
                sums = [one for of in measured.classes.values() for one in of.values()]
                if sums and not any(one.times[at] for one in sums):
                    seen.discard(stage.name)
    return seen


def aligned(found: Measured, joined: Mapping[str, str]) -> Measured:
    """Return the sums with stages that only one side observes added to the stage that has them on the other."""
    names = [name for name in found.columns if joined.get(name, name) not in found.columns or name not in joined]
    if len(names) == len(found.columns):
        return found
    places = []
    for name in names:
        members = [name, *(one for one, other in joined.items() if _end(other, joined) == name)]
        places.append([found.columns.index(one) + 1 for one in members if one in found.columns])

    def made(key: Class, one: Sums) -> tuple[Class, Sums]:
        sums = Sums(len(names))
        sums.count, sums.bytes, sums.buckets = one.count, one.bytes, one.buckets
        sums.times = [one.times[0], *(sum(one.times[at] for at in group) for group in places)]
        sums.squares = [one.squares[0], *(of_sum([one.squares[at] for at in group]) for group in places)]
        return key, sums

    return converted(found, made)._replace(columns=tuple(names))


def converted(found: Measured, made: Callable[[Class, Sums], tuple[Class, Sums]]) -> Measured:
    """Make other classes, in all and in each stretch; those that become the same one are added up."""

    def of(classes: Mapping[str, Classes]) -> dict[str, dict[Class, Sums]]:
        converted: dict[str, dict[Class, Sums]] = {op: {} for op in classes}
        for op, inner in classes.items():
            for key, one in inner.items():
                put(converted[op], *made(key, one))
        return converted

    stretches = [one._replace(classes=of(one.classes)) for one in found.stretches]
    return found._replace(classes=of(found.classes), stretches=stretches)


def of_sum(squares: Sequence[int]) -> int:
    """The squares of the sum of several times, from those of each: as if one was large whenever the others were."""
    return int(sum(one**0.5 for one in squares) ** 2)


def _end(name: str, joined: Mapping[str, str]) -> str:
    while name in joined:
        name = joined[name]
    return name


def same_labels(a: Measured, b: Measured) -> tuple[Measured, Measured]:
    """Classes by what both of them know."""
    labels = tuple(label for label in a.labels if label in b.labels)
    # Its stages are those that both have.
    columns = tuple(name for name in a.columns if name in b.columns)
    return _with(a, labels, columns), _with(b, labels, columns)


def _with(found: Measured, labels: tuple[str, ...], columns: tuple[str, ...]) -> Measured:
    if (labels, columns) == (found.labels, found.columns):
        return found
    places = [found.labels.index(label) for label in labels]
    at = [found.columns.index(name) + 1 for name in columns]

    def made(key: Class, one: Sums) -> tuple[Class, Sums]:
        sums = Sums(len(columns))
        sums.count, sums.bytes, sums.buckets = one.count, one.bytes, dict(one.buckets)
        times = [one.times[place] for place in at]
        # Time that the other report does not know is part of the rest.
        times[-1] += one.times[0] - sum(times)
        sums.times = [one.times[0], *times]
        sums.squares = [one.squares[0], *(one.squares[place] for place in at)]
        return tuple(key[place] for place in places), sums

    return converted(found, made)._replace(labels=labels, columns=columns)
