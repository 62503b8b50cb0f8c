# SPDX-License-Identifier: Apache-2.0
"""Writeback of the path flow: the table of dirty pages, and the rows (bpf_src/block/path/writeback.h)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import DeviceCells
from wptrace.flows.io.kinds import WRITEBACK
from wptrace.model.book import Cause

DIRTY_FULL = Cause("dirty_full", "the table of dirty pages had no room: who wrote them is not known")
# At most this share of all pages is dirty with the default vm.dirty_ratio; and 28 MB of memory for it.
_SHARE = 4
MOST_FRAMES = 1 << 19


def prepare(obj: BpfObject, slots: int) -> None:
    frames = _frames()
    obj.maps["dirty_frames"].max_entries = frames
    obj.rodata.frame_mask = frames - 1
    obj.maps["writeback_cells"].max_entries = slots


def cells(obj: BpfObject, names: Iterable[str]) -> DeviceCells:
    stages = obj.enum("writeback_stage")
    return DeviceCells(obj.maps["writeback_cells"], names, lambda name: [WRITEBACK.group(name, "write")], stages, True)


def _frames() -> int:
    """How many page frames may be dirty at a time: a power of two."""
    wanted = os.sysconf("SC_PHYS_PAGES") // _SHARE
    return min(1 << max(wanted - 1, 1).bit_length(), MOST_FRAMES)
