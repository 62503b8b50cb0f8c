# SPDX-License-Identifier: Apache-2.0
"""A tool of somebody else that runs beside ours."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kernel.trace import PATIENCE, wait_until
from tests.lab import peers
from wptrace.bpf import loaded


@contextmanager
def running_peer(tool: str, *arguments: str, links: int) -> Iterator[subprocess.Popen[str]]:
    """`links` is how many hooks it attaches to: what it prints stays in its buffer, so the kernel is asked."""
    command = peers.command(tool, *arguments)
    known = len(list(loaded.links()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            wait_until(
                lambda: len(list(loaded.links())) >= known + links or process.poll() is not None, f"{tool} to attach"
            )
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    """What it has to say at the end."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE)[0]
