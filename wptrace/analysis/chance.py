# SPDX-License-Identifier: Apache-2.0
"""Whether a difference may be chance: how figures vary from one stretch of a recording to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.05
"""The share of pairs of recordings of one steady load that may have a finding."""
FEWEST = 30
"""Fewer objects give no result."""
STRETCHES = 4
"""Fewer stretches do not show how figures vary from one to the next."""


class Noise(NamedTuple):
    """The noise of a figure of one recording: the variance of measurements around the truth."""

    variance: float
    freedom: float
    """Degrees of freedom: how well the variance itself is known."""


class Odds(NamedTuple):
    """The odds that a difference is chance."""

    error: float
    """Its standard error."""
    p: float
    """The probability that chance alone makes a difference this large."""


NEVER = Odds(math.inf, 1.0)
"""The result if nothing is known."""


def of_ratio(tops: Sequence[int], bottoms: Sequence[int], single: float) -> Noise:
    """Return the noise of sum(tops) / sum(bottoms), such as a mean, over consecutive stretches.

    `single` is the variance if all objects were independent.
    """
    whole, many = sum(bottoms), len(bottoms)
    if not whole or many < STRETCHES:
        return Noise(single, max(whole - 1, 1))
    mean = sum(tops) / whole
    spread = sum((top - mean * bottom) ** 2 for top, bottom in zip(tops, bottoms))
    between = many / (many - 1) * spread / whole**2
    # Stretches that are alike by chance do not make a figure more certain than its objects do.
    return Noise(max(between, single), many - 1)


def of_levels(tops: Sequence[int], bottoms: Sequence[int], single: float) -> tuple[float, Noise] | None:
    """The logarithm of the ratio that stretches have, and how it varies: a few stretches that are far out, as when a
    device stood still once, make a mean uncertain, and not that all others are on another level.

    None where that cannot be said.
    """
    found = [(math.log(top / bottom), bottom) for top, bottom in zip(tops, bottoms) if top > 0 and bottom > 0]
    whole, many = sum(bottom for _, bottom in found), len(found)
    if many < STRETCHES:
        return None
    level = sum(one * bottom for one, bottom in found) / whole
    spread = sum(((one - level) * bottom) ** 2 for one, bottom in found)
    mean = sum(tops) / sum(bottoms)
    between = many / (many - 1) * spread / whole**2
    return level, Noise(max(between, single / mean**2), many - 1)


def either(one: Odds, other: Odds) -> Odds:
    """Combine two tests of the same change by the method of Simes: twice the smaller p-value, or the larger one."""
    return Odds(one.error, min(2 * min(one.p, other.p), max(one.p, other.p)))


def of_parts(found: Sequence[float]) -> Noise:
    """Return the noise of a figure that was also computed without each of the stretches (the jackknife)."""
    many = len(found)
    mean = sum(found) / many
    return Noise((many - 1) / many * sum((one - mean) ** 2 for one in found), many - 1)


def odds(difference: float, one: Noise, other: Noise) -> Odds:
    """Test by Welch's t-test."""
    variance = one.variance + other.variance
    if not difference:
        return Odds(math.sqrt(variance), 1.0)
    if not variance:
        return Odds(0.0, 0.0)
    freedom = variance**2 / (one.variance**2 / one.freedom + other.variance**2 / other.freedom)
    error = math.sqrt(variance)
    return Odds(error, two_sided(difference / error, freedom))


def two_sided(distance: float, freedom: float) -> float:
    """The two-sided p-value of Student's t."""
    if freedom > _MANY:
        return math.erfc(abs(distance) / math.sqrt(2))
    return incomplete_beta(freedom / (freedom + distance * distance), freedom / 2, 0.5)


_MANY = 1e4


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # The continued fraction converges quickly on one side of the mean only.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    found = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + term / c
            c = c if abs(c) > tiny else tiny
            found *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return found


def real(tests: Sequence[Odds], level: float = LEVEL) -> list[bool]:
    """Return which tests are significant, all of them together (Hochberg).

    The more tests there are, the more each has to show; if many show something, each has to show less. The method needs
    positive dependence, which figures of the same requests have.
    """
    order = sorted(range(len(tests)), key=lambda place: tests[place].p)
    enough = [tests[place].p <= level / (len(order) - rank) for rank, place in enumerate(order)]
    many = max((rank + 1 for rank, is_enough in enumerate(enough) if is_enough), default=0)
    found = [False] * len(tests)
    for place in order[:many]:
        found[place] = True
    return found
