# SPDX-License-Identifier: Apache-2.0
"""Keys of the live screen in a terminal; the command has a flow that needs no kernel."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.terminal import Terminal
from tests.unit.cli.command import FAKE

pytest.importorskip("rich")
SIZES = [(80, 24), (120, 40), (200, 50)]
LIVE = [*FAKE, "io", "--slow", "1ms", "0.1"]
SHOWN = "read: 1 request"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal(LIVE) as made:
        made.wait_for(SHOWN)
        yield made


def whole(terminal: Terminal) -> bool:
    """Tell whether the screen is complete and no line is broken."""
    lines = terminal.screen.lines
    return " in 1" in " ".join(lines[:2]) and len(lines) == terminal.screen.height and "q:quit" in lines[-1]


def test_each_key_does_what_the_help_says_at_any_size(terminal: Terminal) -> None:
    assert not terminal.echoes
    for columns, lines in SIZES:
        terminal.resize(columns, lines)
        terminal.wait_until(lambda: whole(terminal) and terminal.shows(SHOWN), "the tables")
        terminal.send("?")
        terminal.wait_for("this help; Down goes on")
        terminal.send("x")
        terminal.wait_without("this help")
        terminal.send("d")
        terminal.wait_for("sda read: 1 request")
        terminal.send("b")
        terminal.wait_for("by nothing")
        terminal.send("b", "d", "s")
        terminal.wait_for("sorted by time")
        terminal.send(*["s"] * 6)
        terminal.wait_without("sorted by")
        terminal.send("/", "zz")
        terminal.wait_for("filter: zz_")
        terminal.wait_without(SHOWN)
        terminal.send("enter")
        terminal.wait_for("only 'zz' (1 rows left out)")
        terminal.send("/", "esc")
        terminal.wait_for(SHOWN)
        terminal.send("down")
        terminal.wait_for("> read requests")
        terminal.send("enter", "right")
        terminal.wait_for("queue, 1 in this interval:")
        terminal.send("left", "esc", "esc", "tab")
        terminal.wait_without(SHOWN)
        assert terminal.shows("sda WS   sector 123456 +8  4.00 ms")
        terminal.send("tab")
        terminal.wait_for(SHOWN)
    terminal.send("q")
    assert terminal.end() == 0
    assert terminal.shows("Summary")
    assert terminal.settings == terminal.before
    assert terminal.screen.cursor


def test_a_pause_holds_the_screen_and_not_the_counting(terminal: Terminal) -> None:
    terminal.send("p")
    terminal.wait_for("PAUSED")
    held = terminal.screen.lines
    time.sleep(0.5)
    terminal.read()
    assert terminal.screen.lines == held
    terminal.send(" ")
    terminal.wait_without("PAUSED")
    terminal.send("q")
    terminal.end()
    (line,) = [line for line in terminal.screen.lines if line.startswith("requests:") or "requests in" in line]
    assert int(line.split()[1]) >= 5


def test_intervals_that_have_passed_are_looked_at_again(terminal: Terminal) -> None:
    """The screen stays at an interval while new ones come."""
    terminal.wait_until(lambda: "██" in terminal.screen.lines[4], "several intervals")
    terminal.send("<")
    terminal.wait_for(" BACK")

    def back() -> int:
        return int(terminal.screen.lines[-1].split()[0])

    shown, first = terminal.screen.lines[1], back()
    terminal.wait_until(lambda: back() > first + 2, "later intervals")
    assert terminal.screen.lines[1] == shown
    terminal.send(*">" * 500)
    terminal.wait_for("this is the last interval")
    assert not terminal.shows("BACK")
    terminal.send(*"<" * 5000)
    terminal.wait_for("there is no earlier interval")
    terminal.send("esc")
    terminal.wait_without("BACK")


def _entered(terminal: Terminal, before: int) -> bool:
    """Tell whether the alternate screen was entered again."""
    return terminal.raw.count("\x1b[?1049h") > before


def test_the_next_owner_begins_anew() -> None:
    """The screen stays the same, and only the last trace has a summary."""
    with Terminal([*FAKE, "io", "0.1"]) as terminal:
        terminal.wait_for(SHOWN)
        for by in ("cgroup", "file", "thread"):
            before = terminal.raw.count("\x1b[?1049h")
            terminal.send("o")
            terminal.wait_until(partial(_entered, terminal, before), f"a trace by {by}")
            terminal.wait_for(SHOWN)
            assert not terminal.echoes
        terminal.send("q")
        assert terminal.end() == 0
        assert terminal.raw.count("Summary") == 1
        assert terminal.settings == terminal.before


@pytest.mark.parametrize("words", [["--report", "/dev/null"], ["--level", "block"]])
def test_where_owners_are_chosen_at_the_start_it_says_so(words: list[str], tmp_path: Path) -> None:
    given = [str(tmp_path / "page.html") if word == "/dev/null" else word for word in words]
    with Terminal([*FAKE, "io", "0.1", *given]) as terminal:
        terminal.wait_for(SHOWN)
        terminal.send("o")
        terminal.wait_for("owners are chosen at the start here: --by")
        terminal.send("q")
        assert terminal.end() == 0


def test_the_screen_is_one_of_its_own() -> None:
    """The terminal shows its earlier contents again at the end, with the summary below."""
    with Terminal(["sh", "-c", f"echo before; {shlex.join(LIVE)}"]) as terminal:
        terminal.wait_for(SHOWN)
        assert not terminal.shows("before")
        terminal.send("q")
        assert terminal.end() == 0
        lines = terminal.screen.lines
        assert lines[0] == "before"
        assert "Tracing io" in lines[1]
        assert "Summary" in lines
        assert not terminal.shows("q:quit")


def test_a_terminal_that_changes_its_size_while_keys_arrive(terminal: Terminal) -> None:
    for at in range(40):
        terminal.send(*(["down", "enter"], ["esc", "esc"], ["?", "x"], ["tab", "tab"])[at % 4])
        terminal.resize(*((80, 24), (132, 30), (61, 12), (200, 50))[at % 4])
        terminal.read(0.01)
    terminal.resize(80, 24)
    terminal.send("esc", "esc", "\x0c")
    terminal.wait_until(lambda: whole(terminal) and terminal.shows(SHOWN), "the tables")
    terminal.send("q")
    assert terminal.end() == 0
    assert "Traceback" not in terminal.raw
    assert terminal.settings == terminal.before


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGQUIT, -signal.SIGQUIT), (signal.SIGUSR2, -signal.SIGUSR2)],
)
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Terminal, number: signal.Signals, code: int) -> None:
    if number == signal.SIGINT:
        terminal.send("\x03")
    else:
        terminal.process.send_signal(number)
    assert terminal.end() == code
    assert terminal.settings == terminal.before
    assert terminal.screen.cursor
    assert terminal.shows("Summary") is (code == 0)


def test_a_fault_leaves_the_terminal_as_it_was() -> None:
    with Terminal(LIVE, FAKE_FAULT="1") as terminal:
        terminal.wait_until(lambda: "a fault of the command" in terminal.raw, "the fault")
        assert terminal.end() == 1
        assert terminal.settings == terminal.before
        assert terminal.screen.cursor


@pytest.mark.parametrize("shell", [("bash", "--norc"), ("dash",)])
def test_a_stopped_command_gives_the_terminal_to_the_shell_and_takes_it_again(shell: tuple[str, ...]) -> None:
    # A shell without rc files: the job has its own process group, and the terminal while it is in the foreground.
    script = f"set -m; {shlex.join(LIVE)}; echo stopped=$?; read line; fg; echo ended=$?"
    with Terminal([*shell, "-c", script]) as terminal:
        terminal.wait_for(SHOWN)
        assert not terminal.echoes
        terminal.send("\x1a")
        terminal.wait_until(lambda: "stopped=148" in terminal.screen.lines, "the shell, in a line of its own")
        assert terminal.settings == terminal.before
        assert terminal.screen.cursor
        terminal.send("enter")
        terminal.wait_until(lambda: not terminal.echoes, "the keys to be taken")
        terminal.wait_for(SHOWN)
        terminal.send("p")
        terminal.wait_for("PAUSED")
        terminal.send("q")
        terminal.wait_for("ended=0")
        assert terminal.settings == terminal.before


def test_in_the_background_it_takes_no_keys_from_others() -> None:
    script = f"set -m; {shlex.join(LIVE)} & sleep 1; read line; echo got=$line; fg; echo ended=$?"
    with Terminal(["bash", "--norc", "-c", script]) as terminal:
        terminal.wait_for(SHOWN)
        assert terminal.echoes
        terminal.send("qqq", "enter")
        terminal.wait_until(lambda: "got=qqq" in terminal.raw, "the line")
        terminal.wait_until(lambda: not terminal.echoes, "the keys to be taken")
        terminal.send("q")
        terminal.wait_until(lambda: "ended=0" in terminal.raw, "the end")
        assert terminal.settings == terminal.before


def test_a_terminal_that_is_closed_ends_it() -> None:
    with Terminal(LIVE) as terminal:
        terminal.wait_for(SHOWN)
        terminal.hang_up()
        assert terminal.process.wait(60) in (0, 1)


def test_without_a_terminal_to_type_at_there_are_no_keys() -> None:
    with Terminal(["sh", "-c", f"{shlex.join(LIVE)} 5 </dev/null"]) as terminal:
        terminal.wait_for(SHOWN)
        assert terminal.echoes
        assert terminal.end() == 0
        assert "q:quit" not in terminal.raw
        assert "Traceback" not in terminal.raw


def test_colours_where_they_are_wanted(terminal: Terminal) -> None:
    assert "\x1b[33m  device" in terminal.raw
    with Terminal(LIVE, NO_COLOR="1") as other:
        other.wait_for(SHOWN)
        other.send("down")
        other.wait_for("> read")
        assert not any(f"\x1b[{code}m" in other.raw for code in range(30, 50))


def test_a_terminal_that_cannot_draw_gets_reports_as_text() -> None:
    with Terminal([*LIVE, "2"], TERM="dumb") as terminal:
        assert terminal.end() == 0
        # Two intervals and the summary.
        assert terminal.raw.count(" in flight") == 3
        assert "\x1b" not in terminal.raw


def test_a_terminal_that_does_not_know_its_size(terminal: Terminal) -> None:
    """As a serial console: lines are made for the size that is drawn, and nothing of them is cut."""
    terminal.raw = ""
    terminal._size(0, 0)
    terminal.send("\x0c")
    terminal.wait_until(lambda: "q:quit" in terminal.raw and "queue depth" in terminal.raw, "the screen")
    assert "\u2026" not in terminal.raw


def test_ending_it_twice_gives_the_terminal_back() -> None:
    """The second signal ends it at once, wherever it is."""
    with Terminal(LIVE, FAKE_SLOW_END="1") as terminal:
        terminal.wait_for(SHOWN)
        terminal.send("\x03")
        terminal.wait_until(lambda: terminal.echoes, "the terminal to be as it was")
        terminal.send("\x03")
        assert terminal.end() == -signal.SIGINT
        assert terminal.settings == terminal.before
        assert terminal.screen.cursor
