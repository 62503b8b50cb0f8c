# SPDX-License-Identifier: Apache-2.0
"""Tracers come and go under load: the kernel survives without a complaint, and each tracer sees everything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.kernel.disks import Disk
from tests.kernel.flows import running_flow
from tests.kernel.trace import BlamelessError, wait_until
from tests.thorough import cases
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.model.book import RECURSION
from wptrace.model.kind import OPERATIONS, REQUESTS

# build/test-logs has the console of a guest that dies, or the file that --console names.
ROUNDS = int(os.environ.get("WPTRACE_TESTS_STARTS", cases(100, 1)))
# With threads, killing fio kills its jobs. A load that uses all of an emulated CPU makes a start four times as long.
_LOAD = (
    "fio --name=x --thread --filename={path} --rw=randrw --bs=4k --size=60m --direct=1"
    " --time_based --runtime=100000 --rate_iops=150,150 {more}"
)
# Leave out what the kernel says when an emulated CPU stalls.
_COMPLAINTS = ("Oops", "WARNING: CPU", "kernel BUG", "BUG: unable", "BUG: kernel")


# An emulated CPU sometimes traps after a single step that was not set; a comment in exc_debug_kernel() describes that
# for QEMU. Of these kernels only 5.10 single-steps code itself: later kprobes do without (commit "x86/kprobes: Use int3
# instead of debug trap for single-step", 5.13).
_EMULATED_STEP = "exc_debug_kernel"
_OLD = os.uname().release.startswith("5.")


def complaints() -> list[str]:
    said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if any(word in line for word in _COMPLAINTS)]


def check_complaints(before: list[str]) -> None:
    more = [line for line in complaints() if line not in before]
    if more and not _OLD and all(_EMULATED_STEP in line for line in more):
        raise BlamelessError(f"the emulated CPU stepped: {more}")
    assert not more


def come_and_go(disks: Sequence[Disk], interference: bool) -> None:
    with running_flow(PathFlow(Options(tuple(disk.path for disk in disks), interference=interference))) as flow:
        flow.begin()
        wait_until(lambda: flow.snapshot().books[OPERATIONS].finished > 20, "some operations")
        flow.stop()
        books = flow.snapshot().books
    skipped = sum(one.get(RECURSION, 0) for book in books.values() for one in (book.lost, book.noted))
    for name in (OPERATIONS, REQUESTS):
        book = books[name]
        assert book.started == book.finished + book.in_flight + book.lost_total
        assert book.in_flight >= 0
        # Each start has an end, unless the kernel skipped a program.
        assert book.lost_total <= skipped, book.lost


@pytest.mark.one_kernel
@pytest.mark.guest
def test_tracers_come_and_go_under_load() -> None:
    # On 5.10 the emulated nvme loses commands at this depth, traced or not (docs/kernels.md).
    disks = Disk("vdb" if _OLD else "nvme0n1"), Disk("vda")
    jobs = "--ioengine=libaio --iodepth=8", "--ioengine=psync"
    before = complaints()
    load = [
        subprocess.Popen([*_LOAD.format(path=disk.path, more=more).split(), "--output=/dev/null"])
        for disk, more in zip(disks, jobs)
    ]
    try:
        for number in range(ROUNDS):
            come_and_go(disks, interference=number % 2 == 1)
            assert all(one.poll() is None for one in load), "the load has ended"
            print(f"round {number + 1}", file=sys.stderr, flush=True)
    finally:
        for one in load:
            one.kill()
            one.wait()
    check_complaints(before)
