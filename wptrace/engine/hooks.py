# SPDX-License-Identifier: Apache-2.0
"""Hooks: moments in the kernel, the programs that can see them, and the fields that those read."""

from __future__ import annotations

import os
from typing import NamedTuple

START, END, BOTH = "start", "end", "both"


class Way(NamedTuple):
    """Programs that observe a hook together. A program that is among both ends and starts sees both."""

    ends: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    name: str = ""
    """A name for flows that need to know which way was chosen."""

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs in the order in which they attach: ends before starts, so that no end is missed."""
        return tuple(dict.fromkeys((*self.ends, *self.starts)))

    def of(self, role: str) -> set[str]:
        ends, starts = set(self.ends), set(self.starts)
        return {END: ends - starts, START: starts - ends, BOTH: ends & starts}[role]


class Hook(NamedTuple):
    """A moment that a flow observes, with the ways to observe it, best first."""

    id: str
    """The name in code; people read `name`."""
    name: str
    programs: tuple[str | Way, ...]
    serves: tuple[str, ...]
    """The stages that need it."""
    without: str
    """The loss if none of the ways works."""
    role: str = BOTH
    """The loss by a skipped run of a program: the END of an object, its START, or BOTH if it is neither alone."""
    required: bool = True
    module: str = ""
    """The module with its functions or tracepoints; without it there is nothing to observe."""
    modules: tuple[str, ...] = ()
    """Further modules that may have the targets of its programs."""
    noted: bool = True
    """Whether a start reports that none of the ways works; false if older kernels do not need it."""

    @property
    def ways(self) -> tuple[Way, ...]:
        return tuple(self._alone(way) if isinstance(way, str) else way for way in self.programs)

    def _alone(self, program: str) -> Way:
        return Way(() if self.role == START else (program,), () if self.role == END else (program,))

    @property
    def by(self) -> str:
        """Name the programs that observe it."""
        return " or else ".join(", ".join(way.programs) for way in self.ways)

    @property
    def applies(self) -> bool:
        return not self.module or os.path.isdir(f"/sys/module/{self.module}")  # noqa: PTH112


class Field(NamedTuple):
    """A fact of the kernel that a program reads: one of these fields ("request.part") must exist."""

    names: tuple[str, ...]
    without: str


DISK_OF_REQUEST = Field(("request.rq_disk", "request_queue.disk"), "requests cannot be assigned to disks")
STATE_OF_TASK = Field(("task_struct.__state", "task_struct.state"), "sleep cannot be distinguished from preemption")


def probe(
    id: str,  # noqa: A002 - of a hook
    name: str,
    programs: str,
    serves: tuple[str, ...],
    without: str,
    role: str = BOTH,
    required: bool = True,
) -> Hook:
    """A tracepoint of the core kernel, with all program types that kernels accept for it."""
    return Hook(id, name, (f"{programs}_tp_btf", f"{programs}_raw_tp"), serves, without, role, required)
