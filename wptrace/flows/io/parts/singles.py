# SPDX-License-Identifier: Apache-2.0
"""`--slow`, `--each`, `--sample`, `--segments`: single operations and requests, as records in the ring."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import LINE_RATE, RATE, RAW_RATE, Record, Ring
from wptrace.engine.flow import NEVER_NS
from wptrace.flows.io.options import Options
from wptrace.flows.io.parts.part import Part, Tracing
from wptrace.flows.io.records import Stories, as_asked
from wptrace.flows.io.rules import InTheWay
from wptrace.kernel import cpus
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.model.book import FOREIGN, Cause
from wptrace.model.kind import Group
from wptrace.model.report import Event
from wptrace.model.rows import Rows

if TYPE_CHECKING:
    from wptrace.flows.io.parts.neighbours import Neighbours
    from wptrace.flows.io.parts.texts import Texts
    from wptrace.flows.io.parts.waits import Waits
    from wptrace.flows.io.wait_reasons import WaitStack


class Singles(Part):
    needs_options = True

    def __init__(
        self,
        options: Options,
        cgroups: CgroupNames,
        neighbours: Neighbours | None,
        waits: Waits | None,
        texts: Texts | None,
    ) -> None:
        super().__init__()
        self._options, self._cgroups, self._neighbours, self._waits = options, cgroups, neighbours, waits
        self._texts = None if texts is None else texts.of_records
        self._layout = as_asked(options.interference, neighbours is not None, options.segments, texts=texts is not None)
        self._records: list[Record] = []
        self._slow_ns, self._sample, self._limit = options.slow_ns, options.sample, options.limit
        self._one_in = 0
        """The sampling rate of a budget: at most one in so many; 0: no limit."""
        self._in_the_way = InTheWay()

    @property
    def chosen(self) -> dict[str, Any]:
        return {"segments": True} if self._options.segments else {}

    def prepare(self, obj: BpfObject) -> None:
        options = self._options
        obj.rodata.emits_records = True
        obj.maps["records"].max_entries = options.ring_bytes
        obj.rodata.record_bytes = obj.struct("io_record").before(self._layout.end).size
        if options.segments:
            obj.rodata.segmented = True
            obj.maps["op_kept"].max_entries = obj.length("ops")

    def start(self, tracing: Tracing) -> None:
        obj, names, recorder = tracing.obj, tracing.names, tracing.recorder
        self._obj = obj
        decode_neighbours = None if self._neighbours is None else self._neighbours.decode
        self._stories = Stories(obj, names, self._cgroups, decode_neighbours, self._layout.end, self._texts)
        stacks: Callable[[], dict[int, WaitStack]] = dict
        if self._waits is not None:
            self._stories.stack_of = self._waits.stacks.__getitem__
            stacks = self._waits.stacks.all
        sink: Callable[[memoryview], None] | None = None
        if recorder is not None:
            text_of = None if self._texts is None else self._texts.of
            sink = recorder.raw(obj, self._layout, names, self._cgroups.of, stacks, text_of)
        ring = self.ring = Ring.of(obj.maps["records"], self._stories.layout, sink)
        rate = RATE if self._options.slow_ns != 0 else LINE_RATE if sink is None else RAW_RATE
        tracing.reader.add(ring, self.take, rate=self._options.limit or rate)

    def begin(self, obj: BpfObject) -> None:
        self._apply()
        obj.bss.records_on, obj.data.records_since_ns = self._on, 0 if self._on else NEVER_NS

    def emit(self, slow_ns: int | None, sample: int, limit: int) -> None:
        before = self._on
        self._slow_ns, self._sample, self._limit = slow_ns, sample, limit
        self._apply()
        if self._on == before:
            return
        self._obj.bss.records_on = self._on
        # From now on every program sees that.
        cpus.barrier()
        self._obj.data.records_since_ns = time.monotonic_ns() if self._on else NEVER_NS

    def save(self, one_in: int) -> None:
        self._one_in = one_in
        self._apply()

    @property
    def _on(self) -> bool:
        return self._slow_ns is not None or self._sample > 0

    def _apply(self) -> None:
        obj, slow_ns, sample = self._obj, self._slow_ns, self._sample
        saved = self._one_in if slow_ns == 0 or 0 < sample < self._one_in else 0
        obj.bss.sample = max(sample, saved)
        obj.bss.record_limit = self._limit
        obj.data.slow_ns = NEVER_NS if slow_ns is None or (saved and slow_ns == 0) else slow_ns

    def take(self, records: list[Record]) -> None:
        self._records += records
        self._stories.meet(records)
        for one in self._stories.decode(self._stories.with_culprits(records)):
            self._in_the_way.add(one)

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        found.update(self._in_the_way.counters())

    def noted(self, obj: BpfObject) -> dict[Cause, int]:
        return {} if self.ring is None else {FOREIGN: self.ring.foreign}

    def events(self, found: Sequence[Event]) -> Sequence[Event]:
        records, self._records = self._records, []
        if not records:
            return found
        rows = Rows(records, self._stories)
        return [*found, *rows] if found else rows
