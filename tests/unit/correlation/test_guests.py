# SPDX-License-Identifier: Apache-2.0
"""A guest's requests are matched with what the host did for them, and each nanosecond is attributed."""

from __future__ import annotations

import functools
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.correlation.looked import Looked
from wptrace.correlation import guests
from wptrace.correlation.clocks import WANDER_PPM, Bound
from wptrace.correlation.guests import (
    MERGED,
    OUTSIDE,
    PARTLY,
    SPLIT,
    UNFORWARDED,
    UNSERVED,
    WHOLE,
    Asked,
    Disk,
    Pair,
    Served,
    Tries,
    Writes,
    alignment,
    charged,
    match,
    places,
    refined,
    shares,
)
from wptrace.correlation.kicks import Kick
from wptrace.model.book import Cause


class World(NamedTuple):
    """The truth: the disk, the matching pairs, and the offset at each request."""

    disk: Disk
    pairs: list[tuple[int, int]]
    offsets: list[int]


def world(seed: int, count: int, drift_ppm: int) -> World:
    """Make a drifting clock, overlapping requests, offsets that are read again, and a host with other work as well."""
    random = Random(seed)  # noqa: S311 - a seed is wanted
    offset, at = random.randint(-(10**15), 10**15), 10**9
    asked, served, pairs, offsets = [], [], [], []
    for number in range(count):
        step = random.randint(1, 10**7)
        at += step
        drift = step * drift_ppm // 1_000_000
        offset += random.randint(-drift, drift)
        # Most are at offsets of their own, so that the clocks' offset can be found.
        block = number if number < 20 else random.randint(0, 8)
        op = random.choice(("read", "write"))
        there, took, back = (random.randint(0, 10 ** random.randint(0, 7)) for _ in range(3))
        one = Asked(op, block * 4096, 4096, at, at + there + took + back)
        asked.append(one)
        offsets.append(offset)
        served.append(Served(op, block * 4096, 4096, at + there + offset, at + there + took + offset))
        pairs.append((number, len(served) - 1))
        if random.random() < 0.3:
            served.append(Served("read", 1 << 40, 512, at + offset, at + offset + 5))
    return World(Disk(asked, served), pairs, offsets)


worlds = functools.partial(st.builds, world, st.integers(0, 1 << 32), st.integers(20, 60), st.integers(0, WANDER_PPM))


@given(worlds())
def test_the_true_offset_is_among_the_possible_ones(world: World) -> None:
    found = alignment([world.disk])
    assert found is not None
    for asked, offset in zip(world.disk.asked, world.offsets):
        there = found.at(asked.handed)
        assert there.least <= offset <= there.most


@given(worlds())
def test_each_finds_what_was_done_for_it(world: World) -> None:
    """Requests of the same offset that overlap may be exchanged, because they are alike."""
    found = alignment([world.disk])
    assert found is not None
    matches = match(world.disk, found)
    assert not matches.causes
    assert matches.unasked == len(world.disk.served) - len(world.disk.asked)
    assert len({pair.served for pair in matches.pairs}) == len(world.disk.asked)
    truth = dict(world.pairs)
    for pair in matches.pairs:
        assert pair.how == WHOLE
        right = world.disk.served[truth[pair.asked]]
        served = world.disk.served[pair.served[0]]
        assert (right.op, right.offset) == (served.op, served.offset)
        if served != right:
            asked = world.disk.asked[pair.asked]
            offset = found.at(asked.handed)
            assert served.begin - offset.least >= asked.handed
            assert served.end - offset.most <= asked.seen


