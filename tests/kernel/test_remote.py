# SPDX-License-Identifier: Apache-2.0
"""Files whose server is elsewhere: a FUSE process, or NFS."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel import fuse, nfs
from tests.kernel.disks import null_device, opened
from tests.kernel.loads import mounted
from tests.kernel.patience import joined
from tests.kernel.stacks import delayed
from tests.kernel.test_fuse import DELAY_S, served
from tests.kernel.test_io_path import sums_up
from tests.kernel.trace import Trace, lossless, wptrace
from tests.thorough import only_all

FUSE = "fuse:wptest"
NFS = "127.0.0.1:/"
DELAY_MS = 40
READS, WRITES = 6, 3


@contextmanager
def direct(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CREAT)
    try:
        yield fd
    finally:
        os.close(fd)


def work(fd: int) -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE)
    for number in range(READS):
        os.preadv(fd, [page], number * mmap.PAGESIZE)
    for number in range(WRITES):
        os.pwritev(fd, [page], number * mmap.PAGESIZE)


def waited(trace: Trace, name: str, reason: str, least_ns: float) -> Counter[str]:
    """Check that each operation took that long and mostly waited for the server; return their number."""
    assert lossless(trace.summary), trace.summary["loss"]
    assert trace.summary["requests"]["finished"] == 0
    for one in trace.operations:
        sums_up(one)
        assert one["dev"] == name
        assert one["kind"] == "operation"
        assert one["stages"]["fs_ns"] >= least_ns
    # The server may start before the task sleeps; how long before depends on the load of the CPUs.
    slept = sorted(sum(wait["ns"] for wait in one["waits"] if wait["reason"] == reason) for one in trace.operations)
    assert slept[len(slept) // 2] >= least_ns / 2, slept
    return Counter(one["op"] for one in trace.operations)


def test_what_a_fuse_server_is_asked_is_an_operation(tmp_path: Path) -> None:
    top = tmp_path / "mounted"
    with (
        served(top, tmp_path / "below") as server,
        direct(top / os.fsdecode(fuse.NAME)) as fd,
        Trace("--dev", str(top), "--each") as trace,
    ):
        work(fd)
    assert (server.asked["READ"], server.asked["WRITE"]) == (READS, WRITES)
    assert waited(trace, FUSE, "FUSE server", DELAY_S * 1e9) == {"read": READS, "write": WRITES}
    assert trace.lines[0]["filters"]["dev"] == [FUSE]
    assert f"operations on {FUSE}" in trace.summary["verdict"]["text"]
    assert "FUSE server" in trace.summary["verdict"]["text"]


def test_what_the_page_cache_has_of_a_fuse_file_is_a_hit(tmp_path: Path) -> None:
    """Nor is a read that slept a hit, no matter how long the threshold is."""
    top = tmp_path / "mounted"
    with (
        served(top, tmp_path / "below") as server,
        opened(top / os.fsdecode(fuse.NAME), os.O_RDONLY) as fd,
        # The directory alone selects the file system.
        Trace("--dir", str(top), "--each", "--waits", "1h") as trace,
    ):
        for _ in range(2):
            for number in range(8):
                os.pread(fd, mmap.PAGESIZE, number * mmap.PAGESIZE)
    assert lossless(trace.summary)
    reads = trace.operations
    assert len(reads) == 16
    # A hit may take as long on a busy CPU.
    assert reads[0]["total_ns"] >= DELAY_S * 1e9
    slept = [one["kind"] == "operation" for one in reads]
    assert slept[0]
    assert sum(slept) <= server.asked["READ"]
    assert not any(slept[8:])
    assert {one["dev"] for one in reads} == {FUSE}


def test_a_server_that_has_stopped_is_seen_while_it_lasts(tmp_path: Path) -> None:
    top, stopped_s = tmp_path / "mounted", 0.5
    with (
        served(top, tmp_path / "below") as server,
        direct(top / os.fsdecode(fuse.NAME)) as fd,
        Trace("--dev", str(top), "--each", "--stuck", "100ms") as trace,
    ):
        os.kill(server.pid, signal.SIGSTOP)
        reader = threading.Thread(target=os.preadv, args=(fd, [mmap.mmap(-1, mmap.PAGESIZE)], 0))
        reader.start()
        time.sleep(stopped_s)
        trace.wait_for('"kind":"in_flight"')
        os.kill(server.pid, signal.SIGCONT)
        joined(reader)
    assert waited(trace, FUSE, "FUSE server", stopped_s * 1e9) == {"read": 1}
    (found,) = next(line for line in trace.lines if line["kind"] == "in_flight")["found"]
    assert (found["kind"], found["dev"], found["op"], found["stage"]) == ("operation", FUSE, "read", "fs")


@only_all
@pytest.mark.guest
def test_a_slow_nfs_server_is_waited_for(tmp_path: Path) -> None:
    """Its disk delays each read by ticks of 4 ms."""
    top, exported, far = tmp_path / "nfs", tmp_path / "exported", 1 << 20
    top.mkdir()
    with (
        null_device("wptn", memory_backed=1, size=256) as below,
        delayed(below, DELAY_MS, 0) as disk,
        mounted(disk, "ext4", exported),
        nfs.mounted(exported, top),
    ):
        with (exported / "file").open("wb") as file:
            file.write(bytes(READS * far))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with opened(top / "file", os.O_RDONLY | os.O_DIRECT) as fd:
            page = mmap.mmap(-1, mmap.PAGESIZE)
            before = nfs.calls(top)
            with Trace("--dev", str(top), "--op", "read", "--each") as trace:
                for number in range(READS):
                    os.preadv(fd, [page], number * far)
            made = nfs.calls(top).since(before).made
    # 4.2 has another call for sparse files.
    assert made["READ"] + made["READ_PLUS"] == READS
    assert waited(trace, NFS, "NFS call", DELAY_MS * 0.8e6) == {"read": READS}


def test_a_directory_elsewhere_than_on_the_wanted_devices_is_bad_input(tmp_path: Path) -> None:
    top, other = tmp_path / "mounted", tmp_path / "other"
    with served(top, tmp_path / "below"), served(other, tmp_path / "below_other"):
        done = wptrace("io", "--dev", str(top), "--dir", str(other), "1", "1")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"--dev {other}" in done.stderr
        # Two file systems of the same name are named by their mount points.
        with Trace("--dev", str(top), "--dev", str(other), "--each") as trace, direct(other / "data") as fd:
            work(fd)
    assert {one["dev"] for one in trace.operations} == {f"fuse:{other}"}
    assert trace.lines[0]["filters"]["dev"] == [f"fuse:{top}", f"fuse:{other}"]
