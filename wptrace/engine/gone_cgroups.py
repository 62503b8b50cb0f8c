# SPDX-License-Identifier: Apache-2.0
"""Names of cgroups that were removed while a flow runs (bpf_src/lib/gone_cgroups.h)."""

from __future__ import annotations

from wptrace.bpf.layout import text
from wptrace.bpf.object import BpfObject
from wptrace.engine.hooks import Hook
from wptrace.kernel.cgroup_names import CgroupNames

HOOK = Hook(
    "cgroup",
    "a cgroup is removed",
    ("cgroup_removed_raw_tp",),
    (),
    "a cgroup that is gone before its name is looked up is shown by its number",
    required=False,
)
_KEPT = 1024


def prepare(obj: BpfObject) -> None:
    obj.maps["gone_cgroups"].max_entries = _KEPT


def watch(obj: BpfObject, names: CgroupNames) -> None:
    gone = obj.maps["gone_cgroups"]

    def path(number: int) -> str:
        found = gone.raw(number)
        return "" if found is None else text(bytes(found))

    names.gone = path
