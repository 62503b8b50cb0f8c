# SPDX-License-Identifier: Apache-2.0
"""Drivers that have hooks of their own for what they do with a request (bpf_src/block/path/drivers.h)."""

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
    """In words."""
    programs: Mapping[str, tuple[str, ...]]
    """By point, best first."""


DRIVERS = (
    Driver("nvme", "nvme_core", ("nvme",), "nvme", {"D": ("nvme_setup_raw_tp",), "S": ("nvme_seen_raw_tp",)}),
    Driver("scsi", "scsi_mod", ("sd", "sr"), "scsi disks", {"H": ("scsi_start_raw_tp",), "S": ("scsi_seen_raw_tp",)}),
    Driver("virtio-blk", "virtio_blk", ("vd",), "virtio-blk", {"H": ("virtblk_add_fentry", "virtblk_add_kprobe")}),
)
# What happens there, the stage that begins or ends with it, and where that is without it.
_POINTS = {
    "D": ("set up by", "driver", "queue"),
    "H": ("handed over by", "driver", "device"),
    "S": ("completion seen by", "complete", "device"),
}
MODULES = {one.module for one in DRIVERS}
SEEING = {one.module: one.name for one in DRIVERS if "S" in one.programs}


def hooks(point: str) -> tuple[Hook, ...]:
    """For D, H or S, of all drivers that have some."""
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
    """Whose hooks see the disk's requests; empty where it is none of them."""
    return next((one.module for one in DRIVERS if disk.startswith(one.prefixes)), "")
