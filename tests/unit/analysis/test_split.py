# SPDX-License-Identifier: Apache-2.0
"""The change of a mean, a total and a percentile, split into parts that add up and are attributed correctly."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import pytest

from tests.unit.analysis.made_sides import seeded
from wptrace.analysis.split import LONGER, MORE, SAME, Class, Sums, split, split_percentile
from wptrace.model.distribution import index

LABELS = ("dev", "owner", "size")


def sums(count: int, *times: int) -> Sums:
    """Sums of this many objects, each with these times in its columns."""
    made = Sums(len(times))
    made.count = count
    made.times = [count * sum(times), *(count * ns for ns in times)]
    made.buckets = {index(sum(times)): count}
    return made


def anything(rand: random.Random) -> dict[Class, Sums]:
    found: dict[Class, Sums] = {}
    for _ in range(rand.randint(1, 12)):
        key = (rand.choice("ab"), rand.choice("xyz"), rand.choice(("4 KiB", "64 KiB")))
        one = Sums(3)
        one.count = rand.randint(1, 10_000)
        parts = [rand.randint(0, 10**15) for _ in range(3)]
        one.times = [sum(parts), *parts]
        one.buckets = {index(one.times[0] // one.count): one.count}
        found[key] = one
    return found


def test_parts_add_up_to_the_nanosecond() -> None:
    rand = seeded(35)
    for _ in range(300):
        a, b = anything(rand), anything(rand)
        found = split(a, b, LABELS, (rand.randint(1, 10**12), rand.randint(1, 10**12)))
        whole = [
            (sum(one.times[at] for one in side.values()), sum(one.count for one in side.values()))
            for side in (a, b)
            for at in range(4)
        ]
        assert found.a_ns == (2 * whole[0][0] + whole[0][1]) // (2 * whole[0][1])
        assert found.b_ns == (2 * whole[4][0] + whole[4][1]) // (2 * whole[4][1])
        assert sum(part.ns for part in found.parts) == found.b_ns - found.a_ns
        for column in (1, 2, 3):
            (had, count_a), (has, count_b) = whole[column], whole[4 + column]
            mine = sum(part.ns for part in found.parts if part.column == column)
            assert mine == pytest.approx(has / count_b - had / count_a, abs=2)
        assert sum(ns for _, ns in found.total) == whole[4][0] - whole[0][0]


def test_slower_objects_of_the_same_class_are_no_mix() -> None:
    a: dict[Class, Sums] = {("sda", "app", "4 KiB"): sums(100, 10, 500), ("sda", "app", "64 KiB"): sums(50, 10, 900)}
    b: dict[Class, Sums] = {("sda", "app", "4 KiB"): sums(200, 10, 700), ("sda", "app", "64 KiB"): sums(100, 10, 1100)}
    found = split(a, b, LABELS)
    assert [(part.reason, part.column, part.ns) for part in found.parts] == [(SAME, 2, 200)]
    assert found.places["sda", 2] == pytest.approx(200)
    assert found.unlike == ()


def test_other_objects_as_quick_as_before_are_mix_alone() -> None:
    small, large = ("sda", "app", "4 KiB"), ("sda", "app", "64 KiB")
    found = split({small: sums(90, 100), large: sums(10, 900)}, {small: sums(10, 100), large: sums(90, 900)}, LABELS)
    assert [(part.reason, part.ns) for part in found.parts] == [("size", 640)]
    large_one = next(one for one in found.values if one.value == "64 KiB")
    assert (large_one.before, large_one.after) == (0.1, 0.9)
    assert large_one.ns == pytest.approx(320)


def test_both_at_once() -> None:
    small, large = ("sda", "app", "4 KiB"), ("sda", "app", "64 KiB")
    found = split({small: sums(50, 100), large: sums(50, 300)}, {small: sums(25, 200), large: sums(75, 400)}, LABELS)
    assert {(part.reason, part.ns) for part in found.parts} == {("size", 50), (SAME, 100)}


def test_a_new_owner_is_as_quick_as_it_is() -> None:
    app, batch = ("sda", "app", "4 KiB"), ("sda", "batch", "4 KiB")
    found = split({app: sums(100, 100)}, {app: sums(100, 100), batch: sums(100, 500)}, LABELS)
    assert [(part.reason, part.ns) for part in found.parts] == [("owner", 200)]
    (new,) = [one for one in found.values if not one.before]
    assert new.value == "batch"


def test_without_a_value_in_common_a_label_tells_nothing() -> None:
    found = split({("sda", "app", "16 KiB"): sums(10, 100)}, {("sda", "app", "64 KiB"): sums(10, 300)}, LABELS)
    assert found.unlike == ("size",)
    assert [(part.reason, part.ns) for part in found.parts] == [(SAME, 200)]


def test_a_total_has_how_long_and_how_many() -> None:
    key = ("sda", "app", "4 KiB")
    # Twice as long at the same rate, and each object takes 50 % longer.
    found = split({key: sums(100, 100)}, {key: sums(200, 150)}, LABELS, (10, 20))
    total = {reason: ns for reason, ns in found.total if ns}
    assert sum(total.values()) == 200 * 150 - 100 * 100
    assert total == {LONGER: 12_500, SAME: 7_500}
    found = split({key: sums(100, 100)}, {key: sums(200, 100)}, LABELS, (10, 10))
    assert {reason: ns for reason, ns in found.total if ns} == {MORE: 10_000}


def test_the_p99_of_another_mix_is_mix() -> None:
    quick: Class = ("sda", "app", "4 KiB")
    slow: Class = ("sda", "app", "64 KiB")
    a: dict[Class, Sums] = {quick: sums(9_995, 100), slow: sums(5, 100_000)}
    found = split_percentile(a, {quick: sums(9_000, 100), slow: sums(1_000, 100_000)})
    assert found.mix_ns + found.same_ns == found.b_ns - found.a_ns > 80_000
    assert found.same_ns == 0
    found = split_percentile(a, {quick: sums(9_995, 200), slow: sums(5, 100_000)})
    assert (found.mix_ns, found.same_ns) == (0, found.b_ns - found.a_ns)
    assert 0 < found.error_ns < 50


def test_without_labels_all_is_one_class() -> None:
    found = split({(): sums(10, 5, 5)}, {(): sums(10, 5, 8)}, ())
    assert [(part.reason, part.column, part.ns) for part in found.parts] == [(SAME, 2, 3)]


def by_depth(times: Iterator[tuple[float, float]]) -> dict[Class, Sums]:
    """Group requests by how many others were under way when they came."""
    every = list(times)
    begins, ends = sorted(begin for begin, _ in every), sorted(end for _, end in every)
    found: dict[Class, Sums] = {}
    for begin, end in every:
        depth = bisect_left(begins, begin) - bisect_right(ends, begin)
        one = found.setdefault((str(depth),), Sums(1))
        one.count += 1
        one.times = [ns + round(end - begin) for ns in one.times]
    return found


def at_random(rand: random.Random, service: float, apart: float) -> Iterator[tuple[float, float]]:
    """Generate requests that come independently of each other, on a device that works on one at a time."""
    now = free = 0.0
    for _ in range(20_000):
        now += rand.expovariate(1 / apart)
        free = max(now, free) + rand.expovariate(1 / service)
        yield now, free


def of_threads(rand: random.Random, service: float, many: int) -> Iterator[tuple[float, float]]:
    """Generate requests of threads that pause for a millisecond after each."""
    ready = [rand.expovariate(1e-6) for _ in range(many)]
    heapify(ready)
    free = 0.0
    for _ in range(20_000):
        now = heappop(ready)
        free = max(now, free) + rand.expovariate(1 / service)
        yield now, free
        heappush(ready, free + rand.expovariate(1e-6))


def test_depth_as_a_class_would_explain_a_slower_device_away() -> None:
    """Show why queue depth is no class (docs/decisions/queue-depth.md, with these figures).

    The figures are both means in us, and the percentage that would count as different work.
    """
    rand = seeded(35)
    called = []
    for a, b in (
        (at_random(rand, 1e5, 2e5), at_random(rand, 1.1e5, 2e5)),
        (at_random(rand, 1e5, 2e5), at_random(rand, 1.5e5, 2e5)),
        (of_threads(rand, 1e5, 4), of_threads(rand, 1.5e5, 4)),
        (of_threads(rand, 1e5, 4), of_threads(rand, 1e5, 12)),
        (at_random(rand, 1e5, 2.5e5), at_random(rand, 1e5, 1.43e5)),
    ):
        found = split(by_depth(a), by_depth(b), ("depth",))
        called.append((found.a_ns // 1000, found.b_ns // 1000, 100 * found.of("depth") // (found.b_ns - found.a_ns)))
    assert called == [(198, 239, 53), (198, 599, 66), (131, 224, 22), (132, 368, 99), (164, 346, 98)]
