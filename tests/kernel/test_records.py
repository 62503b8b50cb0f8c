# SPDX-License-Identifier: Apache-2.0
"""Records that are turned on and off during a trace: exactly those of operations that began meanwhile."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel import nbd
from tests.kernel.disks import Disk
from tests.kernel.patience import joined
from tests.kernel.trace import Line, count, lossless, wait_until
from tests.kernel.window import RING, Running, running
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import OPERATIONS

BLOCK = 4096


@contextmanager
def switchable(disk: Disk) -> Iterator[tuple[Running, PathFlow]]:
    options = Options((disk.name,), segments=True, records_later=True, ring_bytes=RING)
    with running(lambda: PathFlow(options), [disk]) as made:
        assert isinstance(made.flow, PathFlow)
        yield made, made.flow


def records(trace: list[Line]) -> list[Line]:
    return [line for line in trace if line["kind"] in ("operation", "request", "hit")]


@pytest.mark.one_kernel
def test_records_are_of_what_begins_while_they_are_on(loop: Disk) -> None:
    fd = os.open(loop.path, os.O_RDONLY | os.O_DIRECT)
    try:
        with switchable(loop) as (made, flow), mmap.mmap(-1, BLOCK) as buffer:
            for reads, wanted, found in (
                (30, (None, 0, 0), 0),
                (20, (0, 0, 0), 20),
                (25, (None, 0, 0), 0),
                (40, (None, 4, 0), 10),
                (10, (1_000_000_000_000, 0, 0), 0),
                (15, (0, 0, 0), 15),
            ):
                flow.emit_records(*wanted)
                with made.window() as trace:
                    for number in range(reads):
                        assert os.preadv(fd, [buffer], BLOCK * number) == BLOCK
                assert lossless(trace.summary)
                assert count(trace.summary, op="read", kind="operation") == reads
                each = records(trace.lines)
                assert len(each) == found
                for one in each:
                    assert (one["pid"], one["path"], one["length"]) == (os.getpid(), loop.path, BLOCK)
                    assert one["segments"][0]["from_ns"] == 0
                    assert one["segments"][-1]["to_ns"] == one["total_ns"]
                    assert len(one["children"]) == 1
    finally:
        os.close(fd)


@pytest.mark.guest
@pytest.mark.one_kernel
def test_what_is_under_way_at_the_switch_has_no_record(tmp_path: Path) -> None:
    """Nothing was kept for such a record before."""
    with (
        nbd.server(tmp_path) as server,
        nbd.connected(tmp_path) as disk,
        switchable(disk) as (made, flow),
        mmap.mmap(-1, BLOCK) as buffer,
    ):
        fd = os.open(disk.path, os.O_RDONLY | os.O_DIRECT)

        def under_way() -> int:
            return flow.snapshot().books[OPERATIONS].in_flight

        try:
            for slow_ns in (0, None):
                flow.emit_records(None if slow_ns == 0 else 0)
                with made.window() as trace:
                    with nbd.stopped(server):
                        reader = threading.Thread(target=os.preadv, args=(fd, [buffer], 0))
                        reader.start()
                        wait_until(lambda: under_way() == 1, "the read")
                        flow.emit_records(slow_ns)
                        assert under_way() == 1
                    joined(reader)
                assert count(trace.summary, op="read", kind="operation") == 1
                assert records(trace.lines) == []
        finally:
            os.close(fd)
