# SPDX-License-Identifier: Apache-2.0
"""Waits for processes and threads, with a limit: a test that waits too long fails and says what for."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, AnyStr

from tests.kernel.trace import PATIENCE


@contextmanager
def guarded(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill a process if the block takes too long, so that a reader of its output finds the end."""
    guard = threading.Timer(PATIENCE, process.kill)
    guard.daemon = True
    guard.start()
    try:
        yield
    finally:
        guard.cancel()


def said(process: subprocess.Popen[AnyStr]) -> AnyStr:
    """Return the next line of a process."""
    assert process.stdout is not None
    with guarded(process):
        line = process.stdout.readline()
    assert line, f"waited in vain for a line of {process.args!r}"
    return line


def rest(process: subprocess.Popen[AnyStr]) -> list[AnyStr]:
    """Return all lines that a process writes until its end."""
    assert process.stdout is not None
    with guarded(process):
        return list(process.stdout)


def joined(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), f"waited in vain for the end of {thread.name}"


def reaped(pid: int) -> int:
    """Wait for a child and return its status."""
    fd = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([fd], [], [], PATIENCE)
    finally:
        os.close(fd)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    assert ended, f"waited in vain for the end of process {pid}"
    return os.waitpid(pid, 0)[1]
