# SPDX-License-Identifier: Apache-2.0
"""Periods, and what was seen while they lasted."""

from __future__ import annotations

from wptrace.correlation.periods import Episodes


def record(cpu: int, ticked: int) -> dict[str, int]:
    return {"cpu": cpu, "ticked_ns": ticked}


def test_a_period_gets_its_own_sample() -> None:
    episodes = Episodes()
    for cpu, ticked in ((0, 100), (1, 100), (0, 200)):
        episodes.see({**record(cpu, ticked), "name": cpu * 1000 + ticked})
    episodes.end(record(1, 100))
    episodes.end(record(0, 200))
    episodes.end(record(0, 300))
    found = [sample and sample["name"] for _, sample in episodes.take()]
    assert found == [1100, 200, None]
    assert episodes.take() == []


def test_a_sample_is_given_once() -> None:
    episodes = Episodes()
    episodes.see(record(0, 100))
    assert episodes.seen(0, 100)
    assert episodes.seen(0, 101) is None
    for _ in range(2):
        episodes.end(record(0, 100))
    assert [sample is not None for _, sample in episodes.take()] == [True, False]
    assert episodes.seen(0, 100) is None


def test_samples_that_nobody_asks_for_make_room_oldest_first() -> None:
    episodes = Episodes(kept=3)
    for ticked in range(5):
        episodes.see(record(0, ticked))
    assert [ticked for ticked in range(5) if episodes.seen(0, ticked)] == [2, 3, 4]
