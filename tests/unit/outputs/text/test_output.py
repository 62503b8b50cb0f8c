# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.thorough import only_all
from tests.unit.memory import traced
from tests.unit.outputs import path
from tests.unit.outputs.samples import (
    HOSTILE,
    MS,
    NOON,
    SECOND,
    Tty,
    cell,
    group,
    play,
    report,
    request,
    start,
    written,
)
from wptrace.model.report import Finding, Verdict
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header, past
from wptrace.outputs.text import words as text
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.stages import StagesView

SDA_READ, SDB_READ = group("sda"), group("sdb")
CELLS = {SDA_READ: cell([MS], [3 * MS]), SDB_READ: cell([2 * MS], [2 * MS])}
VERDICT = Verdict((Finding("idle", {"in_flight": 2}),), "the disk is slow")
SIZES = {SDA_READ: 4096, SDB_READ: 8192}


def view(per_device: bool = True, **wanted: Any) -> StagesView:
    return StagesView(Wanted(per_device=per_device, **wanted))


def run(stream: io.TextIOBase, wanted: StagesView, dev: str = "sda") -> None:
    """Write a trace: a start, a slow request, an interval, the summary."""
    cells = CELLS if dev == "sda" else {group(dev): CELLS[SDA_READ]}
    play(
        TextOutput(stream, wanted),  # type: ignore[arg-type]
        start(notes=[f"{dev}: read this"]),
        request(dev=dev),
        report(cells, SIZES),
        report(cells, SIZES, kind="summary")._replace(verdict=VERDICT),
    )


def shown(wanted: StagesView, dev: str = "sda") -> str:
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
    found, of = report(CELLS, SIZES), view()
    list(of.begin(start()))
    assert lines[5 : lines.index("Summary") - 1] == [*of.report(found, width_of_a_pipe), *header.losses(found)]
    assert lines[-4:] == ["", "verdict: nothing finished, 2 in flight", "look at: the disk is slow", ""]


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


def test_sentences_of_wide_characters_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: os.terminal_size((40, 24)))
    stream, advice = Tty(), "\u65e5\u672c" * 40 + " \u8a9e a\u8a9e"
    ended = report(CELLS, SIZES, kind="summary")._replace(verdict=VERDICT._replace(advice=advice))
    play(TextOutput(stream, view()), start(), ended)
    assert max(map(text.columns, stream.getvalue().splitlines())) <= 40
    assert "".join(stream.getvalue().split()).endswith("".join(advice.split()))


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
    output = TextOutput(stream, view(live=True))
    output.start(start())
    for number in range(7):
        output.event(request(dev=f"disk{number}"))
    output.interval(report({}))
    output.close()
    assert [f"disk{number} " in stream.getvalue() for number in range(7)] == [False, False, *[True] * 5]


def test_closing_gives_the_cursor_back() -> None:
    stream = Tty()
    output = TextOutput(stream, view(live=True))
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


def test_dates_stand_before_each_time_of_day() -> None:
    assert shown(view(dates=True)).count("2023-11-14 22:13:20") == 3
    assert "2023-11-14" not in shown(view())


def test_own_cost_is_reported_when_asked_for() -> None:
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
    # A harmless name of the same width in the same places leaves the same text.
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
    output = TextOutput(stream, view(hist="device"))
    output.start(start())
    output.summary(report({}, kind="summary"))
    output.close()
    assert stream.getvalue().endswith(
        "lost: 3 x state_full: the table of what is in flight had no room\n"
        "noted: 2 x ring_full: the ring had no room for a record\n"
    )


def test_a_reader_that_left_is_a_broken_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        output = TextOutput(stream, view())
        with pytest.raises(BrokenPipeError):
            output.start(start())
        # Leave nothing in the stream, which the interpreter would try to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)


# --- Whole operations ---------------------------------------------------------------------------------------


def plain(*results: Any, hist: str = "") -> list[str]:
    """Return the output of a trace of operations."""
    found = path.report()
    summary = found._replace(kind="summary", verdict=VERDICT)
    return written(view(per_device=False, hist=hist), path.start(), *results, found, summary)


