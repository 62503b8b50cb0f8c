# SPDX-License-Identifier: Apache-2.0
"""Stages that took longer for a while than in the rest of the trace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wptrace.analysis.history import Key, Stretch, Sums

FACTOR = 2.0
"""The mean is at least so many times that of the rest,"""
SHARE = 0.1
"""the stage takes at least this share of the time meanwhile,"""
ENOUGH = 16
"""there are so many samples on both sides,"""
ERRORS = 4.0
"""and the means are so many standard errors apart: a few outliers are not a change."""


class Growth(NamedTuple):
    stage: str
    start_ns: int
    end_ns: int
    inside: Sums
    rest: Sums

    @property
    def factor(self) -> float:
        return self.inside.mean / max(self.rest.mean, 1.0)

    @property
    def cost_ns(self) -> float:
        """How much longer everything took than at the pace of the rest."""
        return self.inside.sum - self.rest.mean * self.inside.samples


def largest(stretches: Sequence[Stretch], key: Key, stages: Iterable[str], total: str) -> Growth | None:
    """Return the stage of an operation whose growth cost the most."""
    found = [grown for stage in stages if (grown := _of_stage(stretches, key, stage, total)) is not None]
    return max(found, key=lambda grown: grown.cost_ns, default=None)


def _of_stage(stretches: Sequence[Stretch], key: Key, stage: str, total: str) -> Growth | None:
    series = [stretch.of(key, stage) for stretch in stretches]
    whole = _sum(series)
    if not whole.samples:
        return None
    first, last = _costliest([one.sum - whole.mean * one.samples for one in series])
    inside = _sum(series[first:last])
    found = Growth(stage, stretches[first].start_ns, stretches[last - 1].end_ns, inside, whole.minus(inside))
    around = _sum(stretch.of(key, total) for stretch in stretches[first:last])
    return found if _is_one(found, around) else None


def _is_one(found: Growth, around: Sums) -> bool:
    inside, rest = found.inside, found.rest
    return (
        min(inside.samples, rest.samples) >= ENOUGH
        and found.factor >= FACTOR
        and inside.sum >= SHARE * around.sum
        and inside.mean - rest.mean >= ERRORS * math.hypot(inside.error, rest.error)
    )


def _sum(series: Iterable[Sums]) -> Sums:
    whole = Sums()
    for one in series:
        whole = whole.plus(one)
    return whole


def _costliest(costs: Sequence[float]) -> tuple[int, int]:
    """The range with the largest sum, as a slice has it: a slow phase may be many stretches long."""
    best, at = -math.inf, (0, 0)
    running, since = 0.0, 0
    for place, cost in enumerate(costs):
        if running <= 0:
            running, since = 0.0, place
        running += cost
        if running > best:
            best, at = running, (since, place + 1)
    return at
