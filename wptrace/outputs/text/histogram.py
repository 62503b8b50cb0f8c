# SPDX-License-Identifier: Apache-2.0
"""A distribution as rows of text."""

from __future__ import annotations

from wptrace.model.distribution import BEYOND, Distribution, bounds
from wptrace.model.units import duration

_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def rows(distribution: Distribution, width: int, fine: bool = False) -> list[str]:
    """A line for each power of two, or with `fine` for each bucket, from the first with a value to the last.

    The bars take what the range and the count leave of `width`; every count above 0 shows at least a trace.
    """
    groups = _groups(distribution, fine)
    if not groups:
        return []
    lows = [duration(low) for low, _, _ in groups]
    highs = ["more" if high == BEYOND else duration(high) for _, high, _ in groups]
    counts = [str(count) for _, _, count in groups]
    low_width, high_width, count_width = (max(map(len, column)) for column in (lows, highs, counts))
    room = width - low_width - high_width - count_width - len(" -  :  ")
    most = max(count for _, _, count in groups)
    return [
        f"{low:>{low_width}} - {high:<{high_width}} : {text:>{count_width}} {_bar(count, most, room)}".rstrip()
        for low, high, text, (_, _, count) in zip(lows, highs, counts, groups)
    ]


def _groups(distribution: Distribution, fine: bool) -> list[tuple[int, int, int]]:
    """(low, high, count) without gaps."""
    filled = [low for low, _, _ in distribution.filled()]
    if not filled:
        return []
    first, last = filled[0], filled[-1]
    if not fine:
        first, last = first.bit_length(), last.bit_length()
    groups: list[tuple[int, int, int]] = []
    previous = -1
    for slot, count in enumerate(distribution.buckets):
        low, high = bounds(slot)
        group = low if fine else low.bit_length()
        if not first <= group <= last:
            continue
        if group == previous:
            groups[-1] = (groups[-1][0], high, groups[-1][2] + count)
        else:
            groups.append((low, high, count))
        previous = group
    return groups


def _bar(count: int, most: int, room: int) -> str:
    if room <= 0 or not count:
        return ""
    eighths = max(1, count * room * 8 // most)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