@given(worlds(), st.dictionaries(st.sampled_from(("fs", "queue", "device")), st.integers(0, 10**5)))
def test_every_nanosecond_belongs_to_one_stage(world: World, stages: dict[str, int]) -> None:
    found = alignment([world.disk])
    assert found is not None
    for pair in match(world.disk, found).pairs:
        asked = world.disk.asked[pair.asked]
        served = [world.disk.served[number] for number in pair.served]
        # Stages of the host add up to its time.
        took = served[0].end - served[0].begin
        reported = dict(stages) if sum(stages.values()) <= took else {}
        reported["fs"] = reported.get("fs", 0) + took - sum(reported.values())
        parts = shares(asked, served, reported.items(), found.at(asked.handed))
        assert all(share.ns > 0 for share in parts)
        assert sum(share.ns for share in parts) == asked.seen - asked.handed
        for device in (0, 1, asked.seen - asked.handed, asked.seen - asked.handed + 7):
            assert sum(share.ns for share in charged(parts, device)) == device


def test_what_was_charged_in_part_is_its_end() -> None:
    asked, served = Asked("read", 0, 512, 0, 100), Served("read", 0, 512, 10, 80)
    parts = shares(asked, [served], {"queue": 30, "device": 40}.items(), Bound(0, 0, 0))
    assert [tuple(share) for share in parts] == [
        ("to_host", 10), ("host_queue", 30), ("host_device", 40), ("back", 20)
    ]  # fmt: skip
    assert dict(charged(parts, 100)) == {"to_host": 10, "host_queue": 30, "host_device": 40, "back": 20}
    assert dict(charged(parts, 50)) == {"host_device": 30, "back": 20}
    assert dict(charged(parts, 130)) == {"to_host": 10, "host_queue": 30, "host_device": 40, "back": 20, "device": 30}


def test_parts_are_from_the_first_begin_to_the_last_end() -> None:
    """The stages are those of the last one: what others did before it is `parts`."""
    asked = Asked("read", 0, 1024, 1000, 1100)
    served = [Served("read", 512, 512, 30, 80), Served("read", 0, 512, 10, 40)]
    assert shares(asked, served, [("device", 50)], Bound(1000, -1000, -1000)) == [
        ("to_host", 10), ("host_parts", 20), ("host_device", 50), ("back", 20)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("least", "most", "to_host"),
    [(-1002, -996, 9), (-1100, -1002, 30), (-990, -900, 0)],
)
def test_the_middle_of_what_is_known_of_the_clocks_is_taken(least: int, most: int, to_host: int) -> None:
    """Or the nearest by which the host did it while the guest waited."""
    asked, served = Asked("read", 0, 512, 1000, 1100), Served("read", 0, 512, 10, 80)
    found = dict(shares(asked, [served], [("fs", 70)], Bound(1000, least, most)))
    assert (found.get("to_host", 0), found["host_fs"], found.get("back", 0)) == (to_host, 70, 30 - to_host)


def spread(count: int, length: int = 4096) -> Disk:
    """Make requests at different offsets, 1 ms apart; the host's clock is a second ahead."""
    asked = [Asked("read", n * 65536, length, n * 10**6, n * 10**6 + 900) for n in range(count)]
    served = [Served("read", a.offset, length, a.handed + 10**9 + 100, a.handed + 10**9 + 800) for a in asked]
    return Disk(asked, served)


