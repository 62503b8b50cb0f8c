# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.lab.streams import Marked, console_tail, panic

MARK = b"\0abcd\0"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("body", [b"", b"hello\n", b"\0", b"\0abc", b"x\0ab\0abc", b"\0\0\0", b"\0abc" * 3 + b"z"])
def test_a_mark_is_found_however_the_data_is_cut(body: bytes, step: int) -> None:
    stream = Marked(MARK)
    whole = body + MARK + b"later"
    got = b"".join(stream.feed(whole[at : at + step]) for at in range(0, len(whole), step))
    assert got == body
    assert stream.ended


def test_without_a_mark_nothing_is_lost() -> None:
    stream = Marked(MARK)
    assert stream.feed(b"text\0ab") == b"text"
    assert not stream.ended
    assert stream.rest() == b"\0ab"
    assert stream.rest() == b""


def test_output_is_passed_on_at_once() -> None:
    assert Marked(MARK).feed(b"prompt: ") == b"prompt: "


def test_the_tail_of_a_console() -> None:
    data = b"".join(b"line %d\r\n" % number for number in range(100)) + b"\x1b[0;31mred\x1b[0m\a\r\n\n"
    lines = console_tail(data).split("\n")
    assert len(lines) == 60
    assert lines[0] == "line 41"
    assert lines[-1] == "red"
    assert console_tail(b"") == ""
    assert console_tail(b"\xff\xfe broken", 1).endswith("broken")


def test_the_words_of_a_panic() -> None:
    console = "[ 4.5] sysrq: Trigger\n[ 4.6] Kernel panic - not syncing: sysrq triggered crash\r\n[ 4.7] CPU: 1"
    assert panic(console) == "sysrq triggered crash"
    assert panic("all is well") == ""
