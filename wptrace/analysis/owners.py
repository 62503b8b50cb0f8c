# SPDX-License-Identifier: Apache-2.0
"""Rows by owner: the largest of an interval, and one of all others, so that their sums are those of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from wptrace.model.distribution import Distribution
from wptrace.model.kind import NOBODY, OTHERS, TOTAL, Group, Kind
from wptrace.model.report import Cells, Counters


def owner(group: Group) -> Any:
    at = group.kind.owner_place
    return None if at is None else group.values[at]


def folded(cells: Cells, counters: Counters, top: int) -> tuple[dict[Group, dict[str, Distribution]], Counters]:
    """Fold cells into this many owners of each kind, those with the most time first, and the others; 0: keep all."""
    times: dict[Kind, Counter[Any]] = {}
    for group, found in cells.items():
        if group.kind.owner_place is not None:
            times.setdefault(group.kind, Counter())[owner(group)] += found[TOTAL].sum
    kept = {kind: _largest(found, top) for kind, found in times.items()}

    def row(group: Group) -> Group:
        at = group.kind.owner_place
        # An owner that was not seen in this interval has no cell, and may still have counters.
        if at is None or group.values[at] in kept.get(group.kind, ()):
            return group
        return Group(group.kind, (*group.values[:at], OTHERS, *group.values[at + 1 :]))

    merged: dict[Group, dict[str, Distribution]] = {}
    for group, found in cells.items():
        into = merged.setdefault(row(group), {})
        for name, one in found.items():
            # The caller's own distributions stay as they are.
            into[name] = one if name not in into else _sum(into[name], one)
    sums: dict[Group, Counter[str]] = {}
    for group, counts in counters.items():
        sums.setdefault(row(group), Counter()).update(counts)
    return merged, sums


def _largest(times: Mapping[Any, int], top: int) -> set[Any]:
    named = [one for one in times if one not in (OTHERS, NOBODY)]
    ranked = sorted(named, key=lambda one: (-times[one], str(one)))
    # Time that belongs to nobody does not count among the others.
    return {*(ranked[:top] if top else ranked), OTHERS, NOBODY}


def _sum(one: Distribution, other: Distribution) -> Distribution:
    found = one.copy()
    found.merge(other)
    found.shrunk = one.shrunk + other.shrunk
    return found
