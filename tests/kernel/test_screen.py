# SPDX-License-Identifier: Apache-2.0
"""The live screen of a real trace, in a terminal with real keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.kernel.disks import Disk
from tests.kernel.trace import commands
from tests.terminal import Terminal

pytestmark = pytest.mark.one_kernel


@pytest.fixture
def busy(disk: Disk) -> Iterator[Disk]:
    """A disk that a process named dd reads all the time."""
    loop = f"while :; do dd if={disk.path} of=/dev/null iflag=direct bs=4k count=200 status=none; done"
    process = subprocess.Popen(["sh", "-c", loop], start_new_session=True)
    yield disk
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_keys_on_a_real_trace_at_three_sizes(busy: Disk) -> None:
    commands.append("io")
    command = [
        sys.executable,
        "-m",
        "wptrace",
        "io",
        "--level=path",
        f"--dev={busy.name}",
        "--by=comm",
        "--neighbours",
        "--slow=1us",
    ]
    with Terminal([*command, "0.5"]) as terminal:
        terminal.wait_for("block requests by comm")
        assert not terminal.echoes
        for columns, lines in ((80, 24), (120, 40), (200, 50)):
            terminal.resize(columns, lines)
            # The keys arrive before the size of the terminal.
            terminal.send("d", "?", "x", "tab")
            terminal.wait_for("    |")
            terminal.wait_for(busy.path)
            terminal.send("esc")
            terminal.wait_for(f"{busy.name} read: ")
            terminal.wait_for("meanwhile")
            assert terminal.shows(f"devices: {busy.name} ")
            assert terminal.shows("verdict: ")
            terminal.wait_for("dd (4 KiB reads)")
            terminal.send("/", "nobody like this", "enter")
            terminal.wait_without("dd (4 KiB reads)")
            terminal.send("d", "/", "dd", "enter", "down")
            terminal.wait_for("> read dd operations")
            terminal.send("/", "block req", "enter", "home")
            terminal.wait_for("> read requests")
            terminal.send("enter", "right")
            terminal.wait_for(" in this interval:")
            assert terminal.shows("throttle") or terminal.shows("took no time")
            terminal.send("esc", "esc", "/", "esc", "b", "b")
            terminal.wait_for("by comm")
            terminal.send("b", "b")
            terminal.wait_without("by nothing")
            assert max(map(len, terminal.screen.lines)) <= columns
        terminal.send("q")
        assert terminal.end() == 0
        assert "Traceback" not in terminal.raw
        assert terminal.settings == terminal.before
        assert terminal.screen.cursor
        # The counts are right even though keys were handled meanwhile.
        assert terminal.shows("finished + 0 in flight + 0 lost")
