# SPDX-License-Identifier: Apache-2.0
"""The history is complete and bounded, and a failure costs only a part of it."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from tests.unit.agent.conftest import play, stall
from tests.unit.capture.test_folder import counted, intervals
from tests.unit.engine.conftest import Time
from tests.unit.engine.test_run import Fake
from tests.unit.outputs.samples import SECOND, distribution, report, start
from wptrace.agent.history import History
from wptrace.capture import channel
from wptrace.capture.writer import About, CaptureOutput
from wptrace.engine.session import Session
from wptrace.errors import WptraceError
from wptrace.flows.io.block import REQUEST
from wptrace.model.report import Report


def kept(session: Session, clock: Time, folder: Path, said: list[str], keep: int = 1 << 30) -> History:
    made = History(session.traces[0], folder, keep, 10.0, clock.now, said.append, [folder.name])
    session.traces[0].subscribe(made)
    return made


def total(session: Session) -> int:
    flow = session.traces[0].flow
    assert isinstance(flow, Fake)
    (first,) = session.traces[0].first.cells.values()
    return flow.cell["total"].count - first["total"].count


def test_all_is_in_it_from_the_first_second_to_the_last(
    session: Session, clock: Time, tmp_path: Path, said: list[str]
) -> None:
    kept(session, clock, tmp_path / "io", said)
    play(session, clock, 4000.0)
    assert len(list((tmp_path / "io").iterdir())) == 2
    session.end()
    assert counted(tmp_path / "io") == total(session)
    assert said == []
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "io").iterdir()} == {0o600}


def test_another_folder_goes_on_where_the_one_before_ends(
    session: Session, clock: Time, tmp_path: Path, said: list[str]
) -> None:
    (trace,) = session.traces
    before = kept(session, clock, tmp_path / "a", said)
    play(session, clock, 25.0)
    before.change(1 << 30, 2.0, clock.now)
    assert before.due <= clock.now + 2.0
    play(session, clock, 33.0)
    before.end()
    trace.unsubscribe(before)
    after = History(trace, tmp_path / "b", 1 << 30, 10.0, clock.now, said.append, ["a", "b"], before.last)
    trace.subscribe(after)
    play(session, clock, 60.0)
    session.end()
    assert counted(tmp_path / "a") + counted(tmp_path / "b") == total(session)
    assert counted(tmp_path / "b") > 0


def test_after_a_stall_no_interval_is_tiny(session: Session, clock: Time, tmp_path: Path, said: list[str]) -> None:
    kept(session, clock, tmp_path / "io", said)
    stall(clock, 12.0, 29.996)
    play(session, clock, 39.0)
    session.end()
    lengths = [one.duration_ns / SECOND for one in intervals(tmp_path / "io")]
    assert lengths[:3] == [10.0, 19.996, 10.0]


def test_the_oldest_make_room(clock: Time, tmp_path: Path, said: list[str]) -> None:
    session, folder = Session([Fake(clock, [])], history_s=60.0), tmp_path / "io"
    session.start()
    kept(session, clock, folder, said, keep=64 << 10)
    known: list[str] = []
    for hour in range(1, 7):
        play(session, clock, hour * 3600.0)
        names = sorted(path.name for path in folder.iterdir())
        known += [name for name in names if name not in known]
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 64 << 10
    # The newest files are left.
    assert names == known[-len(names) :]
    assert len(known) > len(names)
    (folder / "notes.txt").write_text("mine")
    play(session, clock, 8 * 3600.0)
    assert (folder / "notes.txt").exists()


def test_what_a_clock_dated_that_was_ahead_makes_room_first(
    session: Session, clock: Time, tmp_path: Path, said: list[str]
) -> None:
    """Until then, each hour would go for the next one."""
    folder = tmp_path / "io"
    folder.mkdir()
    for year in (2020, 2021, *range(2090, 2110)):
        (folder / f"{year}0101-000000Z-00.wpt").write_bytes(bytes(4 << 10))
    kept(session, clock, folder, said, keep=64 << 10)
    left = sorted(path.name[:4] for path in folder.iterdir())
    assert left[:2] == ["2020", "2021"]
    assert left[-1] == "2109"
    assert len(left) == 15 + 1


def test_what_is_not_ours_stays_and_stops_nothing(clock: Time, tmp_path: Path, said: list[str]) -> None:
    session, folder = Session([Fake(clock, [])], history_s=60.0), tmp_path / "io"
    session.start()
    folder.mkdir()
    (folder / "0mine.wpt").write_bytes(bytes(128 << 10))
    (folder / "00000000-old.wpt").mkdir()
    (folder / "20200101-000000Z-00.wpt").mkdir()
    (folder / "20200101-000001Z-00.wpt").symlink_to(tmp_path / "none")
    before = {path.name for path in folder.iterdir()}
    kept(session, clock, folder, said, keep=64 << 10)
    play(session, clock, 1000.0)
    assert said == []
    assert before < {path.name for path in folder.iterdir()}
    assert sum(path.stat().st_size for path in folder.glob("*Z-*.wpt") if path.is_file()) <= 64 << 10


def test_flows_that_are_no_longer_traced_make_room_too(
    session: Session, clock: Time, tmp_path: Path, said: list[str]
) -> None:
    for name in ("irqoff", "size"):
        (tmp_path / name).mkdir()
        for number in range(8):
            (tmp_path / name / f"20200101-00000{number}Z-00.wpt").write_bytes(bytes(128 << 10))
    (trace,) = session.traces
    # One of two that are traced, with half of 1 MiB each: the other makes its room itself.
    History(trace, tmp_path / "io", 512 << 10, 10.0, clock.now, said.append, ["io", "size"])
    left = sorted(path.name for path in (tmp_path / "irqoff").iterdir())
    assert left == [f"20200101-00000{number}Z-00.wpt" for number in range(1, 8)]
    assert len(list((tmp_path / "size").iterdir())) == 8
    assert said == []


def test_a_full_disk_costs_history_and_nothing_else(
    session: Session, clock: Time, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(session, clock, tmp_path / "io", said)
    write, full = CaptureOutput.interval, [False]

    def interval(output: CaptureOutput, found: object) -> None:
        if full[0]:
            raise WptraceError("it cannot be written: No space left on device")
        write(output, found)  # type: ignore[arg-type]

    monkeypatch.setattr(CaptureOutput, "interval", interval)
    play(session, clock, 100.0)
    full[0] = True
    play(session, clock, 400.0)
    assert said == ["the history of fake has a gap: it cannot be written: No space left on device"] * 5
    full[0] = False
    play(session, clock, 600.0)
    session.end()
    # The gap ends with the last attempt.
    assert 0 < counted(tmp_path / "io") < total(session)
    assert len(said) == 5


def test_while_the_disk_does_not_answer_an_interval_grows(
    session: Session, clock: Time, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traces go on, nothing piles up, and nothing is missing afterwards."""
    history = kept(session, clock, tmp_path / "io", said)
    write, answers = CaptureOutput.interval, threading.Event()

    def interval(output: CaptureOutput, found: Report) -> None:
        answers.wait(60)
        write(output, found)

    monkeypatch.setattr(CaptureOutput, "interval", interval)
    answers.set()
    play(session, clock, 100.0)
    answers.clear()
    play(session, clock, 400.0)
    assert history.waits_s == 290.0
    assert said == ["intervals of the history of fake wait for their disk, for 30 s so far"]
    answers.set()
    assert history._disk.finish(10.0)
    play(session, clock, 600.0)
    session.end()
    assert counted(tmp_path / "io") == total(session)
    assert max(one.duration_ns for one in intervals(tmp_path / "io")) >= 290 * SECOND
    assert said[1:] == ["intervals of the history of fake go on: they have waited 290 s for their disk"]


