# SPDX-License-Identifier: Apache-2.0
"""Records of the flight recorder: operations and requests in few bytes (bpf_src/block/path/shared.h)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import itemgetter, sub
from typing import TYPE_CHECKING, Any

from wptrace.analysis.overlap import Span
from wptrace.capture.records import Names, Raw
from wptrace.flows.io.kinds import HIT, OPERATION, REQUEST, REQUEST_STAGES, SPARSE
from wptrace.flows.io.records import NO_SECTOR, Made
from wptrace.kernel.blkstatus import to_errno
from wptrace.kernel.blockdev import maj_min
from wptrace.kernel.rwbs import rwbs
from wptrace.model.kind import TEXTS, Group, Kind
from wptrace.model.report import Event

if TYPE_CHECKING:
    from wptrace.capture.layout import Described
    from wptrace.flows.io.records import OwnersOfRecords
    from wptrace.flows.io.spans import OwnerNames

_HALF = (1 << 32) - 1
# If two CPUs' clocks differ, a point may seem to come after the end; it is taken to come with the end.
_LATER = _HALF - 0xFFFFF
_NO_TASK = (0, "", "")
_NO_CPUS = dict.fromkeys(("submit", "issue", "irq", "complete", "wake"))
# Flags of the kernel (enum req_flag_bits), by the names that the letters are made from.
FLAGS = {"SYNC": "sync", "META": "meta", "FUA": "fua", "PREFLUSH": "preflush", "RAHEAD": "rahead"}
# Times of an operation; all others are those of its request.
_START, _ISSUED_TO_FS = _OF_OPERATION = "start", "issued_to_fs"

RECORDED = Raw(
    "recorded",
    enums=("op_stage", "op_kind", "block_op", "recorded_kind", "recorded_time", "interface"),
    constants=(
        "RECORDED_KIND_BITS",
        "RECORDED_INTERFACE_SHIFT",
        "RECORDED_COARSE",
        "RECORDED_COARSE_SHIFT",
        "RECORDED_FLAGS_SHIFT",
    ),
    statement="statement",
)


class Recorded:
    """Makes events, and spans of requests, from these records."""

    def __init__(self, layout: Described, texts: OwnersOfRecords | None = None) -> None:
        self._texts = texts
        self.rows, fields = layout.struct(layout.record).packed()
        self._at = {name: place for place, name in enumerate(fields)}
        self._names = layout.names
        self._stages = layout.enum("op_stage")[:-1]
        self._none = {name: 0 for name in self._stages if name not in SPARSE}
        self._op_kinds, self._block_ops = layout.enum("op_kind"), layout.enum("block_op")
        self._kinds, self._interfaces = layout.enum("recorded_kind"), layout.enum("interface")
        constant = layout.constants.__getitem__
        self._kind_mask = (1 << constant("RECORDED_KIND_BITS")) - 1
        self._interface_shift, self._coarse = constant("RECORDED_INTERFACE_SHIFT"), constant("RECORDED_COARSE")
        self._coarse_shift, flags = constant("RECORDED_COARSE_SHIFT"), constant("RECORDED_FLAGS_SHIFT")
        bits = {name: layout.constants.get(f"REQ_{name}") for name in FLAGS}
        self._bits = {name: bit - flags for name, bit in bits.items() if bit is not None and bit >= flags}
        # Stages between consecutive times. For a call that waited, the last time but one is when its task ran again.
        self._of_request = [name for name in self._stages if name in REQUEST_STAGES]
        of_call, asynchronous = ("fs", *self._of_request, "wakeup"), ("submit", "fs", *self._of_request)
        order = layout.enum("recorded_time")
        self._first = self._at["times[0]"]
        places = {name: self._first + place for place, name in enumerate(order)}
        # Stages lie between points, so there is one point more.
        inner = [name for name in order if name not in _OF_OPERATION][: len(self._of_request) + 1]
        self._of_call, self._of_asynchronous = (
            (names, itemgetter(*map(places.__getitem__, points)))
            for names, points in (
                (of_call, (_START, *inner, _ISSUED_TO_FS)),
                (asynchronous, (_START, _ISSUED_TO_FS, *inner)),
            )
        )
        self._points = itemgetter(*map(places.__getitem__, inner))
        self._of_span = itemgetter(*map(places.__getitem__, ("queued", "issued", "completed")))
        self._count = len(order)
        self._end_at = self._at["end_ns"]
        self.names = Names()

    # --- Times --------------------------------------------------------------------------------------------------------

    def _ages(self, record: Sequence[Any], unit: int) -> list[int]:
        """The time from each point of a request to the end."""
        ages = _before(record[self._end_at] >> unit, self._points(record))
        return [age << unit for age in ages] if unit else ages

    def _both(self, record: Sequence[Any], interface: int) -> tuple[dict[str, int], int]:
        """Stages and total of an operation with its request."""
        names, points = self._of_asynchronous if interface else self._of_call
        ages = _before(record[self._end_at], points(record))
        start = ages[0]
        if ages != sorted(ages, reverse=True):
            # A point that seems to come earlier than the one before it is taken to come with that.
            ages = list(accumulate(ages, min))
        stages = dict(zip(names, map(sub, ages, ages[1:])))
        # An asynchronous operation ends when it is reported: no task runs again and returns.
        stages["wakeup" if interface else "return"] = ages[-1]
        if interface and not stages["submit"]:
            del stages["submit"]
        return stages, start

    def _request(self, record: Sequence[Any], unit: int) -> tuple[dict[str, int], int]:
        ages = self._ages(record, unit)
        found = {name: begin - end for name, begin, end in zip(self._of_request, ages, ages[1:])}
        return found, ages[0]

    def _charged(self, record: Sequence[Any], unit: int) -> dict[str, int]:
        at, first = self._at, self._first
        mask, sector = record[at["stages"]], record[at["sector"]]
        there = [name for place, name in enumerate(self._stages) if mask >> place & 1]
        words = (*record[first : first + self._count], sector & _HALF, sector >> 32, record[at["dev"]])
        return {name: ns << unit for name, ns in zip(there, (*words, record[at["unused"]]))}

    # --- Events -------------------------------------------------------------------------------------------------------

    def decode(self, records: Sequence[Sequence[Any]], wall_offset_ns: int) -> Iterator[Event]:
        at = self._at
        kind_at, end_at, slot_at, op_at, tid_at = at["kind"], at["end_ns"], at["slot"], at["op"], at["tid"]
        inode_at, dev_at, offset_at, sector_at = at["inode"], at["file_dev"], at["offset"], at["sector"]
        bytes_at, result_at, length_at, flags_at = at["bytes"], at["result"], at["length"], at["flags"]
        stages_at, statement_at = at["stages"], at.get("statement", 0)
        disk_at = at["dev"]
        tasks, files, letters = self.names.tasks, self.names.files, Made(lambda key: self._letters(*key))
        disks = Made(maj_min)
        # Made for each call: a slot may have been given to another device.
        groups = Made(lambda key: self._group(*key))
        owners = None if self._texts is None else Made(self._texts.fields)
        for record in records:
            bits = record[kind_at]
            kind, interface = self._kinds[bits & self._kind_mask], bits >> self._interface_shift & 3
            unit = self._coarse_shift if bits & self._coarse else 0
            done = record[result_at]
            tid = record[tid_at]
            pid, cgroup, comm = tasks.get(tid, _NO_TASK)
            fields: dict[str, Any] = {"pid": pid, "tid": tid, "comm": comm, "cgroup": cgroup}
            if owners is not None:
                fields.update(owners[record[statement_at], comm])
            if kind == "request":
                group = groups[REQUEST, record[slot_at], record[op_at]]
                stages, total = self._request(record, unit)
                if not record[stages_at]:
                    stages = dict.fromkeys(self._of_request, 0)
                fields["error"] = to_errno(done)
            else:
                group = groups[HIT if kind == "hit" else OPERATION, record[slot_at], record[op_at]]
                if kind == "both":
                    found, total = self._both(record, interface)
                else:
                    found = self._charged(record, unit)
                    total = sum(found.values())
                stages = {**self._none, **found}
                if len(stages) > len(self._none):
                    stages = {name: stages[name] for name in self._stages if name in stages}
                if interface:
                    fields["interface"] = self._interfaces[interface]
                inode, place = record[inode_at], record[offset_at]
                fields |= {
                    "path": files.get((record[dev_at], inode)) or _unnamed(record[dev_at], inode),
                    "inode": inode,
                    "offset": place if place >= 0 else None,
                    "length": record[length_at],
                    "result": done,
                    "error": -done if -4096 < done < 0 else 0,
                    "requests": 1 if kind == "both" else record[bytes_at],
                    "readahead": 0 if kind == "both" else record[flags_at],
                    "deleted": None,
                    "interference": [],
                }
            if kind in ("both", "request"):
                where = record[sector_at]
                # A flush has no sector.
                fields["sector"] = where if where != NO_SECTOR else 0
                fields["bytes"] = record[bytes_at]
                op = self._block_ops[record[op_at]]
                fields["rwbs"] = letters[op, record[flags_at]]
                fields["maj_min"] = disks[record[disk_at]]
            fields["cpus"] = _NO_CPUS
            fields["clock"] = {"end_ns": record[end_at]}
            yield Event(group, record[end_at] + wall_offset_ns, total, stages, fields)

    def _group(self, kind: Kind, slot: int, op: int) -> Group:
        ops = self._block_ops if kind is REQUEST else self._op_kinds
        return kind.group(self._names[slot], ops[op])

    def _letters(self, op: str, flags: int) -> str:
        return rwbs(op, [FLAGS[name] for name, bit in self._bits.items() if flags >> bit & 1])

    # --- Requests -----------------------------------------------------------------------------------------------------

    def spans(self, records: Sequence[Sequence[Any]], owners: OwnerNames) -> Iterator[Span | None]:
        at, tasks = self._at, self.names.tasks
        kind_at, stages_at, end_at, tid_at = at["kind"], at["stages"], at["end_ns"], at["tid"]
        slot_at, op_at, bytes_at = at["slot"], at["op"], at["bytes"]
        statement_at = at.get("statement") if owners.by in TEXTS else None
        times_of, is_request = self._of_span, [kind in ("both", "request") for kind in self._kinds]
        for record in records:
            bits = record[kind_at]
            if not is_request[bits & self._kind_mask] or not record[stages_at]:
                yield None
                continue
            unit = self._coarse_shift if bits & self._coarse else 0
            end, tid = record[end_at], record[tid_at]
            queued, issued, completed = _before(end >> unit, times_of(record))
            if unit:
                queued, issued, completed = queued << unit, issued << unit, completed << unit
            pid, cgroup, comm = tasks.get(tid, _NO_TASK)
            yield Span(
                self._names[record[slot_at]],
                self._block_ops[record[op_at]],
                owners.of((comm, pid, tid, cgroup if statement_at is None else record[statement_at])),
                record[bytes_at],
                end - queued,
                end - issued,
                end - completed,
            )


def _before(end: int, times: Sequence[int]) -> list[int]:
    """Return how long before the end these times were, of which only the lower halves are known."""
    ages = [end - time & _HALF for time in times]
    return [0 if age >= _LATER else age for age in ages] if max(ages) >= _LATER else ages


def _unnamed(dev: int, inode: int) -> str:
    return f"inode {inode} on {maj_min(dev)}" if inode else ""
