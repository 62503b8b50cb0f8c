# SPDX-License-Identifier: Apache-2.0
"""The image that belongs to a disk of a guest, live and in recordings."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from wptrace.correlation import guests
from wptrace.correlation.guests import Asked, Served
from wptrace.flows.io.guests import join
from wptrace.flows.io.guests.join import Following
from wptrace.flows.io.kinds import OPERATION
from wptrace.model.report import Event

AHEAD = 10**12


def asked(disk: int, number: int) -> Event:
    at = 10_000 * (number + 1)
    clock = {"handed_ns": at, "seen_ns": at + 1000}
    fields = {"maj_min": f"254:{16 * disk}", "clock": clock, "rwbs": "R", "sector": number * 8, "bytes": 4096}
    group = OPERATION.group(f"vd{'abcdefgh'[disk]}", "read")
    return Event(group, at + 1000, 1000, {"device": 1000}, {**fields, "error": 0})


def served(image: str, number: int) -> Event:
    end = AHEAD + 10_000 * (number + 1) + 800
    place = {"path": image, "format": "raw", "offset": number * 4096, "guest": "web"}
    fields = {"image": place, "clock": {"end_ns": end}, "length": 4096, "pid": 7, "tid": 8, "comm": "qemu"}
    return Event(OPERATION.group("sda", "read"), end, 600, {"device": 600}, fields)


def follow(live: bool, alike: Iterable[tuple[int, str, int]]) -> Following:
    """Make requests. For each disk and image, the number of offsets that only these two have in common."""
    found = Following("guest", {}, live)
    first = 0
    for disk, image, count in alike:
        for number in range(first, first + count):
            found.ask(asked(disk, number))
            found.serve(served(image, number))
        first += count
    return found


@pytest.mark.parametrize("live", [True, False])
def test_at_the_end_each_disk_has_the_best_image_that_is_left(live: bool) -> None:
    found = follow(live, [(0, "one", 10), (0, "two", 8), (1, "one", 9), (1, "two", 7)])
    events = found.settle(last=True)
    assert found.disks == [("vda", "one"), ("vdb", "two")]
    assert len(events) == 17
    report = found.summary(1, 1)
    assert report.book.lost_total == 17


def test_a_disk_waits_until_no_other_image_is_half_as_likely() -> None:
    likely = [(0, "one", 10), (0, "two", 5), (1, "two", 11)]
    found = follow(True, likely)
    assert not found.settle()
    # The second disk takes its image, so only one is left for the first.
    assert found.disks == [("vda", "one"), ("vdb", "two")]
    found = follow(True, [(0, "one", 10), (0, "two", 5)])
    found.settle()
    assert found.disks == [("vda", "")]
    found = follow(True, [(0, "one", 11), (0, "two", 5)])
    found.settle()
    assert found.disks == [("vda", "one")]


def test_disks_that_are_many_wait_for_images_within_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest may name disks that the host knows nothing of."""
    monkeypatch.setattr(join, "MOST", 100)
    monkeypatch.setattr(join, "MOST_OF_ALL", 300)
    found = Following("guest", {})
    asked_for = 0
    while not found.full:
        found.ask(asked(asked_for % 8, asked_for))
        asked_for += 1
    assert asked_for == 300
    found.settle()
    assert not found.full
    assert found.summary(1, 1).book.lost_total == 300


def test_each_place_is_looked_at_once_however_many_disks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    place = guests._place

    def look(one: Asked | Served) -> guests.Place:
        looked.append(one)
        return place(one)

    monkeypatch.setattr(guests, "_place", look)
    found = Following("guest", {})
    for number in range(80):
        found.ask(asked(number % 8, number))
        found.serve(served(f"of {number % 5}", number + 1000))
    found.settle()
    assert len(looked) == 80 + 80


def test_an_image_is_of_one_disk() -> None:
    found = follow(False, [(0, "one", 10), (1, "one", 20)])
    found.settle(last=True)
    assert found.disks == [("vda", ""), ("vdb", "one")]
