# SPDX-License-Identifier: Apache-2.0
"""`wptrace agent` on a real kernel: it counts what fio counts, and ends with a summary."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio, total
from tests.kernel.trace import PATIENCE, ROOT, commands

CONFIG = """
[agent]
budget = "100%"
[always.io]
level = "block"
dev = "{dev}"
"""


class Agent:
    """A running one, which has said that it is ready."""

    def __init__(self, folder: Path, text: str) -> None:
        commands.append("agent")
        file = folder / "agent.toml"
        file.write_text(text)
        self._systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._systemd.bind(str(folder / "notify"))
        self._systemd.settimeout(PATIENCE)
        command = [
            "env",
            f"NOTIFY_SOCKET={folder / 'notify'}",
            sys.executable,
            "-m",
            "wptrace",
            "agent",
            "-c",
            str(file),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            self.ready = self._systemd.recv(4096).decode()
        except TimeoutError:
            self.kill()
            raise

    def stop(self) -> tuple[str, str]:
        """What it wrote, and what it said."""
        self.process.send_signal(signal.SIGTERM)
        written, said = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, said
        return written, said

    def kill(self) -> None:
        self._systemd.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def running(folder: Path, text: str) -> Iterator[Agent]:
    agent = Agent(folder, text)
    try:
        yield agent
    finally:
        agent.kill()


@pytest.mark.one_kernel
def test_it_traces_what_the_file_says_until_it_is_ended(disk: Disk, tmp_path: Path) -> None:
    """Two flows at once: each has all requests, and neither those of other devices."""
    text = f'{CONFIG.format(dev=disk.name)}\n[always.size]\ndev = ["{disk.name}"]\n'
    with running(tmp_path, text) as agent:
        made = total(fio(disk.path, rw="randread", number_ios=200))
        written, said = agent.stop()
    assert agent.ready.startswith("READY=1\nSTATUS=tracing io (level block), size")
    assert "wptrace: tracing io (level block), size\n" in said
    of_io, of_size = re.split(r"^Summary of ", written, flags=re.M)[1:]
    for summary in (of_io, of_size):
        (finished,) = re.findall(r"  (\d+) requests in ", summary)
        assert int(finished) == made
    assert re.search(rf"^  4 KiB +{made} +100", of_size, re.M)
