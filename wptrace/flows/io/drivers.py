# SPDX-License-Identifier: Apache-2.0
"""Drivers with hooks of their own (bpf_src/block/path/drivers.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wptrace.engine.hooks import Hook


class Driver(NamedTuple):
    name: str
    module: str
    prefixes: tuple[str, ...]
    """The prefix of the names of its disks."""
    disks: str
    """The disks in words."""
    programs: Mapping[str, tuple[str, ...]]
    """Programs by point, best first."""


DRIVERS = (
    Driver("nvme", "nvme_core", ("nvme",), "nvme", {"D": ("nvme_setup_raw_tp",), "S": ("nvme_seen_raw_tp",)}),
    Driver("scsi", "scsi_mod", ("sd", "sr"), "scsi disks", {"H": ("scsi_start_raw_tp",), "S": ("scsi_seen_raw_tp",)}),
    Driver("virtio-blk", "virtio_blk", ("vd",), "virtio-blk", {"H": ("virtblk_add_fentry", "virtblk_add_kprobe")}),
)
# The points: a description, the stage that begins or ends there, and the fallback without a hook.
_POINTS = {
    "D": ("set up by", "driver", "queue"),
    "H": ("handed over by", "driver", "device"),
    "S": ("completion seen by", "complete", "device"),
}
MODULES = {one.module for one in DRIVERS}
SEEING = {one.module: one.name for one in DRIVERS if "S" in one.programs}


def hooks(point: str) -> tuple[Hook, ...]:
    """Return the hooks of all drivers for D, H or S."""
    words, stage, whole = _POINTS[point]
    return tuple(
        Hook(
            f"{one.module}.{point.lower()}",
            f"{words} {one.name} ({point})",
            one.programs[point],
            (stage,),
            f"{stage} is part of {whole} on {one.disks}",
            required=False,
            module=one.module,
        )
        for one in DRIVERS
        if point in one.programs
    )


def module_of(disk: str) -> str:
    """The module of a disk's driver; empty if it has no hooks here."""
    return next((one.module for one in DRIVERS if disk.startswith(one.prefixes)), "")
