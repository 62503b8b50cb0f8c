# SPDX-License-Identifier: Apache-2.0
"""Conditions of --fail-if: what they mean and when they hold."""

from __future__ import annotations

import pytest

from tests.unit.analysis.made_sides import Load, compared, seeded, side
from wptrace.analysis.condition import judge, parse
from wptrace.analysis.diff import Difference
from wptrace.errors import UsageError


@pytest.fixture(scope="module")
def slower() -> Difference:
    """A difference in which the device takes 20 % longer, with a few writes."""
    rand = seeded(1)
    a, b = ({"fs": (5_000.0, 0.1), "device": (ns, 0.1)} for ns in (100_000.0, 120_000.0))
    few = Load(5, a, op="write")
    return compared(side([Load(100, a), few], rand), side([Load(100, b), few], rand))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("read.mean > +10%", True),
        ("read.mean > +30%", False),
        ("read.mean < -10%", False),
        ("read.mean > +10us", True),
        ("read.mean > +0.1ms", False),
        ("read.mean > 120us", True),
        ("read.mean < 1s", True),
        ("read.mean > 1s", False),
        ("read.device > +10%", True),
        ("read.device.mean>+10%", True),
        ("operation.read.device.mean > +10%", True),
        ("operation.read.p99 > +10%", True),
        # The condition is true, but it may be chance.
        ("read.fs > -50%", False),
        ("read.rate > -50%", False),
        ("read.rate > 90/s", True),
        ("write.mean < +50%", False),
    ],
)
def test_when_one_holds(slower: Difference, text: str, holds: bool) -> None:
    found = judge(parse(text), slower)
    assert found.figure is not None
    assert found.holds is holds


def test_stages_of_definitions_may_have_any_name() -> None:
    assert parse("object.hr-Armed > +20us").words == ("object", "hr-Armed")
    assert parse("object.hr-armed<-5%").words == ("object", "hr-armed")


def test_chance_is_no_failure(slower: Difference) -> None:
    found = judge(parse("read.rate > -50%"), slower)
    assert (found.beyond, found.chance, found.holds) == (True, True, False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sync.mean > +1%", "one side has no sync, or too few"),
        ("write.p99 > +1%", "there are too few for a p99"),
        ("read.journal > +1%", "there is no journal; there are mean, p99, rate, fs, device"),
        ("read.p50 > +1%", "there is no p50; there are mean, p99, rate, fs, device"),
    ],
)
def test_what_cannot_be_answered_is_not_fine(slower: Difference, text: str, why: str) -> None:
    found = judge(parse(text), slower)
    assert found.figure is None
    assert found.why == why
    assert not found.holds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("read.p99", "takes a condition such as"),
        ("read > +1%", "takes a condition such as"),
        ("read..p99 > +1%", "takes a condition such as"),
        ("a.b.c.d.e > +1%", "takes a condition such as"),
        ("read.p99 = +1%", "takes a condition such as"),
        ("read.p99 > 20%", "a percentage is a change, so it needs a sign"),
        ("read.p99 > +20", "a time needs a unit"),
        ("read.p99 > +20parsec", "takes a condition such as"),
        ("read.rate > +5ms", "a rate is a number a second"),
        ("read.p99 > +" + "9" * 40 + "%", "takes a condition such as"),
    ],
)
def test_what_is_no_condition(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(text)
