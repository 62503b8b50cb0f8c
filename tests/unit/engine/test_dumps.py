# SPDX-License-Identifier: Apache-2.0
"""When dumps are written, and that the making of pages neither delays nor ends the trace."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from wptrace.engine.children import Command
from wptrace.engine.dumps import DumpOptions, Dumps
from wptrace.errors import WptraceError

SECOND = 1_000_000_000
GREETING = "import sys, pathlib; pathlib.Path(sys.argv[1]).with_suffix('.html').write_text('a page')"


class Made(NamedTuple):
    path: Path
    records: int
    since_ns: int
    until_ns: int


class Recorder:
    def __init__(self) -> None:
        self.slow_seen_ns = self.span_ns = 0
        self.failure: Exception | None = None

    def copied(self, start: object, view: str) -> Callable[[Path], Made]:
        def write(path: Path) -> Made:
            path.write_text("a dump")
            if self.failure is not None:
                raise self.failure
            until_ns = time.monotonic_ns()
            return Made(path, 3, until_ns - self.span_ns, until_ns)

        return write


class Flow:
    view = "stages"


class Trace:
    start, flow = None, Flow()


Make = Callable[..., Dumps]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make(tmp_path: Path, said: list[str], recorder: Recorder) -> Make:
    def made(**options: Any) -> Dumps:
        trace: Any = Trace()
        recording: Any = recorder
        return Dumps(trace, recording, DumpOptions(tmp_path, say=said.append, **options))

    return made


def page(*words: str) -> Callable[[Path], Command]:
    def made(dump: Path) -> Command:
        command = [sys.executable, "-I", "-c", *(words or (GREETING,)), str(dump)]
        return Command(command, f"the page of {dump}", f"its page is {dump.with_suffix('.html')}")

    return made


def files(folder: Path, end: str) -> list[str]:
    return sorted(one.name for one in folder.glob(f"*{end}"))


def test_two_at_once_have_names_of_their_own(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "wptrace-20261127-120000")
    one = make()
    one.dump()
    one.dump()
    (tmp_path / "wptrace-20261127-120000-2.wpt").symlink_to("elsewhere")
    one.dump()
    names = [f"wptrace-20261127-120000{end}.wpt" for end in ("", "-1", "-2", "-3")]
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(names)
    assert not (tmp_path / "elsewhere").exists()


def test_of_a_failure_nothing_is_left_and_the_next_one_may_be_written(
    make: Make, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    one = make(page=page())
    for failure in (OSError(28, "No space left on device"), WptraceError("its folder is gone")):
        recorder.failure = failure
        one.dump()
    assert [words.partition(": ")[0] for words in said] == ["the recorder could not be written"] * 2
    assert (files(tmp_path, ".wpt"), files(tmp_path, ".html")) == ([], [])
    recorder.failure = None
    one.dump()
    one.end()
    assert len(files(tmp_path, ".wpt")) == len(files(tmp_path, ".html")) == 1


def test_something_slow_is_written_a_second_later_and_so_often_an_hour(
    make: Make, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    one = make(on_slow=True, hourly=2)
    recorder.slow_seen_ns = time.monotonic_ns()
    one.turn(1e9)
    assert files(tmp_path, ".wpt") == []
    for count, expected in ((1, 1), (2, 2), (3, 2)):
        recorder.slow_seen_ns = time.monotonic_ns() - 2 * SECOND
        one._awaited_ns = one._done_ns = 0
        one.turn(1e9 + count)
        # Nothing was slow since the last dump.
        one.turn(1e9 + count + 0.5)
        assert len(files(tmp_path, ".wpt")) == expected
    assert "2 times in the last hour" in said[-1]
    one._done_ns = 0
    one.turn(1e9 + 3700)
    assert len(files(tmp_path, ".wpt")) == 3


def test_a_dump_does_not_wait_until_nothing_is_slow_any_more(
    make: Make, recorder: Recorder, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slow event used to put the dump off for a second, so that there was none as long as a disk was slow."""
    one, clock_ns = make(on_slow=True, hourly=2), 5 * SECOND
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock_ns)
    for quarter in range(40):
        clock_ns += SECOND // 4
        recorder.slow_seen_ns = clock_ns - 1
        one.turn(1e9 + quarter / 4)
        if quarter < 4:
            assert files(tmp_path, ".wpt") == []
    assert len(files(tmp_path, ".wpt")) == 2
    assert [words for words in said if "no more for now" in words] == said[2:]
    assert len(said) == 3


def test_while_a_disk_stays_slow_half_of_each_dump_is_new(
    make: Make, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, clock_ns = make(on_slow=True), 100 * SECOND
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock_ns)
    recorder.span_ns = 30 * SECOND
    written: list[float] = []
    for quarter in range(200):
        clock_ns += SECOND // 4
        recorder.slow_seen_ns = clock_ns - 1
        one.turn(1e9 + quarter / 4)
        if len(files(tmp_path, ".wpt")) > len(written):
            written.append(quarter / 4)
    assert [later - sooner for sooner, later in zip(written, written[1:])] == [15.0, 15.0, 15.0]


def test_what_is_slow_right_before_the_end_is_written(make: Make, recorder: Recorder, tmp_path: Path) -> None:
    for on_slow, expected in ((False, 0), (True, 1)):
        one = make(on_slow=on_slow)
        recorder.slow_seen_ns = time.monotonic_ns()
        one.end()
        assert len(files(tmp_path, ".wpt")) == expected
    one = make(on_slow=True)
    one.dump()
    recorder.slow_seen_ns = one._done_ns - 1
    one.end()
    assert len(files(tmp_path, ".wpt")) == 2


def test_what_is_slow_while_a_dump_is_written_starts_none(make: Make, recorder: Recorder, tmp_path: Path) -> None:
    """The dump itself may have caused it."""
    one = make(on_slow=True)
    one.dump()
    recorder.slow_seen_ns = one._done_ns - 1
    time.sleep(0.01)
    one.turn(1e9)
    assert len(files(tmp_path, ".wpt")) == 1


def test_pages_are_made_one_after_another_and_the_trace_goes_on(make: Make, said: list[str], tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n{GREETING}"
    one = make(page=page(waits))
    assert one.due == float("inf")
    one.dump()
    one.dump()
    assert len(files(tmp_path, ".wpt")) == 2
    assert files(tmp_path, ".html") == []
    assert one.due < time.monotonic() + 1
    assert one._pages._running is not None
    running = one._pages._running.process
    assert os.getpriority(os.PRIO_PROCESS, running.pid) == 19
    # The command does not get signals that a terminal sends to the whole job.
    assert os.getsid(running.pid) != os.getsid(0)
    go.touch()
    one.end()
    assert len(files(tmp_path, ".html")) == 2
    pages = [words for words in said if "its page is" in words]
    assert sorted(pages) == sorted(f"its page is {tmp_path / name}" for name in files(tmp_path, ".html"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("import sys; sys.exit('wptrace: the disk is full\\nhint: x')", "the disk is full"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with -9"),
    ],
)
def test_a_page_that_cannot_be_made_is_said(make: Make, said: list[str], words: str, why: str) -> None:
    one = make(page=page(words))
    one.dump()
    one.end()
    assert said[-1].endswith(f"failed: {why}")