def test_two_that_were_merged_have_the_same() -> None:
    """No read has to do with it, nor what was done before, or ended later."""
    disk = spread(20)
    asked = [*(Asked("write", 1 << 30 | n * 4096, 4096, 10**8 + n, 10**8 + 900) for n in range(2)), *disk.asked]
    served = [
        *disk.served,
        Served("write", 1 << 30, 8192, 10**9 + 10**7, 10**9 + 10**7 + 100),
        Served("read", 1 << 30, 8192, 11 * 10**8 + 50, 11 * 10**8 + 60),
        Served("write", 1 << 30, 8192, 11 * 10**8 + 70, 12 * 10**8),
        Served("write", 1 << 30, 8192, 11 * 10**8 + 100, 11 * 10**8 + 200),
    ]
    offset = alignment([disk])
    assert offset is not None
    matches = match(Disk(asked, served), offset)
    assert matches.pairs[:2] == [Pair(0, (23,), MERGED), Pair(1, (23,), MERGED)]
    assert [pair.served for pair in matches.pairs[2:]] == [(n,) for n in range(20)]
    assert matches.unasked == 3


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        (((0, 1), (1, 2), (2, 3)), None),
        # The host may do them in any order, and some of it twice.
        (((2, 3), (0, 2)), None),
        (((0, 1), (1, 2), (1, 2), (2, 3)), None),
        (((0, 1), (1, 2)), PARTLY),
        (((0, 1), (2, 3)), PARTLY),
        (((0, 2),), PARTLY),
        # What begins before it is not for it alone.
        (((-1, 1), (1, 2), (2, 3)), PARTLY),
        ((), UNSERVED),
        # They only touch it.
        (((-1, 0), (3, 4)), UNSERVED),
    ],
)
def test_one_that_was_split_has_all_parts(parts: tuple[tuple[int, int], ...], cause: object) -> None:
    """The part of another request is none of its parts."""
    disk = spread(20)
    asked = [
        *disk.asked,
        Asked("write", 1 << 30, 3 * 4096, 5 * 10**6 + 1, 5 * 10**6 + 900),
        Asked("write", 1 << 30, 4096, 5 * 10**6 + 1, 5 * 10**6 + 800),
    ]
    begin = 10**9 + 5 * 10**6 + 101
    served = [*disk.served, Served("write", 1 << 30, 4096, begin, begin + 200)]
    served += [
        Served("write", (1 << 30) + first * 4096, (end - first) * 4096, begin + n, begin + n + 300)
        for n, (first, end) in enumerate(parts, 1)
    ]
    offset = alignment([disk])
    assert offset is not None
    matches = match(Disk(asked, served), offset)
    assert matches.causes.get(20) == cause
    assert Pair(21, (20,), WHOLE) in matches.pairs
    if cause is None:
        assert matches.pairs[20] == Pair(20, tuple(range(21, 21 + len(parts))), SPLIT)


def test_what_was_done_twice_is_given_once() -> None:
    disk = spread(20)
    again = disk.served[3]._replace(begin=disk.served[3].begin + 10)
    later = disk.served[7]._replace(end=disk.asked[7].seen + 10**9 + 500)
    offset = alignment([disk])
    assert offset is not None
    matches = match(Disk(disk.asked, [*disk.served, again]), offset)
    assert matches.pairs == [Pair(n, (n,), WHOLE) for n in range(20)]
    assert matches.unasked == 1
    # What ended when the guest had seen its end was not for it.
    matches = match(Disk(disk.asked, [*disk.served[:7], later, *disk.served[8:]]), offset)
    assert (matches.causes, matches.unasked) == ({7: UNSERVED}, 1)


def test_what_the_host_did_not_trace_is_outside() -> None:
    disk = spread(20)
    asked = [*disk.asked, Asked("read", 0, 4096, 10**10, 10**10 + 5)]
    offset = alignment([disk])
    assert offset is not None
    assert match(Disk(asked, disk.served), offset).causes == {20: OUTSIDE}
    assert match(Disk(asked, []), offset).causes == dict.fromkeys(range(21), OUTSIDE)
    # It was traced from the first to the last that it did.
    served = [disk.served[1], *disk.served[3:19]]
    assert match(Disk(disk.asked, served), offset).causes == {0: OUTSIDE, 2: UNSERVED, 19: OUTSIDE}


def test_flushes_have_an_order_and_no_place() -> None:
    disk = spread(20)
    asked = [*disk.asked, *(Asked("flush", 0, 0, n * 10**6 + 5, n * 10**6 + 900) for n in (3, 7))]
    served = [*disk.served, *(Served("flush", 0, 0, 10**9 + n * 10**6 + 200, 10**9 + n * 10**6 + 800) for n in (3, 7))]
    offset = alignment([disk])
    assert offset is not None
    assert match(Disk(asked, served), offset).pairs[20:] == [Pair(20, (20,), WHOLE), Pair(21, (21,), WHOLE)]


