# SPDX-License-Identifier: Apache-2.0
"""`wptrace replay --live`: a capture on the live screen of a terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.terminal import Terminal
from tests.unit.capture.made import ABOUT, START, entry, report
from wptrace.bpf.object import BpfObject
from wptrace.capture.writer import CaptureOutput
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.flows.io.records import RECORDS
from wptrace.kernel.clock import wall_offset_ns

pytest.importorskip("rich")
SECOND = 1_000_000_000
MANY = 40


@pytest.fixture
def file(obj: BpfObject, tmp_path: Path) -> Path:
    """A capture with an operation of `at` ns and an interval in each second from its beginning."""
    path = tmp_path / "trace.wpt"
    output = CaptureOutput(path, ABOUT)
    take = output.raw(obj, RECORDS, ["other", "sda"], lambda number: f"/cgroup{number}")
    output.start(START)
    begin, wall = time.monotonic_ns(), wall_offset_ns()
    for at in range(1, MANY + 1):
        end = begin + at * SECOND
        take(memoryview(entry(obj, at, start_ns=end - at, end_ns=end)))
        output.interval(report("interval", range(at), end + wall + 1))
    numbers = [one for at in range(1, MANY + 1) for one in range(at)]
    output.summary(report("summary", numbers, end + wall + 2, MANY * SECOND))
    output.close()
    return path


def command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "wptrace", "replay", str(file), "--live", *options]


def total(terminal: Terminal) -> int:
    """Return the number of operations in the summary."""
    at = max(place for place, line in enumerate(terminal.screen.lines) if line.startswith("Summary"))
    return int(terminal.screen.lines[at + 1].partition(": ")[2].split()[0].replace(",", ""))


def test_keys_answer_and_q_ends_with_what_was_seen(file: Path) -> None:
    with Terminal(command(file), 120, 40) as terminal:
        terminal.wait_for("2 operations, 2 /s")
        assert not terminal.echoes
        assert terminal.shows("Replay of ")
        assert terminal.shows("verdict: fs takes 100% of the time")
        terminal.send("?")
        terminal.wait_for("this help; Down goes on")
        terminal.send("x", "s")
        terminal.wait_for("sorted by time")
        terminal.send("tab")
        # Stories come at their time, not when the file is read.
        terminal.wait_for("fio")
        assert not terminal.shows(f"{MANY} ns")
        terminal.send("tab", "q")
        assert terminal.end() == 0
        assert 0 < total(terminal) < sum(range(1, MANY + 1))
        assert terminal.settings == terminal.before
        assert terminal.screen.cursor


def test_the_end_of_the_file_leaves_the_summary(file: Path) -> None:
    with Terminal(command(file, "--speed", "1000"), 120, 60) as terminal:
        assert terminal.end() == 0
        assert total(terminal) == sum(range(1, MANY + 1))
        assert terminal.settings == terminal.before


def test_a_damaged_one_is_said_to_be_at_its_end(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with Terminal(command(file, "--speed", "1000"), 240, 60) as terminal:
        assert terminal.end() == 1
        assert terminal.shows("is damaged: one frame of it was left out")


def test_a_faster_one_takes_its_time_and_a_pause_holds_it(file: Path) -> None:
    begin = time.monotonic()
    with Terminal(command(file, "--speed", "20"), 120, 60) as terminal:
        terminal.wait_for("operations, ")
        terminal.send("p")
        terminal.wait_for("PAUSED")
        held = terminal.screen.lines
        # Long enough for ten more intervals.
        time.sleep(0.5)
        terminal.read()
        assert terminal.screen.lines == held
        assert terminal.process.poll() is None
        terminal.send("p")
        assert terminal.end() == 0
        assert total(terminal) == sum(range(1, MANY + 1))
    assert time.monotonic() - begin >= MANY / 20 + 0.5


def test_ctrl_c_ends_it_as_q_does(file: Path) -> None:
    with Terminal(command(file, "--speed=5"), 120, 40) as terminal:
        terminal.wait_for("2 operations, 2 /s")
        terminal.send("\x03")
        assert terminal.end() == 0
        assert 0 < total(terminal) < sum(range(1, MANY + 1))
        assert terminal.settings == terminal.before


def test_what_filters_leave_of_single_ones_has_intervals(file: Path) -> None:
    with Terminal(command(file, "--speed=10", "--comm=fio"), 120, 60) as terminal:
        terminal.wait_for("1 operation, ")
        terminal.send("q")
        assert terminal.end() == 0
    with Terminal(command(file, "--speed=10", "--comm=nobody"), 120, 60) as terminal:
        terminal.wait_for("0 operations")
        terminal.send("q")
        assert terminal.end() == 0


def test_without_a_terminal_intervals_follow_each_other(file: Path) -> None:
    done = subprocess.run(command(file, "--summary"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "note: a note\n")
    assert done.stdout.count("\nread: ") == MANY + 1
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--speed=2"], "--speed needs --live"),
        (["--live", "--json"], "--live shows a screen, which --json does not: choose one"),
        (["--live", "--to=html", "-o=x"], "--live shows a screen, which --to does not"),
        (["--live", "--speed=0"], "--speed takes a factor between 0.001 and 1000, not '0'"),
        (["--live", "--speed=-1"], "--speed takes a factor"),
        (["--live", "--speed=nan"], "--speed takes a factor"),
    ],
)
def test_what_makes_no_sense(options: list[str], sentence: str, file: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        main(["replay", str(file), *options])
