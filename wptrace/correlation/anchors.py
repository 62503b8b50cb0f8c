# SPDX-License-Identifier: Apache-2.0
"""Bounds of the offset of two monotonic clocks, from the times of day of both machines.

A guest's virtual PTP clock is its host's time of day. Without one both times of day are compared, where each is kept
right by something that says how wrong it may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wptrace.correlation.clocks import Bound, Offset
from wptrace.model.anchor import Anchor

# Two looks at the same clocks differ by that, where nothing was stepped in between.
_STEP_NS = 1_000_000
# The time that a look at two clocks of one machine takes.
_LOOK_NS = 10_000
# A guess of more than this says nothing.
_USELESS_NS = 1_000_000_000


def bounds(guest: Sequence[Anchor], host: Sequence[Anchor]) -> list[Bound]:
    """The host's monotonic clock minus the guest's; none where the host's time of day was stepped."""
    walls = [anchor.wall_ns for anchor in host]
    if not host or max(walls) - min(walls) > _STEP_NS:
        return []
    found = []
    for anchor in guest:
        bound = _by_ptp(anchor, min(walls), max(walls)) or _by_day(anchor, host)
        if bound is not None and bound.holds and bound.width < _USELESS_NS:
            found.append(bound)
    return found


def _by_ptp(anchor: Anchor, least_wall: int, most_wall: int) -> Bound | None:
    outer = anchor.outer
    if outer is None or outer.after_ns < outer.before_ns:
        return None
    # The clock was read somewhere between the two looks of the guest.
    least = outer.realtime_ns - most_wall - outer.after_ns - _LOOK_NS
    most = outer.realtime_ns - least_wall - outer.before_ns + _LOOK_NS
    return Bound(outer.before_ns, least, most)


def _by_day(anchor: Anchor, host: Sequence[Anchor]) -> Bound | None:
    """Return the narrowest bound that the host's times of day give."""
    sure = [(one.error_ns, one.wall_ns) for one in host if one.error_ns is not None]
    if anchor.error_ns is None or not sure:
        return None
    error, wall = min(sure)
    middle, around = anchor.wall_ns - wall, anchor.error_ns + error + _STEP_NS
    return Bound(anchor.monotonic_ns, middle - around, middle + around)


def narrowed(offset: Offset, anchors: Iterable[Bound]) -> tuple[Offset, int, int]:
    """Narrow an offset by anchors; return how many of them agree, and how many contradict and are ignored."""
    every = list(anchors)
    agree = [bound for bound in every if offset.at(bound.at).both(bound).holds]
    return (Offset([*offset.bounds, *agree]) if agree else offset), len(agree), len(every) - len(agree)
