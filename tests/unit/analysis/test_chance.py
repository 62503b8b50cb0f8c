# SPDX-License-Identifier: Apache-2.0
"""Noise of figures: distributions of tests against known tables, and noise that only shows between stretches."""

from __future__ import annotations

import math
import statistics

import pytest

from tests.unit.analysis.made_sides import seeded
from wptrace.analysis import chance
from wptrace.analysis.chance import Noise, Odds


@pytest.mark.parametrize(
    ("distance", "freedom", "p"),
    [
        # The values are from tables of Student's t.
        (12.706, 1, 0.05),
        (2.228, 10, 0.05),
        (3.169, 10, 0.01),
        (4.587, 10, 0.001),
        (2.042, 30, 0.05),
        (1.95996, 1e9, 0.05),
        (0.0, 5, 1.0),
    ],
)
def test_the_distances_of_tables(distance: float, freedom: float, p: float) -> None:
    assert chance.two_sided(distance, freedom) == pytest.approx(p, rel=2e-3)
    assert chance.two_sided(-distance, freedom) == chance.two_sided(distance, freedom)


@pytest.mark.parametrize("x", [-0.5, 0.0, 0.05, 0.3, 0.5, 0.8, 0.99, 1.0, 1.5])
def test_the_beta_function_is_that_of_binomials(x: float) -> None:
    chosen = min(max(x, 0.0), 1.0)
    for many in (1, 2, 7, 40):
        for least in range(1, many + 1):
            of = [math.comb(many, n) * chosen**n * (1 - chosen) ** (many - n) for n in range(least, many + 1)]
            assert chance.incomplete_beta(x, least, many - least + 1) == pytest.approx(sum(of), abs=1e-12)


def test_the_two_ways_to_compute_agree() -> None:
    few, many = chance.two_sided(2.5, 9_999), chance.two_sided(2.5, 10_001)
    assert few == pytest.approx(many, rel=1e-2)


def test_the_more_is_asked_the_more_each_has_to_show() -> None:
    sure, nearly, no = Odds(1.0, 0.0001), Odds(1.0, 0.02), Odds(1.0, 0.7)
    assert chance.real([sure]) == [True]
    assert chance.real([nearly]) == [True]
    assert chance.real([no, nearly, sure, no, no]) == [False, False, True, False, False]
    assert chance.real([]) == []


def test_where_many_show_something_each_has_to_show_less() -> None:
    some, less, no = Odds(1.0, 0.03), Odds(1.0, 0.04), Odds(1.0, 0.06)
    assert chance.real([some]) == [True]
    assert chance.real([less, some]) == [True, True]
    assert chance.real([some, no]) == [False, False]
    assert chance.real([no, Odds(1.0, 0.02)]) == [False, True]


def test_of_two_looks_the_better_one_counts_half_unless_they_agree() -> None:
    assert chance.either(Odds(1.0, 0.01), Odds(2.0, 0.5)) == Odds(1.0, 0.02)
    assert chance.either(Odds(1.0, 0.5), Odds(2.0, 0.01)) == Odds(1.0, 0.02)
    assert chance.either(Odds(1.0, 0.01), Odds(2.0, 0.012)) == Odds(1.0, 0.012)


def test_stretches_that_differ_make_a_mean_uncertain() -> None:
    counts = [100] * 8
    steady = chance.of_ratio([10_000] * 8, counts, 1.0)
    assert steady == Noise(1.0, 7)
    # Halves of 100 each, with means around 100: a standard error of 50 / sqrt(8 - 1).
    unsteady = chance.of_ratio([5_000, 15_000] * 4, counts, 1.0)
    assert unsteady.variance == pytest.approx(50**2 / 7)
    assert chance.of_ratio([5_000, 15_000] * 2, counts[:4], 1.0).variance == pytest.approx(50**2 / 3)
    # With so few stretches, their variation is unknown.
    assert chance.of_ratio([5_000, 15_000], counts[:2], 1.0) == Noise(1.0, 199)
    assert chance.of_ratio([], [], 1.0) == Noise(1.0, 1)


