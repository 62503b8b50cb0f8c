# SPDX-License-Identifier: Apache-2.0
"""Keys, from bytes of a terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.outputs.text.keyboard import keys, there_is_one


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B\x1b[C\x1b[D", ["up", "down", "right", "left"]),
        ("\x1bOA\x1bOF", ["up", "end"]),
        ("\x1b[1;5A\x1b[5;2~", ["up", "pgup"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["pgup", "pgdn", "home", "end"]),
        ("\t\x1b[Z\r\n", ["tab", "tab", "enter", "enter"]),
        ("\x7f\x08\x15\x0c", ["backspace", "backspace", "clear", "redraw"]),
        ("\x1b", ["esc"]),
        ("\x1bq", ["esc", "q"]),
        ("äx", ["ä", "x"]),
        # Ignored: function keys, bracketed paste, control characters.
        ("\x1b[15~\x1b[200~\x1bOP\x01\x00", []),
    ],
    ids=ascii,
)
def test_bytes_are_keys(sent: str, found: list[str]) -> None:
    assert list(keys(sent)) == found


@given(st.text(alphabet=st.sampled_from("\x1b[O;~0159AZq \x00\x7f\n\udcff")))
def test_whatever_comes_is_keys_or_nothing(sent: str) -> None:
    for key in keys(sent):
        assert key.isprintable()
        assert key


def test_what_is_no_terminal_has_no_keys() -> None:
    closed = io.StringIO()
    closed.close()
    assert not any(map(there_is_one, (None, io.StringIO(), closed)))
