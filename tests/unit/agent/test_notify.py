# SPDX-License-Identifier: Apache-2.0
"""Messages to systemd, received by a socket like its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wptrace.agent.notify import Notify


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def test_it_is_told_by_lines(systemd: socket.socket) -> None:
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname()})
    notify.send("READY=1", "STATUS=tracing io")
    notify.status("a\nREADY=0 \udcff")
    notify.close()
    assert systemd.recv(100) == b"READY=1\nSTATUS=tracing io"
    assert systemd.recv(100) == b"STATUS=a READY=0 ?"


def test_an_abstract_socket_begins_with_an_at() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0wptrace-test-{os.getpid()}")
        notify = Notify({"NOTIFY_SOCKET": f"@wptrace-test-{os.getpid()}"})
        notify.send("READY=1")
        notify.close()
        assert listening.recv(100) == b"READY=1"


@pytest.mark.parametrize("where", ["", "relative", "/nowhere/at/all", "/" + "x" * 200, "vsock:2:1"])
def test_nobody_listens(where: str) -> None:
    notify = Notify({"NOTIFY_SOCKET": where} if where else {})
    notify.send("READY=1")
    notify.close()


def test_a_listener_that_does_not_read_holds_nobody_up(systemd: socket.socket) -> None:
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname()})
    for _ in range(2000):
        notify.send("STATUS=" + "x" * 1000)
    notify.close()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, 0.1),
    ],
)
def test_the_watchdog_is_for_this_process(
    systemd: socket.socket, environment: dict[str, str], wanted: float | None
) -> None:
    notify = Notify({"NOTIFY_SOCKET": systemd.getsockname(), **environment})
    notify.close()
    assert notify.watchdog_s == wanted
