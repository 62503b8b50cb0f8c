# SPDX-License-Identifier: Apache-2.0
"""Stacked devices (dm, md), whose bios have rows of their own (bpf_src/block/path/layers.h)."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.engine.devices import HASH
from wptrace.errors import UsageError
from wptrace.kernel import blockdev

# As in bpf_src/block/path/layers.h.
LAYERS = 256
PROBES = 16


def wanted(devices: Sequence[str]) -> list[str]:
    """Those of the devices that are stacked, and those below them; all that there are where none is named."""
    if not devices:
        return blockdev.layers()
    return list(dict.fromkeys(name for device in devices for name in blockdev.layers_of(blockdev.resolve(device))))


def table(names: Sequence[str]) -> list[dict[str, int]]:
    """For the BPF side: by the number of the device, which row its bios have."""
    entries: list[dict[str, int]] = [{} for _ in range(LAYERS)]
    for slot, name in enumerate(names):
        dev = blockdev.extent(name).dev
        start = (dev * HASH & 0xFFFFFFFF) >> 24
        places = [(start + probe) % LAYERS for probe in range(PROBES)]
        place = next((place for place in places if not entries[place]), None)
        if place is None:
            raise UsageError(f"there is no room left for {name} among so many devices", hint="name those of interest")
        entries[place] = {"dev": dev, "slot": slot}
    return entries
