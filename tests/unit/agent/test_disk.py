# SPDX-License-Identifier: Apache-2.0
"""What waits for a disk: nothing else does, nothing piles up, and nobody is told twice."""

from __future__ import annotations

import threading
import weakref

import pytest

from tests.unit.engine.conftest import Time
from wptrace.agent import disk
from wptrace.agent.disk import Disk, Get
from wptrace.errors import WptraceError


class Copy:
    """Something large."""


def test_jobs_run_one_after_another_and_each_is_told_how_it_ended(said: list[str]) -> None:
    one, found = Disk("dumps", said.append), list[object]()

    def fail() -> int:
        raise OSError(28, "No space left on device")

    def then(get: Get[int]) -> None:
        assert threading.current_thread() is threading.main_thread()
        try:
            found.append(get())
        except OSError as error:
            found.append(error.strerror)

    for work in (lambda: 1, fail, lambda: 3):
        one.do(work, then)
    assert one.finish(10.0)
    assert found == [1, "No space left on device", 3]
    assert not one.is_busy
    assert said == []
    one.close()
    assert one._thread is not None
    one._thread.join(10.0)
    assert not one._thread.is_alive()


def test_a_disk_that_does_not_answer_is_waited_for_once(
    clock: Time, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_MOMENT_S", 0.01)
    answers, ends = threading.Event(), list[int]()
    one = Disk("dumps", said.append)
    for number in range(3):
        one.do(lambda: answers.wait(60), lambda get, number=number: ends.append(number))  # type: ignore[misc]
    assert (ends, one.is_busy, one.due, one.waits_s) == ([], True, clock.now + 0.25, 0.0)
    for _ in range(200):
        clock.now = one.due
        one.turn(clock.now)
    assert one.waits_s == pytest.approx(50.0)
    assert said == ["dumps wait for their disk, for 30 s so far"]
    assert not one.finish(0.01)
    answers.set()
    assert one.finish(10.0)
    assert (ends, one.waits_s) == ([0, 1, 2], 0.0)
    assert said[1:] == ["dumps go on: they have waited 50 s for their disk"]
    one.turn(clock.now)
    assert one.due == float("inf")
    one.close()


def test_what_a_job_had_is_gone_when_it_has_ended(said: list[str]) -> None:
    """A copy of a recorder may be the largest thing that there is."""
    one = Disk("dumps", said.append)

    def begin() -> weakref.ref[Copy]:
        copy = Copy()
        one.do(lambda: copy is None, lambda get: None)
        return weakref.ref(copy)

    left = begin()
    assert one.finish(10.0)
    assert left() is None
    one.close()


def test_without_a_thread_a_job_fails_and_the_next_one_tries_again(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one, found = Disk("dumps", said.append), list[int]()
    with monkeypatch.context() as few:
        few.setattr(threading.Thread, "start", refuse)
        with pytest.raises(WptraceError, match="can't start new thread"):
            one.do(lambda: 1, lambda get: found.append(get()))
    one.do(lambda: 2, lambda get: found.append(get()))
    assert one.finish(10.0)
    assert found == [2]
    one.close()
