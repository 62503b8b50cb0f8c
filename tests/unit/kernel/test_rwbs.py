# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from wptrace.kernel.rwbs import rwbs


@pytest.mark.parametrize(
    ("op", "flags", "letters"),
    [
        ("read", [], "R"),
        ("read", ["rahead"], "RA"),
        ("read", ["sync", "meta"], "RSM"),
        ("read", ["meta", "sync", "rahead", "fua"], "RFASM"),
        ("write", [], "W"),
        ("write", ["sync"], "WS"),
        ("write", ["fua", "sync"], "WFS"),
        ("write", ["meta", "sync", "fua", "preflush"], "FWFSM"),
        ("flush", [], "F"),
        ("flush", ["preflush"], "FF"),
        ("discard", ["sync"], "DS"),
        ("other", [], "N"),
        ("other", ["preflush"], "FN"),
    ],
)
def test_letters_are_those_of_blktrace_in_its_order(op: str, flags: list[str], letters: str) -> None:
    assert rwbs(op, flags) == letters
    assert rwbs(op, frozenset(flags)) == letters
