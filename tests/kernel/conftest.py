# SPDX-License-Identifier: Apache-2.0
"""Tests that trace a real kernel: the running one, or a guest's. `tests/run.sh` runs them on every one of the matrix.

On the running kernel only what a test made itself is traced: a loop device. In a guest there are real drivers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, loop_device, null_device
from tests.kernel.trace import object_path
from wptrace.bpf.object import BpfObject

GUEST = os.environ.get("WPTRACE_LAB_KERNEL", "")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "icount: asserts on times; runs in guests whose clock counts instructions")
    config.addinivalue_line("markers", "guest: needs drivers that only guests have")
    config.addinivalue_line("markers", "here: about sysfs alone; the running kernel is enough")


@pytest.fixture(scope="session", autouse=True)
def _needs_root() -> None:
    if os.geteuid() != 0:
        pytest.fail("these tests load BPF programs: run them as root")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Disk]:
    with loop_device(tmp_path / "disk.img") as disk:
        yield disk


KINDS = ("nvme", "virtio", "scsi", "null_blk") if GUEST else ("loop",)
_NAMES = {"nvme": "nvme0n1", "virtio": "vda", "scsi": "sda"}


@pytest.fixture(params=KINDS)
def every_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk of each kind that this kernel has here, for what drivers may do differently."""
    kind = request.param
    if kind == "loop":
        with loop_device(tmp_path / "disk.img") as made:
            yield made
    elif kind == "null_blk":
        with null_device() as made:
            yield made
    else:
        yield Disk(_NAMES[kind])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """One disk, whose driver has all features: nvme in guests."""
    if GUEST:
        yield Disk("nvme0n1")
    else:
        with loop_device(tmp_path / "disk.img") as made:
            yield made


@pytest.fixture
def binding() -> Iterator[BpfObject]:
    """The tests' own object, with every program's autoload off."""
    with BpfObject(object_path("binding")) as obj:
        for program in obj.progs.values():
            program.autoload = False
        yield obj


@pytest.fixture(scope="session", autouse=True)
def _filesystems() -> None:
    """Classic tracepoints need tracefs, which a kernel may leave to be mounted."""
    if not Path("/sys/kernel/tracing/events").is_dir():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"], check=False, capture_output=True)