def test_a_pipe_gets_names_whole_and_on_one_line() -> None:
    name = "/" + "d" * 200 + "/" + "f" * 200
    for lines in (plain(path.operation(path=name)), plain([path.waiting(path=name)])):
        assert sum(name in line for line in lines) == 1


def test_histograms_of_operations_and_of_requests_have_titles() -> None:
    lines = plain(hist="device")
    titles = [line for line in lines if line.endswith(" device:")]
    assert titles == [
        "read operations, device:",
        "write operations, device:",
        "flush block requests, device:",
        "read block requests, device:",
        "write block requests, device:",
    ]
    assert [line for line in plain(hist="wakeup") if line.endswith(" wakeup:")] == [
        "read operations, wakeup:",
        "write operations, wakeup:",
    ]
    assert sum(line.endswith(" hits, total:") for line in plain(hist="total")) == 2


# --- The live screen ----------------------------------------------------------------------------------------


class Screen:
    """A live output whose screens are not drawn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wanted: StagesView, columns: int = 80, lines: int = 50) -> None:
        self.resize(monkeypatch, columns, lines)
        self.stream = Tty()
        self.output = TextOutput(self.stream, wanted)
        self.output.start(path.start())

    def resize(self, monkeypatch: pytest.MonkeyPatch, columns: int, lines: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("LINES", str(lines))

    @property
    def lines(self) -> list[str]:
        return self.output._compose()


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    made = Screen(monkeypatch, view(live=True, per_device=False, statistics=True))
    yield made
    made.output.close()


@pytest.mark.parametrize("columns", [80, 100, 160, 300])
@pytest.mark.parametrize("lines", [3, 6, 12, 24, 40, 50, 100, 200])
def test_a_live_screen_never_scrolls(live: Screen, monkeypatch: pytest.MonkeyPatch, columns: int, lines: int) -> None:
    live.resize(monkeypatch, columns, lines)
    for one in range(9):
        live.output.event(path.operation(interference=[path.interference("preempted", one)]))
    live.output.in_flight([path.waiting()] * 30, NOON)
    live.output.interval(path.report(path.cells(interference=True), lost=5))
    assert 0 < len(live.lines) <= lines
    assert max(map(text.columns, live.lines)) <= columns


def test_a_live_screen_has_all_of_it_where_there_is_room(live: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    live.resize(monkeypatch, 80, 200)
    live.output.event(path.operation())
    live.output.in_flight([path.waiting()], NOON)
    live.output.interval(path.report(lost=5))
    firsts = [line.partition(":")[0].partition("  ")[0] for line in live.lines if line and line[0] != " "]
    assert firsts == [
        "Tracing io (level path) on nvme0n1, Linux 6.12.9. Ctrl-C ends.",
        "22", "in flight at 22", "read", "write", "page-cache hits", "flush", "read", "write", "slow operations",
        "operations", "requests", "lost", "lost", "noted", "own cost",
    ]  # fmt: skip


def test_slow_ones_take_two_lines_each_on_a_live_screen(live: Screen) -> None:
    live.output.event(path.operation())
    live.output.event(path.request())
    live.output.interval(path.report({}))
    at = live.lines.index("slow operations:")
    assert live.lines[at + 1].startswith("  22:13:20.123  read 3.69 ms  postgres[4711/4715]  /var/")
    assert live.lines[at + 2].startswith("    nvme0n1: device 3.20 ms 87%")
    assert live.lines[at + 3].startswith("  22:13:20.000  write request 3.62 ms  kworker/u8:1[71]  sector")


def test_requests_of_the_level_block_look_as_ever_on_a_live_screen(live: Screen) -> None:
    list(live.output._view.begin(start()))
    live.output.event(request())
    assert live.lines[:2] == ["slow requests:", "22:13:20.000000  sda WS   sector 123456 +8  4.00 ms"]


def test_what_was_in_flight_vanishes_after_some_seconds(live: Screen) -> None:
    live.output.in_flight([path.waiting()], NOON)
    assert live.lines[0].startswith("in flight at 22:13:20")
    for seconds, there in ((1, True), (4, True), (5, False)):
        live.output.interval(path.report({}, ts_ns=NOON + seconds * SECOND))
        assert any("in flight at" in line for line in live.lines) is there
    live.output.in_flight([], NOON + 6 * SECOND)
    assert not any("in flight at" in line for line in live.lines)


def test_a_live_screen_follows_the_size_of_the_terminal(live: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    live.output.interval(path.report())
    before = live.stream.tell()
    live.resize(monkeypatch, 160, 60)
    os.kill(os.getpid(), signal.SIGWINCH)
    drawn = live.stream.getvalue()[before:]
    assert drawn.index("\x1b[2J") < drawn.index("read: 500 operations")
    assert "write: 120 operations" in next(line for line in drawn.split("\n") if "read: 500 operations" in line)


def test_a_resize_while_it_draws_is_followed_afterwards(live: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    compose = live.output._compose

    def slowly() -> list[str]:
        if not asked:
            os.kill(os.getpid(), signal.SIGWINCH)
        asked.append(1)
        return compose()

    assert live.output._live is not None
    monkeypatch.setattr(live.output._live, "_compose", slowly)
    live.output.interval(path.report())
    assert len(asked) == 2
    assert live.stream.getvalue().count("\x1b[2J") == 1


def test_the_terminals_own_signal_is_given_back() -> None:
    before = signal.getsignal(signal.SIGWINCH)
    output = TextOutput(Tty(), view(live=True))
    output.start(start())
    assert signal.getsignal(signal.SIGWINCH) is not before
    output.close()
    assert signal.getsignal(signal.SIGWINCH) is before


@pytest.mark.parametrize(("lines", "left_out"), [(80, False), (44, True), (24, True)])
def test_stages_without_time_go_first_where_lines_are_few(
    live: Screen, monkeypatch: pytest.MonkeyPatch, lines: int, left_out: bool
) -> None:
    live.resize(monkeypatch, 80, lines)
    live.output.interval(path.report())
    assert any(line.startswith("  throttle ") for line in live.lines) is not left_out
    assert any(line.startswith("  queue ") for line in live.lines)
    assert ("stages that took no time" in live.lines[-1]) is left_out


def test_a_stage_that_took_time_in_one_table_stays_in_all_of_its_kind(
    live: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.resize(monkeypatch, 80, 44)
    cells = path.cells()
    cells[path.OPERATION.group("nvme0n1", "write")]["throttle"].add(1)
    live.output.interval(path.report(cells))
    # Two of operations, and none of requests.
    assert sum(line.startswith("  throttle ") for line in live.lines) == 2


def test_stages_without_time_are_dim_and_nothing_else(live: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    live.resize(monkeypatch, 80, 80)
    live.output.interval(path.report())
    drawn = live.stream.getvalue()
    dim = re.findall(r"\x1b\[2m(.*?)\x1b\[0m", drawn)
    assert dim
    assert all(line.startswith("  throttle ") for line in dim)


@only_all
def test_hours_of_intervals_take_no_more_memory_than_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that an output keeps, after many reports and records."""
    monkeypatch.setenv("LINES", "20")
    output = TextOutput(Null(), view(live=True, per_device=False))
    output.start(path.start())
    cells = {group: path.cell(("device",), 2) for group in path.cells()}
    monkeypatch.setattr(output._live, "_draw", output._compose)
    # A trace of hours has as many.
    monkeypatch.setattr(past, "_CELLS", 100)
    monkeypatch.setattr(past, "_POINTS", 100)

    def hour(first: int) -> None:
        for second in range(first, first + 200):
            output.event(path.operation())
            output.in_flight([path.waiting()] * 3, NOON + second)
            output.interval(path.report(cells, ts_ns=NOON + second * SECOND))
        gc.collect()

    with traced() as memory:
        hour(0)
        before = memory.now
        hour(200)
        assert memory.now - before < 16 << 10
    output.close()


class Null(Tty):
    """A terminal that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)
