# SPDX-License-Identifier: Apache-2.0
"""The state of the agent, in words and in time."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.unit.agent.conftest import play
from tests.unit.engine.conftest import Time
from wptrace.agent.notify import Notify
from wptrace.agent.state import Status, Watchdog, words
from wptrace.engine.session import Session


def missing(monkeypatch: pytest.MonkeyPatch, session: Session, found: dict[str, str]) -> None:
    monkeypatch.setattr(type(session.traces[0].flow), "missing", found)


def test_it_says_what_is_traced(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, session, {})
    assert words(session.traces) == "tracing fake"
    session.traces[0].flow.level = "block"
    assert words(session.traces) == "tracing fake (level block)"
    waits = {"dumps": 0.0, "histories": 71.4}
    assert words(session.traces, waits=waits) == "tracing fake (level block); histories wait for their disk (71 s)"


def test_it_is_degraded_where_hooks_are_missing_and_says_which_and_why(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(monkeypatch, session, {"bio split in two": "there is no tracepoint block_split"})
    assert words(session.traces) == (
        "degraded: tracing fake without bio split in two (there is no tracepoint block_split)"
    )
    missing(monkeypatch, session, {f"hook {number}": "refused" for number in range(9)})
    assert words(session.traces).endswith("hook 3 (refused); and 5 more")


def test_systemd_hears_of_it_in_time(
    session: Session, clock: Time, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing(monkeypatch, session, {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        notify = Notify({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
        status = Status(session.traces, notify, clock.now, lambda: words(session.traces))
        for consumer in (status, Watchdog(notify, clock.now)):
            session.traces[0].subscribe(consumer)
        play(session, clock, 100.0)
        session.end()
        notify.close()
        heard = []
        for _ in range(7):
            heard.append(systemd.recv(200).decode())
        with pytest.raises(BlockingIOError):
            systemd.recv(200)
    assert heard.count("WATCHDOG=1") == 6
    (said,) = set(heard) - {"WATCHDOG=1"}
    assert said.startswith("STATUS=tracing fake; ")
    assert " requests, 0 lost" in said
