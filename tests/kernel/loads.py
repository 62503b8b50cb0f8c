# SPDX-License-Identifier: Apache-2.0
"""Devices and loads that are slow in one known way: late, held back by a limit, or without their CPU."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.kernel.disks import Disk, loop_on, mounting, run, setting, unmount
from tests.kernel.patience import said
from tests.kernel.trace import PATIENCE, wait_until

# --- Devices ----------------------------------------------------------------------------------------------------------


@contextmanager
def scsi_device(latency_ns: int) -> Iterator[Disk]:
    """A scsi_debug disk in memory; its latency is a timer, so it is exact."""
    run("modprobe", "scsi_debug", f"ndelay={latency_ns}", "dev_size_mb=32")
    try:
        blocks = Path("/sys/bus/pseudo/drivers/scsi_debug")
        wait_until(lambda: [*blocks.glob("adapter0/host*/target*/*:*/block/sd*")], "the scsi disk")
        (found,) = blocks.glob("adapter0/host*/target*/*:*/block/sd*")
        wait_until((Path("/dev") / found.name).exists, "the scsi disk's node")
        yield Disk(found.name)
    finally:
        # The kernel may still be scanning the new disk for partitions.
        wait_until(lambda: subprocess.run(["rmmod", "scsi_debug"], capture_output=True).returncode == 0, "its end")


@contextmanager
def direct_loop(below: Disk) -> Iterator[Disk]:
    """A loop device that passes each request on to a block device, without a page cache in between."""
    with loop_on(below.path, "--direct-io=on") as disk:
        yield disk


# No features that a kernel of the matrix lacks, and none that reads or writes in the background.
_MADE = {
    "ext4": ("-E", "lazy_itable_init=0,lazy_journal_init=0", "-O", "^orphan_file,^metadata_csum_seed"),
    "xfs": ("--unsupported", "-f", "-m", "bigtime=0,inobtcount=0,reflink=0", "-i", "nrext64=0,exchange=0"),
    "btrfs": ("-f",),
}
# Older tools know fewer features.
_MADE_BY_OLD_TOOLS = ("--unsupported", "-f", "-m", "reflink=0")


def mount(disk: Disk, kind: str, folder: Path, *options: str) -> None:
    """Mount the file system on a disk. Its journal commits on request, not every five seconds."""
    words = ["mount", "-t", kind, disk.path, str(folder), "-o"]
    quiet = ",".join((*(["commit=300"] if kind == "ext4" else []), *options, "rw"))
    # An option stops the thread that reads bitmaps ahead in the first seconds; 5.10 has neither.
    still = subprocess.run([*words, f"{quiet},no_prefetch_block_bitmaps"], capture_output=True).returncode == 0
    if not still:
        run(*words, quiet)


def _is_free(disk: Disk) -> bool:
    """Whether mkfs may have it: a file system that was unmounted may be in use for a moment longer."""
    try:
        os.close(os.open(disk.path, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


@contextmanager
def mounted(disk: Disk, kind: str, folder: Path, made_with: str = "", options: str = "") -> Iterator[Path]:
    """A new file system on a disk, mounted."""
    wait_until(lambda: _is_free(disk), f"the last file system on {disk.name} to leave it")
    words = [f"mkfs.{kind}", "-q", *_MADE[kind], *made_with.split(), disk.path]
    made = subprocess.run(words, capture_output=True, text=True)
    if made.returncode and kind == "xfs":
        words = ["mkfs.xfs", "-q", *_MADE_BY_OLD_TOOLS, *made_with.split(), disk.path]
        made = subprocess.run(words, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    folder.mkdir()
    mount(disk, kind, folder, *filter(None, [options]))
    try:
        yield folder
    finally:
        unmount(folder)


# --- Limits -----------------------------------------------------------------------------------------------------------


def hierarchy(folder: Path) -> AbstractContextManager[Path]:
    """Cgroups v2, mounted. A trace only knows names of cgroups that were mounted when it started."""
    return mounting(folder, "-t", "cgroup2", "cgroup2")


@contextmanager
def controlled(top: Path) -> Iterator[Path]:
    """A cgroup with the io controller. Processes that `join` it have ended before it does."""
    group = top / "wptest"
    control = top / "cgroup.subtree_control"
    had = "io" in control.read_text().split()
    try:
        assert "io" in (top / "cgroup.controllers").read_text().split(), "another hierarchy has the io controller"
        control.write_text("+io")
        group.mkdir()
        yield group
    finally:
        if group.is_dir():
            group.rmdir()
        if not had:
            control.write_text("-io")


def _number(disk: Disk) -> str:
    return Path("/sys/block", disk.name, "dev").read_text().strip()


@contextmanager
def limited(disk: Disk, limit: str, top: Path) -> Iterator[Path]:
    """A cgroup with a limit of io.max."""
    with controlled(top) as group:
        (group / "io.max").write_text(f"{_number(disk)} {limit}")
        yield group


@contextmanager
def costed(disk: Disk, iops: int, top: Path) -> Iterator[Path]:
    """A cgroup on a device for which io.cost is set to this many requests a second."""
    with controlled(top) as group:
        model = f"rbps=1000000000 rseqiops={iops} rrandiops={iops} wbps=1000000000 wseqiops={iops} wrandiops={iops}"
        qos = "ctrl=user rpct=0.00 rlat=1000000 wpct=0.00 wlat=1000000 min=100.00 max=100.00"
        (top / "io.cost.model").write_text(f"{_number(disk)} ctrl=user model=linear {model}")
        (top / "io.cost.qos").write_text(f"{_number(disk)} enable=1 {qos}")
        try:
            yield group
        finally:
            (top / "io.cost.qos").write_text(f"{_number(disk)} enable=0")


def cgroup_of(pid: int | str = "self") -> str:
    """Return the path of a process's cgroup below the root of v2."""
    (path,) = re.findall(r"^0::(.*)$", Path(f"/proc/{pid}/cgroup").read_text(), re.MULTILINE)
    return str(path)


