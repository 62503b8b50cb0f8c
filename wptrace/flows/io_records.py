# SPDX-License-Identifier: Apache-2.0
"""Single operations and requests of the path flow: what a record tells, and what is in flight (bpf_src/io_path)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wptrace.bpf.object import BpfObject
from wptrace.engine.results import HIT, OPERATION, REQUEST, InFlight, Request
from wptrace.kernel import blockdev
from wptrace.kernel.blkstatus import to_errno
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.irqs import SOFTIRQS
from wptrace.kernel.rwbs import rwbs
from wptrace.kernel.tasks import comm, leader_of, name_of

# As in bpf_src/io_path/shared.h.
_NO_CPU = 0xFFFF
_NO_SECTOR = (1 << 64) - 1
_NOISE = ("preempted", "hardirq", "softirq", "irq_off")
_CHAIN = ("submit", "issue", "irq", "complete", "wake")
_KINDS = {"operation": OPERATION, "hit": HIT, "request": REQUEST}

Record = tuple[Any, ...]


class Stories:
    """Makes requests of records."""

    def __init__(self, obj: BpfObject, names: Sequence[str]) -> None:
        layout = obj.struct("io_record")
        self._at = {name: place for place, name in enumerate(layout.fields)}
        self._names = names
        self._stages = obj.enum("op_stage")[:-1]
        self._request_stages = obj.enum("request_stage")[:-1]
        self._ops = {OPERATION: obj.enum("op_kind"), HIT: obj.enum("op_kind"), REQUEST: obj.enum("block_op")}
        self._kinds = [_KINDS[name] for name in obj.enum("record_kind")]
        self._flags = obj.enum("block_flag")
        self._cgroups = CgroupNames()

    def told(self, records: Sequence[Record]) -> Iterator[Request]:
        offset = wall_offset_ns()
        at = self._at
        first, end, begin, kind_at, op_at, slot_at = (
            at[name] for name in ("stages[0]", "end_ns", "start_ns", "kind", "op", "slot")
        )
        for record in records:
            kind = self._kinds[record[kind_at]]
            op = self._ops[kind][record[op_at]]
            stages = dict(zip(self._stages, record[first : first + len(self._stages)]))
            if kind == REQUEST:
                stages = {name: stages[name] for name in self._request_stages}
            elif not stages["unattributed"]:
                del stages["unattributed"]
            yield Request(
                record[end] + offset,
                self._names[record[slot_at]],
                op,
                self._fields(record, kind, op),
                record[end] - record[begin],
                stages,
                kind,
            )

    def _fields(self, record: Record, kind: str, op: str) -> dict[str, Any]:
        at = self._at
        flags = [name for place, name in enumerate(self._flags) if record[at["flags"]] >> place & 1]
        number = record[at["dev"]]
        result = record[at["result"]]
        fields: dict[str, Any] = {
            "pid": record[at["tgid"]],
            "tid": record[at["tid"]],
            "comm": comm(record[at["comm"]]),
            "cgroup": self._cgroups.of(record[at["cgroup"]]),
        }
        if kind != REQUEST:
            fields["path"] = path(record[at["path"]][: record[at["path_end"]]], bool(record[at["path_cut"]]))
            fields["deleted"] = bool(record[at["deleted"]])
            fields["inode"] = record[at["inode"]]
            fields["offset"] = record[at["offset"]] if record[at["offset"]] >= 0 else None
            fields["length"] = record[at["length"]]
            fields["result"] = result
            fields["requests"] = record[at["requests"]]
            fields["readahead"] = record[at["readahead"]]
        fields["error"] = to_errno(result) if kind == REQUEST else -result if -4096 < result < 0 else 0
        if number:
            # A flush has none.
            fields["sector"] = record[at["sector"]] if record[at["sector"]] != _NO_SECTOR else 0
            fields["bytes"] = record[at["bytes"]]
            fields["rwbs"] = rwbs(op, flags)
            fields["maj_min"] = f"{number >> blockdev.MINOR_BITS}:{number & (1 << blockdev.MINOR_BITS) - 1}"
        chain = record[at["cpus.submit"] : at["cpus.submit"] + len(_CHAIN)]
        fields["cpus"] = {name: cpu if cpu != _NO_CPU else None for name, cpu in zip(_CHAIN, chain)}
        if kind != REQUEST:
            fields["interference"] = list(self._interference(record))
        return fields

    def _interference(self, record: Record) -> Iterator[dict[str, Any]]:
        at = self._at
        for place, kind in enumerate((*_NOISE, "before_wakeup")):
            prefix = f"noise[{place}]" if place < len(_NOISE) else "before_wakeup"
            if not record[at[f"{prefix}.count"]]:
                continue
            name = comm(record[at[f"{prefix}.name"]])
            if kind == "softirq":
                name = SOFTIRQS[record[at[f"{prefix}.softirq"]] % len(SOFTIRQS)]
            yield {
                "kind": kind,
                "name": name,
                "pid": record[at[f"{prefix}.pid"]] if kind not in ("hardirq", "softirq") else None,
                "cpu": record[at[f"{prefix}.cpu"]],
                "ns": record[at[f"{prefix}.ns"]],
                "count": record[at[f"{prefix}.count"]],
            }


def path(names: bytes, cut: bool) -> str:
    """A path from its names, the leaf's first, each with a NUL behind it."""
    parts = names.split(b"\0")[:-1][::-1]
    # Bytes that are no UTF-8 survive as surrogates, as everywhere in Python's file names.
    found = b"/".join(parts).decode("utf-8", "surrogateescape")
    return f".../{found}" if cut else f"/{found}" if parts else ""