def test_a_last_flush_that_has_nothing_to_do_is_not_outside() -> None:
    """The host did nothing after it. If another request has no match either, the host was no longer traced."""
    disk = spread(20)
    offset = alignment([disk])
    assert offset is not None
    asked = [*disk.asked, Asked("flush", 0, 0, 10**10, 10**10 + 5)]
    assert match(Disk(asked, disk.served), offset).causes == {20: UNFORWARDED}
    asked.append(Asked("read", 0, 512, 10**10 + 10, 10**10 + 20))
    assert match(Disk(asked, disk.served), offset).causes == {20: OUTSIDE, 21: OUTSIDE}


def test_a_flush_and_the_operations_that_wait_for_it_are_one() -> None:
    """The kernel sends one flush for both operations; the flushes of the journal are requests of their own."""
    disk = spread(20)
    reads = [Pair(n, (n,), WHOLE) for n in range(20)]
    journal = [Asked("flush", 0, 0, 3_000_300, 3_000_990), Asked("flush", 0, 0, 7_000_100, 7_000_800)]
    flush = Asked("flush", 0, 0, 3_000_100, 3_000_800)
    waiting = [
        Asked("flush", 0, 0, 3_000_010, 3_000_900, sent=False),
        Asked("flush", 0, 0, 3_000_020, 3_000_950, sent=False),
    ]
    # It did not wait for the end of a flush, and no read is one.
    other = Asked("flush", 0, 0, 3_000_030, 3_000_500, sent=False)
    read = Asked("read", 1 << 30, 512, 3_000_200, 3_000_400)
    asked = [*disk.asked, *journal, flush, *waiting, other, read]
    times = ((7_000_250, 7_000_700), (3_000_250, 3_000_700), (3_000_750, 3_000_880))
    served = [*disk.served, *(Served("flush", 0, 0, 10**9 + begin, 10**9 + end) for begin, end in times)]
    served.append(Served("read", 1 << 30, 512, 10**9 + 3_000_250, 10**9 + 3_000_350))
    offset = alignment([disk])
    assert offset is not None
    found = match(Disk(asked, served), offset)
    assert found.pairs == [
        *reads,
        Pair(20, (22,), WHOLE),
        Pair(21, (20,), WHOLE),
        Pair(23, (21,), MERGED),
        Pair(24, (21,), MERGED),
        Pair(26, (23,), WHOLE),
    ]
    assert (found.causes, found.unasked) == ({25: UNFORWARDED}, 0)
    alone = match(Disk([*disk.asked, *journal, flush, waiting[0]], served), offset)
    assert alone.pairs == [*reads, Pair(20, (22,), WHOLE), Pair(21, (20,), WHOLE), Pair(23, (21,), WHOLE)]
    # Where the flush itself is not known, the operation stands for it.
    unseen = match(Disk([*disk.asked, waiting[0]], served[:22]), offset)
    assert unseen.pairs == [*reads, Pair(20, (21,), WHOLE)]


@pytest.mark.parametrize(
    ("op", "at", "cause"),
    [
        ("write", 4_500_000, UNSERVED),
        ("write", 2_500_000, UNFORWARDED),
        ("read", 4_500_000, UNFORWARDED),
    ],
)
def test_a_flush_that_has_nothing_to_do_is_not_lost(op: str, at: int, cause: Cause) -> None:
    """The hypervisor passes it on if something was written since the previous one."""
    disk = spread(20)
    reads = Disk([one._replace(op="read") for one in disk.asked], [one._replace(op="read") for one in disk.served])
    begin = 10**9 + at
    asked = [*reads.asked, *(Asked("flush", 0, 0, n * 10**6 + 100, n * 10**6 + 800) for n in (3, 6))]
    asked.append(Asked(op, 1 << 30, 512, at, at + 400))
    served = [*reads.served, Served("flush", 0, 0, 10**9 + 3_000_250, 10**9 + 3_000_700)]
    served.append(Served(op, 1 << 30, 512, begin + 200, begin + 300))
    offset = alignment([reads])
    assert offset is not None
    assert match(Disk(asked, served), offset).causes == {21: cause}
    # If no flush was ever passed on, all of them are such.
    assert match(Disk(asked, [one for one in served if one.op != "flush"]), offset).causes == {
        20: UNFORWARDED,
        21: UNFORWARDED,
    }


