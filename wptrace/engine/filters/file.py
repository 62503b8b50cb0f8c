# SPDX-License-Identifier: Apache-2.0
"""Filters by file, and by directory with all files below it (bpf_src/lib/filters/file.h)."""

from __future__ import annotations

from typing import Any

from wptrace.bpf.kernel_btf import module, vmlinux
from wptrace.engine.filters import Predicate
from wptrace.kernel import mounts
from wptrace.kernel.mounts import Place

_SWITCH = "filter_file"


def _set_file(bss: Any, wanted: Place | None) -> None:
    bss.filter_inode = wanted.inode if wanted else 0
    bss.filter_inode_dev = wanted.dev if wanted else 0
    bss.filter_inode_subvolume = wanted.subvolume if wanted else 0


def _set_directory(bss: Any, wanted: Place | None) -> None:
    bss.filter_directory = wanted.inode if wanted else 0
    bss.filter_directory_dev = wanted.dev if wanted else 0
    bss.filter_directory_subvolume = wanted.subvolume if wanted else 0


def _notes(wanted: Place) -> list[str]:
    if not wanted.subvolume:
        return []
    types = vmlinux(), module("btrfs")
    if any(one is not None and one.has_field("btrfs_root", "anon_dev") for one in types):
        return []
    return [
        f"{wanted.path} is on btrfs: what has its inode number in another subvolume, or is below that, counts as well"
    ]


FILE = Predicate(
    "file",
    "only requests to this file, under any of its names",
    mounts.file,
    _set_file,
    _SWITCH,
    metavar="PATH",
    describe=lambda wanted: {"file": wanted.path},
    notes=_notes,
)
DIR = Predicate(
    "dir",
    "only requests to files below this directory",
    mounts.directory,
    _set_directory,
    _SWITCH,
    metavar="PATH",
    describe=lambda wanted: {"dir": wanted.path},
    notes=_notes,
)
