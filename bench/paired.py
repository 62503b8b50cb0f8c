# SPDX-License-Identifier: Apache-2.0
"""A load with and without tracing in turn, on the running kernel, and the ratio of both with its confidence interval.

Only a loop device is traced. The load runs in real time, so that other processes disturb it less.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Callable, NamedTuple

from tests.kernel.disks import Disk, fio, loop_device
from tests.kernel.trace import ROOT, wait_until

Found = dict[str, Any]
_RESAMPLES = 4000
_REQUESTS = 20_000
_PIECES = 300_000

MODES: tuple[tuple[str, ...], ...] = (
    ("io", "--level", "path"),
    ("io", "--level", "path", "--interference"),
    ("io", "--level", "path", "--each"),
    ("io", "--level", "request"),
    ("io", "--level", "block", "--times", "kernel"),
    ("io", "--level", "block", "--times", "own"),
    ("stacks",),
)


class Work(NamedTuple):
    name: str
    run: Callable[[Disk], float]
    """Does it once; nanoseconds a piece."""


def _requests(disk: Disk) -> float:
    """Return the median, because anything that takes the CPU of the loop device's worker changes the mean."""
    job = fio(disk.path, rw="randread", number_ios=_REQUESTS, io_size=_REQUESTS * 4096, randseed=1)
    return float(job["read"]["clat_ns"]["percentile"]["50.000000"])


def _queued(disk: Disk) -> float:
    """Return the whole time of the best run, because requests overlap."""
    options = {"rw": "randread", "ioengine": "libaio", "iodepth": 32, "number_ios": _REQUESTS, "randseed": 1}
    return min(float(fio(disk.path, **options)["read"]["runtime"]) for _ in range(3)) * 1e6 / _REQUESTS


def _tree(_disk: Disk) -> float:
    """Open, read and close small cached files; return the best time for a file."""
    folders = [ROOT / name for name in ("wptrace", "tests", "docs", "bpf_src")]
    command = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), "grep", "-rc", "no such line"]
    times, files = [], 0
    for _ in range(4):
        begin = time.monotonic_ns()
        done = subprocess.run([*command, *map(str, folders)], stdout=subprocess.PIPE, check=False)
        times.append(time.monotonic_ns() - begin)
        files = done.stdout.count(b"\n")
    return min(times) / files


def _calls(_disk: Disk) -> float:
    """Read and write one byte each: two system calls without I/O. Return the best time."""
    command = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", f"count={_PIECES}", "status=none"]
    times = []
    for _ in range(4):
        begin = time.monotonic_ns()
        subprocess.run(["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), *command], check=True)
        times.append(time.monotonic_ns() - begin)
    return min(times) / _PIECES


@cache
def _loop() -> str:
    program = Path(tempfile.mkdtemp(dir="/dev/shm"), "calls")
    subprocess.run(["clang", "-O2", "-o", program, Path(__file__).with_name("calls.c")], check=True)
    atexit.register(shutil.rmtree, program.parent)
    return str(program)


def _bare(call: str) -> Callable[[Disk], float]:
    """Return a load of one system call, because `dd` does other work between its calls."""

    def run(_disk: Disk) -> float:
        command = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), _loop(), call, str(_PIECES)]
        return min(float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(4))

    return run


WORKS = (
    Work("fio psync randread 4k on a loop device", _requests),
    Work("fio libaio randread 4k, depth 32, on a loop device", _queued),
    Work("grep of a tree of small files in the page cache", _tree),
    Work("dd bs=1 from /dev/zero to /dev/null", _calls),
    Work("read of one byte from /dev/zero", _bare("read")),
    Work("getppid", _bare("getppid")),
)


def measure(pairs: int, modes: Sequence[tuple[str, ...]] = MODES, works: Collection[str] = ()) -> list[Found]:
    found = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, loop_device(Path(folder, "disk.img")) as disk:
        Path(disk.path).write_bytes(bytes(64 << 20))
        for work in (work for work in WORKS if not works or work.name in works):
            work.run(disk)
            for mode in modes:
                one = _compare(work, mode, disk, pairs)
                found.append(one)
                low, high = one["interval"]
                print(
                    f"{work.name}, wptrace {' '.join(mode)}: {(one['ratio'] - 1) * 100:+.1f} %"
                    f" ({(low - 1) * 100:+.1f} to {(high - 1) * 100:+.1f} %), {one['without_ns']:.0f} ns without",
                    flush=True,
                )
    return found


def _compare(work: Work, mode: Sequence[str], disk: Disk, pairs: int) -> Found:
    """Measure each pair in another order than the one before, so that drift affects both equally."""
    ratios, without = [], []
    for number in range(pairs):
        times = {}
        for traced in (False, True) if number % 2 else (True, False):
            with _tracing(mode, disk) if traced else nullcontext(), _real_time():
                times[traced] = work.run(disk)
        ratios.append(times[True] / times[False])
        without.append(times[False])
    ratio, low, high = estimate(ratios)
    return {
        "work": work.name,
        "mode": " ".join(mode),
        "pairs": pairs,
        "ratio": ratio,
        "interval": [low, high],
        "without_ns": statistics.median(without),
    }


def estimate(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, on which a few disturbed pairs have no effect, and 95 % of it by the bootstrap."""
    chance = random.Random(1)  # noqa: S311 - the same figures from the same runs
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    return statistics.median(ratios), medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES)]


@contextmanager
def _real_time() -> Iterator[None]:
    """Run what is started meanwhile in real time."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def _tracing(mode: Sequence[str], disk: Disk) -> Iterator[None]:
    with tempfile.NamedTemporaryFile("r", dir="/dev/shm") as output:
        command = [sys.executable, "-m", "wptrace", *mode, "--dev", disk.name, "--json", "-o", output.name]
        with subprocess.Popen(command, cwd=ROOT) as process:
            try:
                wait_until(lambda: Path(output.name).stat().st_size or process.poll() is not None, "the first line")
                if process.poll() is not None:
                    raise RuntimeError(f"wptrace {' '.join(mode)} ended with {process.returncode}")
                yield
                process.send_signal(signal.SIGINT)
                process.wait(60)
            finally:
                process.kill()
