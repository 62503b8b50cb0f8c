# SPDX-License-Identifier: Apache-2.0
"""The kernel modules of `tests/modules`: inserted for a while, commanded, and asked what they really did."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

Event = dict[str, str]


class Module(NamedTuple):
    """An inserted module; its source says which commands it takes and what its log has."""

    name: str

    @property
    def control(self) -> Path:
        return Path("/sys/kernel/debug", self.name)

    def run(self, *words: object) -> None:
        """Returns when the module is done, or has begun. Several threads may be in here at once."""
        # Without a buffer, which would be written again when the module refused it.
        with (self.control / "run").open("wb", buffering=0) as file:
            file.write(" ".join(map(str, words)).encode())

    @contextmanager
    def held(self, cpu: int) -> Iterator[None]:
        """Of `irqoff`: interrupts are off on that CPU for as long as the block takes, which must not run there."""
        self.run(cpu, -1)
        try:
            yield
        finally:
            self.run("release")

    def log(self) -> list[Event]:
        """All that happened since the module was inserted."""
        lines = (self.control / "log").read_text().splitlines()
        return [dict(word.split("=", 1) for word in line.split()) for line in lines]


@contextmanager
def on_cpu(number: int) -> Iterator[None]:
    """This thread and what it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {number})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def inserted(name: str) -> Iterator[Module]:
    """`irqoff`, `smmu` or `iopf`, removed at the end."""
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
