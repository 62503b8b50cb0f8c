# SPDX-License-Identifier: Apache-2.0
"""Disks to test on, and the kernel's own counters of them."""

from __future__ import annotations

import json
import mmap
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
        """The device number as the kernel stores it, and as filters of its tracing take it."""
        device = Path(self.path).stat().st_rdev
        return os.major(device) << 20 | os.minor(device)

    def completed(self) -> dict[str, int]:
        return completed([self])[self.name]

    def in_flight(self) -> list[int]:
        """Return the reads and writes in flight, by the kernel's count; none if the device is gone."""
        with suppress(FileNotFoundError):
            return [int(word) for word in Path("/sys/class/block", self.name, "inflight").read_text().split()]
        return []

    def counted(self) -> dict[str, int]:
        """The kernel's counters so far (Documentation/block/stat.rst)."""
        found = Path("/sys/class/block", self.name, "stat").read_text().split()
        return dict(zip(_COUNTS, map(int, found)))


def completed(disks: Sequence[Disk]) -> dict[str, dict[str, int]]:
    """Return the kernel's counters once nothing is in flight any more.

    The kernel counts a request after it has woken up its waiter, which may take a while on an emulated CPU. So this
    reads the counters until they stop, or for a second on a disk that is always busy.
    """
    found = {disk.name: disk.counted() for disk in disks}
    for _ in range(20):
        time.sleep(0.05)
        before, found = found, {disk.name: disk.counted() for disk in disks}
        if found == before:
            break
    return found


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def loop_device(image: Path, size: str = "64M") -> Iterator[Disk]:
    with image.open("wb") as file:
        file.truncate(int(size[:-1]) << 20)
    with loop_on(image) as disk:
        yield disk


@contextmanager
def loop_on(path: Path | str, *options: str) -> Iterator[Disk]:
    """A loop device on an existing file or disk."""
    subprocess.run(["modprobe", "--quiet", "loop"], check=False)  # may be built in
    command = ["losetup", "--find", "--show", *options, str(path)]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Disk(Path(name).name)
    finally:
        subprocess.run(["losetup", "--detach", name], check=True)


@contextmanager
def null_device(name: str = "wpt0", **settings: int) -> Iterator[Disk]:
    """A null_blk disk, configured as in /sys/kernel/config/nullb. Several at once need names."""
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
    """Unmount now or, if a process of a failed test still has a file open, as soon as possible."""
    if subprocess.run(["umount", str(folder)], capture_output=True).returncode:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def mounting(point: Path, *words: str) -> Iterator[Path]:
    """Mount something at a folder."""
    point.mkdir(exist_ok=True)
    run("mount", *words, str(point))
    try:
        yield point
    finally:
        unmount(point)


@contextmanager
def scsi_debug(**settings: int) -> Iterator[Disk]:
    """A disk of scsi_debug, with its module parameters."""
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
    """Freeze file systems: all data are on disk, and nothing writes. xfs writes metadata seconds after a sync."""
    with ExitStack() as stack:
        for top in tops:
            subprocess.run(["fsfreeze", "--freeze", str(top)], check=True)
            stack.callback(subprocess.run, ["fsfreeze", "--unfreeze", str(top)], check=True)
        yield


CENTISECS = Path("/proc/sys/vm/dirty_writeback_centisecs")


@contextmanager
def written_when_asked() -> Iterator[None]:
    """Write what is dirty, then, in a guest, let the kernel's flushers wake only once an hour.

    With 0 they would not wake periodically, but at once when something becomes dirty on a disk that has had no share of
    the writing yet. Elsewhere the setting is left alone, as the whole machine uses it.
    """
    with ExitStack() as stack:
        if "WPTRACE_LAB_KERNEL" in os.environ:
            stack.enter_context(setting(CENTISECS, "360000"))
            os.sync()
        yield


def wake_flushers() -> None:
    """Wake the flushers by a change of a setting; only in guests, where no one else uses it."""
    # The kernel wakes them when the value changes.
    CENTISECS.write_text(str(int(CENTISECS.read_text()) + 1))


@contextmanager
def setting(path: Path, value: str) -> Iterator[None]:
    """Change the content of a sysfs file for a while."""
    before = path.read_text().strip()
    path.write_text(value)
    try:
        yield
    finally:
        path.write_text(before)


@contextmanager
def opened(path: Path | str, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    """Closed whatever happens, or its file system stays mounted."""
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def read_direct(path: Path | str, count: int) -> None:
    """Read 4 KiB this many times with O_DIRECT in this process."""
    with opened(path, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, 4096) as buffer:
        for number in range(count):
            assert os.preadv(fd, [buffer], 4096 * number) == 4096


def fio(disk: str, **options: Any) -> dict[str, Any]:
    """Run fio on a device and return the report of its only job."""
    return fio_jobs({"filename": disk, **options})[0]


def fio_jobs(*jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Run several jobs, at once or one after the other (stonewall=1), by one fio: it is slow to start in a guest."""
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
    # In a guest that skips idle time minutes pass while the host reads fio's libraries.
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    assert len(found) == len(jobs), "give group_reporting=1 to a job of several processes"
    return list(found)


def total(job: dict[str, Any]) -> int:
    """Return the number of requests by fio's own count."""
    return int(job["read"]["total_ios"] + job["write"]["total_ios"])
