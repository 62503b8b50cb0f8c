# SPDX-License-Identifier: Apache-2.0
"""`--interference`: whatever takes the CPU from operations, and controllers that hold bios before they get a request
(bpf_src/block/path/interference.h, controllers.h)."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping

from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import DeviceCells
from wptrace.engine.hooks import Hook
from wptrace.engine.resolver import Loaded
from wptrace.errors import LibbpfError
from wptrace.flows.io.hooks import TICK_NS
from wptrace.flows.io.kinds import CONTROLLERS, INTERFERENCES, OPERATION, REQUEST
from wptrace.flows.io.parts.part import Distributions, Part, Tracing
from wptrace.kernel import cpus, privileges

# The functions in which tasks sleep for each controller; io.max does not put tasks to sleep.
FUNCTIONS = {
    "io_cost": "ioc_rqos_throttle",
    "io_latency": "blkcg_iolatency_throttle",
    "wbt": "wbt_wait",
    "tag": "blk_mq_get_tag",
}


# From the first step of a CPU that comes until it is there.
_SETTLES_S = 10.0
_CPU_MOVE = Hook(
    "cpu.move",
    "coming and going of a CPU",
    ("cpu_move_raw_tp",),
    (),
    "late interrupts of a CPU that comes again are not found, and other times may count as such",
    required=False,
)


class Interference(Part):
    needs_options = True

    def __init__(self, operations: bool = True) -> None:
        """Without operations, controllers only."""
        super().__init__()
        self._operations = operations
        self.hooks = (_CPU_MOVE,) if operations else ()
        self._cpu_moves, self._settled = 0, 0.0
        self._ticking: tuple[int, ...] = ()
        self.stages = (*INTERFERENCES, *CONTROLLERS) if operations else CONTROLLERS

    def make_room(self, obj: BpfObject, devices: int) -> None:
        kinds = len(obj.enum("op_kind"))
        obj.maps["held_request_cells"].max_entries = devices * len(obj.enum("block_op"))
        if self._operations:
            obj.maps["interference_cells"].max_entries = obj.maps["held_op_cells"].max_entries = devices * kinds

    def prepare(self, obj: BpfObject) -> None:
        if self._operations:
            obj.bss.tick_ns = TICK_NS
        obj.rodata.interference = obj.bss.interference_on = True

    def functions(self, loaded: Loaded) -> Mapping[str, str]:
        return dict.fromkeys(FUNCTIONS.values(), "")

    def start(self, tracing: Tracing) -> None:
        obj, names = tracing.obj, tracing.names
        tracing.set_code("code", [FUNCTIONS.get(name, "") for name in obj.enum("controller")])
        kinds, ops, controllers = obj.enum("op_kind"), obj.enum("block_op"), obj.enum("controller")
        held = obj.maps["held_request_cells"]
        self.cells = {"held_request": DeviceCells(held, names, REQUEST, ops, controllers)}
        if not self._operations:
            return
        interference, held = obj.maps["interference_cells"], obj.maps["held_op_cells"]
        self.cells |= {
            "interference": DeviceCells(interference, names, OPERATION, kinds, list(INTERFERENCES), True),
            "held_op": DeviceCells(held, names, OPERATION, kinds, controllers),
        }

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        """Give a tick to CPUs that came: the kernel takes its events from one that goes."""
        moves, now, tick = obj.bss.cpu_moves, time.monotonic(), obj.progs["tick_perf"]
        if moves != self._cpu_moves:
            self._cpu_moves, self._settled = moves, now + _SETTLES_S
            self._ticking = ()
        if now > self._settled or not tick.links or self._ticking == (online := tuple(cpus.online())):
            return
        for cpu in online:
            try:
                tick.attach_cpu(cpu)
            except LibbpfError as error:
                # It goes again, which the next look sees.
                if error.errno != errno.ENODEV:
                    raise
        # The first tick of a new event may come late.
        obj.bss.cpu_moved_ns = time.monotonic_ns()
        self._ticking = online

    def notes(self, loaded: Loaded) -> list[str]:
        """A kernel has only some of the functions, and may hide them."""
        found = [] if self._operations else [f"{', '.join(INTERFERENCES)} are not seen at this level"]
        if any(loaded.obj.bss.code_bytes):
            return found
        hidden = f"/proc/kallsyms shows no addresses ({privileges.hidden_addresses()})"
        return [*found, f"what held requests back has no name: {hidden}"]

    def add_distributions(self, found: Distributions) -> None:
        super().add_distributions(found)
        # Controllers that held nothing get no row.
        for stages in found.values():
            for name in CONTROLLERS:
                if name in stages and not stages[name].count:
                    del stages[name]
