# SPDX-License-Identifier: Apache-2.0
"""Dumps of a flight recorder that no kernel filled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.unit.capture.made import START
from tests.unit.flows.io.test_records import NAMES, packed
from wptrace.bpf.object import BpfObject
from wptrace.capture.records import Names
from wptrace.engine.devices import Slots
from wptrace.engine.recorder import Dump, Recorder, Whole
from wptrace.engine.recorder_size import RecorderSize
from wptrace.flows.io.kinds import KINDS
from wptrace.flows.io.recorded import RECORDED

SECOND = 1_000_000_000
_WINDOW = RecorderSize.of_time(3600 * SECOND)
_TASKS = {8: (7, "/db.slice", "db")}
_LOWER = 0xFFFF_FFFF


class _Filled(Recorder):
    def __init__(self, obj: BpfObject, began_ns: int, rows: bytearray, count: int) -> None:
        super().__init__(_WINDOW, None, KINDS, RECORDED, "operations", lambda: Names(_TASKS))
        self._obj, self._record, self._devices = obj, RECORDED.struct(obj), Slots(NAMES)
        self._notes, self._bytes, self._start_ns = [], 0, began_ns
        self._filled = rows, count

    def _copy(self) -> tuple[bytearray, list[Whole]]:  # type: ignore[override]
        rows, count = self._filled
        return rows, [Whole([(0, count)], count, 0, False)]


def dump(obj: BpfObject, path: Path, began_s: float, operations: Sequence[tuple[float, int]]) -> Dump:
    """Dump a recorder that began so many seconds ago.

    Each operation is a read of 4 KiB: when it ended, in seconds after that, and the ns that its request was in the
    device. It takes 1 us more in all.
    """
    began_ns = time.monotonic_ns() - int(began_s * SECOND)
    rows = bytearray().join(_record(obj, began_ns + int(end_s * SECOND), ns) for end_s, ns in operations)
    return _Filled(obj, began_ns, rows, len(operations)).copied(START, "stages")(path)


def _record(obj: BpfObject, end_ns: int, device_ns: int) -> bytes:
    ages: Mapping[str, int] = {
        **dict.fromkeys(("queued", "got", "issued", "handed"), device_ns + 200),
        **dict.fromkeys(("seen", "completed"), 200),
        "start": device_ns + 1000,
    }
    times = {f"times[{at}]": end_ns - ages.get(name, 0) & _LOWER for at, name in enumerate(obj.enum("recorded_time"))}
    kind = obj.enum("recorded_kind").index("both")
    sizes = dict.fromkeys(("bytes", "length", "result"), 4096)
    values = {"end_ns": end_ns, "kind": kind, "slot": 1, "tid": 8, "stages": 1, **sizes, **times}
    return packed(RECORDED.struct(obj), **values)
