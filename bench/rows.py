# SPDX-License-Identifier: Apache-2.0
"""The CPU time of `wptrace io --by process` at intervals of a second, while a few of thousands of processes do I/O."""

from __future__ import annotations

import mmap
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.kernel.disks import loop_device

_BLOCK, _BLOCKS = 4096, 1000
_PAUSE_S, _SETTLE_S = 0.05, 5.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    percent: float
    """Of a CPU."""
    resident_kb: int


@contextmanager
def _readers(device: str, count: int) -> Iterator[Sequence[int]]:
    """Start processes that have read once; each reads again for a byte that is written to its pipe."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    pipes: list[int] = []
    children: list[int] = []
    try:
        for _ in range(count):
            out, into = os.pipe()
            child = os.fork()
            if not child:
                for other in (into, *pipes):
                    os.close(other)
                _read(device, out)
            os.close(out)
            pipes.append(into)
            children.append(child)
        yield pipes
    finally:
        for pipe in pipes:
            os.close(pipe)
        for child in children:
            os.waitpid(child, 0)


def _read(device: str, pipe: int) -> None:
    try:
        fd, memory = os.open(device, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, _BLOCK)
        asked = b"x"
        while asked:
            os.preadv(fd, [memory], random.randrange(_BLOCKS) * _BLOCK)  # noqa: S311
            asked = os.read(pipe, 1)
    finally:
        os._exit(0)


def measure(processes: int, busy: int, seconds: float) -> Measured:
    with (
        tempfile.TemporaryDirectory() as folder,
        loop_device(Path(folder) / "image") as disk,
        subprocess.Popen(
            [sys.executable, "-m", "wptrace", "io", "--level=request", "--by=process", f"--dev={disk.name}", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as tracer,
    ):
        time.sleep(_SETTLE_S)
        with _readers(disk.path, processes) as pipes:
            _ask(pipes[:busy], _SETTLE_S)
            began, before = time.monotonic(), _ticks(tracer.pid)
            _ask(pipes[:busy], seconds)
            used = (_ticks(tracer.pid) - before) / _TICKS / (time.monotonic() - began)
            status = Path(f"/proc/{tracer.pid}/status").read_text()
        tracer.terminate()
    (resident,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return Measured(used * 100, resident)


def _ask(pipes: Sequence[int], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for pipe in pipes:
            os.write(pipe, b"x")
        time.sleep(_PAUSE_S)


def _ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def line(processes: int, busy: int, found: Measured) -> str:
    return f"{processes} processes, {busy} busy: {found.percent:.1f} % of a CPU, {found.resident_kb / 1024:.0f} MB"
