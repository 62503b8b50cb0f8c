# SPDX-License-Identifier: Apache-2.0
"""How long `wptrace io` takes from its start until its programs are attached, and how much memory it holds then."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.kernel.disks import loop_device

Found = dict[str, Any]

MODES: tuple[tuple[str, ...], ...] = (
    ("io",),
    ("io", "--interference"),
    ("io", "--level", "block", "--times", "kernel"),
    ("io", "--level", "block", "--times", "own"),
)
_FLOWS = [Path(__file__).parent / "flows" / name for name in ("three.toml", "eight.toml")]


def once(device: str, mode: tuple[str, ...]) -> tuple[float, int]:
    """Seconds, and KiB."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "wptrace", *mode, "--json"]
    if mode[0] != "flow":
        command += ["--dev", device]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first line comes when everything is attached
        seconds = time.monotonic() - begin
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return seconds, int(found[1]) if found else 0


def measure(runs: int) -> list[Found]:
    found = []
    with tempfile.TemporaryDirectory() as folder, loop_device(Path(folder, "disk.img")) as disk:
        flows = []
        for flow in _FLOWS:
            # A definition names no disks: these follow what this process begins, and that is nothing.
            own = Path(folder, flow.name)
            begins = 'key = "bio"\n'
            own.write_text(flow.read_text().replace(begins, f'{begins}filter = "task.tgid == {os.getpid()}"\n', 1))
            flows.append(("flow", str(own)))
        for mode in (*MODES, *flows):
            results = [once(disk.path, mode) for _ in range(runs)]
            seconds = [result[0] for result in results]
            one = {
                "mode": " ".join(Path(word).name for word in mode),
                "runs": runs,
                "median_s": statistics.median(seconds),
                "worst_s": max(seconds),
                "resident_mib": max(result[1] for result in results) / 1024,
            }
            found.append(one)
            print(
                f"wptrace {one['mode']}: {one['median_s']:.3f} s to attached (worst of {runs}: {one['worst_s']:.3f} s),"
                f" {one['resident_mib']:.1f} MiB resident",
                flush=True,
            )
    return found
