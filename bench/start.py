# SPDX-License-Identifier: Apache-2.0
"""The cost of a start until everything is attached: time, CPU, memory, and the verifier's share for each program.

The package is compiled first, as in an installation.
"""

from __future__ import annotations

import compileall
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.kernel.disks import loop_device
from wptrace.bpf import trial
from wptrace.bpf.lib import log
from wptrace.bpf.ring import Reader
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow

Found = dict[str, Any]

MODES: tuple[tuple[str, ...], ...] = (
    ("io",),
    ("io", "--interference"),
    ("io", "--level", "block", "--times", "kernel"),
    ("io", "--level", "block", "--times", "own"),
    ("size",),
    ("stacks",),
)
_FLOWS = [Path(__file__).parent / "flows" / name for name in ("three.toml", "eight.toml")]


class Start(NamedTuple):
    seconds: float
    cpu: float
    """CPU time of these seconds."""
    peak_kib: int


def once(device: str, mode: tuple[str, ...]) -> Start:
    begin = time.monotonic()
    command = [sys.executable, "-m", "wptrace", *mode, "--json"]
    if mode[0] != "flow":
        command += ["--dev", device]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first line comes when everything is attached
        seconds = time.monotonic() - begin
        status = Path(f"/proc/{process.pid}/status").read_text()
        # In nanoseconds; there is only one thread.
        cpu = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return Start(seconds, cpu, int(found[1]) if found else 0)


def verified(device: str, runs: int) -> list[Found]:
    """Return for each program of `wptrace io` the cost of loading it alone, less that of the cheapest."""
    # libbpf's messages about refused ways are of no interest here.
    log.setLevel(logging.ERROR)
    options = Options((device,))
    flow = PathFlow(options)
    flow.start(Reader())
    counts = {program.name: program.statistics().verified_instructions for program in flow._running.programs}
    flow.stop()
    flow.close()
    seconds = {name: min(_load_s(options, name) for _ in range(runs)) for name in counts}
    least = min(seconds.values())
    found = [
        {"program": name, "verified": count, "cpu_ms": (seconds[name] - least) * 1000} for name, count in counts.items()
    ]
    return sorted(found, key=lambda one: -one["cpu_ms"])


def _load_s(options: Options, program: str) -> float:
    flow = PathFlow(options)
    with trial.open_here(flow.object) as obj:
        for one in obj.progs.values():
            one.autoload = one.name == program
        flow._prepare(obj)
        begin = time.process_time()
        obj.load()
        seconds = time.process_time() - begin
    flow.close()
    return seconds


def measure(runs: int) -> Found:
    compileall.compile_dir(str(Path(__file__).parents[1] / "wptrace"), quiet=1)
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as folder, loop_device(Path(folder, "disk.img")) as disk:
        flows = []
        for flow in _FLOWS:
            # A definition names no disks; these follow what this process begins, which is nothing.
            own = Path(folder, flow.name)
            begins = 'key = "bio"\n'
            own.write_text(flow.read_text().replace(begins, f'{begins}filter = "task.tgid == {os.getpid()}"\n', 1))
            flows.append(("flow", str(own)))
        for mode in (*MODES, *flows):
            results = [once(disk.path, mode) for _ in range(runs)]
            one = {
                "mode": " ".join(Path(word).name for word in mode),
                "runs": runs,
                "median_s": statistics.median(result.seconds for result in results),
                "worst_s": max(result.seconds for result in results),
                "cpu_s": statistics.median(result.cpu for result in results),
                "peak_mib": max(result.peak_kib for result in results) / 1024,
            }
            found.append(one)
            print(
                f"wptrace {one['mode']}: {one['median_s']:.3f} s to attached (worst of {runs}: {one['worst_s']:.3f} s),"
                f" {one['cpu_s']:.3f} s of CPU, {one['peak_mib']:.1f} MiB at most",
                flush=True,
            )
        programs = verified(disk.path, min(runs, 5))
    for one in programs:
        print(f"{one['program']}: {one['verified']} instructions verified, {one['cpu_ms']:.1f} ms")
    return {"starts": found, "programs": programs}
