# SPDX-License-Identifier: Apache-2.0
"""The kernel modules of `tests/modules`: insert them, command them and read what they did."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

Event = dict[str, str]
NEVER = -1
"""As a delay of `smmu` and `iopf`: there is no end."""


class Module(NamedTuple):
    """An inserted module. Its source describes its commands and its log."""

    name: str

    @property
    def control(self) -> Path:
        return Path("/sys/kernel/debug", self.name)

    def run(self, *words: object) -> None:
        """Write a command; return when the module is done, or has begun. Several threads may do so at once."""
        # A buffered file would write again after the module refused a command.
        with (self.control / "run").open("wb", buffering=0) as file:
            file.write(" ".join(map(str, words)).encode())

    @contextmanager
    def held(self, cpu: int) -> Iterator[None]:
        """Keep interrupts off on a CPU with `irqoff`. The block must not run on that CPU."""
        self.run(cpu, -1)
        try:
            yield
        finally:
            self.run("release")

    def log(self) -> list[Event]:
        """Return all events since the module was inserted."""
        lines = (self.control / "log").read_text().splitlines()
        return [dict(word.split("=", 1) for word in line.split()) for line in lines]

    def answers(self) -> list[Event]:
        """Return the answers of `iopf`."""
        return [event for event in self.log() if event["event"] == "answer"]


@contextmanager
def on_cpu(number: int) -> Iterator[None]:
    """Bind this thread, and what it starts, to a CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {number})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def inserted(name: str) -> Iterator[Module]:
    """Insert `irqoff`, `smmu` or `iopf`, and remove it at the end."""
    built = Path(os.environ.get("WPTRACE_LAB_MODULES", "/nowhere"))
    if not built.is_dir():
        pytest.fail("the modules are not built for this kernel: python3 -m tests.lab modules")
    file = built / f"wptest_{name}.ko"
    if not file.exists():
        pytest.skip(f"the kernel {os.uname().release} has not what the module {name} needs")
    _command("insmod", str(file))
    try:
        yield Module(file.stem)
    finally:
        _command("rmmod", file.stem)


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}{_kernel_said()}"


def _kernel_said() -> str:
    done = subprocess.run(["dmesg"], capture_output=True, text=True)
    return "\n".join(done.stdout.splitlines()[-20:])
