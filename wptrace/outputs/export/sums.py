# SPDX-License-Identifier: Apache-2.0
"""Sums by kind and operation, over all owners and devices; and the I/O that each stack started."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from wptrace.model.distribution import Distribution
from wptrace.model.kind import DEVICE, OPERATION, STACK, TOTAL, Group
from wptrace.model.report import BYTES, Report, merged
from wptrace.model.stack import Stack
from wptrace.outputs.text import words
from wptrace.outputs.text.words import printable


def wholes(report: Report) -> dict[Group, dict[str, Distribution]]:
    """Rows of owners say the same once more, and are left out."""
    cells = {group: found for group, found in report.cells.items() if group.kind.owner_place is None}
    return merged(cells, whole)


def apart(report: Report) -> dict[Group, Distribution]:
    """The total of each device where there are several, and of each owner on all of them."""
    cells = {group: {TOTAL: found[TOTAL]} for group, found in report.cells.items() if TOTAL in found}
    owned = merged(
        {group: one for group, one in cells.items() if group.kind.owner_place is not None}, lambda one: one.everywhere
    )
    plain = {group: one for group, one in cells.items() if group.kind.owner_place is None and group.kind.labels}
    placed = {group: one for group, one in plain.items() if group.kind.labels[0].type == DEVICE}
    several = len({group.values[0] for group in placed}) > 1
    return {group: one[TOTAL] for group, one in {**(placed if several else {}), **owned}.items()}


def moved(report: Report) -> Counter[Group]:
    """The bytes of each kind and operation."""
    found: Counter[Group] = Counter()
    for group, counts in report.counters.items():
        if group.kind.owner_place is None and counts.get(BYTES):
            found[whole(group)] += counts[BYTES]
    return found


def whole(group: Group) -> Group:
    return group.all_of(*(label.name for label in group.kind.labels if label.type != OPERATION))


def name(group: Group) -> str:
    """Return the name of a group: read operations."""
    return " ".join(filter(None, (words.group(group), group.kind.noun.plural)))


class Charged(NamedTuple):
    """I/O of one operation that a stack started on one device."""

    frames: list[str]
    """Functions from the outermost inwards."""
    ns: int
    ios: int
    bytes: int


def stacks(report: Report) -> list[Charged]:
    """Return stacks, those with the most time first; none for a flow without stacks."""
    found = [
        Charged(
            _frames(row.group.label(label.name)),
            row.distribution.sum,
            row.distribution.count,
            report.counter(row.group, BYTES),
        )
        for row in report.rows
        for label in row.group.kind.labels
        if row.metric == TOTAL and label.type == STACK
    ]
    return sorted(found, key=lambda one: -one.ns)


def _frames(stack: Stack) -> list[str]:
    frames = (*stack.kernel, *stack.user, *((stack.process,) if stack.process else ()))
    return [printable(frame) for frame in reversed(frames)]
