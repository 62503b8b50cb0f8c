# SPDX-License-Identifier: Apache-2.0
"""Controllers that hold bios before they get a request (bpf_src/block/path/controllers.h)."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.bpf.object import BpfObject
from wptrace.engine.cells import Cells
from wptrace.flows.io.kinds import CONTROLLERS, OPERATION, REQUEST
from wptrace.kernel import privileges, symbols
from wptrace.model.distribution import Distribution

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


def cells(obj: BpfObject, names: Sequence[str]) -> dict[str, Cells]:
    """Of no names there are none to read."""
    of_ops = [OPERATION.group(name, kind) for name in names for kind in obj.enum("op_kind")]
    of_requests = [REQUEST.group(name, op) for name in names for op in obj.enum("block_op")]
    return {
        "held_op": Cells(obj.maps["held_op_cells"], of_ops, obj.enum("controller")),
        "held_request": Cells(obj.maps["held_request_cells"], of_requests, obj.enum("controller")),
    }


def leave_out(stages: dict[str, Distribution]) -> None:
    """Those that held nothing have no row."""
    for name in CONTROLLERS:
        if name in stages and not stages[name].count:
            del stages[name]
