# SPDX-License-Identifier: Apache-2.0
"""The tables of operations and bios in flight, as the programs keep them (bpf_src/block/path/state.h)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, Callable

from wptrace.bpf.object import BpfObject
from wptrace.flows.io.kinds import LAYER, OPERATION, REQUEST
from wptrace.kernel import blockdev
from wptrace.kernel.tasks import leader_of, name_of
from wptrace.model.report import InFlight


def path(names: bytes, cut: bool) -> str:
    """A path from its names, the leaf first, each terminated by NUL."""
    parts = names.split(b"\0")[:-1][::-1]
    # Bytes that are not UTF-8 become surrogates, as in all of Python's file names.
    found = b"/".join(parts).decode("utf-8", "surrogateescape")
    return f".../{found}" if cut else f"/{found}" if parts else ""


def path_layout(obj: BpfObject) -> Any:
    """The first part of a record, which alone is kept of a file or directory."""
    return obj.struct("io_record").before("statement")


def path_in(layout: Any, record: memoryview) -> str:
    values = dict(zip(layout.fields, layout.struct.unpack_from(record)))
    return path(bytes(values["path"])[: values["path_end"]], bool(values["path_cut"])) or "/"


# The points that a request may have reached, the last one first, and the stage that it is in.
_REACHED = (("seen", "complete"), ("handed", "device"), ("issued", "driver"))


def waiting(
    obj: BpfObject, names: Sequence[str], now_ns: int, at_least_ns: int, anywhere: bool = True
) -> list[InFlight]:
    """Operations, requests and bios of stacked devices that are in flight for at least that long, oldest first.

    Unless `anywhere` is set, an operation is left out until it is known to be on a traced device.
    """
    ops, bios = obj.struct("op_state"), obj.struct("bio_state")
    kinds, block_ops, bio_kinds = obj.enum("op_kind"), obj.enum("block_op"), obj.enum("bio_kind")
    found = []
    traced = {place: dict(zip(ops.fields, values)) for place, values in _used(obj.view("ops"), ops)}
    every = {place: dict(zip(bios.fields, values)) for place, values in _used(obj.view("bios"), bios)}
    below, delivered, traced_kind = (obj.constants[name] for name in ("EVENT_BELOW", "DELIVERED", "OP_TRACED"))
    made = {bio["above"] for bio in every.values() if bio["done.events.below"] & below}
    devices: dict[int, str] | None = None
    requests: dict[int, str] = {}
    uppers: dict[int, tuple[str, str]] = {}
    for place, bio in every.items():
        kind = bio_kinds[bio["kind"]]
        if bio["bio"] == delivered or kind == "linked":
            continue
        operation = traced.get(bio["op"], {}) if bio["task"] else {}
        owned = bool(operation) and operation["task"] == bio["task"]
        if kind == "above":
            devices = blockdev.numbers() if devices is None else devices
            dev = devices.get(bio["done.dev"], "")
            stage = "layers" if bio["layer"] and place not in made else "device"
            if owned and (place not in made or bio["op"] not in uppers):
                uppers[bio["op"]] = dev, "layers" if bio["layer"] else "device"
            # The end of a bio that is no layer may never be seen.
            if not bio["layer"]:
                continue
        else:
            dev, stage = names[bio["done.slot"]], "throttle" if kind == "held" else _stage(bio)
            if owned:
                requests[bio["op"]] = stage
        age = now_ns - bio["done.times.queued"]
        if age >= at_least_ns and not bio["empty"]:
            which = LAYER if kind == "above" else REQUEST
            tid = operation["tid"] if owned else bio["tid"]
            found.append(InFlight(which.group(dev, block_ops[bio["op_kind"]]), age, stage, _task(tid)))
    for place, one in traced.items():
        age = now_ns - one["start_ns"]
        if one["kind"] == traced_kind and age >= at_least_ns:
            dev, stage = names[one["slot"]] if one["slot"] else "", "journal" if one["in_journal"] else "fs"
            if place in requests:
                stage = requests[place]
            elif place in uppers:
                dev, stage = uppers[place]
            elif not one["slot"] and not anywhere:
                continue
            found.append(InFlight(OPERATION.group(dev, kinds[one["op_kind"]]), age, stage, _task(one["tid"])))
    return sorted(found, key=lambda one: -one.age_ns)


def _task(tid: int) -> dict[str, Any]:
    return {"pid": leader_of(tid), "tid": tid, "comm": name_of(tid)}


def _stage(bio: dict[str, Any]) -> str:
    stage = next((stage for point, stage in _REACHED if bio[f"done.times.{point}"]), "queue")
    # Drivers without hooks have no time between D and H.
    return "device" if stage == "driver" else stage


LAST_MOMENT_S = 0.1
"""The time that what is in flight has to end, before programs that would see the end are detached."""

# Flags of bios that belong to stacked devices, or are not queued yet: they are no requests.
_UPWARDS = ("above", "linked")

_STRUCTS = {"ops": "op_state", "bios": "bio_state"}


def in_use(obj: BpfObject) -> Iterator[int]:
    """The used places of both tables that will be freed by an end."""
    upwards = [obj.enum("bio_kind").index(name) for name in _UPWARDS]
    for name in _STRUCTS:
        for place, kind in entries(obj, name, "kind"):
            if name == "ops" or kind not in upwards:
                yield place


def give_time(busy: Callable[[], bool]) -> None:
    """Give what is in flight a moment to end."""
    end = time.monotonic() + LAST_MOMENT_S
    while time.monotonic() < end and busy():
        time.sleep(LAST_MOMENT_S / 20)


def values_in_flight(obj: BpfObject, **fields: str) -> set[int]:
    """The values of a field of each table in used places, by name of the table."""
    found: set[int] = set()
    for name, field in fields.items():
        found.update(value for _, value in entries(obj, name, field))
    return found


def started(obj: BpfObject, name: str) -> int:
    """How many operations or requests have ever begun: each place has a count after its key."""
    stride = obj.struct(_STRUCTS[name]).size
    return sum(obj.view(name).cast("Q")[1 :: stride // 8].tolist())


def unplaced(obj: BpfObject) -> int:
    """How many operations in flight have no request yet, so that their device is unknown."""
    traced = obj.constants["OP_TRACED"]
    found = entries(obj, "ops", "kind", "slot", "above")
    return sum(kind == traced and not slot and not above for _, kind, slot, above in found)


def operations(obj: BpfObject) -> Iterator[tuple[int, bool]]:
    """The places of operations, each with whether it is traced and passes the filter."""
    traced = obj.constants["OP_TRACED"]
    for place, kind in entries(obj, "ops", "kind"):
        yield place, kind == traced


def give_up(obj: BpfObject, place: int) -> bool:
    """Free a place whose operation is never ended; return whether a request was to be counted with it."""
    layout, memory = obj.struct("op_state"), obj.view("ops")
    only = layout.struct.unpack_from(memory, place * layout.size)[layout.fields.index("only")]
    # The next user of the place must not find the old key.
    (at,) = (member.offset for member in layout.places if member.name == "only")
    memory[place * layout.size + at : place * layout.size + at + 4] = bytes(4)
    _free(memory, place * layout.size)
    if not only:
        return False
    at = (only - 1) * obj.struct("bio_state").size
    delivered = obj.view("bios")[at : at + 8].cast("Q")[0] == obj.constants["DELIVERED"]
    if delivered:
        _free(obj.view("bios"), at)
    return delivered


def _free(memory: memoryview, at: int) -> None:
    memory[at : at + 8] = bytes(8)


def entries(obj: BpfObject, name: str, *fields: str) -> Iterator[tuple[Any, ...]]:
    """The used places of a table, each with these fields."""
    layout = obj.struct(_STRUCTS[name])
    every = [layout.fields.index(field) for field in fields]
    for place, values in _used(obj.view(name), layout):
        yield (place, *(values[at] for at in every))


def _used(memory: memoryview, layout: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The used places of a table: their first eight bytes are not 0."""
    stride = layout.size
    keys = memory.cast("Q")[:: stride // 8].tolist()
    # Few of the thousands of places are used at a time.
    for place in compress(range(len(keys)), keys):
        yield place, layout.struct.unpack_from(memory, place * stride)
