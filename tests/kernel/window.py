# SPDX-License-Identifier: Apache-2.0
"""One trace for many tests: a flow that runs on, and what it saw for a while, in the lines that the command writes."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.kernel.disks import Disk
from tests.kernel.trace import Told, check, kernel_counted, unskipped
from wptrace.bpf.ring import Reader
from wptrace.engine.history import History
from wptrace.engine.results import Report, Snapshot
from wptrace.flows import io_block, io_path
from wptrace.flows.filters import Filter
from wptrace.flows.io_block import BlockFlow
from wptrace.flows.io_path import PathFlow
from wptrace.flows.io_records import in_use
from wptrace.flows.run import _report, _requests, _with_verdict
from wptrace.outputs.ndjson import NdjsonOutput

# How long what is under way at the end of a window may take.
_MOMENT_S = 5.0
RING = 1 << 24


class Running:
    """`wptrace io --each`, in this process."""

    def __init__(self, flow: PathFlow | BlockFlow, disks: Sequence[Disk]) -> None:
        self.flow = flow
        self._names = [disk.name for disk in disks]
        self._reader = Reader()
        self._start = flow.start(self._reader)

    @contextmanager
    def window(self, wanted: Filter | None = None) -> Iterator[Told]:
        """The lines are there when the block has ended: the start, what was told, and what was counted meanwhile."""
        if wanted is not None:
            assert isinstance(self.flow, PathFlow)
            self.flow.retarget(wanted)
        told = Told()
        try:
            # What was told before is nobody's.
            before = self._look()
            made = kernel_counted(self._names)
            self.flow.requests()
            yield told
            self._settle()
            after = self._look()
        finally:
            if wanted is not None:
                assert isinstance(self.flow, PathFlow)
                self.flow.retarget(Filter())
        text = io.StringIO()
        output = NdjsonOutput(text)
        output.start(self._start)
        _requests(self.flow, output)
        output.summary(self._summary(before, after))
        told.lines = [json.loads(line) for line in text.getvalue().splitlines()]
        for line in told.lines:
            check(line)
        unskipped(told.summary, 0 if wanted else kernel_counted(self._names) - made)

    def _summary(self, before: Snapshot, after: Snapshot) -> Report:
        history = History()
        for snapshot in (before, after):
            history.add(snapshot.at_ns, snapshot.cells)
        grown = {who: ns - before.behind.get(who, 0) for who, ns in after.behind.items()}
        behind = {who: ns for who, ns in grown.items() if ns}
        return _with_verdict(_report("summary", self.flow, after, before, None), self.flow, history, behind)

    def _look(self) -> Snapshot:
        self._reader.drain()
        return self.flow.snapshot()

    def _settle(self) -> None:
        """Waits for what is under way, as the end of a trace does."""
        end = time.monotonic() + _MOMENT_S
        while time.monotonic() < end and self._is_busy():
            time.sleep(_MOMENT_S / 100)

    def _is_busy(self) -> bool:
        if isinstance(self.flow, PathFlow):
            return next(in_use(self.flow._running.obj), None) is not None
        return self.flow.snapshot().accounting.in_flight > 0


@contextmanager
def running(flow: PathFlow | BlockFlow, disks: Sequence[Disk]) -> Iterator[Running]:
    try:
        made = Running(flow, disks)
        yield made
        flow.stop()
    finally:
        flow.close()


@contextmanager
def path_of(*disks: Disk, interference: bool = False) -> Iterator[Running]:
    """`wptrace io --each --dev ...`, with `--interference` or without."""
    options = io_path.Options(tuple(disk.name for disk in disks), slow_ns=0, ring_bytes=RING, interference=interference)
    with running(PathFlow(options), disks) as made:
        yield made


@contextmanager
def block_of(*disks: Disk) -> Iterator[Running]:
    """`wptrace io --level block --each --dev ...`"""
    names = tuple(disk.name for disk in disks)
    with running(BlockFlow(io_block.Options(names, slow_ns=0, ring_bytes=RING)), disks) as made:
        yield made