def test_of_writes_without_end_the_last_are_known() -> None:
    writes = Writes([Served("flush", 0, 0, 0, 0)])
    for at in range(1, 33_000):
        writes.add(Served("write", 0, 512, at, at))
    assert [writes.pending(at, at) for at in (9, 17_000, 33_000)] == [False, True, True]


def test_one_place_asked_for_again_and_again_tells_the_offset_by_its_rhythm() -> None:
    times = [0, 1000, 7000, 9000, 20000, 21500, 40000]
    asked = [Asked("read", 0, 512, at, at + 300) for at in times]
    served = [Served("read", 0, 512, at + 55_100, at + 55_200) for at in times]
    offset = alignment([Disk(asked, served)])
    assert offset is not None
    assert offset.first.least <= 55_000 <= offset.first.most
    assert [pair.served for pair in match(Disk(asked, served), offset).pairs] == [(n,) for n in range(len(times))]
    # Whoever asks for it even more often makes work without end.
    more = [*times, 50000, 70000]
    asked = [Asked("read", 0, 512, at, at + 300) for at in more]
    assert alignment([Disk(asked, [Served("read", 0, 512, at + 55_100, at + 55_200) for at in more])]) is None


def test_what_was_read_once_tells_more_than_all_others() -> None:
    """The host reads places for somebody else as well, 20 ms after this guest, which has them in its cache."""
    disk = spread(16)
    often = [(1 << 40 | place << 20, at) for place in range(9) for at in (10**6, 3 * 10**6)]
    asked = [Asked("read", offset, 512, at, at + 900) for offset, at in often]
    served = [Served("read", offset, 512, at + 102 * 10**7 + 100, at + 102 * 10**7 + 800) for offset, at in often]
    offset = alignment([Disk([*disk.asked, *asked], [*disk.served, *served])])
    assert offset is not None
    assert offset.at(10**6).least <= 10**9 <= offset.at(10**6).most


def test_those_that_are_known_tell_of_others() -> None:
    """One place is read every 4 ms: the clocks have to be known to 2 ms, whose drift is half a millisecond a second."""
    disk = spread(20)
    times = range(10**8, 10**8 + 3000 * 4_000_000, 4_000_000)
    asked = [*disk.asked, *(Asked("read", 1 << 40, 512, at, at + 900) for at in times)]
    served = [*disk.served, *(Served("read", 1 << 40, 512, at + 10**9 + 100, at + 10**9 + 800) for at in times)]
    offset = alignment([Disk(asked, served)])
    assert offset is not None
    assert len(offset) == 3020


def test_only_what_has_no_alternative_tells_more_of_the_clocks() -> None:
    disk = spread(20)
    offset = alignment([disk])
    assert offset is not None
    one, work = Asked("write", 0, 512, 10**8, 10**8 + 900), Served("write", 0, 512, 11 * 10**8 + 100, 11 * 10**8 + 800)
    another, more = one._replace(handed=one.handed + 5), work._replace(begin=work.begin + 5)
    assert refined([Disk([one], [work])], offset) == [Bound(10**8, 10**9 - 100, 10**9 + 100)]
    assert refined([Disk([one, another], [work])], offset) == []
    assert refined([Disk([one], [work, more])], offset) == []
    assert refined([Disk([one._replace(op="flush")], [work._replace(op="flush")])], offset) == []
    assert refined([Disk([one], [work])], offset, Tries(0)) == []


