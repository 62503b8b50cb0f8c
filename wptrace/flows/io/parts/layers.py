# SPDX-License-Identifier: Apache-2.0
"""Stacked devices (dm, md), whose bios have rows of their own (bpf_src/block/path/layers.h)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import DeviceCells, Devices, Slots, Table, spare
from wptrace.errors import UsageError
from wptrace.flows.io.kinds import LAYER
from wptrace.flows.io.parts.part import Part, Tracing
from wptrace.kernel import blockdev

# The maximum of bios in flight.
_UPPERS = 16384


class Layers(Part):
    needs_options = True
    stages = ("layers",)

    def __init__(self, devices: Devices, there: Sequence[str], room: int) -> None:
        """`there` are stacked devices that exist; `room` is for later ones, 0: as much as the memory limit allows."""
        super().__init__()
        self._devices, self._there, self._room = devices, there, room

    def prepare(self, obj: BpfObject) -> None:
        ops = len(obj.enum("block_op"))
        cells = obj.maps["layer_cells"]
        self._slots = Slots(self._there, self._room or spare(cells.value_size * ops * libbpf().cpus))
        cells.max_entries = len(self._slots.names) * ops
        obj.maps["uppers"].max_entries = _UPPERS
        obj.rodata.stacked = True
        obj.bss.layers = table(obj, self._slots.names, self._there)
        # A bio may be tracked before it is queued, if a limit holds it.
        obj.bss.holding = bool(self._there)

    def start(self, tracing: Tracing) -> None:
        obj = tracing.obj
        self._devices.loads.add(self._slots.names)
        ops, stages = obj.enum("block_op"), obj.enum("layer_stage")
        self._layers = DeviceCells(obj.maps["layer_cells"], self._slots.names, LAYER, ops, stages, True)
        self.cells = {"layer": self._layers}

    def rename(self, slot: int, name: str) -> None:
        """Stacked devices have slots of their own."""

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        if not devices_changed:
            return
        self._there = self._devices.layers()
        changes = self._slots.changes(self._there)
        self._slots.rename(changes)
        for slot, name in changes.items():
            self._layers.rename(slot, name)
        self._devices.loads.add(changes.values())
        with suppress(UsageError):
            if self._there:
                obj.bss.layers = table(obj, self._slots.names, self._there)
                obj.bss.holding = True


def table(obj: BpfObject, slots: Sequence[str], there: Collection[str]) -> list[dict[str, int]]:
    """Fill the table of the programs: the row of bios by device number."""
    found = Table(obj, "layers")
    for slot, name in enumerate(slots):
        if name in there and not found.put(blockdev.extent(name).dev, slot=slot):
            raise UsageError(f"there is no room left for {name} among so many devices", hint="name those of interest")
    return found.entries