@contextmanager
def joined(group: Path) -> Iterator[None]:
    """Make this process, and those that it starts, members of a cgroup."""
    before = cgroup_of()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (group.parent / before.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))


def compiled(source: str, folder: Path, *options: str) -> Path:
    """Compile a program of this folder."""
    path = Path(__file__).with_name(source)
    program = folder / path.stem
    run(shutil.which("cc") or "clang", "-O2", *options, "-o", str(program), str(path))
    return program


# --- Load on the CPU --------------------------------------------------------------------------------------------------

HOG = "wptest_hog"
_HOG = Path(__file__).with_name("hog.py")


@contextmanager
def real_time(priority: int) -> Iterator[None]:
    """Let this process, and those that it starts, preempt all ordinary ones; only the hog preempts them."""
    limit = Path("/proc/sys/kernel/sched_rt_runtime_us")
    with setting(limit, "-1"):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        try:
            yield
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Burst(NamedTuple):
    """When the hog had the CPU, by CLOCK_MONOTONIC, the clock of all stages."""

    start_ns: int
    end_ns: int


class Hog:
    """A real-time process that takes its CPU in bursts; no other task runs there meanwhile."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.bursts: list[Burst] = []

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        out, _ = self.process.communicate(timeout=PATIENCE)
        self.bursts = [Burst(*map(int, line.split())) for line in out.splitlines()]
        assert self.bursts


@contextmanager
def hog(burst_us: int, gap_us: int) -> Iterator[Hog]:
    # Only the interpreter: an emulated CPU takes seconds to import the tests' modules.
    command = [sys.executable, "-I", "-S", str(_HOG), HOG, str(burst_us), str(gap_us)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert said(process) == "ready\n"
        yield Hog(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
