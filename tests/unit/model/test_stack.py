# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from wptrace.model.stack import Stack


def test_folded_goes_from_the_outermost_function_inwards() -> None:
    assert Stack(("submit", "read", "entry")).folded() == "entry;read;submit"
    assert Stack(("submit", "entry"), ("pread", "main"), "fio[7]").folded() == "fio[7];main;pread;entry;submit"


def test_a_semicolon_in_a_name_does_not_part_it() -> None:
    assert Stack(("submit",), ("a;b",), "x;y[7]").folded() == "x:y[7];a:b;submit"
