# SPDX-License-Identifier: Apache-2.0
"""A trace that many tests share, and windows of it in the lines that the command writes."""

from __future__ import annotations

import io
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Callable

from tests.kernel.disks import Disk
from tests.kernel.trace import PATIENCE, KernelSkippedError, Line, Lines, check, kernel_counted, skipped, unskipped
from wptrace.engine.filters import Filter
from wptrace.engine.session import Session
from wptrace.flows.io import block as io_block
from wptrace.flows.io import options as io_options
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.operations import MODULES
from wptrace.flows.io.path import PathFlow
from wptrace.flows.io.state import in_use
from wptrace.kernel import blockdev, cpus
from wptrace.model.report import Report, Snapshot
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.registry import Wanted

# How long requests may stay under way at the end of a window after the kernel has nothing in flight any more.
_MOMENT_S = 5.0
RING = 1 << 24
_ALL, _NONE = 0, (1 << 64) - 1
# Rows for the devices of tests.
_SPARE = 20


def undeclared(report: Report) -> set[tuple[str, str]]:
    """Return the counters that their kind does not declare."""
    declared = {(kind.name, one.name) for kind in {group.kind for group in report.counters} for one in kind.counters}
    return {(group.kind.name, name) for group, counts in report.counters.items() for name in counts} - declared


class Running:
    """`wptrace io --each`, in this process."""

    def __init__(
        self, make: Callable[[], PathFlow | BlockFlow], disks: Sequence[Disk] = (), shared: bool = False
    ) -> None:
        """Start the trace. A shared one can be aimed at other devices, and starts anew after a failure."""
        self._make = make
        self._disks = disks
        self._shared = shared
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        self._names = [disk.name for disk in self._disks]
        self.flow = self._make()
        self._session = Session([self.flow])
        (self._trace,) = self._session.traces
        try:
            self._session.start()
        except BaseException:
            self._session.close()
            raise

    def _clear(self) -> None:
        """Start anew if an earlier test has left something in flight."""
        if not self._shared:
            return
        if not self._failed and self._is_busy():
            self._settle()
            self._failed = self._is_busy()
        if self._failed:
            self.aim(*self._disks)

    def _begin_anew(self) -> None:
        # A broken flow may fail to close as well, which must not fail the next test.
        with suppress(Exception):
            self.flow.close()
        self._begin()
        self._failed = False

    def aim(self, *disks: Disk) -> Running:
        """Point a shared trace at devices, as `--dev` does. Others keep the devices that they began with."""
        if not self._shared:
            return self
        if self._failed:
            self._begin_anew()
        assert isinstance(self.flow, PathFlow)
        self.flow.watch([disk.name for disk in disks])
        self._disks, self._names = disks, [disk.name for disk in disks]
        return self

    @contextmanager
    def window(self, wanted: Filter | None = None, each: bool = True) -> Iterator[Lines]:
        """Yield lines that are there once the block has ended: start, records and the counts meanwhile."""
        self._clear()
        if wanted is not None:
            assert isinstance(self.flow, PathFlow)
            self.flow.retarget(wanted)
        reported = Lines()
        try:
            # Drop the records of earlier windows.
            before = self._look()
            made = kernel_counted(self._names)
            self.flow.events()
            self._show(each)
            before_that = skipped(self.flow._obj)
            try:
                yield reported
            except AssertionError as error:
                if more := skipped(self.flow._obj) - before_that:
                    raise KernelSkippedError(f"the kernel skipped {more} runs of programs before: {error}") from error
                raise
            self._settle()
            after = self._look()
        except AssertionError:
            raise
        except BaseException:
            self._failed = True
            raise
        finally:
            if not self._failed:
                self._show(False)
            if wanted is not None and not self._failed:
                assert isinstance(self.flow, PathFlow)
                self.flow.retarget(Filter())
        text = io.StringIO()
        output = NdjsonOutput(text, Wanted())
        output.start(self._trace.start)
        for event in self.flow.events():
            output.event(event)
        for snapshot in (before, after):
            self._trace.remember(snapshot)
        report = self._trace.window_with_verdict(before, after, "summary")
        assert not undeclared(report)
        output.summary(report)
        reported.lines = [json.loads(line) for line in text.getvalue().splitlines()]
        for line in reported.lines:
            check(line)
        unskipped(reported.summary, 0 if wanted else kernel_counted(self._names) - made)

    def _show(self, everything: bool) -> None:
        """Turn records on or off. An emulated CPU is slow to read records, so tests without need turn them off."""
        if self._shared:
            self.flow._obj.data.slow_ns = _ALL if everything else _NONE

    def stuck(self, at_least_ns: int) -> list[Line]:
        """Return the list of `--stuck` at this moment."""
        text = io.StringIO()
        NdjsonOutput(text, Wanted()).in_flight(self.flow.in_flight(at_least_ns), time.time_ns())
        (line,) = [json.loads(line) for line in text.getvalue().splitlines()]
        check(line)
        return list(line["found"])

    def drain(self) -> None:
        self._session.reader.drain()

    def _look(self) -> Snapshot:
        # A program counts before it writes its record, and its CPU may stall in between.
        cpus.barrier()
        self.drain()
        return self._trace.snapshot()

    def _settle(self) -> None:
        """Wait for what is under way, as the end of a trace does, and longer while a disk has requests in flight."""
        start = since = time.monotonic()
        while (now := time.monotonic()) < min(since + _MOMENT_S, start + PATIENCE) and self._is_busy():
            if any(sum(disk.in_flight()) for disk in self._disks):
                since = now
            time.sleep(_MOMENT_S / 100)

    def _is_busy(self) -> bool:
        if isinstance(self.flow, PathFlow) and next(in_use(self.flow._running.obj), None) is not None:
            # A snapshot of the command does the same: a request whose end no program saw does not stay in flight for
            # ever.
            self.flow._books.stale.sweep()
            return True
        found = self.flow.snapshot()
        return any(book.in_flight > 0 for book in found.books.values())


