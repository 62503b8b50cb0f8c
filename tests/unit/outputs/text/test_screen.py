# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.outputs.text import screen

LEVELS = {
    "title": 2,
    "time": 1,
    "load": 3,
    "verdict": 2,
    "past": 3,
    "stuck": 3,
    "operations": 4,
    "page-cache hits": 2,
    "layers": 5,
    "block requests": 5,
    "waits of tasks": 5,
    "writeback": 5,
    "owners of operations": 4,
    "owners of hits": 4,
    "owners of waits": 4,
    "owners of requests": 4,
    "neighbours": 4,
    "devices": 4,
    "slow ones": 4,
    "accounting": 2,
    "losses": 2,
    "budget": 2,
    "own cost": 2,
}


# Sections that are always shown.
KEPT = ("time", "operations", "stuck", "verdict")


def sections(*names: str) -> dict[str, list[list[str]]]:
    """Make sections whose forms halve in height, so that an optional one vanishes last."""
    found = {}
    for name in names or screen.SECTIONS:
        forms = [[f"{name} {line}" for line in range(16 >> form)] for form in range(LEVELS[name])]
        found[name] = [*forms[:-1], []] if name not in KEPT else forms
    return found


def heads(lines: list[str]) -> dict[str, int]:
    """Return how many lines each section has."""
    found: dict[str, int] = {}
    for line in lines:
        name = next((name for name in screen.SECTIONS if line.startswith(name)), None)
        if name is not None:
            found[name] = found.get(name, 0) + 1
    return found


def test_everything_is_shown_where_it_fits() -> None:
    lines = screen.fit(sections(), 1000)
    assert list(heads(lines)) == list(screen.SECTIONS)
    assert set(heads(lines).values()) == {16}
    assert not any(line.startswith("(") for line in lines)
    # Sections are separated by an empty line, except in the head and the footer.
    assert lines.count("") == len(screen.SECTIONS) - 8


def test_every_section_can_give_way_to_its_last_form_but_the_time() -> None:
    last = dict(screen.STEPS)
    assert {name: form + 1 for name, form in last.items()} == {
        name: count for name, count in LEVELS.items() if name != "time"
    }


@given(height=st.integers(1, 150), names=st.sets(st.sampled_from(screen.SECTIONS)))
def test_no_screen_is_higher_than_the_terminal(height: int, names: set[str]) -> None:
    given_sections = sections(*names)
    lines = screen.fit(given_sections, height)
    assert len(lines) <= height
    whole = screen.fit(given_sections, 1000)
    assert lines == whole or len(whole) > height
    if len(whole) > height:
        assert lines[-1].startswith("(")


def test_what_is_cut_is_named() -> None:
    found = sections("time", "operations", "accounting")
    lines = screen.fit(found, 40)
    assert heads(lines) == {"time": 16, "operations": 16}
    assert lines[-1] == "(cut to fit: accounting)"


def test_the_most_important_is_kept_to_the_last() -> None:
    assert list(heads(screen.fit(sections(), 35))) == ["time", "verdict", "stuck", "operations"]
    assert screen.fit(sections(), 5) == [*(f"time {line}" for line in range(4)), "(the terminal is too small for more)"]


def test_room_that_is_left_is_given_back() -> None:
    """Cutting `requests` would have been enough, so `accounting`, which was cut first, returns."""
    found = {"time": [["time"]], "block requests": [["block requests"] * 30, []], "accounting": [["accounting"], []]}
    assert heads(screen.fit(found, 10)) == {"time": 1, "accounting": 1}


def test_a_form_that_is_no_shorter_is_not_taken() -> None:
    found = {"operations": [["operations"] * 5, ["operations worse"] * 6, ["operations"]]}
    assert screen.fit(found, 5) == ["operations"] * 5
    assert heads(screen.fit(found, 3)) == {"operations": 1}
    found["block requests"] = [["block requests"] * count for count in (9, 5, 3, 1, 0)]
    found["slow ones"] = [["slow ones"] * count for count in (6, 4, 2, 0)]
    assert heads(screen.fit(found, 11)) == {"operations": 5, "block requests": 1, "slow ones": 2}


@pytest.mark.parametrize("height", [0, -1])
def test_a_terminal_without_height_gets_a_line(height: int) -> None:
    assert len(screen.fit(sections(), height)) == 1
