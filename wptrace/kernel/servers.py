# SPDX-License-Identifier: Apache-2.0
"""Servers of databases among the processes, by their programs, and where these keep the statement they work on.

A program may be anybody's, and only be called like a server: of its file nothing is trusted (wptrace/kernel/elf.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wptrace.kernel import elf, files

PROC = Path("/proc")

PROGRAMS = ("postgres", "postmaster", "edb-postgres")
"""Names of PostgreSQL's executables."""
VARIABLE = "debug_query_string"
"""In each of its processes the pointer to the text of the statement, from PostgreSQL 7 on."""

_DELETED = " (deleted)"
_OBJECT, _POINTER = 1, 8  # STT_OBJECT


class Program(NamedTuple):
    path: str
    inode: int
    size: int
    text: int | None
    """The distance from the begin of the code of a process to the pointer; None: it has no such variable."""


class Programs:
    """Those of all servers that run, or ran; each is read once, and keeps its place among the others."""

    def __init__(self, most: int, proc: Path = PROC) -> None:
        self._most, self._proc = most, proc
        self._known: dict[tuple[int, int, int], Program] = {}

    def look(self) -> list[Program]:
        running = set()
        for path, executable in self._executables():
            try:
                found = os.stat(executable)  # noqa: PTH116 - one for each server process
                key = found.st_dev, found.st_ino, found.st_size
                if key not in self._known:
                    self._known[key] = _read(path, executable)
            except OSError:
                continue  # it ended, or is hidden from us
            running.add(key)
        # Those of an upgrade ago make room.
        for key in [key for key in self._known if key not in running][: max(len(self._known) - self._most, 0)]:
            del self._known[key]
        return list(self._known.values())[: self._most]

    def _executables(self) -> Iterator[tuple[str, str]]:
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    executable = f"{entry.path}/exe"
                    try:
                        path = os.readlink(executable)  # noqa: PTH115 - one for each process of the machine
                    except OSError:  # a thread of the kernel; or it ended, or is hidden from us
                        continue
                    if os.path.basename(path.removesuffix(_DELETED)) in PROGRAMS:  # noqa: PTH119
                        yield path, executable


def _read(path: str, executable: str) -> Program:
    """The file that is executed, whatever has its path now."""
    fd, found = files.open_to_read(executable, files.is_regular)
    try:
        return Program(path, found.st_ino, found.st_size, _distance(fd))
    finally:
        os.close(fd)


def _distance(fd: int) -> int | None:
    found = elf.symbols(fd)
    if found is None or not found.code:
        return None
    # As the kernel finds `start_code`, whatever segment that is in.
    code, name = min(one.address for one in found.code), VARIABLE.encode() + b"\0"
    for symbol in found.table:
        is_pointer = symbol.type == _OBJECT and symbol.size == _POINTER and symbol.section
        if is_pointer and found.names.startswith(name, symbol.name):
            return symbol.value - code & (1 << 64) - 1
    return None
