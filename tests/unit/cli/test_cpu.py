# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the command lines of `wptrace cpu` and `wptrace progs` is said in one sentence."""

from __future__ import annotations

import pytest

from tests.unit.cli.command import WPTRACE, run, sentence

BAD = [
    (["cpu", "--by", "task"], "cpu: argument --by: invalid choice: 'task'"),
    (["cpu", "--hist", "sleep"], "there is no stage sleep; there are wait, run, off, total"),
    (["cpu", "--top", "0"], "--top takes a whole number above 0, not '0'"),
    (["cpu", "--top", "many"], "--top takes a whole number above 0, not 'many'"),
    (["cpu", "--slow", "5"], "the duration '5' has no unit"),
    (["cpu", "-p", "4194305"], "there is no process 4194305"),
    (["cpu", "--tid", "x"], "'x' is not a thread id"),
    (["cpu", "--comm", ""], "a thread has a name"),
    (["cpu", "--ring-size", "5"], "a ring of 5 is not possible"),
    (["cpu", "--file", "/etc/passwd"], "cpu: unrecognized arguments: --file"),
    (["progs", "1ms"], "an interval of 1ms is too short: 10ms is the least"),
    (["progs", "1", "0"], "the count '0' is not a whole number above 0"),
    (["progs", "-p", "1"], "progs: unrecognized arguments: -p"),
]


@pytest.mark.parametrize(
    ("arguments", "words"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_command_line(arguments: list[str], words: str) -> None:
    done = run(WPTRACE, *arguments)
    assert done.returncode == 2
    assert sentence(done.stderr).startswith(words)
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["cpu", "progs"])
def test_it_needs_privileges(command: str) -> None:
    done = run(WPTRACE, command)
    assert done.returncode == 3
    assert "tracing needs root" in sentence(done.stderr)
