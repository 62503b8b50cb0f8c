# SPDX-License-Identifier: Apache-2.0
"""Tasks that slept for their own requests, at levels that follow no operations (bpf_src/block/path/sleep.h)."""

from __future__ import annotations

from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import DeviceCells
from wptrace.flows.io.kinds import SLEEP
from wptrace.flows.io.part import Part, Tracing


class Sleeps(Part):
    def make_room(self, obj: BpfObject, devices: int) -> None:
        obj.maps["sleep_cells"].max_entries = devices * len(obj.enum("block_op"))

    def start(self, tracing: Tracing) -> None:
        obj = tracing.obj
        ops, stages = obj.enum("block_op"), obj.enum("sleep_stage")
        self.cells = {"sleep": DeviceCells(obj.maps["sleep_cells"], tracing.names, SLEEP, ops, stages, True)}
