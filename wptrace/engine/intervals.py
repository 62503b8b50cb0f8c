# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on half-open intervals of time, (start, end) in nanoseconds; those without length vanish."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def clip(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """What of each interval lies in [start, end)."""
    clipped = ((max(low, start), min(high, end)) for low, high in intervals)
    return [(low, high) for low, high in clipped if low < high]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint intervals in order; those that touch become one."""
    joined: list[Interval] = []
    for low, high in sorted(intervals):
        if low >= high:
            continue
        if joined and low <= joined[-1][1]:
            if high > joined[-1][1]:
                joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


def length(intervals: Iterable[Interval]) -> int:
    """The time that at least one interval covers."""
    return sum(high - low for low, high in union(intervals))


def subtract(intervals: Iterable[Interval], taken: Iterable[Interval]) -> list[Interval]:
    """The time of `intervals` that `taken` does not cover."""
    holes = union(taken)
    left: list[Interval] = []
    for low, high in union(intervals):
        for hole_low, hole_high in holes:
            if hole_high <= low:
                continue
            if hole_low >= high:
                break
            if low < hole_low:
                left.append((low, hole_low))
            low = hole_high
        if low < high:
            left.append((low, high))
    return left


def gaps(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """The parts of [start, end) that no interval covers."""
    return subtract([(start, end)], intervals)