# What a bio has reached, last point first, and the stage that it is in then.
_REACHED = (
    ("times.seen", "complete"),
    ("times.handed", "device"),
    ("times.issued", "driver"),
    ("times.got", "queue"),
)


def waiting(obj: BpfObject, names: Sequence[str], now_ns: int, at_least_ns: int) -> list[InFlight]:
    """Operations and requests in flight for at least so long, oldest first."""
    ops, bios = obj.struct("op_state"), obj.struct("bio_state")
    kinds, block_ops = obj.enum("op_kind"), obj.enum("block_op")
    found = []
    requests: dict[int, str] = {}
    for _, values in _used(obj.maps["bios"].memory_view(), bios):
        bio = dict(zip(bios.fields, values))
        stage = next(stage for point, stage in _REACHED if bio[point])
        # Drivers without a hook of their own go from D to the device at once.
        stage = "device" if stage == "driver" else stage
        if bio["task"]:
            requests[bio["op"]] = stage
        age = now_ns - bio["times.queued"]
        if bio["counted"] and age >= at_least_ns:
            fields = {"pid": bio["tgid"], "tid": bio["tid"], "comm": name_of(bio["tid"])}
            found.append(
                InFlight(REQUEST, names[bio["slot"]], block_ops[bio["op_kind"]], age, stage, fields),
            )
    held = {bio.op for _, bio in obj.maps["throttled"].items()} if obj.bss.throttling else set()
    for place, values in _used(obj.maps["ops"].memory_view(), ops):
        op = dict(zip(ops.fields, values))
        age = now_ns - op["start_ns"]
        if op["kind"] == _TRACED and age >= at_least_ns:
            on_the_way = place in held or (op["bio"] and op["made"] == op["ended"])
            stage = requests.get(place, "throttle" if on_the_way else "fs")
            fields = {"pid": leader_of(op["tid"]), "tid": op["tid"], "comm": name_of(op["tid"])}
            found.append(
                InFlight(OPERATION, names[op["slot"]] if op["slot"] else "", kinds[op["write"]], age, stage, fields)
            )
    return sorted(found, key=lambda one: -one.age_ns)


def in_use(obj: BpfObject) -> Iterator[int]:
    """The places of both tables that are taken."""
    for name, struct in (("ops", "op_state"), ("bios", "bio_state")):
        for place, _ in _used(obj.maps[name].memory_view(), obj.struct(struct)):
            yield place


_TRACED = 1  # OP_TRACED of bpf_src/io_path/state.h


def _used(memory: memoryview, layout: Any) -> Iterator[tuple[int, Record]]:
    """The places of a table that are taken: their first eight bytes are not 0."""
    stride = layout.size + 7 & ~7
    keys = memory.cast("Q")[:: stride // 8]
    for place, key in enumerate(keys.tolist()):
        if key:
            yield place, layout.struct.unpack_from(memory, place * stride)