def test_the_end_does_not_wait_for_long(
    session: Session, clock: Time, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wptrace.agent.history.AT_END_S", 0.05)
    history = kept(session, clock, tmp_path / "io", said)
    answers = threading.Event()
    monkeypatch.setattr(CaptureOutput, "interval", lambda *_: answers.wait(60))
    play(session, clock, 20.0)
    session.end()
    history.close()
    assert said == ["the history of fake has no end: its disk does not answer"]
    answers.set()


def test_a_disk_that_stays_full_gets_no_file_a_minute(
    session: Session, clock: Time, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may be made where there is no room for its first byte; a replay reads at most 10,000."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kept(session, clock, tmp_path / "io", said)
    play(session, clock, 100.0)
    before = list((tmp_path / "io").iterdir())
    monkeypatch.setattr(channel, "write", full)
    play(session, clock, 600.0)
    assert len(said) > 5
    assert list((tmp_path / "io").iterdir()) == before


def test_a_day_of_a_disk_takes_less_than_15_megabytes(tmp_path: Path) -> None:
    """The interval is 10 s; reads and writes spread over four powers of two."""
    rng = random.Random(5)  # noqa: S311
    output = CaptureOutput(tmp_path / "x.wpt", About("stages"))
    output.start(start())
    count = 60
    for _ in range(count):
        cells = {}
        for op, middle in (("read", 11.5), ("write", 13.0)):
            times = [int(rng.lognormvariate(middle, 0.4)) for _ in range(1500)]
            queued = [time // 9 for time in times]
            cells[REQUEST.group("nvme0n1", op)] = {
                "queue": distribution(queued),
                "device": distribution(map(int.__sub__, times, queued)),
                "total": distribution(times),
            }
        output.interval(report(cells, duration_ns=10 * SECOND))
    output.close()
    assert (tmp_path / "x.wpt").stat().st_size / count * 8640 < 15_000_000
