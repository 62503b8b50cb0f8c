# SPDX-License-Identifier: Apache-2.0
"""What held requests before they had one, in the path flow (bpf_src/io_path/controllers.h)."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.bpf.object import BpfObject
from wptrace.engine.distribution import Distribution
from wptrace.engine.results import OPERATION, REQUEST, Group
from wptrace.flows.base import Hook, Loaded, missing_target
from wptrace.flows.cells import Cells
from wptrace.flows.io_hooks import ASKED
from wptrace.flows.io_stages import CONTROLLERS


def prepare(obj: BpfObject, slots: int) -> None:
    obj.maps["held_op_cells"].max_entries = slots * len(obj.enum("op_kind"))
    obj.maps["held_request_cells"].max_entries = slots * len(obj.enum("block_op"))


def cells(obj: BpfObject, names: Sequence[str]) -> dict[str, Cells]:
    """Of no names there are none to read."""
    of_ops = [Group(name, kind, OPERATION) for name in names for kind in obj.enum("op_kind")]
    of_requests = [Group(name, op, REQUEST) for name in names for op in obj.enum("block_op")]
    return {
        "held_op": Cells(obj.maps["held_op_cells"], of_ops, obj.enum("controller")),
        "held_request": Cells(obj.maps["held_request_cells"], of_requests, obj.enum("controller")),
    }


def unseen(loaded: Loaded) -> list[Hook]:
    """Of controllers that this kernel has, and that cannot be observed."""
    missed = [hook for hook in ASKED if hook.name not in loaded.chosen]
    return [hook for hook in missed if not missing_target(loaded.obj.progs[str(hook.programs[0])].section, "")]


def leave_out(stages: dict[str, Distribution]) -> None:
    """Those that held nothing have no row."""
    for name in CONTROLLERS:
        if name in stages and not stages[name].count:
            del stages[name]
