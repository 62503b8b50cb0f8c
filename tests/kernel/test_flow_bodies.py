# SPDX-License-Identifier: Apache-2.0
"""Bodies of flows by definition, with made-up objects: the kernel runs each program once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kernel.bodies import Bodies

KEY, OTHER = 0xFFFF888012345600, 0xFFFF888076543200
MANY, SLOTS = 100_000, 1024


def test_stages_add_up() -> None:
    """A branch that was not seen takes no time, and its time goes to the point before."""
    with Bodies(stage_count=3) as made:
        begin, middle, last, end = made.make("begin"), made.make("pass", 1), made.make("pass", 2), made.make("end", 3)
        for key, points in ((KEY, (begin, middle, last, end)), (OTHER, (begin, last, end))):
            for point in points:
                point(key)
        cell = made.cell()
        assert cell["finished"] == cell["stages[0]"] == cell["stages[1]"] == cell["stages[3]"] == 2
        assert cell["stages[2]"] == 1
        assert (made.slots.started(), made.slots.used(), made.losses) == (2, 0, {})


def test_a_point_that_is_passed_again() -> None:
    """Each pass adds to the stage that begins there, so that the stages add up to the total."""
    with Bodies(stage_count=3) as made:
        for point in (made.make("begin"), *(made.make("pass", at) for at in (1, 2, 1, 2, 1))):
            point(KEY)
        (found,) = made.slots.occupied()
        life = found.life
        assert life.state.seen == 0b111
        assert sum(life.spent[:3]) == life.last_ns - life.start_ns > 0


def test_what_did_not_begin() -> None:
    with Bodies() as made:
        for body in ("pass", "end", "drop"):
            made.make(body, 1)(KEY)
            made.make(body, 1, quiet=True)(KEY)
        assert made.losses == {"unmatched": 3}
        assert made.cell() == {}


def test_a_point_may_begin() -> None:
    with Bodies(stage_count=2) as made:
        for key in (KEY, OTHER):
            made.make("begin")(key) if key == KEY else None
            made.make("pass", 1, begins=True)(key)
            made.make("end", 2)(key)
        assert (made.cell()["finished"], made.cell()["stages[1]"], made.cell()["stages[2]"]) == (2, 1, 2)
        assert made.losses == {}


@pytest.mark.parametrize(
    ("flags", "losses"),
    [({}, {"unseen_end": 1}), ({"restart": True}, {"restarted": 1}), ({"first": True}, {}), ({"nest": True}, {})],
)
def test_one_begins_again(flags: dict[str, bool], losses: dict[str, int]) -> None:
    with Bodies() as made:
        begin, end = made.make("begin", **flags), made.make("end", 1, nest=flags.get("nest", False))
        begin(KEY)
        begin(KEY)
        assert made.losses == losses
        assert made.slots.started() == 1 + sum(losses.values())
        end(KEY)
        assert made.slots.used() == (1 if "nest" in flags else 0)
        if "nest" in flags:
            end(KEY)
            assert made.slots.used() == 0
        assert made.cell()["finished"] == 1


def test_a_key_is_handed_over() -> None:
    with Bodies(stage_count=2) as made:
        begin, move, end = made.make("begin"), made.make("pass", 1, other=True), made.make("end", 2)
        begin(KEY)
        move(KEY, OTHER)
        end(OTHER)
        assert made.cell()["stages[1]"] == made.cell()["stages[2]"] == made.cell()["finished"] == 1
        # A key that is in use.
        begin(KEY)
        begin(OTHER)
        move(KEY, OTHER)
        end(OTHER)
        assert made.losses == {"replaced": 1}
        assert (made.cell()["finished"], made.slots.started(), made.slots.used()) == (2, 3, 0)
        # The key itself.
        begin(KEY)
        move(KEY, KEY)
        assert made.slots.used() == 1


def test_values_and_outcomes() -> None:
    with Bodies(kept={"valued": True}) as made:
        made.make("begin", value=True)(KEY, 0, 4096)
        made.make("end", 1, outcome=3)(KEY)
        made.make("begin")(KEY)
        made.make("drop", 1, outcome=2)(KEY)
        cell = made.cell()
        assert (cell["value"], cell["outcomes[3]"], cell["finished"]) == (4096, 1, 1)
        assert list(made.obj.bss.dropped)[2] == 1
        assert (made.slots.started(), made.slots.used()) == (2, 0)


def test_only_after_a_point() -> None:
    with Bodies() as made:
        begin, middle, end = made.make("begin"), made.make("pass", 1), made.make("end", 2, after=1 << 1)
        begin(KEY)
        end(KEY)
        assert made.slots.used() == 1
        middle(KEY)
        end(KEY)
        assert (made.slots.used(), made.losses) == (0, {})


@pytest.mark.parametrize(
    ("narrow", "mark", "reached", "over"),
    [(False, 100, 99, False), (False, 100, 100, True), (True, 0xFFFFFFF0, 0x10, True), (True, 0x10, 0xFFFFFFF0, False)],
)
def test_a_mark_that_is_reached(narrow: bool, mark: int, reached: int, over: bool) -> None:
    """Sequence numbers of 32 bits wrap."""
    with Bodies(kept={"marked": True}) as made:
        made.make("begin", mark=True)(KEY, 0, 0, 0, 0, mark)
        made.make("end", 1, reached=True, narrow=narrow)(KEY, 0, 0, 0, 0, reached)
        assert made.slots.used() == (0 if over else 1)


def test_rows_by_labels() -> None:
    """Objects that get no row are counted in the row of the rest; nothing is missing."""
    with Bodies(rows=4, label_words=2) as made:
        begin, end = made.make("begin", labels=2), made.make("end", 1)
        for turn in range(3):
            for label in range(1, 7):
                key = KEY + (turn * 6 + label) * 64
                begin(key, 0, 0, label, label * 7)
                end(key)
        labels = {tuple(made.obj.maps["rows"][row].labels[:2]) for row in range(1, 5)}
        assert labels == {(label, label * 7) for label in range(1, 5)}
        assert [made.cell(row)["finished"] for row in range(5)] == [6, 3, 3, 3, 3]
        assert made.losses == {"rows_full": 6}


@pytest.mark.one_kernel
def test_a_table_that_is_full() -> None:
    """100,000 objects at once in 1,024 slots: those without a slot are counted, the others end as they should."""
    with Bodies(SLOTS) as made:
        begin, end = made.make("begin"), made.make("end", 1)
        for number in range(MANY):
            begin(KEY + number * 256)
        full = made.losses["state_full"]
        assert made.slots.started() + full == MANY
        # Each slot can be reached from some of its neighbours, so nearly all of them are taken.
        assert SLOTS * 0.99 < made.slots.used() == made.slots.started() <= SLOTS
        for number in range(MANY):
            end(KEY + number * 256)
        assert made.slots.used() == 0
        assert made.cell()["finished"] == made.slots.started()
        assert made.losses == {"state_full": full, "unmatched": full}


@pytest.mark.smp
def test_two_cpus_want_one_slot() -> None:
    """Two threads on two CPUs, each with its own keys, in a table so small that they collide all the time."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two CPUs")
    rounds = 3_000
    with Bodies(16) as made:
        start = threading.Barrier(2)

        def work(thread: int) -> None:
            os.sched_setaffinity(0, {thread})
            begin, end = made.make("begin"), made.make("end", 1)
            # Both threads hash to the same first slot.
            keys = [KEY + (1 << 32) * (2 * number + thread) for number in range(2)]
            start.wait()
            for _ in range(rounds):
                for key in keys:
                    begin(key)
                for key in keys:
                    end(key)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, range(2)))
        losses, finished = made.losses, made.cell()["finished"]
        assert made.slots.started() + losses.get("state_full", 0) == 4 * rounds
        assert finished + losses.get("unseen_end", 0) + made.slots.used() == made.slots.started()
        assert losses.get("unmatched", 0) == losses.get("state_full", 0)


