# SPDX-License-Identifier: Apache-2.0
"""Conditions on a difference, such as `read.p99 > +20%`, for scripts and CI."""

from __future__ import annotations

import re
from typing import NamedTuple

from wptrace.analysis.changes import Figure
from wptrace.analysis.diff import Difference
from wptrace.errors import UsageError
from wptrace.model.units import NS_PER, parse_duration

_CONDITION = re.compile(
    r"\s*(?P<what>[A-Za-z_0-9.-]{1,100})\s*(?P<way>[<>])\s*(?P<sign>[+-]?)(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)\s*"
    r"(?P<unit>%|/s|[a-zµμ]{0,4})\s*"
)


class Condition(NamedTuple):
    text: str
    words: tuple[str, ...]
    """[KIND.]OPERATION.FIGURE, where a figure may be a stage."""
    above: bool
    relative: float | None
    """A change in parts of what there was,"""
    change: float | None
    """or a change,"""
    value: float | None
    """or what there is in B."""


class Outcome(NamedTuple):
    condition: Condition
    figure: Figure | None
    """None if the condition cannot be checked."""
    beyond: bool = False
    """The figure is beyond the bound."""
    chance: bool = False
    """The change may be chance."""
    why: str = ""
    """Why the condition cannot be checked."""

    @property
    def holds(self) -> bool:
        return self.beyond and not self.chance

    @property
    def is_rate(self) -> bool:
        return self.condition.words[-1] == "rate"


def parse(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise _wrong(text)
    words = tuple(found["what"].split("."))
    if not 2 <= len(words) <= 4 or not all(words):
        raise _wrong(text)
    number, unit, sign = float(found["number"]), found["unit"], found["sign"]
    signed = -number if sign == "-" else number
    above = found["way"] == ">"
    if unit == "%":
        if not sign:
            raise UsageError(f"--fail-if {text}: a percentage is a change, so it needs a sign: +{number:g}%")
        return Condition(text.strip(), words, above, signed / 100, None, None)
    if words[-1] == "rate":
        if unit not in ("", "/s"):
            raise UsageError(f"--fail-if {text}: a rate is a number a second, as in read.rate < 100/s")
        amount = signed
    elif unit in NS_PER or unit in ("µs", "μs", "min"):
        amount = parse_duration(f"{found['number']}{unit}") * (-1 if sign == "-" else 1)
    else:
        raise UsageError(f"--fail-if {text}: a time needs a unit: {', '.join(NS_PER)}; a change may be in %")
    if sign:
        return Condition(text.strip(), words, above, None, amount, None)
    return Condition(text.strip(), words, above, None, None, amount)


def _wrong(text: str) -> UsageError:
    return UsageError(
        f"--fail-if takes a condition such as 'read.p99 > +20%', not {text!r}",
        "OPERATION.FIGURE with mean, p99, rate or a stage, < or >, and +20%, +200us or 5ms",
    )


def judge(condition: Condition, difference: Difference) -> Outcome:
    try:
        figure = _figure(condition, difference)
    except LookupError as error:
        return Outcome(condition, None, why=str(error.args[0]))
    if condition.value is not None:
        # A figure of B alone.
        found, bound = figure.b, condition.value
    elif condition.relative is not None:
        found, bound = figure.change / figure.a, condition.relative
    else:
        found, bound = figure.change, condition.change or 0.0
    beyond = found > bound if condition.above else found < bound
    return Outcome(condition, figure, beyond, condition.value is None and not figure.real)


def _figure(condition: Condition, difference: Difference) -> Figure:
    """A LookupError that says why there is none."""
    words = list(condition.words)
    every = [one for one in difference.changes if not one.owner]
    kinds = {name for side in (difference.a, difference.b) for name in side.measured}
    if words[0] in kinds and len(words) > 1:
        kind = words.pop(0)
        every = [one for one in every if one.kind.name == kind]
    # A kind without operations has an empty name there.
    op = words.pop(0) if len(words) > 1 else ""
    found = next((one for one in every if one.op == op), None)
    if found is None:
        what = ".".join(condition.words[: len(condition.words) - len(words)])
        raise LookupError(f"one side has no {what}, or too few")
    if len(words) == 2 and words[1] == "mean":
        words.pop()
    name = ".".join(words)
    if name in found.figures:
        figure = found.figures[name]
        if condition.relative is not None and not figure.a:
            raise LookupError(f"{name} was 0 in A")
        return figure
    if name == "p99":
        known = found.a.buckets and found.b.buckets
        raise LookupError("there are too few for a p99" if known else "only sums are known of one side, and no p99")
    if name in difference.joined:
        raise LookupError(f"{name} is observed on one side only")
    raise LookupError(f"there is no {name}; there are {', '.join(found.figures)}")
