# SPDX-License-Identifier: Apache-2.0
"""The eventfds of a disk: which ones they are, and the kicks, pickups and answers through them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.correlation.looked import Looked
from wptrace.correlation import kicks
from wptrace.correlation.kicks import Kick, Kicks, Signal, Tally, Work

STEP = 1_000_000
# Threads: the vCPU, the one that picks requests up, the one that does them.
VCPU, MAIN, WORKER = 1, 2, 3
# Eventfds: each disk has a kick and an answer, a worker reports that it is done, and something else is kicked.
KICK, ANSWER, DONE, OTHER, SELF = {"a": 10, "b": 20}, {"a": 11, "b": 21}, 5, 6, 7


class World(NamedTuple):
    signals: list[Signal]
    works: list[Work]


def world(images: str, at_kick: bool = True) -> World:
    """Make requests one after the other; while early ones complete, something else is kicked."""
    signals, works = [], []
    for number, image in enumerate(images, 1):
        at = number * STEP
        if at_kick:
            signals.append(Signal(at + 10, VCPU, KICK[image], read=False))
        signals += [
            Signal(at + 30, MAIN, KICK[image], read=True),
            Signal(at + 210, WORKER, DONE, read=False),
            Signal(at + 220, MAIN, DONE, read=True),
            # The thread also wakes itself.
            Signal(at + 230, MAIN, SELF, read=False),
            Signal(at + 240, MAIN, ANSWER[image], read=False),
            Signal(at + 250, MAIN, ANSWER[image], read=True),
        ]
        if number % 5 == 0:
            signals += [Signal(at + 32, VCPU, OTHER, read=False), Signal(at + 35, MAIN, OTHER, read=True)]
        if number % 2 == 0:
            signals.append(Signal(at + 300, VCPU, SELF, read=False))
            signals += [Signal(at + 301, VCPU, OTHER, read=False), Signal(at + 302, MAIN, OTHER, read=True)]
        works.append(Work(f"/srv/{image}", at + 50, at + 200, WORKER))
    return World(signals, works)


@pytest.mark.parametrize("at_kick", [True, False])
@given(images=st.permutations("a" * 20 + "b" * 20))
def test_each_disk_has_its_own(at_kick: bool, images: list[str]) -> None:
    """Images come in any order, and what was seen as well. With KVM, no system call kicks."""
    there = world("".join(images), at_kick)
    kicks = Kicks(reversed(there.signals), reversed(there.works))
    found = kicks.of_alone()
    assert list(found) == there.works
    for number, one in enumerate(found.values(), 1):
        at = number * STEP
        assert one == Kick(at + 10 if at_kick else 0, at + 30, MAIN, at + 240)
        assert one.first == at + (10 if at_kick else 30)
    assert kicks.tallies(found) == [Tally(f"/srv/{name}", MAIN, 20, 20, 20) for name in "ab"]


def test_what_was_not_alone_has_none() -> None:
    there = world("a" * 20)
    long = Work("/srv/a", 5 * STEP + 100, 7 * STEP + 100, WORKER)
    found = Kicks(there.signals, [*there.works, long]).of_alone()
    assert len(found) == 20 - 3
    assert long not in found
    assert not {there.works[number] for number in (4, 5, 6)} & set(found)


def test_what_was_picked_up_without_a_kick_has_none() -> None:
    """The thread sometimes looks at the queue by itself, and reads what kicked it later."""
    there = world("a" * 20)
    signals = [one for one in there.signals if one.fd != KICK["a"] or not one.read or not 5 * STEP < one.ns < 6 * STEP]
    found = Kicks(signals, there.works).of_alone()
    assert len(found) == 19
    assert there.works[4] not in found
    # What a worker writes is no kick, also where it is all that is read.
    assert Kicks([one for one in there.signals if one.fd == DONE], there.works).of_alone() == {}


def test_a_kick_that_was_not_seen_is_not_the_one_before() -> None:
    there = world("a" * 20)
    signals = [one for one in there.signals if one.ns != 5 * STEP + 10]
    found = Kicks(signals, there.works).of_alone()
    assert [one.kicked for one in found.values()] == [0 if n == 5 else n * STEP + 10 for n in range(1, 21)]


@pytest.mark.parametrize("count", [0, 7])
def test_a_few_tell_nothing(count: int) -> None:
    there = world("a" * count)
    kicks = Kicks(there.signals, there.works)
    assert kicks.of_alone() == {}
    assert kicks.tallies({}) == []


def test_an_answer_that_was_not_seen_is_none() -> None:
    there = world("a" * 20)
    signals = [one for one in there.signals if one.fd != ANSWER["a"]]
    # What is written after two of three is no answer.
    signals += [Signal(n * STEP + 240, MAIN, 99, read=False) for n in range(1, 21) if n % 3]
    kicks = Kicks(signals, there.works)
    found = kicks.of_alone()
    assert [one.given for one in found.values()] == [0] * 20
    assert kicks.tallies(found) == [Tally("/srv/a", MAIN, 20, 20, 0)]


def test_four_times_as_many_take_four_times_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not sixteen: a capture has up to 262,144 requests. What is often read, and seldom last, is no kick of any."""
    looked = Looked(monkeypatch, kicks)

    def steps(count: int) -> int:
        made, before = world("a" * count), looked.count
        found = Kicks(made.signals, made.works).of_alone()
        assert [one.picked for one in found.values()] == [n * STEP + 30 for n in range(1, count + 1)]
        return looked.count - before

    few = steps(500)
    assert 500 < few < steps(2_000) < 5 * few
