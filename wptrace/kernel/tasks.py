# SPDX-License-Identifier: Apache-2.0
"""Processes and threads by /proc."""

from __future__ import annotations

import os
import re
import select
from pathlib import Path

from wptrace.errors import UsageError
from wptrace.kernel import procfs

PROC = Path("/proc")
_COMMAND_LINE = 256


def process(text: str, proc: Path = PROC) -> int:
    """The id of a living process, from what the user wrote."""
    # /proc/TID answers for every thread as well; the filter compares thread group ids.
    leader = _leader(text, "process", proc)
    if leader != text:
        raise UsageError(f"{text} is a thread of process {leader}", hint=f"name the process: --pid {leader}")
    return int(text)


def thread(text: str, proc: Path = PROC) -> int:
    """The id of a living thread; the first one of a process has the id of the process."""
    _leader(text, "thread", proc)
    return int(text)


def _leader(text: str, kind: str, proc: Path) -> str:
    """The process of a thread."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise UsageError(f"{text!r} is not a {kind} id")
    try:
        leader = procfs.field(proc / text / "status", "Tgid")
    except OSError:
        every = "ps -e lists the processes" if kind == "process" else "ps -eL lists the threads"
        raise UsageError(f"there is no {kind} {text}", hint=every) from None
    return leader or text


class Watched:
    """A process, and whether it has ended: its number may be given to another one."""

    def __init__(self, pid: int) -> None:
        self.ended = False
        """Whether it had ended at the last look."""
        self.fd = -1
        """Readable from its end on; negative if there is none."""
        try:
            self.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.ended = True
        except OSError:
            # A sandbox may forbid it, and nobody says then when it ends.
            return

    def look(self) -> bool:
        """Whether it has ended by now."""
        if not self.ended and self.fd >= 0:
            self.ended = bool(select.select([self.fd], [], [], 0)[0])
        return self.ended

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def command_line(pid: int, proc: Path = PROC) -> str:
    """Return as much as fits a line of a screen; empty for kernel threads and for a process that has exited."""
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            words = file.read(_COMMAND_LINE).rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return os.fsdecode(b" ".join(words))


def children(pid: int, proc: Path = PROC) -> list[int]:
    """The living processes that this one started."""
    return sorted(_children(proc).get(pid, ()))


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Return the children of a process, their children, and so on."""
    every = _children(proc)
    found = [pid]
    for one in found:
        # Each has one parent, but they are not read at one moment.
        found += set(every.pop(one, ())) - set(found)
    return sorted(found[1:])


def _children(proc: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            parent = procfs.field(folder / "status", "PPid")
        except OSError:
            continue  # it just went
        if parent is not None and parent.isdecimal():
            found.setdefault(int(parent), []).append(int(folder.name))
    return found


# PROC_PID_INIT_INO of include/linux/proc_ns.h.
_FIRST_NAMESPACE = 0xEFFFFFFC


def namespace(proc: Path = PROC) -> int:
    """The pid namespace that ids are of here, by its inode number; 0 for the machine's own."""
    try:
        found = (proc / "self" / "ns" / "pid").stat().st_ino
    except OSError:  # no /proc, or a kernel without such namespaces
        return 0
    return 0 if found == _FIRST_NAMESPACE else found


def comm(name: bytes) -> str:
    """A task's name as the kernel keeps it: any bytes, which survive as surrogates where they are no UTF-8."""
    return name.split(b"\0")[0].decode("utf-8", "surrogateescape")


def name_of(tid: int, proc: Path = PROC) -> str:
    """The name of a living thread; empty where it is gone, or nobody's (an interrupt's).

    The id is the machine's: in another pid namespace /proc has others by the same numbers.
    """
    if namespace(proc):
        return ""
    try:
        found = (proc / str(tid) / "comm").read_bytes() if tid else b""
    except OSError:
        return ""
    return comm(found.removesuffix(b"\n"))


def leader_of(tid: int, proc: Path = PROC) -> int:
    """The process of a living thread; the thread itself where that is not known any more, or as above."""
    if namespace(proc):
        return tid
    try:
        return int(procfs.field(proc / str(tid) / "status", "Tgid") or tid)
    except OSError:
        return tid
