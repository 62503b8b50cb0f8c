# SPDX-License-Identifier: Apache-2.0
"""Threads of a hypervisor that write and read its eventfds: `--kicks` (bpf_src/block/path/signals.h)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Record, Ring
from wptrace.capture.records import Raw
from wptrace.correlation.kicks import Signal
from wptrace.flows.io.hooks import KICKS
from wptrace.flows.io.parts.part import Part, Tracing
from wptrace.kernel.system_calls import numbers
from wptrace.kernel.tasks import comm

if TYPE_CHECKING:
    from wptrace.capture.layout import Described

RECORDS = Raw("signal")
Heard = list[Signal]
# Pairs of a thread and an eventfd.
_KEYS = 4096
_RATE = 100_000


class Kicks(Part):
    """Counts uses of eventfds. A capture keeps each of them for a join."""

    hooks = (KICKS,)

    _ring: Ring | None = None

    def __init__(self, ring_bytes: int) -> None:
        super().__init__()
        self._ring_bytes = ring_bytes

    def prepare(self, obj: BpfObject) -> None:
        obj.maps["signal_counts"].max_entries = _KEYS
        obj.maps["signals"].max_entries = self._ring_bytes
        obj.bss.signal_read, obj.bss.signal_write = (numbers()[name] for name in ("read", "write"))

    def start(self, tracing: Tracing) -> None:
        obj, recorder = tracing.obj, tracing.recorder
        self._obj = obj
        sink: Callable[[memoryview], None] | None = None if recorder is None else recorder.raw(obj, RECORDS, [])
        self._ring = Ring.of(obj.maps["signals"], obj.struct(RECORDS.record).packed()[0], sink)
        tracing.reader.add(self._ring, self._pass_over, rate=_RATE)

    def _pass_over(self, records: list[Record]) -> None:
        """Only a capture uses them."""

    @property
    def chosen(self) -> dict[str, Any]:
        return {"kicks": True}

    @property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        return {"eventfds": self._counts()}

    def _counts(self) -> list[dict[str, Any]]:
        """Counts by eventfd and thread."""
        found = sorted(self._obj.maps["signal_counts"].items(), key=lambda one: (one[0].fd, one[0].read, one[0].tid))
        return [
            {
                "fd": key.fd,
                "way": "read" if key.read else "written",
                "tid": key.tid,
                "comm": comm(one.comm),
                "count": one.count,
            }
            for key, one in found
        ]

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()


def of(layout: Described, rows: memoryview) -> Iterator[Signal]:
    """The uses in a capture."""
    plain, names = layout.struct(RECORDS.record).packed()
    ns, tid, fd, read = (names.index(name) for name in ("ns", "tid", "fd", "read"))
    for record in layout.rows(plain).iter_unpack(rows):
        yield Signal(record[ns], record[tid], record[fd], record[read] != 0)
