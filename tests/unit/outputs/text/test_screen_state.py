# SPDX-License-Identifier: Apache-2.0
"""Keys on a report: grouping, order, filter, the selected row."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.analysis.test_neighbours import APP, BATCH, COUNTERS, CRON
from tests.unit.outputs import path
from tests.unit.outputs.samples import MS, distribution
from wptrace.analysis import neighbours
from wptrace.flows.io.options import PROCESS
from wptrace.flows.io.parts.owners import KINDS
from wptrace.model.kind import ALL, OTHERS, Group, Task
from wptrace.model.report import Report, arranged
from wptrace.outputs.text.screen_state import ORDERS, ROW, ROWS, STORIES, TABLES, ScreenState

OWNED = KINDS[PROCESS][2]
DB, BACKUP = Task("db", 7), Task("backup", 9)
_OWNERS = {DB: 5, BACKUP: 90, OTHERS: 200}


@cache
def report() -> Report:
    """Make a report of two devices with owners, of which the second is faster."""
    cells = {**path.cells("nvme0n1"), **path.cells("sda")}
    for at, (owner, count) in enumerate(_OWNERS.items()):
        for op in ("read", "write"):
            found = distribution([(9 - at) * MS] * count)
            cells[OWNED.group("sda", op, owner)] = {"under_way": found, "total": found}
    made = path.report({})
    return made._replace(cells=arranged(cells, (*path.KINDS, OWNED)))


def pressed(*keys: str, per_device: bool = False) -> ScreenState:
    made = ScreenState((*path.KINDS, OWNED), per_device)
    made.arranged(report())
    for key in keys:
        assert made.press(key)
        made.arranged(report())
    return made


def shown(state: ScreenState) -> list[Group]:
    found = state.arranged(report())
    groups = list(dict.fromkeys(row.group for row in found.rows))
    assert groups == state.rows
    return groups


def of(state: ScreenState, kind: object) -> list[tuple[object, ...]]:
    return [group.values for group in shown(state) if group.kind is kind]


def test_as_it_comes_the_rows_are_those_of_a_summary() -> None:
    def plain(found: Report) -> list[tuple[object, ...]]:
        return sorted(((row.group, row.metric, row.distribution.sum, row.share) for row in found.rows), key=repr)

    assert plain(pressed().arranged(report())) == plain(report().everywhere())
    assert plain(pressed(per_device=True).arranged(report())) == plain(report())


def test_q_ends_and_nothing_else_does() -> None:
    assert not ScreenState((), False).press("q")
    for key in ("?", "h", "p", " ", "b", "s", "d", "/", "tab", "esc", "enter", "up", "left", "redraw", "ä", "Q"):
        assert ScreenState((), False).press(key)


def test_who_looks_back_stays_there_as_long_as_it_is_kept() -> None:
    state = pressed("<")
    assert (state.back, state.message) == (0, "there is no earlier interval")
    for count in (1, 2, 3):
        state.add_interval(count)
    state.press("<")
    assert (state.back, state.message) == (1, "")
    state.add_interval(4)
    assert state.back == 2
    # The oldest interval is dropped.
    state.add_interval(2)
    assert state.back == 1
    state.press(">")
    state.press(">")
    assert (state.back, state.message) == (0, "this is the last interval")
    state.press("<")
    state.press("esc")
    assert state.back == 0


def test_what_cannot_be_sorted_says_so() -> None:
    state = pressed("s")
    before = state.message
    state.arranged(report().only([next(iter(report().cells))]))
    state.press("s")
    assert (before, state.message) == ("", "there are no two rows of a kind to be sorted")


def test_devices_are_apart_and_together_again() -> None:
    assert {values[0] for values in of(pressed(), path.OPERATION)} == {ALL}
    assert {values[0] for values in of(pressed("d"), path.OPERATION)} == {"nvme0n1", "sda"}
    assert {values[0] for values in of(pressed("d", "d"), path.OPERATION)} == {ALL}


def test_groupings_go_round() -> None:
    state = pressed()
    seen = []
    for _ in range(4):
        seen.append((state.grouping, len(of(state, path.OPERATION)), len(of(state, OWNED))))
        state.press("b")
    # By all labels, operation, owner, nothing. Without owners apart, there are no rows by owner.
    assert seen == [("", 2, 6), ("op", 2, 0), ("task", 1, 3), ("nothing", 1, 0)]
    assert state.grouping == ""


def test_sums_are_the_same_however_it_is_grouped() -> None:
    def sums(state: ScreenState) -> dict[object, tuple[int, int]]:
        found: dict[object, tuple[int, int]] = {}
        for row in state.arranged(report()).rows:
            if row.metric == "total":
                count, total = found.get(row.group.kind, (0, 0))
                one = row.distribution
                found[row.group.kind] = count + one.count, total + one.sum
        return found

    whole = sums(pressed(per_device=True))
    assert sums(pressed()) == sums(pressed("d")) == whole
    for keys in (["b"], ["b", "b"], ["b", "b", "b"], ["d", "b", "b"]):
        grouped = sums(pressed(*keys))
        assert grouped == {kind: whole[kind] for kind in grouped}


@pytest.mark.parametrize(("order", "first"), [("time", BACKUP), ("count", BACKUP), ("mean", DB), ("max", DB)])
def test_rows_are_sorted_and_others_are_last(order: str, first: Task) -> None:
    state = pressed("b", "b", *["s"] * list(ORDERS).index(order))
    assert state.order == order
    assert [values[2] for values in of(state, OWNED)] == [first, BACKUP if first is DB else DB, OTHERS]


def test_orders_go_round_and_keep_kinds_together() -> None:
    state = pressed("d", "s")
    for _ in list(ORDERS)[1:]:
        kinds = [group.kind for group in shown(state)]
        assert len(dict.fromkeys(kinds)) == 1 + sum(one is not other for one, other in zip(kinds, kinds[1:]))
        state.press("s")
    assert state.order == ""


def test_a_filter_leaves_rows_out_and_says_how_many() -> None:
    state = pressed("/", *"Back", "u")
    assert (state.typing, state.needle) == (True, "Backu")
    assert {group.values[2] for group in shown(state)} == {BACKUP}
    assert state.hidden == len(shown(pressed())) - 2
    state.press("enter")
    assert (state.typing, state.needle) == (False, "Backu")
    # The filter takes no more keys.
    assert not state.press("q")


def test_neighbours_are_followed_through_devices_groupings_and_filters() -> None:
    def owners(*keys: str) -> list[tuple[object, str, str]]:
        state = pressed(*keys)
        found = neighbours.of(state.arranged(report()._replace(counters=COUNTERS)).counters)
        return [(one.dev, one.owner, one.op) for one in found]

    apart = [("sda", BATCH, "read"), ("sda", APP, "read"), ("sdb", CRON, "read")]
    together = [(ALL, owner, op) for _, owner, op in apart]
    assert owners() == owners("b") == owners("b", "b", "b") == together
    assert owners("d") == owners("d", "b") == owners("/", *"Neighb", "enter", "d") == apart
    # A filter by the name of a task keeps the owners that had the device meanwhile.
    state = pressed("/", *"/app")
    app, others = sorted(
        neighbours.of(state.arranged(report()._replace(counters=COUNTERS)).counters), key=lambda one: one.owner
    )
    assert (app.owner, app.meanwhile[BATCH]) == (APP, 1500)
    assert others.owner == OTHERS
    assert app.device_ns + others.device_ns == sum(one.device_ns for one in neighbours.of(COUNTERS))
    assert [owner for _, owner, _ in owners("/", *"Backup")] == [BATCH, OTHERS]


def test_a_filter_is_dropped_and_typed_anew() -> None:
    assert pressed("/", "x", "esc").needle == ""
    assert pressed("/", "x", "y", "backspace").needle == "x"
    assert pressed("/", "x", "clear", "q").needle == "q"
    assert pressed("/", "x", "enter", "/").needle == ""
    assert pressed("/", "tab", "up", "x").needle == "x"
    state = pressed("/")
    for _ in range(1000):
        state.press("x")
    assert len(state.needle) == 64
    assert shown(pressed("/", *"no such row", "enter")) == []


def test_the_chosen_row_is_followed_wherever_it_goes() -> None:
    state = pressed("down")
    assert (state.page, state.chosen) == (ROWS, state.rows[0])
    state.press("down")
    chosen = state.chosen
    assert chosen == state.rows[1]
    state.press("s")
    shown(state)
    assert state.chosen == chosen
    state.press("end")
    assert state.chosen == state.rows[-1]
    state.press("down")
    assert state.chosen == state.rows[-1]
    state.press("home")
    state.press("up")
    assert state.chosen == state.rows[0]


def test_a_chosen_row_that_is_gone_gives_way_to_the_first() -> None:
    state = pressed("down", "end", "/", *"read", "enter")
    state.chosen = Group(OWNED, ("gone", "read", DB))
    state.press("down")
    assert state.chosen == state.rows[0]


def test_enter_looks_at_a_row_and_back() -> None:
    state = pressed("enter")
    assert state.page == ROWS
    state.press("enter")
    assert state.page == ROW
    stages = path.NAMES
    for key, stage in (("right", stages[0]), ("right", stages[1]), ("left", stages[0]), ("left", "total")):
        state.press(key)
        assert state.stage == stage
    for page in (ROWS, TABLES, TABLES):
        state.press("esc")
        assert state.page == page


def test_where_there_is_no_row_there_is_none_to_look_at() -> None:
    state = ScreenState((), False)
    for key in ("down", "enter", "enter", "up", "left"):
        state.press(key)
    assert (state.page, state.chosen) == (ROWS, None)


def test_tab_turns_to_the_stories_and_back() -> None:
    state = pressed("tab")
    assert state.page == STORIES
    state.press("up")
    state.press("pgup")
    assert state.scroll == 11
    state.press("pgdn")
    state.press("pgdn")
    assert state.scroll == 0
    state.press("tab")
    assert state.page == TABLES


def test_any_key_leaves_the_help_and_does_nothing_else() -> None:
    for key in ("q", "p", "?", "esc"):
        state = pressed("?")
        assert state.helping
        assert state.press(key)
        assert not state.helping
        assert not state.paused


def test_what_cannot_be_done_is_said_until_the_next_key() -> None:
    state = ScreenState((), False, groups=False)
    state.press("b")
    assert state.message == "there is nothing else to group by"
    state.press("d")
    assert state.message == "its rows have no devices"
    assert state.per_device is False
    state.press("p")
    assert state.message == ""


@given(st.lists(st.sampled_from(["?", "p", "b", "s", "d", "/", "x", "tab", "up", "down", "pgdn", "home", "end",
                                 "enter", "esc", "left", "right", "backspace"]), max_size=30))  # fmt: skip
def test_no_keys_lead_astray(keys: list[str]) -> None:
    state = ScreenState(path.KINDS, False)
    for key in keys:
        assert state.press(key)
        state.arranged(SMALL)
        assert state.scroll >= 0
        assert state.page in (TABLES, ROWS, ROW, STORIES)
        assert state.page != ROW or state.chosen is not None


SMALL = path.report({path.OPERATION.group("sda", "read"): path.operations(3)})
