# SPDX-License-Identifier: Apache-2.0
"""The parts of a change that are worth reporting, and the owner, device and wait behind the largest one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wptrace.analysis import load
from wptrace.analysis.chance import FEWEST
from wptrace.analysis.changes import Change
from wptrace.analysis.diff import Difference
from wptrace.analysis.measured import DEV, OWNED_BY, REST, Measured, Stretch
from wptrace.analysis.split import SAME, Value
from wptrace.model.kind import NOBODY, OPERATIONS, OTHERS, TOTAL

EITHER = "either"
"""The reason of a stage that takes longer, of which it is not known whether it is the mix or the same work."""
# A part is told from such a share of a change on, and if it is at least so many standard errors; and it is sure with so
# many more.
_LEAST_PART, _ERRORS, _SURE = 0.02, 2.0, 3.5
# A stage that really changed is the same work being slower, if the mix has no larger share of its change.
_MIX = 0.3
# An owner, size or device with this share is named.
_MOST = 0.5
_MOST_OF_OWNERS, _WAITED = 0.66, 0.4
_DEEPER = 1.5


class ChangePart(NamedTuple):
    """A part of the change of a mean. The last one may be the remainder, which has no reason."""

    ns: int
    reason: str = ""
    stage: str = ""
    column: int = 0
    sure: bool = True
    """Significant by itself, not only as a part of a significant change."""


def parts_of(change: Change) -> list[ChangePart]:
    """Split a change into parts that add up to it: the largest first, the remainder last."""
    whole = change.split.b_ns - change.split.a_ns
    least = _LEAST_PART * abs(whole)
    found = []
    for reason in dict.fromkeys(part.reason for part in change.split.parts):
        ns, errors = change.split.of(reason), _errors_of(change, reason, 0, change.split.of(reason))
        if reason != SAME and abs(ns) >= least and errors >= _ERRORS:
            found.append(ChangePart(ns, reason, sure=errors >= _SURE))
    mix = bool(found)
    for column, name in enumerate(change.columns, 1):
        if name == REST and len(change.columns) > 1:
            continue
        parts = {part.reason: part.ns for part in change.split.parts if part.column == column}
        ns, every = parts.get(SAME, 0), sum(parts.values())
        figure = change.figures.get(name)
        real = figure is not None and figure.real
        errors = _errors_of(change, SAME, column, ns)
        sure = errors >= _SURE or (real and abs(ns - every) <= _MIX * abs(every))
        if abs(ns) >= least and (sure or errors >= _ERRORS):
            found.append(ChangePart(ns, SAME, name, column, sure))
        elif real and not mix and abs(every) >= least:
            found.append(ChangePart(every, EITHER, name, column))
    found.sort(key=lambda one: -abs(one.ns))
    left = whole - sum(one.ns for one in found)
    return [*found, *([ChangePart(left)] if left else [])]


def _errors_of(change: Change, reason: str, column: int, ns: int) -> float:
    """Return the size of a part in standard errors."""
    error = change.errors.get((reason, column))
    if error is None:
        name = change.columns[column - 1] if column else "mean"
        error = change.figures.get(name, change.figures["mean"]).odds.error
    return abs(ns) / error if error else math.inf


def moved(change: Change, label: str, ns: int) -> Value | None:
    """The value of a label of which another share moved the mean most in this way."""
    way = [one for one in change.split.values if one.label == label and one.ns * ns > 0 and one.value != OTHERS]
    return max(way, key=lambda one: abs(one.ns), default=None)


def device_of(change: Change, part: ChangePart) -> str:
    """Return the device that has most of it; empty if unknown."""
    devices = [one.value for one in change.split.values if one.label == DEV]
    if len(devices) == 1:
        return devices[0]
    places = change.split.places.items()
    found = {value: ns for (value, at), ns in places if at == part.column and ns * part.ns > 0}
    most = max(found, key=lambda one: abs(found[one]), default="")
    return most if most and abs(found[most]) >= _MOST * abs(part.ns) else ""


def newcomers(difference: Difference, device: str) -> list[str]:
    """Owners that had nothing to do with the device in A, those with the most first."""
    counts: list[Counter[str]] = [Counter(), Counter()]
    for side, found in zip((difference.a, difference.b), counts):
        for measured in side.measured.values():
            if DEV not in measured.labels or OWNED_BY not in measured.labels:
                continue
            dev, owner = measured.labels.index(DEV), measured.labels.index(OWNED_BY)
            for inner in measured.classes.values():
                for key, one in inner.items():
                    if key[dev] == device:
                        found[key[owner]] += one.count
    if not all(counts):
        return []
    new = [one for one, count in counts[1].most_common() if one not in counts[0] and count >= FEWEST]
    return [one for one in new if one not in (NOBODY, OTHERS)]


def came_and_went(difference: Difference) -> tuple[list[tuple[Measured, str, str, int]], ...]:
    """Owners of single operations that only B has, and that only A has: of what, the operation, who, how many."""
    new: list[tuple[Measured, str, str, int]] = []
    gone: list[tuple[Measured, str, str, int]] = []
    for name, mine in difference.a.measured.items():
        theirs = difference.b.measured.get(name)
        if theirs is None or not mine.kind.stages or OWNED_BY not in mine.labels or OWNED_BY not in theirs.labels:
            continue
        for op in dict.fromkeys((*mine.classes, *theirs.classes)):
            a, b = _owners(mine, op), _owners(theirs, op)
            new += [(mine, op, owner, count) for owner, count in b.most_common() if owner not in a and count >= FEWEST]
            gone += [(mine, op, owner, count) for owner, count in a.most_common() if owner not in b and count >= FEWEST]
    return new, gone


def _owners(measured: Measured, op: str) -> Counter[str]:
    at = measured.labels.index(OWNED_BY)
    found: Counter[str] = Counter()
    for key, one in measured.classes.get(op, {}).items():
        found[key[at]] += one.count
    return found


# --- The verdict ------------------------------------------------------------------------------------------------------


class Blame(NamedTuple):
    """The owner, device and wait behind the largest change."""

    change: Change
    part: ChangePart
    device: str
    owner: str
    """The owner with most of the additional time; empty if it is spread over several, or not known."""
    new: Sequence[str]
    """Owners that are new on the device."""
    wait: str
    """The reason of most waits in that stage; empty if there are several."""
    began_ns: int | None
    """When it began: time of day; None where it is so from the start of B on, or cannot be told."""
    advice: str
    deeper: tuple[float, float] | None = None
    """The queue depths of the device in A and B, if requests wait there for more others than before."""


SHARED = ("throttle", "queue", "device")
"""Stages in which requests wait for those of others."""


def blame(difference: Difference, advice: Mapping[str, str]) -> Blame | None:
    """Explain the change that costs, or saves, the most time; `advice` is by the reason of a wait."""
    found = _main(difference)
    if found is None:
        return None
    main, part = found
    device = device_of(main, part) if part.column else ""
    grew = part.ns > 0
    wait = _wait(difference, main, part) if grew else ""
    look = advice.get(wait, "")
    if not look and part.stage in main.kind and grew:
        metric = main.kind[part.stage]
        look = metric.advice or metric.meaning
    return Blame(
        main,
        part,
        device,
        main.owner or _owner(difference, main),
        newcomers(difference, device) if device and grew and part.stage in SHARED else (),
        wait,
        began(difference, main, part),
        look,
        _deeper(difference, device) if device and grew and part.stage in SHARED else None,
    )


def _deeper(difference: Difference, device: str) -> tuple[float, float] | None:
    depths = [
        next((one.queue_depth for one in load.of(side.report) if one.dev == device), 0.0)
        for side in (difference.a, difference.b)
    ]
    return (depths[0], depths[1]) if depths[0] and depths[1] >= _DEEPER * depths[0] else None


def _main(difference: Difference) -> tuple[Change, ChangePart] | None:
    """A mean that changed, with its largest part; if there is none, a stage."""

    def weight(change: Change, ns: float) -> tuple[bool, bool, float]:
        # Nothing is said of requests that their operations say already.
        return change.kind.book == OPERATIONS, not change.owner, abs(ns) * change.b.count

    real = [one for one in difference.changes if one.figures["mean"].real]
    if real:
        main = max(real, key=lambda one: weight(one, one.figures["mean"].change))
        return main, parts_of(main)[0]
    stages = [
        (one, ChangePart(round(one.figures[name].change), EITHER, name, column))
        for one in difference.changes
        for column, name in enumerate(one.columns, 1)
        if name in one.figures and one.figures[name].real
    ]
    return max(stages, key=lambda found: weight(found[0], found[1].ns), default=None)


def _owner(difference: Difference, main: Change) -> str:
    """Return the owner with most of what the change costs, if there are several."""
    costs = {
        one.owner: one.split.b_ns * one.b.count - one.split.a_ns * one.b.count
        for one in difference.changes
        if one.owner and one.op == main.op and one.kind.name.removeprefix("owned_") == main.kind.name
    }
    whole = (main.split.b_ns - main.split.a_ns) * main.b.count
    most = max(costs, key=lambda one: costs[one] * (1 if whole > 0 else -1), default="")
    named = len(costs) > 1 and most not in (NOBODY, OTHERS)
    return most if named and costs[most] * whole > 0 and abs(costs[most]) >= _MOST_OF_OWNERS * abs(whole) else ""


def _wait(difference: Difference, main: Change, part: ChangePart) -> str:
    """The reason that has most of what a stage takes longer."""
    grown: Counter[str] = Counter()
    for pair in difference.pairs:
        if pair.kind.name != "wait":
            continue
        values = dict(zip((label.name for label in pair.kind.labels), pair.values))
        if (values.get("op"), values.get("in_stage")) == (main.op, part.stage):
            a, b = (0 if cells is None else cells[TOTAL].sum for cells in (pair.a, pair.b))
            grown[values.get("reason", "")] += round(b / main.b.count - a / main.a.count)
    for reason, ns in grown.most_common(1):
        if ns >= _WAITED * part.ns:
            return reason
    return ""


def began(difference: Difference, main: Change, part: ChangePart) -> int | None:
    """Return when the mean of the stage reached its new level, in B or in a recording that both are part of."""
    measured = difference.span.get(main.kind.name) or difference.b.measured.get(main.kind.name)
    if measured is None or part.reason not in (SAME, EITHER):
        return None
    before, after = (one.mean(part.column) for one in (main.a, main.b))
    return since(_levels(measured, main, part.stage), before, after)


class _Level(NamedTuple):
    end_ns: int
    weight: int
    level: float
    """The logarithm of a mean."""


def _levels(measured: Measured, main: Change, stage: str) -> list[_Level]:
    found = []
    for one in measured.stretches:
        count, total = _of(one, measured, main, stage)
        if count and total > 0:
            found.append(_Level(one.end_ns, count, math.log(total / count)))
    return found


def _of(stretch: Stretch, measured: Measured, main: Change, stage: str) -> tuple[int, int]:
    if stage not in measured.columns:
        return 0, 0
    at = measured.columns.index(stage) + 1
    owner = measured.labels.index(OWNED_BY) if main.owner else -1
    sums = [one for key, one in stretch.classes.get(main.op, {}).items() if owner < 0 or key[owner] == main.owner]
    return sum(one.count for one in sums), sum(one.times[at] for one in sums)


_FEWEST_STRETCHES = 2
_STEP = 0.5


def since(levels: Sequence[_Level], before: float, after: float) -> int | None:
    """The end of the last stretch on the old level: where two levels fit best, if they differ by half of the change."""
    if before <= 0 or after <= 0 or len(levels) < 2 * _FEWEST_STRETCHES:
        return None
    wanted = math.log(after / before)

    def fit(found: Sequence[_Level]) -> tuple[float, float]:
        weight = sum(one.weight for one in found)
        level = sum(one.level * one.weight for one in found) / weight
        return level, sum((one.level - level) ** 2 * one.weight for one in found)

    best: tuple[float, int] | None = None
    for at in range(_FEWEST_STRETCHES, len(levels) - _FEWEST_STRETCHES + 1):
        (first, one), (second, other) = fit(levels[:at]), fit(levels[at:])
        near = abs(first - math.log(before)) < abs(first - math.log(after))
        if near and (second - first) / wanted >= _STEP and (best is None or one + other < best[0]):
            best = one + other, at
    # Two levels have to fit better than one.
    if best is None or best[0] > _STEP * fit(levels)[1]:
        return None
    return levels[best[1] - 1].end_ns
