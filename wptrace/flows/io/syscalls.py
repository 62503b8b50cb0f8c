# SPDX-License-Identifier: Apache-2.0
"""System calls that read, write and sync, by number: for kernels whose functions nobody may observe."""

from __future__ import annotations

import os
from collections.abc import Sequence

# As in bpf_src/block/path/entry.h.
CALLS = 512

# arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
_NUMBERS = {
    "x86_64": {
        "read": (0,),
        "write": (1,),
        "pread": (17,),
        "pwrite": (18,),
        "readv": (19,),
        "writev": (20,),
        "preadv": (295, 327),
        "pwritev": (296, 328),
        "fsync": (74, 75),
        "sync_file_range": (277,),
        "msync": (26,),
    },
    "aarch64": {
        "read": (63,),
        "write": (64,),
        "readv": (65,),
        "writev": (66,),
        "pread": (67,),
        "pwrite": (68,),
        "preadv": (69, 286),
        "pwritev": (70, 287),
        "fsync": (82, 83),
        "sync_file_range": (84,),
        "msync": (227,),
    },
}

SYNCS = ("fsync", "sync_file_range", "msync")


def calls(kinds: Sequence[str], plain: bool, syncs: bool, machine: str | None = None) -> bytes:
    """The kind of each system call as the program knows it, 0 for those that do something else or are not wanted."""
    table = bytearray(CALLS)
    for kind, numbers in _NUMBERS.get(machine or os.uname().machine, {}).items():
        if not (syncs if kind in SYNCS else plain):
            continue
        for number in numbers:
            table[number] = kinds.index(kind)
    return bytes(table)
