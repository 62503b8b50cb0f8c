# SPDX-License-Identifier: Apache-2.0
"""Loss by rate: reads of cached pages, each reported by a line, with a ring of the default size.

The pages are cached because a request of a disk costs more than its record; the record is the same. The reader has a
CPU of its own. It is measured by itself, and as the command that writes JSON lines to a file. Reader and load run in
real time, so that other processes do not disturb the measurement.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

from tests.kernel.disks import Disk, loop_device
from tests.kernel.trace import ROOT, wait_until
from wptrace.bpf.ring import Reader
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import REQUESTS

Found = dict[str, Any]
RATES = (12_500, 25_000, 50_000, 100_000, 200_000, 400_000)
_SECONDS = 4
_BURST = 100
# Roughly the time of a read and of the end of its pause. The real rate is printed.
_TAKES_S = 3.5e-6
_CPUS = sorted(os.sched_getaffinity(0))


def _offer(disk: Disk, rate: int, took_s: float) -> tuple[int, float]:
    """Make reads, and return their number and the real rate, which may be lower than requested.

    The reads come in bursts with pauses: fio's own rates would make up for missed reads in an endless burst.
    """
    pause_us = max(round(1e6 * _BURST * (1 / rate - took_s)), 1)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        settings = {
            "name": "job",
            "filename": disk.path,
            "rw": "read",
            "bs": "4k",
            "size": "32M",
            "io_size": rate * _SECONDS * 4096,
            "thinktime": pause_us,
            "thinktime_blocks": _BURST,
            "ioengine": "psync",
            "invalidate": 0,
            "gtod_reduce": 1,
            "cpus_allowed": _CPUS[0],
        }
        words = [
            "--output-format=json",
            f"--output={report.name}",
            *(f"--{key}={val}" for key, val in settings.items()),
        ]
        subprocess.run(["fio", *words], check=True, stdout=subprocess.DEVNULL)
        read = json.load(report)["jobs"][0]["read"]
    return read["total_ios"], read["iops"]


def _alone(disk: Disk, rate: int) -> Found:
    """Only decode and join the records."""
    flow = PathFlow(Options(devices=(disk.name,), slow_ns=0))
    over = Event()
    reported = 0
    reader = Reader()
    flow.start(reader)
    flow.begin()
    made: list[tuple[int, float]] = []

    def offer() -> None:
        try:
            made.append(_offer(disk, rate, _TAKES_S))
        finally:
            over.set()

    offering = Thread(target=offer)
    busy = time.thread_time()
    try:
        offering.start()
        while not over.is_set():
            reader.wait(1.0)
            reader.drain()
            reported += sum(1 for _ in flow.events())
        offering.join()
        flow.stop()
        reader.drain()
        reported += sum(1 for _ in flow.events())
        busy = time.thread_time() - busy
        found = flow.snapshot()
        ring = flow._ring
        assert ring is not None
        peak = ring.peak
    finally:
        flow.close()
    lost = sum(count for cause, count in found.books[REQUESTS].noted.items() if cause.name == "ring_full")
    return _result("reader alone", rate, *made[0], reported, lost, busy, peak)


def _command(disk: Disk, rate: int) -> Found:
    return _written("io --each --json", disk, rate)


def _capture(disk: Disk, rate: int) -> Found:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as capture:
        return _written("io --each --capture", disk, rate, "--capture", capture.name)


def _written(name: str, disk: Disk, rate: int, *more: str) -> Found:
    with tempfile.NamedTemporaryFile("r", dir="/dev/shm") as output:
        words = ["io", "--each", "--dev", disk.name, "--json", "-o", output.name, *more]
        command = [sys.executable, "-m", "wptrace", *words]
        with subprocess.Popen(command, cwd=ROOT) as process:
            wait_until(lambda: Path(output.name).stat().st_size or process.poll() is not None, "the first line")
            made, speed = _offer(disk, rate, _TAKES_S)
            process.send_signal(signal.SIGINT)
            process.wait()
        reported = 0
        line = ""
        for line in output:
            reported += line.startswith(('{"kind":"hit"', '{"kind":"operation"'))
    summary = json.loads(line)
    return _result(
        # There are no lines for captured records.
        *(name, rate, made, speed, reported or summary["overhead"]["records"], summary["loss"].get("ring_full", 0)),
        *(summary["overhead"]["reader_cpu_ns"] / 1e9, 0.0),
    )


def _result(how: str, rate: int, made: int, speed: float, reported: int, lost: int, busy: float, peak: float) -> Found:
    one = {
        "how": how,
        "wanted_per_s": rate,
        "offered_per_s": speed,
        "offered": made,
        "told": reported,
        "lost": lost,
        "reader_cpu_s": busy,
        "ring_peak": peak,
    }
    print(
        f"{how}: {rate:,} a second wanted, {speed:,.0f} offered, {made} in all: {reported} told, {lost} lost;"
        f" {busy:.2f} s of CPU" + (f", ring {peak:.0%} full at most" if peak else ""),
        flush=True,
    )
    return one


def measure(rates: Sequence[int] = RATES) -> list[Found]:
    found = []
    os.sched_setaffinity(0, _CPUS[-1:])
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        loop_device(Path(folder, "disk.img")) as disk,
        # Keep it open, because the last close drops the pages.
        Path(disk.path).open("rb") as held,
    ):
        while held.read(1 << 20):
            pass
        for measured in (_alone, _command, _capture):
            for rate in rates:
                found.append(measured(disk, rate))
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, _CPUS)
    return found