def test_two_disks_have_one_clock() -> None:
    one, other = spread(30), spread(1)
    offset = alignment([one, Disk(other.asked, other.served)])
    assert offset is not None
    assert alignment([other]) is not None
    assert len(offset) == 31


def test_nothing_in_common_tells_nothing() -> None:
    assert alignment([Disk([Asked("read", 0, 512, 0, 5)], [Served("read", 512, 512, 0, 5)])]) is None
    assert alignment([]) is None
    # A flush has no place, and two that are alike tell nothing of either.
    assert alignment([Disk([Asked("flush", 0, 0, 0, 5)], [Served("flush", 0, 0, 0, 5)])]) is None
    alike = Disk([Asked("read", 0, 512, n, n + 900) for n in (0, 5)], [Served("read", 0, 512, n, 800) for n in (1, 6)])
    assert alignment([alike]) is None


def test_disks_are_alike_by_their_places() -> None:
    disk = spread(5)
    assert len(places(disk.asked) & places(disk.served)) == 5
    assert len(places(disk.asked) & places(disk.served[:2])) == 2
    assert not places(disk.asked) & places([Served("write", 0, 4096, 0, 1)])


KICKED = Kick(kicked=2, picked=5, tid=7, given=90)


@pytest.mark.parametrize(
    ("kick", "expected"),
    [
        (
            KICKED,
            [
                ("to_host", 2),
                ("host_pickup", 3),
                ("host_prepare", 5),
                ("host_fs", 70),
                ("host_give_back", 10),
                ("back", 10),
            ],
        ),
        (
            KICKED._replace(kicked=0),
            [("to_host", 5), ("host_prepare", 5), ("host_fs", 70), ("host_give_back", 10), ("back", 10)],
        ),
        (
            KICKED._replace(given=0),
            [("to_host", 2), ("host_pickup", 3), ("host_prepare", 5), ("host_fs", 70), ("back", 20)],
        ),
        # Before the guest handed it over, after it saw the end, in another order, and without a kick.
        (KICKED._replace(kicked=-1), [("to_host", 10), ("host_fs", 70), ("back", 20)]),
        (KICKED._replace(given=101), [("to_host", 10), ("host_fs", 70), ("back", 20)]),
        (KICKED._replace(kicked=6), [("to_host", 10), ("host_fs", 70), ("back", 20)]),
        (KICKED._replace(picked=11), [("to_host", 10), ("host_fs", 70), ("back", 20)]),
        (KICKED._replace(given=79), [("to_host", 10), ("host_fs", 70), ("back", 20)]),
        (None, [("to_host", 10), ("host_fs", 70), ("back", 20)]),
    ],
)
def test_a_kick_is_before_and_what_gives_back_behind(kick: Kick | None, expected: list[tuple[str, int]]) -> None:
    asked, served = Asked("read", 0, 512, 1000, 1100), Served("read", 0, 512, 10, 80)
    assert shares(asked, [served], [("fs", 70)], Bound(1000, -1000, -1000), kick) == expected


def test_requests_that_waited_all_the_time_take_no_longer_each_than_may_be_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guest says how long they waited."""
    disk = spread(20)
    offset = alignment([disk])
    assert offset is not None
    looked = Looked(monkeypatch, guests)

    def steps(count: int) -> int:
        asked = [Asked("write", 1 << 40 | n * 4096, 4096, 0, 1 << 50) for n in range(count)]
        asked += [Asked("flush", 0, 0, 0, 1 << 50, sent=False) for _ in range(count)]
        asked += [Asked("flush", 0, 0, 1 + n, 1 << 51) for n in range(count)]
        served = [Served("read", 1 << 40 | n * 4096, 4096, 10**9 + n, 10**9 + n + 5) for n in range(count)]
        before = looked.count
        assert not match(Disk(asked, served), offset, Tries(0)).pairs
        return looked.count - before

    assert not match(disk, offset, Tries(0)).pairs
    assert alignment([disk], Tries(0)) is None
    few = steps(500)
    assert 500 <= few < steps(2_000) < 5 * few
