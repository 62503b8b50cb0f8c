# SPDX-License-Identifier: Apache-2.0
"""System calls: those that read, write and sync, for kernels whose functions nobody may observe; and their names."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.kernel.system_calls import names, numbers
from wptrace.model.kind import NOBODY

# By the kinds that the program knows: what the kernel calls them.
_KINDS = {
    "read": ("read",),
    "write": ("write",),
    "pread": ("pread64",),
    "pwrite": ("pwrite64",),
    "readv": ("readv",),
    "writev": ("writev",),
    "preadv": ("preadv", "preadv2"),
    "pwritev": ("pwritev", "pwritev2"),
    "fsync": ("fsync", "fdatasync"),
    "syncfs": ("syncfs",),
    "sync_file_range": ("sync_file_range",),
    "sync": ("sync",),
    "msync": ("msync",),
}

SYNCS = ("fsync", "syncfs", "sync_file_range", "sync", "msync")


def calls(count: int, kinds: Sequence[str], plain: bool, syncs: bool, machine: str | None = None) -> bytes:
    """The kind of each system call as the program knows it, 0 for those that do something else or are not wanted."""
    table, known = bytearray(count), numbers(machine or "")
    for kind, every in _KINDS.items():
        if not (syncs if kind in SYNCS else plain):
            continue
        for name in every:
            if name in known:
                table[known[name]] = kinds.index(kind)
    return bytes(table)


# What people call them otherwise: as functions, and by whom what they submit is done.
_CALLED = {
    "pread64": "pread",
    "pwrite64": "pwrite",
    "fadvise64": "fadvise",
    "umount2": "umount",
    "io_uring_enter": "io_uring",
    "io_submit": "aio",
}
SYSTEM_CALL = "system_call"
# What is no system call of this machine's own (call_class of bpf_src/block/path/call.h).
_CLASSES = {
    "foreign": "32-bit call",
    "pagefault": "page fault",
    "swapin": "swap-in",
    "uring": "io_uring",
    "kernel": "kernel thread",
    "none": NOBODY,
}


def call(kind: str, number: int, machine: str | None = None) -> str:
    """Return the usual name of a call, by its class and the number of a system call."""
    if kind != SYSTEM_CALL:
        return _CLASSES[kind]
    name = names(machine or "").get(number)
    return f"call {number}" if name is None else _CALLED.get(name, name)
