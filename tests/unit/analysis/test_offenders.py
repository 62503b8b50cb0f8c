# SPDX-License-Identifier: Apache-2.0
"""The largest contributor."""

from __future__ import annotations

from wptrace.analysis.offenders import OTHERS, Offender, Offenders


def test_the_largest_sum_comes_first() -> None:
    found = Offenders()
    for key, value in ((("a", "f"), 5), (("b", "f"), 7), (("a", "f"), 4), (("c", "g"), 1)):
        found.add(key, value)
    assert found.worst(2) == [Offender(("a", "f"), 2, 9, 5), Offender(("b", "f"), 1, 7, 7)]
    assert len(found) == 3


def test_of_equal_sums_the_worst_single_case_comes_first() -> None:
    found = Offenders()
    for key, value in ((("many", ""), 1), (("many", ""), 1), (("one", ""), 2)):
        found.add(key, value)
    assert [one.key for one in found.worst(5)] == [("one", ""), ("many", "")]


def test_what_finds_no_place_is_counted_with_its_like() -> None:
    found = Offenders(known=2)
    for number in range(5):
        found.add((str(number),), 10)
    found.add(("0",), 1)
    assert found.worst(9) == [Offender(OTHERS, 3, 30, 10), Offender(("0",), 2, 11, 10), Offender(("1",), 1, 10, 10)]


def test_none() -> None:
    assert Offenders().worst(3) == []
