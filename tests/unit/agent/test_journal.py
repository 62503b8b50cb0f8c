# SPDX-License-Identifier: Apache-2.0
"""Lines for a journal that takes none for a while, as where its disk does not answer."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress

import pytest

from tests.unit.engine.conftest import Time
from tests.unit.engine.test_run import Collected
from tests.unit.outputs.samples import request
from wptrace.agent import journal as module
from wptrace.agent.journal import Lines, say
from wptrace.engine.run import RunOptions
from wptrace.engine.session import Session
from wptrace.model.report import Event


class Shown(Collected):
    def event(self, event: Event) -> None:
        print(event.total_ns, flush=True)


def drained(journal: socket.socket) -> bytes:
    """What has come so far."""
    found = b""
    journal.setblocking(False)
    with suppress(BlockingIOError):
        while more := journal.recv(1 << 20):
            found += more
    return found


def test_a_journal_that_takes_nothing_holds_nobody_up(
    session: Session, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines(session.traces[0], Shown([]), RunOptions(), clock.now)
    journal, ours = socket.socketpair()
    # A write that waits fails after a minute.
    ours.settimeout(60.0)
    with journal, ours, ours.makefile("w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        patched.setattr(sys, "stderr", stream)
        patched.setattr(module, "_AT_END_S", 0.1)
        lines.events([request()])
        assert drained(journal) == b"4000000\n"
        begin = time.perf_counter()
        with suppress(BlockingIOError):
            while True:
                os.write(ours.fileno(), b"x" * 4096)
        lines.events([request()] * 3)
        lines.list_in_flight()
        say("nobody reads this")
        lines.end()
        assert time.perf_counter() - begin < 30
        assert set(drained(journal)) == set(b"x")
        lines.events([request()])
        assert drained(journal) == b"4000000\nwptrace: 3 slow events of fake are not shown: nobody read their lines\n"
