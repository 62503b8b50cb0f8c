# SPDX-License-Identifier: Apache-2.0
"""A load with and without tracing in turn, on the running kernel, and the ratio of both with its confidence interval.

Only a loop device is traced. The load runs in real time, so that other processes disturb it less, and on one CPU with
the loop device's worker: to wake a virtual CPU takes longer than a request. The tracer has another CPU.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

from tests.kernel import postgres
from tests.kernel.disks import Disk, fio, loop_device
from tests.kernel.loads import mounted
from tests.kernel.trace import ROOT, wait_until
from tests.lab import peers

Found = dict[str, Any]
_RESAMPLES = 4000
_REQUESTS = 20_000
_PIECES = 300_000
_INSERTS = 2000
_COMPILED = 20
# pgbench's scale: 100,000 rows each, some 15 MB.
_SCALE = 10
_CLIENTS, _PGBENCH_S = 4, 4
_TRACERS_CPU, _CPU = (sorted(os.sched_getaffinity(0)) * 2)[:2]
_BESIDE = ("taskset", "--cpu-list", str(_TRACERS_CPU))
_WORKERS_CPUS = Path("/sys/devices/virtual/workqueue/cpumask")

BIOLATENCY = "biolatency"
MODES: tuple[tuple[str, ...], ...] = (
    ("io", "--level", "path"),
    ("io", "--level", "path", "--interference"),
    ("io", "--level", "path", "--each"),
    ("io", "--level", "request"),
    ("io", "--level", "block", "--times", "kernel"),
    ("io", "--level", "block", "--times", "own"),
    ("stacks",),
    (BIOLATENCY,),
)


class Place:
    """A loop device, and a folder of a file system on another one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        there = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        self.disk = stack.enter_context(loop_device(there / "disk.img"))
        Path(self.disk.path).write_bytes(bytes(64 << 20))
        self.below = stack.enter_context(loop_device(there / "files.img", "2048M"))
        self.folder = stack.enter_context(mounted(self.below, "ext4", there / "files"))

    @cached_property
    def database(self) -> postgres.Postgres:
        """PostgreSQL with pgbench's tables, which are larger than its buffers: most reads are system calls."""
        settings = {"shared_buffers": "16MB", "shared_preload_libraries": ""}
        found = self._stack.enter_context(postgres.server(self.folder / "postgres", 15, **settings))
        found.pgbench("-i", "-q", "-s", str(_SCALE))
        return found


class Work(NamedTuple):
    name: str
    run: Callable[[Place], float]
    """Does it once; nanoseconds a piece."""
    on_files: bool = False
    """Whether the file system's device is traced."""


def _requests(place: Place) -> float:
    """Return the median of the best run, because anything that takes the CPU changes the mean."""
    options = {"rw": "randread", "number_ios": _REQUESTS, "io_size": _REQUESTS * 4096, "randseed": 1}
    times = (fio(place.disk.path, **options)["read"]["clat_ns"] for _ in range(3))
    return min(float(one["percentile"]["50.000000"]) for one in times)


def _queued(engine: str) -> Callable[[Place], float]:
    """Return a load of many requests at once: the whole time of its best run."""
    options = {"rw": "randread", "ioengine": engine, "iodepth": 32, "number_ios": _REQUESTS, "randseed": 1}

    def run(place: Place) -> float:
        return min(float(fio(place.disk.path, **options)["read"]["runtime"]) for _ in range(3)) * 1e6 / _REQUESTS

    return run


def _inserts(place: Place) -> float:
    """Insert rows, each in a transaction of its own."""
    file = place.folder / "inserts.db"
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        begin = time.monotonic_ns()
        for number in range(_INSERTS):
            database.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 100))
        return (time.monotonic_ns() - begin) / _INSERTS


def _built(place: Place) -> float:
    """Unpack this project's sources and compile some of them; the whole time."""
    folder = place.folder / "built"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    script = (
        f'tar -C {ROOT} -cf - wptrace tests bpf_src docs | tar -C "$0" -xf -\n'
        f'for n in $(seq {_COMPILED}); do gcc -O2 -o "$0/$n" {Path(__file__).with_name("calls.c")}; done\nsync -f "$0"'
    )
    begin = time.monotonic_ns()
    subprocess.run(["sh", "-ec", script, str(folder)], check=True)
    return float(time.monotonic_ns() - begin)


def _pgbench(*options: str) -> Callable[[Place], float]:
    """Return a load of transactions of pgbench: the time for one."""

    def run(place: Place) -> float:
        return place.database.transaction_ns("-c", str(_CLIENTS), "-j", "2", "-T", str(_PGBENCH_S), *options)

    return run


