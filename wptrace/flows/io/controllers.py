# SPDX-License-Identifier: Apache-2.0
"""Controllers that hold bios before they get a request (bpf_src/block/path/controllers.h)."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import DeviceCells
from wptrace.flows.io.kinds import CONTROLLERS, OPERATION, REQUEST
from wptrace.kernel import privileges, symbols
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group

# In which function a task sleeps that each of them holds; who waits for io.max does not sleep.
FUNCTIONS = {
    "io_cost": "ioc_rqos_throttle",
    "io_latency": "blkcg_iolatency_throttle",
    "wbt": "wbt_wait",
    "tag": "blk_mq_get_tag",
}


def prepare(obj: BpfObject, slots: int) -> None:
    obj.maps["held_op_cells"].max_entries = slots * len(obj.enum("op_kind"))
    obj.maps["held_request_cells"].max_entries = slots * len(obj.enum("block_op"))
    found = symbols.code(FUNCTIONS.values())
    code = [found.get(FUNCTIONS.get(name, ""), (0, 0)) for name in obj.enum("controller")]
    obj.bss.code_begin = [begin for begin, _ in code]
    obj.bss.code_bytes = [length for _, length in code]


def notes(obj: BpfObject) -> list[str]:
    """Each kernel has some of the functions, if it shows them."""
    if any(obj.bss.code_bytes):
        return []
    hidden = f"/proc/kallsyms shows no addresses ({privileges.hidden_addresses()})"
    return [f"what held requests back has no name: {hidden}"]


def cells(obj: BpfObject, names: Sequence[str]) -> dict[str, DeviceCells]:
    """Of no names there are none to read."""
    kinds, ops = obj.enum("op_kind"), obj.enum("block_op")

    def of_ops(name: str) -> list[Group]:
        return [OPERATION.group(name, kind) for kind in kinds]

    def of_requests(name: str) -> list[Group]:
        return [REQUEST.group(name, op) for op in ops]

    return {
        "held_op": DeviceCells(obj.maps["held_op_cells"], names, of_ops, obj.enum("controller")),
        "held_request": DeviceCells(obj.maps["held_request_cells"], names, of_requests, obj.enum("controller")),
    }


def leave_out(stages: dict[str, Distribution]) -> None:
    """Those that held nothing have no row."""
    for name in CONTROLLERS:
        if name in stages and not stages[name].count:
            del stages[name]
