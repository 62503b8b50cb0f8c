# SPDX-License-Identifier: Apache-2.0
"""`--pid`, `--children`, `--cgroup`: the wanted process, its children, its cgroup; and cgroups of tasks that exit."""

from __future__ import annotations

from typing import Any

from wptrace.bpf.object import BpfObject
from wptrace.engine import gone_cgroups
from wptrace.engine.filters import Filter
from wptrace.engine.filters.cgroup import IN_CGROUP
from wptrace.engine.filters.task import NO_PROCESS, PID, Wanted
from wptrace.flows.io.hooks import CHILDREN
from wptrace.flows.io.parts.part import Part, Tracing
from wptrace.kernel import tasks
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.cgroups import Cgroup
from wptrace.model.book import EXITED, REMOVED, Cause

# The maximum of descendants at a time.
_MOST = 1 << 14


class Process(Part):
    """The wanted process. After its end its pid may be reused, unless it is a child of wptrace."""

    def __init__(self, pid: int | None, children: bool, command: tuple[str, ...], watched: bool) -> None:
        super().__init__()
        self._pid, self._children, self._command = pid, children, command
        self._is_watched = watched and not command
        self._wanted: Wanted | None = None
        self.hooks = (CHILDREN,) if children else ()
        self.needs_options = children

    @property
    def chosen(self) -> dict[str, Any]:
        command = {"command": list(self._command)} if self._command else {}
        return {**({"children": True} if self._children else {}), **command}

    def prepare(self, obj: BpfObject) -> None:
        if self._children:
            obj.rodata.filter_children = True
            obj.maps["descendants"].max_entries = _MOST

    def start(self, tracing: Tracing) -> None:
        if self._pid and self._is_watched:
            bss = tracing.obj.bss
            self._wanted = Wanted(self._pid, tracing.reader, lambda: setattr(bss, "filter_tgid", NO_PROCESS))

    def begin(self, obj: BpfObject) -> None:
        self._mark(obj)
        if self._wanted is not None:
            self._wanted.begin()

    def _mark(self, obj: BpfObject) -> None:
        """Mark existing children; later ones are marked when they fork."""
        if self._children and self._pid and not tasks.namespace():
            marked = obj.maps["descendants"]
            for number in tasks.descendants(self._pid):
                marked[number] = 0

    def noted(self, obj: BpfObject) -> dict[Cause, int]:
        return {} if self._wanted is None else {EXITED: int(self._wanted.has_ended())}

    def retarget(self, obj: BpfObject, wanted: Filter) -> None:
        self.close()
        self._pid = wanted.get(PID.name)
        self._mark(obj)

    def close(self) -> None:
        if self._wanted is not None:
            self._wanted.close()
        self._wanted = None


class InCgroup(Part):
    """The wanted cgroup, which may be removed."""

    def __init__(self, wanted: Cgroup) -> None:
        super().__init__()
        self._wanted: Cgroup | None = wanted

    def noted(self, obj: BpfObject) -> dict[Cause, int]:
        return {} if self._wanted is None else {REMOVED: int(self._wanted.is_gone)}

    def retarget(self, obj: BpfObject, wanted: Filter) -> None:
        self._wanted = wanted.get(IN_CGROUP.name)


class Cgroups(Part):
    """Names of cgroups, including those that are removed while they are still needed."""

    hooks = (gone_cgroups.HOOK,)

    def __init__(self, names: CgroupNames) -> None:
        super().__init__()
        self._names = names

    def prepare(self, obj: BpfObject) -> None:
        gone_cgroups.prepare(obj)

    def start(self, tracing: Tracing) -> None:
        gone_cgroups.watch(tracing.obj, self._names)
