# SPDX-License-Identifier: Apache-2.0
"""Filters by process, thread and name of the thread (bpf_src/lib/filters/task.h)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wptrace.engine.filters import Predicate
from wptrace.errors import UsageError
from wptrace.kernel import tasks

if TYPE_CHECKING:
    from wptrace.bpf.ring import Reader

NO_PROCESS = (1 << 32) - 1
"""The number of none."""
SWITCH = "filter_task"


def notes(number: int) -> list[str]:
    """Ids on the command line are those of this pid namespace (bpf_src/lib/pid_namespace.h)."""
    if not tasks.namespace():
        return []
    return [f"{number} is an id of this pid namespace; ids in the output are those of the whole machine"]


def _set_pid(bss: Any, process: int | None) -> None:
    bss.pid_namespace = tasks.namespace()
    bss.filter_tgid = process or 0


def _set_tid(bss: Any, thread: int | None) -> None:
    bss.pid_namespace = tasks.namespace()
    bss.filter_tid = thread or 0


def _comm(text: str) -> str:
    if not text:
        raise UsageError("--comm needs a name of at least one letter")
    return text


def _set_comm(bss: Any, comm: str | None) -> None:
    """The kernel keeps 15 bytes of a name, so only these are compared."""
    bss.filter_comm = os.fsencode(comm or "")[: len(bss.view("filter_comm")) - 1]
    bss.filter_by_comm = comm is not None


PID = Predicate(
    "pid", "only requests of this process", tasks.process, _set_pid, SWITCH, "p", metavar="PID", notes=notes
)
TID = Predicate("tid", "only requests of this thread", tasks.thread, _set_tid, SWITCH, metavar="TID", notes=notes)
COMM = Predicate(
    "comm",
    "only requests of threads with this name, its first 15 bytes",
    _comm,
    _set_comm,
    SWITCH,
    metavar="NAME",
)


class Wanted:
    """The wanted process while a flow runs. After its end another one may get its number."""

    def __init__(self, process: int, reader: Reader, forget: Callable[[], None]) -> None:
        """`forget` makes the programs want none; the reader calls it at the end of the process."""
        self._process, self._reader, self._forget = process, reader, forget
        self._watched: tasks.Watched | None = None

    def begin(self) -> None:
        self._watched = tasks.Watched(self._process)
        if self._watched.fd >= 0:
            self._reader.attend(self._watched.fd, self._look)

    def _look(self) -> None:
        if self._watched is not None and self._watched.look():
            self._forget()
            self.close()

    def has_ended(self) -> bool:
        self._look()
        return self._watched is not None and self._watched.ended

    def close(self) -> None:
        if self._watched is not None and self._watched.fd >= 0:
            self._reader.leave(self._watched.fd)
            self._watched.close()