@contextmanager
def running(
    make: Callable[[], PathFlow | BlockFlow], disks: Sequence[Disk] = (), shared: bool = False
) -> Iterator[Running]:
    made = Running(make, disks, shared)
    try:
        yield made
        made.flow.stop()
    finally:
        made.flow.close()


@contextmanager
def path_of(*disks: Disk, interference: bool = False) -> Iterator[Running]:
    """`wptrace io --each --dev ...`, with `--interference` or without."""
    names = tuple(disk.name for disk in disks)
    options = io_options.Options(names, slow_ns=0, ring_bytes=RING, interference=interference)
    with running(lambda: PathFlow(options), disks) as made:
        yield made


class Shared:
    """A path flow that the tests of all modules share; another one replaces it if other options are needed."""

    def __init__(self) -> None:
        self._now: tuple[bool, Running] | None = None
        self._stack = ExitStack()

    def of(self, writeback: bool) -> Running:
        if self._now is None or self._now[0] != writeback:
            self.close()
            for module in MODULES:
                # Functions of modules have to be there before the programs are loaded.
                subprocess.run(["modprobe", "--quiet", module], check=False)
            options = io_options.Options(
                tuple(blockdev.disks()[:1]), slow_ns=_NONE, ring_bytes=RING, writeback=writeback, spare=_SPARE
            )
            self._now = writeback, self._stack.enter_context(running(lambda: PathFlow(options), shared=True))
        return self._now[1]

    def close(self) -> None:
        self._now = None
        self._stack.close()


@contextmanager
def block_of(*disks: Disk) -> Iterator[Running]:
    """`wptrace io --level block --each --dev ...`"""
    names = tuple(disk.name for disk in disks)
    with running(lambda: BlockFlow(io_block.Options(names, slow_ns=0, ring_bytes=RING)), disks) as made:
        yield made
