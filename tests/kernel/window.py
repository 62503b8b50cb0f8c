# SPDX-License-Identifier: Apache-2.0
"""One trace for many tests: a flow that runs on, and what it saw for a while, in the lines that the command writes."""

from __future__ import annotations

import io
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Callable

from tests.kernel.disks import Disk
from tests.kernel.trace import PATIENCE, KernelSkippedError, Line, Told, check, kernel_counted, skipped, unskipped
from wptrace.bpf.object import BpfObject
from wptrace.engine import devices
from wptrace.engine.filters import Filter
from wptrace.engine.session import Session
from wptrace.flows.io import block as io_block
from wptrace.flows.io import layers
from wptrace.flows.io import path as io_path
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.operations import MODULES
from wptrace.flows.io.path import PathFlow
from wptrace.flows.io.records import in_use
from wptrace.kernel.blockdev import Extent
from wptrace.model.report import Snapshot
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.registry import Wanted

# How long what is under way at the end of a window may take, from when the kernel has nothing in flight any more.
_MOMENT_S = 5.0
RING = 1 << 24
_ALL, _NONE = 0, (1 << 64) - 1


class AimedFlow(PathFlow):
    """The path of devices that are named, and named anew, while it runs; nothing of any other one is counted."""

    DEVICES, LAYERS = 20, 8

    def __init__(self, options: io_path.Options) -> None:
        super().__init__(options)
        # The programs of each file system are there, whatever is mounted later.
        self._file_systems = set(MODULES)
        self._extents = []
        self._names, self._layers = self._padded([], [])
        self._before: dict[str, dict[object, dict[str, int]]] = defaultdict(dict)
        """Of the rows of devices that were there before."""

    def _padded(self, names: list[str], stacked: list[str]) -> tuple[list[str], list[str]]:
        """With names for the rows that nobody has now."""
        assert len(names) <= self.DEVICES, "more devices than there are rows"
        assert len(stacked) <= self.LAYERS, "more stacked devices than there are rows"
        rows = [*names, *(f"unused{number}" for number in range(len(names), self.DEVICES))]
        return [devices.OTHER, *rows], [*stacked, *(f"none{number}" for number in range(len(stacked), self.LAYERS))]

    def _prepare(self, obj: BpfObject) -> None:
        # Those are no devices that a table may have.
        rows, self._layers = self._layers, []
        super()._prepare(obj)
        self._layers = rows
        obj.maps["layer_cells"].max_entries = self.LAYERS * len(obj.enum("block_op"))
        obj.maps["uppers"].max_entries = io_path._UPPERS
        obj.rodata.stacked = True
        obj.bss.trace_unlisted = False

    def _watched_whole(self) -> list[Extent]:
        # Of what the rows have, most is of earlier windows.
        return []

    def aim(self, disks: Sequence[Disk]) -> None:
        """Nothing may be under way. What is mounted on them is so already, as where a trace begins."""
        names = [disk.name for disk in disks]
        obj = self._running.obj
        self._extents = devices.extents(names, hidden=True)
        stacked = layers.wanted(names)
        found = [extent.name for extent in self._extents]
        self._names, self._layers = self._padded(found, stacked)
        self._loads = devices.Loads([*found, *stacked])
        self._stories.names = self._names
        obj.bss.layers = layers.table(obj, stacked)
        obj.bss.holding = bool(stacked)
        obj.bss.devices = devices.table(obj, self._extents, ())
        obj.bss.hidden_disks = devices.hidden_table(obj, self._extents)
        obj.bss.file_devices = devices.file_table(obj, self._extents, devices.below_files())
        # What was counted before has other names from now on, and is no part of a window.
        for name, cells in self._cells.items():
            cells.read()
            counted = ((row, cells.counters.get(group)) for row, group in cells._followed)
            self._before[name].update((row, counters) for row, counters in counted if counters)
        self._cells = self._counted(obj)
        # Each row takes a call to the kernel at each look, also one that nobody has. What ended there did end.
        used = {devices.OTHER, *found, *stacked}
        for name, cells in self._cells.items():
            unused = [one for one in cells._followed if one[1].label("dev") not in used]
            cells._followed = [one for one in cells._followed if one[1].label("dev") in used]
            before = self._before[name]
            cells.counters.update((group, before[row]) for row, group in unused if row in before)

    def tell(self, everything: bool) -> None:
        """Or nothing, where no test needs it: an emulated machine is slow to read records."""
        self._running.obj.data.slow_ns = _ALL if everything else _NONE


