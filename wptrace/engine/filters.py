# SPDX-License-Identifier: Apache-2.0
"""Which requests the user wants, and the globals by which programs know (bpf_src/lib/filter.h)."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from wptrace.bpf.kernel_btf import vmlinux
from wptrace.errors import UnsupportedError
from wptrace.kernel import tasks
from wptrace.kernel.cgroups import Cgroup
from wptrace.kernel.mounts import Place

# As in bpf_src/lib/filter.h.
READS, WRITES = 1, 2
LEVELS = 32

# The kernel's TASK_COMM_LEN without the NUL.
_COMM_BYTES = 15
_MOST_BYTES = (1 << 64) - 1
_DIRECTIONS = {None: READS | WRITES, "read": READS, "write": WRITES}
# Controllers that v1 calls by another name than the kernel's sources.
_SUBSYSTEMS = {"blkio": "io"}


class Filter(NamedTuple):
    """All that is given has to hold together; nothing given lets everything through."""

    pid: int | None = None
    tid: int | None = None
    comm: str | None = None
    """The name of a thread; the kernel keeps 15 bytes of it, and so many are compared."""
    cgroup: Cgroup | None = None
    """With all that is below it."""
    file: Place | None = None
    """By inode, so under all of its names."""
    directory: Place | None = None
    """With all that is below it, file systems that are mounted there as well."""
    ops: str | None = None
    """"read" or "write"."""
    min_bytes: int | None = None
    max_bytes: int | None = None


def apply(bss: Any, wanted: Filter) -> None:
    """Sets all globals of the .bss section, before the load or while programs run.

    Switches come last, so that a filter is whole when it begins to work. A change from one filter to another takes
    some microseconds, in which requests are judged by a mixture of both.
    """
    bss.filter_tgid = wanted.pid or 0
    bss.filter_tid = wanted.tid or 0
    bss.filter_comm = os.fsencode(wanted.comm or "")[:_COMM_BYTES]
    bss.filter_by_comm = wanted.comm is not None
    _apply_cgroup(bss, wanted.cgroup)
    bss.filter_task = any(given is not None for given in (wanted.pid, wanted.tid, wanted.comm, wanted.cgroup))

    bss.filter_inode = wanted.file.inode if wanted.file else 0
    bss.filter_inode_dev = wanted.file.dev if wanted.file else 0
    bss.filter_directory = wanted.directory.inode if wanted.directory else 0
    bss.filter_directory_dev = wanted.directory.dev if wanted.directory else 0
    bss.filter_file = wanted.file is not None or wanted.directory is not None

    bss.filter_directions = _DIRECTIONS[wanted.ops]
    bss.filter_min_bytes = wanted.min_bytes or 0
    bss.filter_max_bytes = _MOST_BYTES if wanted.max_bytes is None else wanted.max_bytes
    bss.filter_operation = any(given is not None for given in (wanted.ops, wanted.min_bytes, wanted.max_bytes))

    bss.filtering = wanted != Filter()


def _apply_cgroup(bss: Any, wanted: Cgroup | None) -> None:
    if wanted is None:
        bss.filter_cgroup = 0
        return
    known = wanted.level is not None
    bss.filter_cgroup_subsys = subsystem(wanted.controller)
    bss.filter_cgroup_first = wanted.level if known else 0
    bss.filter_cgroup_last = wanted.level if known else LEVELS - 1
    bss.filter_cgroup = wanted.id


def subsystem(controller: str | None) -> int:
    """The place of a v1 controller in css_set.subsys; -1 is v2."""
    if controller is None:
        return -1
    index = vmlinux().enum_value("cgroup_subsys_id", f"{_SUBSYSTEMS.get(controller, controller)}_cgrp_id")
    if index is None:
        raise UnsupportedError(f"this kernel does not tell the cgroups of the controller {controller}")
    return index


def look_from_here(bss: Any) -> None:
    """Ids that the user gives are those of this pid namespace (bpf_src/lib/pid_namespace.h)."""
    bss.pid_namespace = tasks.namespace()


def notes(given: int | None) -> list[str]:
    """What a reader must know of the id that was given."""
    if given is None or not tasks.namespace():
        return []
    return [f"{given} is an id of this pid namespace; ids that are told are those of the whole machine"]


def describe(wanted: Filter) -> dict[str, Any]:
    """What was asked for, for the first line of a trace."""
    told = {
        "pid": wanted.pid,
        "tid": wanted.tid,
        "comm": wanted.comm,
        "cgroup": wanted.cgroup and wanted.cgroup.path,
        "file": wanted.file and wanted.file.path,
        "dir": wanted.directory and wanted.directory.path,
        "op": wanted.ops,
        "min_bytes": wanted.min_bytes,
        "max_bytes": wanted.max_bytes,
    }
    return {name: value for name, value in told.items() if value is not None}
