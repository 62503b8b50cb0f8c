# SPDX-License-Identifier: Apache-2.0
"""Filter by cgroup, with those below it (bpf_src/lib/filters/cgroup.h)."""

from __future__ import annotations

from typing import Any

from wptrace.bpf.kernel_btf import vmlinux
from wptrace.engine.filters import Predicate, task
from wptrace.errors import UnsupportedError
from wptrace.kernel import cgroups
from wptrace.kernel.cgroups import Cgroup

# Deeper than any cgroup.
_DEEPEST = (1 << 32) - 1
# Controllers that have another name in v1 than in the kernel's sources.
_SUBSYSTEMS = {"blkio": "io"}


def _set(bss: Any, wanted: Cgroup | None) -> None:
    if wanted is not None:
        known = wanted.level is not None
        bss.filter_cgroup_subsys = subsystem(wanted.controller)
        bss.filter_cgroup_first = wanted.level if known else 0
        bss.filter_cgroup_last = wanted.level if known else _DEEPEST
    bss.filter_cgroup = wanted.id if wanted is not None else 0


def subsystem(controller: str | None) -> int:
    """The index of a v1 controller in css_set.subsys; -1 is v2."""
    if controller is None:
        return -1
    index = vmlinux().enum_value("cgroup_subsys_id", f"{_SUBSYSTEMS.get(controller, controller)}_cgrp_id")
    if index is None:
        raise UnsupportedError(f"this kernel does not show the cgroups of the controller {controller}")
    return index


IN_CGROUP = Predicate(
    "cgroup",
    "only requests from this cgroup and those below it: a directory, a path below the root of v2, "
    "or CONTROLLER:PATH (v1)",
    cgroups.resolve,
    _set,
    task.SWITCH,
    metavar="PATH",
    describe=lambda wanted: {"cgroup": wanted.path},
)