@pytest.mark.smp
def test_two_cpus_number_rows() -> None:
    """A row that one of them numbers later than the other does not hide those behind it."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two CPUs")
    each = 4_000
    with Bodies(rows=2 * each, label_words=1) as made:
        start = threading.Barrier(2)

        def work(thread: int) -> int:
            os.sched_setaffinity(0, {thread})
            begin, end = made.make("begin", labels=1), made.make("end", 1)
            key, before, back = KEY + thread * 64, 0, 0
            start.wait()
            for number in range(each):
                begin(key, 0, 0, 1 + 2 * number + thread)
                end(key)
                now = made.obj.data.next_row
                back += now < before
                before = now
            return back

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(work, range(2))) == [0, 0]
        assert made.losses == {}
        assert made.obj.data.next_row == 1 + 2 * each


def test_what_is_slow_or_chosen_is_reported() -> None:
    with Bodies(kept={"emits_records": True}, slow_ns=0, record_limit=3) as made:
        begin, end = made.make("begin"), made.make("end", 1)
        for _ in range(5):
            begin(KEY)
            end(KEY)
        assert made.losses == {"rate_limited": 2}
        assert made.cell()["finished"] == 5


def test_a_sample_is_drawn_at_random() -> None:
    """The sample does not depend on the address, which may never change."""
    with Bodies(kept={"emits_records": True}, sample=4, record_limit=1) as made:
        begin, end = made.make("begin"), made.make("end", 1)
        for _ in range(400):
            begin(KEY)
            end(KEY)
        assert 50 < 1 + made.losses["rate_limited"] < 150


def test_few_are_timed() -> None:
    """All objects are counted; those that are not timed pass in the same way."""
    with Bodies(kept={"shedding": True}, stage_count=2, time_one_in=4) as made:
        begin, middle, end = made.make("begin"), made.make("pass", 1), made.make("end", 2)
        for _ in range(400):
            for point in (begin, middle, end):
                point(KEY)
        cell = made.cell()
        assert 50 < cell["stages[0]"] < 150
        assert cell["stages[0]"] == cell["stages[1]"] == cell["stages[2]"]
        assert cell["stages[0]"] + cell["untimed"] == cell["finished"] == 400
        assert made.losses == {}


def test_the_tasks_that_are_asked_for() -> None:
    with Bodies(asks=True) as made:
        begin, end = made.make("begin_asking"), made.make("end", 1)
        made.obj.bss.filter_tgid = os.getpid()
        made.obj.bss.filter_task = made.obj.bss.filtering = True
        begin(KEY)
        made.obj.bss.filter_tgid = 1
        begin(OTHER)
        end(KEY)
        end(OTHER)
        assert (made.slots.started(), made.cell()["finished"], made.losses) == (1, 1, {})
