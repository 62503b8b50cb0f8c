# SPDX-License-Identifier: Apache-2.0
"""Disks to test on, and what the kernel itself counted for them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

_COUNTS = (
    *("read", "read_merges", "read_sectors", "read_ms", "write", "write_merges", "write_sectors", "write_ms"),
    *("in_flight", "io_ms", "queue_ms", "discard", "discard_merges", "discard_sectors"),
)


class Disk(NamedTuple):
    name: str

    @property
    def path(self) -> str:
        return f"/dev/{self.name}"

    @property
    def queue(self) -> Path:
        return Path("/sys/block", self.name, "queue")

    @property
    def number(self) -> int:
        """As the kernel has it inside, and filters of its tracing do."""
        device = Path(self.path).stat().st_rdev
        return os.major(device) << 20 | os.minor(device)

    def completed(self) -> dict[str, int]:
        return completed([self])[self.name]

    def in_flight(self) -> list[int]:
        """Reads and writes that the kernel has begun and not ended; none of a device that is gone."""
        with suppress(FileNotFoundError):
            return [int(word) for word in Path("/sys/class/block", self.name, "inflight").read_text().split()]
        return []

    def counted(self) -> dict[str, int]:
        """The kernel's counters so far (Documentation/block/stat.rst)."""
        found = Path("/sys/class/block", self.name, "stat").read_text().split()
        return dict(zip(_COUNTS, map(int, found)))


def completed(disks: Sequence[Disk]) -> dict[str, dict[str, int]]:
    """The kernel's counters when nothing is under way any more.

    Who waits for a request hears of its end before the kernel has counted it, which takes an emulated CPU its time. So
    the counts are looked at until they rest, or for a second where something is always under way.
    """
    found = {disk.name: disk.counted() for disk in disks}
    for _ in range(20):
        time.sleep(0.05)
        before, found = found, {disk.name: disk.counted() for disk in disks}
        if found == before:
            break
    return found


@contextmanager
def loop_device(image: Path, size: str = "64M") -> Iterator[Disk]:
    with image.open("wb") as file:
        file.truncate(int(size[:-1]) << 20)
    with loop_on(image) as disk:
        yield disk


@contextmanager
def loop_on(path: Path | str, *options: str) -> Iterator[Disk]:
    """A loop device on a file or a disk that is there."""
    subprocess.run(["modprobe", "--quiet", "loop"], check=False)  # built in here and there
    command = ["losetup", "--find", "--show", *options, str(path)]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Disk(Path(name).name)
    finally:
        subprocess.run(["losetup", "--detach", name], check=True)


@contextmanager
def null_device(name: str = "wpt0", **settings: int) -> Iterator[Disk]:
    """A null_blk disk of its own, configured as /sys/kernel/config/nullb tells. Several at once want names."""
    subprocess.run(["modprobe", "null_blk", "nr_devices=0"], check=True)
    if not Path("/sys/kernel/config/nullb").is_dir():
        subprocess.run(["mount", "-t", "configfs", "configfs", "/sys/kernel/config"], check=True)
    folder = Path("/sys/kernel/config/nullb", name)
    before = {path.name for path in Path("/sys/block").iterdir()}
    folder.mkdir()
    try:
        for key, value in {"size": 64, "memory_backed": 0, **settings}.items():
            (folder / key).write_text(str(value))
        (folder / "power").write_text("1")
        (made,) = {path.name for path in Path("/sys/block").iterdir()} - before
        yield Disk(made)
    finally:
        (folder / "power").write_text("0")
        folder.rmdir()


def unmount(folder: Path) -> None:
    """At once, or where a process of a failed test still has a file there, as soon as it has not."""
    if subprocess.run(["umount", str(folder)], capture_output=True).returncode:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def scsi_debug(**settings: int) -> Iterator[Disk]:
    """A disk of the SCSI layer's own test driver, with its module parameters."""
    before = {path.name for path in Path("/sys/block").iterdir()}
    parameters = [f"{name}={value}" for name, value in settings.items()]
    subprocess.run(["modprobe", "scsi_debug", "delay=0", *parameters], check=True)
    try:
        made: set[str] = set()
        for _ in range(600):
            made = {path.name for path in Path("/sys/block").iterdir()} - before
            if made and Path("/dev", *made).exists():
                break
            time.sleep(0.1)
        (name,) = made
        yield Disk(name)
    finally:
        subprocess.run(["modprobe", "--remove", "scsi_debug"], check=True)


@contextmanager
def frozen(*tops: Path) -> Iterator[None]:
    """All of these file systems is on their disks, and nothing is written: xfs writes metadata seconds after a sync."""
    with ExitStack() as stack:
        for top in tops:
            subprocess.run(["fsfreeze", "--freeze", str(top)], check=True)
            stack.callback(subprocess.run, ["fsfreeze", "--unfreeze", str(top)], check=True)
        yield


CENTISECS = Path("/proc/sys/vm/dirty_writeback_centisecs")


@contextmanager
def written_when_asked() -> Iterator[None]:
    """In a guest the kernel's workers come round each hour, once what was dirty before is written.

    With 0 they would not come by themselves, but at once when something becomes dirty, and write it where the disk has
    had no share of the writing yet. Elsewhere this is a setting of a whole machine that others use as well.
    """
    with ExitStack() as stack:
        if "WPTRACE_LAB_KERNEL" in os.environ:
            stack.enter_context(setting(CENTISECS, "360000"))
            os.sync()
        yield


def wake_flushers() -> None:
    """Change a setting of a guest, which no one else uses."""
    # Another value wakes them.
    CENTISECS.write_text(str(int(CENTISECS.read_text()) + 1))


@contextmanager
def setting(path: Path, value: str) -> Iterator[None]:
    """A sysfs file with another content for a while."""
    before = path.read_text().strip()
    path.write_text(value)
    try:
        yield
    finally:
        path.write_text(before)


def fio(disk: str, **options: Any) -> dict[str, Any]:
    """Runs fio on a device; returns its only job's report."""
    return fio_jobs({"filename": disk, **options})[0]


def fio_jobs(*jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Several at once, or behind those with stonewall=1, by one fio: it takes its time to start in a guest."""
    command = ["fio", "--output-format=json"]
    for options in jobs:
        settings = {
            "name": "job",
            "rw": "randread",
            "bs": "4k",
            "direct": 1,
            "size": "32M",
            "norandommap": 1,
            "randrepeat": 1,
            "ioengine": "psync",
            "number_ios": 200,
            **options,
        }
        command += [f"--{name}={value}" for name, value in settings.items()]
    # A guest that skips idle time passes minutes of it while the host reads fio's libraries.
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    assert len(found) == len(jobs), "give group_reporting=1 to a job of several processes"
    return list(found)


def total(job: dict[str, Any]) -> int:
    """How many requests fio's own count has."""
    return int(job["read"]["total_ios"] + job["write"]["total_ios"])
