# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from wptrace.model.book import (
    CAUSES,
    RECURSION,
    RING_FULL,
    STATE_FULL,
    UNMATCHED_END,
    UNMATCHED_START,
    Book,
)

examples = settings(max_examples=60, deadline=None)


def law_holds(line: Any) -> bool:
    return bool(
        line["started"] == line["finished"] + line["in_flight"] + line["lost"]
        and line["lost"] == sum(line["lost_by_cause"].values())
        and line["in_flight"] >= 0
        and line["started"] >= line["carried"]
    )


steps = st.lists(st.sampled_from(["start", "finish", "lose", "miss", "note", "cut"]), max_size=80)


@examples
@given(steps)
def test_the_law_in_totals_and_in_every_interval(events: list[str]) -> None:
    book = Book()
    earlier = book.copy()
    alive = started = ended = lost = 0
    lines = []
    for event in [*events, "cut"]:
        if event == "start":
            book.start()
            alive += 1
            started += 1
        elif event == "finish" and alive:
            book.finish()
            alive -= 1
            ended += 1
        elif event == "lose" and alive:
            book.lose(UNMATCHED_START)
            alive -= 1
            lost += 1
        elif event == "miss":
            book.start()
            book.lose(UNMATCHED_END)
            started += 1
            lost += 1
        elif event == "note":
            book.note(RING_FULL)
        elif event == "cut":
            lines.append(book.interval(earlier))
            assert lines[-1].carried == earlier.in_flight
            assert lines[-1].in_flight == alive
            earlier = book.copy()
        assert book.in_flight == alive
        assert (book.started, book.finished, book.lost_total) == (started, ended, lost)
        assert law_holds(book.as_dict())
    assert all(law_holds(line.as_dict()) for line in lines)
    # The starts of all intervals, without what was carried over, add up to the total.
    assert sum(line.started - line.carried for line in lines) == started
    assert sum(line.finished for line in lines) == ended
    assert sum(line.lost_total for line in lines) == lost
    assert sum(line.noted.get(RING_FULL, 0) for line in lines) == events.count("note")


def test_as_dict_names_the_causes() -> None:
    book = Book()
    book.start(10)
    book.finish(6)
    book.lose(STATE_FULL, 2)
    book.note(RECURSION, 3)
    book.failed = 4
    assert book.as_dict() == {
        "started": 10,
        "carried": 0,
        "finished": 6,
        "in_flight": 2,
        "lost": 2,
        "failed": 4,
        "lost_by_cause": {"state_full": 2},
        "noted_by_cause": {"recursion": 3},
    }


def test_an_interval_names_only_what_it_lost() -> None:
    book = Book()
    book.start(4)
    book.lose(UNMATCHED_END, 4)
    book.note(RING_FULL)
    line = book.interval(book.copy())
    assert (line.lost, line.noted, line.started) == ({}, {}, 0)


def test_counters_that_were_not_read_at_one_moment() -> None:
    book = Book.read(started=5, finished=4, lost={STATE_FULL: 3, UNMATCHED_END: 0}, noted={RECURSION: 0})
    assert (book.started, book.in_flight) == (7, 0)
    assert (book.lost, book.noted) == ({STATE_FULL: 3}, {})
    book.failed = 1
    later = Book.read(started=8, finished=5, lost={STATE_FULL: 3}, noted={RECURSION: 2}, failed=3)
    assert law_holds(later.interval(book).as_dict())
    assert later.interval(book).failed == 2
    assert later.noted == {RECURSION: 2}


def test_total_of_several_books() -> None:
    one, other = Book(), Book()
    one.start(3)
    one.finish(1)
    one.lose(UNMATCHED_START)
    other.start(2)
    other.carried = 2
    one.failed, other.failed = 1, 2
    other.lose(UNMATCHED_START)
    other.note(RING_FULL, 5)
    whole = Book.total([one, other])
    assert whole.as_dict() == {
        "started": 5,
        "carried": 2,
        "finished": 1,
        "in_flight": 2,
        "lost": 2,
        "failed": 3,
        "lost_by_cause": {"unmatched_start": 2},
        "noted_by_cause": {"ring_full": 5},
    }
    whole.lose(UNMATCHED_START)
    assert one.lost == {UNMATCHED_START: 1}


def test_causes_are_reported_apart() -> None:
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
    assert all(cause.description for cause in CAUSES)
