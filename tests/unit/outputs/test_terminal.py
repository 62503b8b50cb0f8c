# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import os
import sys

import pytest

from tests.unit.outputs.samples import HOSTILE, MS, TABLE, cell, report, request, start
from wptrace.engine.results import Group
from wptrace.outputs import text
from wptrace.outputs.terminal import TerminalOutput, View

SDA_READ, SDB_READ = Group("sda", "read"), Group("sdb", "read")
CELLS = {SDA_READ: cell([MS], [3 * MS]), SDB_READ: cell([2 * MS], [2 * MS])}
SIZES = {SDA_READ: 4096, SDB_READ: 8192}


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def view(
    live: bool = False,
    per_device: bool = True,
    dates: bool = False,
    statistics: bool = False,
    hist: str | None = None,
) -> View:
    return View(live, per_device, dates, statistics, hist)


def run(stream: io.TextIOBase, wanted: View, dev: str = "sda") -> None:
    """A whole trace: a start, a slow request, an interval, the summary."""
    output = TerminalOutput(stream, wanted)  # type: ignore[arg-type]
    cells = CELLS if dev == "sda" else {Group(dev, "read"): CELLS[SDA_READ]}
    output.start(start(notes=[f"{dev}: read this"]))
    output.request(request(dev=dev))
    output.interval(report(cells, SIZES))
    output.summary(report(cells, SIZES, kind="summary"))
    output.close()


def shown(wanted: View, dev: str = "sda") -> str:
    stream = io.StringIO()
    run(stream, wanted, dev)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "50")
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture(params=["with rich", "without rich"])
def rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "with rich":
        return True
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    return False


@pytest.mark.parametrize("live", [False, True])
def test_without_a_terminal_it_is_plain_text(rich: bool, live: bool) -> None:
    lines = shown(view(live=live)).split("\n")
    assert all(line.isprintable() for line in lines), "escape codes went into a pipe"
    assert lines[:5] == [
        "Tracing io (level block) on all disks, Linux 6.12.9. Ctrl-C ends.",
        "note: sda: read this",
        "22:13:20.000000  sda WS   sector 123456 +8  4.00 ms",
        "    queue 1.00 ms 25% ████  device 3.00 ms 75% ████████████",
        "",
    ]
    width_of_a_pipe = 100
    assert lines[5 : lines.index("Summary") - 1] == list(text.report(report(CELLS, SIZES), width_of_a_pipe, False))
    assert lines[-2].startswith("verdict: device takes 75% of the time of sda read requests")


def test_a_terminal_that_is_not_live_is_plain_text_as_well() -> None:
    stream = Tty()
    run(stream, view())
    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert max(len(line) for line in lines if line.startswith("  ")) == 80


@pytest.mark.parametrize("width", [0, 1, 3, 40])
def test_a_terminal_of_any_size_gets_all_of_it(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: os.terminal_size((width, width)))
    stream = Tty()
    run(stream, view(hist="device"))
    assert "".join(stream.getvalue().split()).endswith("thediskisslow")


def test_a_live_screen_is_redrawn_and_ends_in_the_summary() -> None:
    stream = Tty()
    run(stream, view(live=True))
    written = stream.getvalue()
    screen, _, summary = written.partition("Summary")
    assert "\x1b[" in screen
    assert "slow requests:" in screen
    assert "sector 123456" in screen
    assert "\x1b" not in summary
    assert "verdict: " in summary


def test_a_live_screen_needs_rich(rich: bool) -> None:
    stream = Tty()
    run(stream, view(live=True))
    assert ("\x1b[" in stream.getvalue()) is rich
    assert "sda read: 1 request" in stream.getvalue()


def test_a_live_screen_shows_the_last_requests_alone() -> None:
    stream = Tty()
    output = TerminalOutput(stream, view(live=True))
    output.start(start())
    for number in range(7):
        output.request(request(dev=f"disk{number}"))
    output.interval(report({}))
    output.close()
    assert [f"disk{number} " in stream.getvalue() for number in range(7)] == [False, False, *[True] * 5]


def test_closing_gives_the_cursor_back() -> None:
    stream = Tty()
    output = TerminalOutput(stream, view(live=True))
    output.start(start())
    output.close()
    output.close()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_devices_are_added_up_unless_asked_for() -> None:
    together, apart = shown(view(per_device=False)), shown(view(per_device=True))
    assert "\nread: 2 requests, 2 /s, 12 KiB/s\n" in together
    assert "sda" not in together.partition("Summary")[2]
    assert "\nsda read: 1 request, 1 /s, 4 KiB/s\n" in apart
    assert "\nsdb read: 1 request, 1 /s, 8 KiB/s\n" in apart
    assert "verdict: device takes 62% of the time of read requests" in together


def test_dates_stand_before_each_time_of_day() -> None:
    assert shown(view(dates=True)).count("2023-11-14 22:13:20") == 3
    assert "2023-11-14" not in shown(view())


def test_own_cost_is_told_when_asked_for() -> None:
    assert shown(view(statistics=True)).count("own cost: ") == 2
    assert "own cost" not in shown(view())


def test_histogram_of_a_stage_is_in_the_summary() -> None:
    interval, _, summary = shown(view(hist="device")).partition("Summary")
    assert "device:" not in interval
    head, bar = summary[summary.index("sda read device:") :].split("\n")[:2]
    assert head == "sda read device:"
    assert bar.startswith("2.10 ms - 4.19 ms : 1 ")
    assert "sdb read device:" in summary
    assert "\nread device:\n" in shown(view(hist="device", per_device=False))


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_never_reach_the_terminal(name: str, live: bool) -> None:
    stream = Tty()
    run(stream, view(live=live, hist="device"), dev=name)
    quiet = Tty()
    run(quiet, view(live=live, hist="device"), dev="x" * len(text.printable(name)))
    written, expected = stream.getvalue(), quiet.getvalue()
    written.encode()
    # A harmless name of the same width in the same places: all other characters are ours.
    assert written.replace(text.printable(name), "x" * len(text.printable(name))) == expected
    assert name.isprintable() or name not in written


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_bars_are_drawn_in_every_encoding(encoding: str) -> None:
    memory = io.BytesIO()
    stream = io.TextIOWrapper(memory, encoding=encoding)
    run(stream, view(hist="device"))
    stream.flush()
    written = memory.getvalue().decode(encoding)
    assert ("█" in written) is (encoding == "utf-8")
    assert ("####" in written) is (encoding != "utf-8")
    assert len(written) == len(shown(view(hist="device")))


def test_nothing_but_a_start_ends_without_a_table() -> None:
    stream = io.StringIO()
    output = TerminalOutput(stream, view(hist="device"))
    output.start(start())
    output.summary(report({}, kind="summary"))
    output.close()
    assert stream.getvalue().endswith("\n\nverdict: no request finished\n")


def test_a_reader_that_left_is_a_broken_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        output = TerminalOutput(stream, view())
        with pytest.raises(BrokenPipeError):
            output.start(start())
        # Nothing may be left in the stream for the interpreter to stumble on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)


def test_a_stage_table_is_needed_for_nothing_but_requests() -> None:
    stream = io.StringIO()
    output = TerminalOutput(stream, view())
    output.request(request())
    output.interval(report(CELLS, SIZES))
    assert "sda read" in stream.getvalue()
    assert TABLE.total.name == "request"
