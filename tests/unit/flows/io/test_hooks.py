# SPDX-License-Identifier: Apache-2.0
"""The hooks of drivers that a start needs, by the names of its disks."""

from __future__ import annotations

import pytest

from wptrace.flows.io.hooks import HOOKS, SEEN_BY_OTHERS, needed, of_drivers

EVERY = {hook.id for point in "DHS" for hook in of_drivers(point)}
NVME, SCSI, VIRTIO = {"nvme_core.d", "nvme_core.s"}, {"scsi_mod.h", "scsi_mod.s"}, {"virtio_blk.h"}


@pytest.mark.parametrize(
    ("disks", "ids"),
    [
        (None, {*EVERY, SEEN_BY_OTHERS}),
        (["nvme0n1", "nvme1c0n1"], NVME),
        (["sda", "sr0", "nvme0n1"], {*NVME, *SCSI}),
        (["vda"], {*VIRTIO, SEEN_BY_OTHERS}),
        (["nvme0n1", "loop0"], {*NVME, SEEN_BY_OTHERS}),
    ],
)
def test_only_hooks_of_the_disks_that_are_traced(disks: list[str] | None, ids: set[str]) -> None:
    found = {hook.id for hook in needed(HOOKS, disks, set())}
    assert found & {*EVERY, SEEN_BY_OTHERS} == ids
    assert {*NVME, *SCSI, *VIRTIO} <= EVERY
