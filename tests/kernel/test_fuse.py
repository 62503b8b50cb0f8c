# SPDX-License-Identifier: Apache-2.0
"""`wptrace flow fuse` against the requests that the server of a FUSE file system got."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel import fuse
from tests.kernel.disks import opened, unmount
from tests.kernel.trace import FlowTrace, wptrace
from wptrace.bpf.kernel_btf import module, vmlinux

DELAY_S = 0.02
SIZE = 1 << 16


def has_tracepoint() -> bool:
    places = (vmlinux(), module("fuse"))
    return any(place is not None and place.tracepoint("fuse_request_send") for place in places)


class Server:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.asked: dict[str, int] = {}
        """How often each opcode was requested, once it has ended."""


@contextmanager
def served(folder: Path, below: Path, size: int = SIZE, delay_s: float = DELAY_S) -> Iterator[Server]:
    """A file of a FUSE server that takes its time for each read and write."""
    subprocess.run(["modprobe", "--quiet", "fuse"], check=False)  # may be built in
    below.write_bytes(bytes(size))
    folder.mkdir()
    words = [sys.executable, fuse.__file__, str(folder), str(below), str(delay_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            made = Server(server.pid)
            yield made
        finally:
            os.kill(server.pid, signal.SIGCONT)
            unmount(folder)
        made.asked.update(json.loads(server.stdout.read()))


def test_requests_are_those_that_the_server_was_asked(tmp_path: Path) -> None:
    with served(tmp_path / "mounted", tmp_path / "below") as server:
        if not has_tracepoint():
            done = wptrace("flow", "fuse", "1", "1")
            assert (done.returncode, done.stdout) == (2, "")
            assert "fuse_request_send" in done.stderr
            return
        path = tmp_path / "mounted" / os.fsdecode(fuse.NAME)
        with FlowTrace("fuse") as trace, opened(path, os.O_RDWR | os.O_DIRECT) as fd:
            page = mmap.mmap(-1, mmap.PAGESIZE)
            for number in range(8):
                os.preadv(fd, [page], number * mmap.PAGESIZE)
            for number in range(5):
                os.pwritev(fd, [page], number * mmap.PAGESIZE)
            os.fsync(fd)
    assert trace.summary["requests"]["lost"] == 0
    rows = [row for row in trace.summary["rows"] if row["stage"] == "asked"]
    counts, asked = {row["labels"]["op"]: row["count"] for row in rows}, server.asked
    assert (counts["fuse_read"], counts["fuse_write"], counts["fuse_fsync"]) == (
        asked["READ"],
        asked["WRITE"],
        asked["FSYNC"],
    )
    assert (asked["READ"], asked["WRITE"], asked["FSYNC"]) == (8, 5, 1)
    for row in rows:
        if row["labels"]["op"] in ("fuse_read", "fuse_write"):
            assert row["min_ns"] >= DELAY_S * 1e9
