# SPDX-License-Identifier: Apache-2.0
"""The guest's disks, its loads, and tools that run during a load.

The guest's clock counts instructions, one per nanosecond, and it has one CPU: everything that runs takes time from the
load, and a time is a number of instructions. Idle time is skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.tools import OUTPUT, Tool
from tests.kernel.disks import Disk, null_device
from tests.kernel.loads import mounted
from wptrace.bpf import loaded

REQUESTS = 20_000
LATE_NS = 20_000
_PATIENCE_S = 3000.0
"""On the guest's clock, which runs fast while the guest waits for this machine's files."""


class Load(NamedTuple):
    name: str
    filename: str
    direct: int


class Run(NamedTuple):
    """The mean cost of a request in instructions."""

    latency: float
    """fio's completion latency: from the call to its return."""
    cpu: float
    """CPU time of fio's processes, with what runs in their context."""
    idle: float = 0.0


@contextmanager
def loads() -> Iterator[tuple[list[Load], list[str]]]:
    """Yield the loads, and the disks that they use."""
    folder = Path("/run/bench")
    with (
        _disk("inline", irqmode=0) as inline,
        _disk("late", irqmode=2, completion_nsec=LATE_NS) as late,
        _disk("files", irqmode=0, memory_backed=1) as files,
        mounted(files, "ext4", folder),
    ):
        file = folder / "file"
        file.write_bytes(bytes(32 << 20))
        os.sync()
        yield (
            [
                Load("inline", inline.path, 1),
                Load("late", late.path, 1),
                Load("hit", str(file), 0),
                Load("none", "/dev/zero", 0),
            ],
            [inline.name, late.name, files.name],
        )


@contextmanager
def _disk(name: str, **settings: int) -> Iterator[Disk]:
    with null_device(name, **settings) as disk:
        (disk.queue / "scheduler").write_text("none")
        yield disk


def fio(load: Load, requests: int = REQUESTS) -> Run:
    """Make the same requests each time."""
    output = Path("/dev/shm/fio.json")  # noqa: S108
    settings = {
        "name": "job",
        "filename": load.filename,
        "rw": "randread",
        "bs": "4k",
        "direct": load.direct,
        "size": "32M",
        "io_size": requests * 4096,
        "norandommap": 1,
        "randseed": 1,
        "ioengine": "psync",
        "invalidate": 0,
        "clocksource": "clock_gettime",
        "disk_util": 0,
    }
    words = ["--output-format=json", f"--output={output}", *(f"--{name}={value}" for name, value in settings.items())]
    process = subprocess.Popen(["fio", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"fio ended with {process.returncode}")
    (job,) = json.loads(output.read_text())["jobs"]
    clat = job["read"]["clat_ns"]
    if clat["N"] != requests:
        raise RuntimeError(f"fio made {clat['N']} requests, not {requests}")
    return Run(clat["mean"], (used.ru_utime + used.ru_stime) * 1e9 / requests)


# --- Tools ------------------------------------------------------------------------------------------------------------


class Running:
    """A tool in a process group of its own, from when it is ready."""

    def __init__(self, tool: Tool, disks: Sequence[str]) -> None:
        self.tool = tool
        self._disks = disks
        self._known = program_count()
        self._out = Path(OUTPUT).open("wb")  # noqa: SIM115 - closed in end
        self._process = subprocess.Popen(
            tool.command(disks),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait(self._ready, "it to be ready")
        except BaseException:
            self._kill()
            raise

    def _ready(self) -> bool:
        """Tell whether everything is attached: it reports that, or it has its programs and is idle."""
        if not self.tool.peer:
            return '"kind":"start"' in Path(OUTPUT).read_text() and self.quiet(0.05)
        if self.tool.programs:
            there = program_count() >= self._known + self.tool.programs
        else:
            there = all(_blktraced(disk) for disk in self._disks)
        return there and all(self.quiet(0.05) for _ in range(3))

    def quiet(self, seconds: float, share: float = 0.05) -> bool:
        """Tell whether it hardly runs for a while on the guest's clock."""
        begin, before = time.monotonic(), self.cpu_ns()
        time.sleep(seconds)
        return self.cpu_ns() - before < share * (time.monotonic() - begin) * 1e9

    def cpu_ns(self) -> int:
        """Return the CPU time of all its processes and threads."""
        total = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) != self._process.pid:
                    continue
                total += sum(int(each.read_text().split()[0]) for each in folder.glob("task/*/schedstat"))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return total

    def idle_rate(self, seconds: float = 3.0) -> float:
        """Return the instructions a second that it takes without a load."""
        begin, before = time.monotonic(), self.cpu_ns()
        time.sleep(seconds)
        return (self.cpu_ns() - before) / (time.monotonic() - begin)

    def hold(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def settle(self) -> None:
        """Wait until it has read everything."""
        calm = 0
        for _ in range(500):
            calm = calm + 1 if self.quiet(0.3) else 0
            if calm == 3:
                return
        raise RuntimeError(f"{self.tool.name} does not come to rest")

    def end(self) -> str:
        """End it and return its output."""
        os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(_PATIENCE_S)
        finally:
            self._kill()
        return Path(OUTPUT).read_text(errors="replace")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._out.close()
        self._wait(lambda: program_count() <= self._known, "its programs to go", alive=False)

    def _wait(self, condition: object, what: str, alive: bool = True) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not condition():  # type: ignore[operator]
            if alive and self._process.poll() is not None:
                said = Path(OUTPUT).read_text(errors="replace")[-300:]
                raise RuntimeError(f"{self.tool.name} ended with {self._process.returncode}: {said}")
            if time.monotonic() > end:
                raise RuntimeError(f"{self.tool.name}: waited in vain for {what}")
            time.sleep(0.05)


def program_count() -> int:
    return sum(1 for _ in loaded.programs())


def _blktraced(disk: str) -> bool:
    return Path("/sys/kernel/debug/block", disk, "dropped").exists()