def _tree(_place: Place) -> float:
    """Open, read and close small cached files; return the best time for a file."""
    folders = [ROOT / name for name in ("wptrace", "tests", "docs", "bpf_src")]
    command = ["grep", "-rc", "no such line"]
    times, files = [], 0
    for _ in range(4):
        begin = time.monotonic_ns()
        done = subprocess.run([*command, *map(str, folders)], stdout=subprocess.PIPE, check=False)
        times.append(time.monotonic_ns() - begin)
        files = done.stdout.count(b"\n")
    return min(times) / files


def _calls(_place: Place) -> float:
    """Read and write one byte each: two system calls without I/O. Return the best time."""
    command = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", f"count={_PIECES}", "status=none"]
    times = []
    for _ in range(4):
        begin = time.monotonic_ns()
        subprocess.run(command, check=True)
        times.append(time.monotonic_ns() - begin)
    return min(times) / _PIECES


@cache
def _loop() -> str:
    program = Path(tempfile.mkdtemp(dir="/dev/shm"), "calls")
    subprocess.run(["clang", "-O2", "-o", program, Path(__file__).with_name("calls.c")], check=True)
    atexit.register(shutil.rmtree, program.parent)
    return str(program)


def _bare(call: str) -> Callable[[Place], float]:
    """Return a load of one system call, because `dd` does other work between its calls."""

    def run(_place: Place) -> float:
        command = [_loop(), call, str(_PIECES)]
        return min(float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(4))

    return run


WORKS = (
    Work("fio psync randread 4k on a loop device", _requests),
    Work("fio libaio randread 4k, depth 32, on a loop device", _queued("libaio")),
    Work("fio io_uring randread 4k, depth 32, on a loop device", _queued("io_uring")),
    Work("pgbench, reads only", _pgbench("-S"), True),
    Work("pgbench", _pgbench(), True),
    Work("sqlite, an insert a transaction", _inserts, True),
    Work("tar and gcc", _built, True),
    Work("grep of a tree of small files in the page cache", _tree),
    Work("dd bs=1 from /dev/zero to /dev/null", _calls),
    Work("read of one byte from /dev/zero", _bare("read")),
    Work("getppid", _bare("getppid")),
)


def names() -> Iterator[tuple[str, str]]:
    """Return each load and mode, in the order of the table."""
    return ((work.name, shown(mode)) for work in WORKS for mode in MODES)


def measure(pairs: int, modes: Sequence[tuple[str, ...]], works: Collection[str]) -> Iterator[Found]:
    with _one_cpu(), ExitStack() as stack:
        place = Place(stack)
        for work in (work for work in WORKS if not works or work.name in works):
            work.run(place)
            for mode in modes:
                one = _compare(work, mode, place, pairs)
                low, high = one["interval"]
                print(
                    f"{work.name}, {shown(mode)}: {(one['ratio'] - 1) * 100:+.1f} %"
                    f" ({(low - 1) * 100:+.1f} to {(high - 1) * 100:+.1f} %), {one['without_ns']:.0f} ns without",
                    flush=True,
                )
                yield one


def shown(mode: Sequence[str]) -> str:
    return " ".join(mode if mode == (BIOLATENCY,) else ("wptrace", *mode))


def _compare(work: Work, mode: Sequence[str], place: Place, pairs: int) -> Found:
    """Measure each pair in another order than the one before, so that drift affects both equally."""
    tracing = _biolatency if mode == (BIOLATENCY,) else partial(_tracing, mode)
    disk = place.below if work.on_files else place.disk
    ratios, without = [], []
    for number in range(pairs):
        times = {}
        for traced in (False, True) if number % 2 else (True, False):
            with tracing(disk) if traced else nullcontext(), _real_time():
                times[traced] = work.run(place)
        ratios.append(times[True] / times[False])
        without.append(times[False])
    ratio, low, high = estimate(ratios)
    return {
        "work": work.name,
        "mode": shown(mode),
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
def _one_cpu() -> Iterator[None]:
    """Run what is started meanwhile, and the workers of the kernel that may run anywhere, on one CPU."""
    before, mask = os.sched_getaffinity(0), _WORKERS_CPUS.read_text()
    os.sched_setaffinity(0, {_CPU})
    _WORKERS_CPUS.write_text(f"{1 << _CPU:x}")
    try:
        yield
    finally:
        _WORKERS_CPUS.write_text(mask)
        os.sched_setaffinity(0, before)


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
        command = [*_BESIDE, sys.executable, "-m", "wptrace", *mode, "--dev", disk.name, "--json", "-o", output.name]
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


@contextmanager
def _biolatency(disk: Disk) -> Iterator[None]:
    with subprocess.Popen(
        [*_BESIDE, *peers.command("biolatency-libbpf", "-d", disk.name)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            # It has two programs.
            wait_until(lambda: _attached(process.pid) >= 2 or process.poll() is not None, "biolatency")
            if process.poll() is not None:
                raise RuntimeError(f"biolatency ended with {process.returncode}")
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _attached(pid: int) -> int:
    links = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    return sum(one in ("anon_inode:bpf_link", "anon_inode:bpf-raw-tracepoint") for one in links)