class Running:
    """`wptrace io --each`, in this process."""

    def __init__(
        self, make: Callable[[], PathFlow | BlockFlow], disks: Sequence[Disk] = (), renewed: bool = False
    ) -> None:
        self._make = make
        self._disks = disks
        self._renewed = renewed
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
        """Begin anew where a test before this one has left something in flight."""
        if not self._renewed:
            return
        if not self._failed and self._is_busy():
            self._settle()
            self._failed = self._is_busy()
        if self._failed:
            self.aim(*self._disks)

    def _begin_anew(self) -> None:
        # What broke the flow may break its end as well, and is no fault of the test that comes next.
        with suppress(Exception):
            self.flow.close()
        self._begin()
        self._failed = False

    def aim(self, *disks: Disk) -> Running:
        """As `--dev` does. What was begun with the devices of its tests has them all along."""
        if not isinstance(self.flow, AimedFlow):
            return self
        if self._failed:
            self._begin_anew()
        self.flow.aim(disks)
        self._disks, self._names = disks, [disk.name for disk in disks]
        return self

    @contextmanager
    def window(self, wanted: Filter | None = None, each: bool = True) -> Iterator[Told]:
        """The lines are there when the block has ended: the start, the records, and what was counted meanwhile."""
        self._clear()
        if wanted is not None:
            assert isinstance(self.flow, PathFlow)
            self.flow.retarget(wanted)
        told = Told()
        try:
            # Records from before are nobody's.
            before = self._look()
            made = kernel_counted(self._names)
            self.flow.events()
            self._show(each)
            before_that = skipped(self.flow._obj)
            try:
                yield told
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
            if isinstance(self.flow, AimedFlow) and not self._failed:
                self.flow.tell(False)
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
        output.summary(self._trace.window_with_verdict(before, after, "summary"))
        told.lines = [json.loads(line) for line in text.getvalue().splitlines()]
        for line in told.lines:
            check(line)
        unskipped(told.summary, 0 if wanted else kernel_counted(self._names) - made)

    def stuck(self, at_least_ns: int) -> list[Line]:
        """Return what `--stuck` lists now."""
        text = io.StringIO()
        NdjsonOutput(text, Wanted()).in_flight(self.flow.in_flight(at_least_ns), time.time_ns())
        (line,) = [json.loads(line) for line in text.getvalue().splitlines()]
        check(line)
        return list(line["found"])

    def _look(self) -> Snapshot:
        self._session.reader.drain()
        return self._trace.snapshot()

    def _settle(self) -> None:
        """Waits for what is under way, as the end of a trace does. A machine that stands still ends no request."""
        start = since = time.monotonic()
        while (now := time.monotonic()) < min(since + _MOMENT_S, start + PATIENCE) and self._is_busy():
            if any(sum(disk.in_flight()) for disk in self._disks):
                since = now
            time.sleep(_MOMENT_S / 100)

    def _is_busy(self) -> bool:
        if isinstance(self.flow, PathFlow) and next(in_use(self.flow._running.obj), None) is not None:
            # As each look does: a request whose end no program saw is not under way for ever.
            self.flow._stale.sweep()
            return True
        found = self.flow.snapshot()
        return any(book.in_flight > 0 for book in found.books.values())


@contextmanager
def running(
    make: Callable[[], PathFlow | BlockFlow], disks: Sequence[Disk] = (), renewed: bool = False
) -> Iterator[Running]:
    made = Running(make, disks, renewed)
    try:
        yield made
        made.flow.stop()
    finally:
        made.flow.close()


@contextmanager
def path_of(*disks: Disk, interference: bool = False) -> Iterator[Running]:
    """`wptrace io --each --dev ...`, with `--interference` or without."""
    options = io_path.Options(tuple(disk.name for disk in disks), slow_ns=0, ring_bytes=RING, interference=interference)
    with running(lambda: PathFlow(options), disks) as made:
        yield made


class Shared:
    """A path flow for the tests of all modules, which is started once; one that has other options ends it."""

    def __init__(self) -> None:
        self._now: tuple[bool, Running] | None = None
        self._stack = ExitStack()

    def of(self, writeback: bool) -> Running:
        if self._now is None or self._now[0] != writeback:
            self.close()
            for module in MODULES:
                # Its functions are there before the programs are.
                subprocess.run(["modprobe", "--quiet", module], check=False)
            options = io_path.Options(slow_ns=_NONE, ring_bytes=RING, writeback=writeback)
            self._now = writeback, self._stack.enter_context(running(lambda: AimedFlow(options), renewed=True))
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