def test_levels_are_means_of_logarithms() -> None:
    """And vary as these do, or as a single object around the mean. Where there was nothing there is no level."""
    steady = chance.of_levels([0, *[10_000] * 8], [0, *[100] * 8], 4.0)
    assert steady is not None
    assert steady[0] == pytest.approx(math.log(100))
    assert steady[1].variance == pytest.approx(4.0 / 100**2)
    assert steady[1].freedom == 7
    unsteady = chance.of_levels([1_000, 100_000] * 2, [100] * 4, 4.0)
    assert unsteady is not None
    assert unsteady[0] == pytest.approx(math.log(100))
    assert unsteady[1].variance == pytest.approx(math.log(10) ** 2 / 3)
    # The longer one weighs more.
    longer = chance.of_levels([1_000, 1_000, 1_000, 500_000], [100, 100, 100, 500], 4.0)
    assert longer is not None
    assert longer[0] == pytest.approx((3 * math.log(10) + 5 * math.log(1_000)) / 8)
    assert chance.of_levels([0, 500, 500, 500], [100] * 4, 4.0) is None


def test_the_jackknife_of_a_mean_is_its_own_error() -> None:
    values = [3.0, 8.0, 1.0, 14.0, 9.0]
    without = [(sum(values) - one) / (len(values) - 1) for one in values]
    found = chance.of_parts(without)
    assert found.variance == pytest.approx(statistics.variance(values) / len(values))
    assert found.freedom == 4


def test_odds_of_two_that_vary_unlike() -> None:
    """The freedom is that of Welch and Satterthwaite."""
    found = chance.odds(3.0, Noise(1.0, 9), Noise(4.0, 4))
    assert found.error == pytest.approx(5**0.5)
    assert found.p == pytest.approx(chance.two_sided(3 / 5**0.5, 25 / (1 / 9 + 16 / 4)))


def test_stretches_that_are_longer_weigh_more() -> None:
    rand = seeded(1)
    rates, found = [], []
    for _ in range(400):
        seconds = [rand.choice((1, 5)) for _ in range(10)]
        counts = [round(rand.gauss(100 * long, 10 * long**0.5)) for long in seconds]
        rates.append(sum(counts) / sum(seconds))
        found.append(chance.of_ratio(counts, seconds, 0.0).variance)
    mean = sum(rates) / len(rates)
    truly = sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)
    assert sum(found) / len(found) == pytest.approx(truly, rel=0.25)


def test_one_that_stood_still_does_not_hide_that_the_level_is_another() -> None:
    counts = [100] * 10
    quick, slow = [100 * (1000 + at) for at in range(10)], [100 * (2000 + at) for at in range(9)] + [100 * 400_000]
    noise = [chance.of_ratio(tops, counts, 1.0) for tops in (quick, slow)]
    assert chance.odds(sum(slow) / 1000 - sum(quick) / 1000, *noise).p > 0.1
    levels = [chance.of_levels(tops, counts, 1.0) for tops in (quick, slow)]
    assert levels[0] is not None
    assert levels[1] is not None
    assert levels[0][0] == pytest.approx(math.log(1004.5), abs=0.01)
    assert chance.odds(levels[1][0] - levels[0][0], levels[0][1], levels[1][1]).p < 0.2
    without = chance.of_levels(slow[:-1], counts[:-1], 1.0)
    assert without is not None
    assert chance.odds(without[0] - levels[0][0], levels[0][1], without[1]).p < 1e-6
    assert chance.of_levels([1, 2], [1, 1], 1.0) is None


def test_no_variance_is_certain_and_no_difference_is_none() -> None:
    nothing = Noise(0.0, 5)
    assert chance.odds(3.0, nothing, nothing) == Odds(0.0, 0.0)
    assert chance.odds(0.0, nothing, nothing).p == 1.0
