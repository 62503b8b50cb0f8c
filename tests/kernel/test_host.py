# SPDX-License-Identifier: Apache-2.0
"""`wptrace host` with processes named like a hypervisor: each has its own requests and no others."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, loop_device
from tests.kernel.trace import HostTrace
from wptrace.kernel import guests

# The module traces the whole machine, which only tests in guests may do.
pytestmark = [pytest.mark.guest, pytest.mark.one_kernel]

READS = """
import mmap, os, sys
fd = os.open(sys.argv[3], os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 4096)
print("ready", flush=True)
for line in sys.stdin:
    for place in range(int(line)):
        os.preadv(fd, [buffer], place * 4096)
    print("done", flush=True)
"""


class Hypervisor:
    """A process that reads its disk on command."""

    def __init__(self, link: Path, name: str, disk: Disk) -> None:
        self.name, self.path = name, f"/dev/{disk.name}"
        words = [str(link), "-c", READS, "-drive", f"file={self.path}", self.path, "-name", name]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answered()

    def _answered(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def read(self, count: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        self._answered()


@contextmanager
def hypervisor(folder: Path, name: str) -> Iterator[Hypervisor]:
    link = folder / "qemu-system-test"
    if not link.is_symlink():
        link.symlink_to(sys.executable)
    with loop_device(folder / f"{name}.img") as disk:
        found = Hypervisor(link, name, disk)
        try:
            yield found
        finally:
            found.process.communicate()


def test_every_guest_here(tmp_path: Path) -> None:
    counts = {"first": 20, "second": 30}
    with ExitStack() as stack:
        running = [stack.enter_context(hypervisor(tmp_path, name)) for name in counts]
        assert guests.find() == sorted(one.process.pid for one in running)
        with HostTrace("--all", "--each") as trace:
            for one in running:
                one.read(counts[one.name])
            lines = trace.stop()
        titles = {f"{one.name} {one.process.pid}": one for one in running}
    reported = Counter((line["flow"], line["pid"], line["image"]["path"]) for line in lines if "image" in line)
    assert reported == {(title, one.process.pid, one.path): counts[one.name] for title, one in titles.items()}
    summaries = {line["flow"]: line for line in lines if line["kind"] == "summary"}
    assert all(summaries[title]["operations"]["finished"] >= counts[one.name] for title, one in titles.items())
    starts = [line["filters"] for line in lines if line["kind"] == "start"]
    assert [(found["guest"], found["pid"]) for found in starts] == [(one.name, one.process.pid) for one in running]
