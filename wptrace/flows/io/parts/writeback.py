# SPDX-License-Identifier: Apache-2.0
"""`--writeback`: pages followed from the task that made them dirty (bpf_src/block/path/writeback.h)."""

from __future__ import annotations

import os

from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import DeviceCells
from wptrace.flows.io.kinds import WRITEBACK, WRITEBACK_STAGES
from wptrace.flows.io.parts.part import Part, Tracing

# With the default vm.dirty_ratio at most this fraction of all pages is dirty; its table takes at most 28 MB.
_SHARE = 4
MOST_FRAMES = 1 << 19


class Writeback(Part):
    needs_options = True
    stages = WRITEBACK_STAGES

    def make_room(self, obj: BpfObject, devices: int) -> None:
        obj.maps["writeback_cells"].max_entries = devices

    def prepare(self, obj: BpfObject) -> None:
        frames = _frames()
        obj.maps["dirty_frames"].max_entries = frames
        obj.rodata.frame_mask = frames - 1
        obj.rodata.following = True

    def start(self, tracing: Tracing) -> None:
        obj = tracing.obj
        cells, stages = obj.maps["writeback_cells"], obj.enum("writeback_stage")
        self.cells = {"writeback": DeviceCells(cells, tracing.names, WRITEBACK, ["write"], stages, True)}


def _frames() -> int:
    """How many page frames may be dirty at a time, as a power of two."""
    wanted = os.sysconf("SC_PHYS_PAGES") // _SHARE
    return min(1 << max(wanted - 1, 1).bit_length(), MOST_FRAMES)
