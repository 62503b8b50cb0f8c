# SPDX-License-Identifier: Apache-2.0
"""Servers of databases among the processes, by their programs, and where these keep the statement they work on.

A program may be anybody's, and only be called like a server: of its file nothing is trusted (wptrace/kernel/elf.py).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from wptrace.kernel import elf, files

PROC = Path("/proc")

PROGRAMS = ("postgres", "postmaster", "edb-postgres")
"""Names of PostgreSQL's executables."""
VARIABLE = "debug_query_string"
"""In each of its processes the pointer to the text of the statement, from PostgreSQL 7 on."""

_DELETED = " (deleted)"
_OBJECT, _POINTER, _NUMBER = 1, 8, 4  # STT_OBJECT
# By the names that `struct server` has for them (bpf_src/block/path/statement.h).
_VARIABLES = {
    "text": (VARIABLE, _POINTER),
    "aio": ("pgaio_ctl", _POINTER),
    "share": ("io_max_concurrency", _NUMBER),
    "contexts": ("error_context_stack", _POINTER),
    "entry": ("MyBEEntry", _POINTER),
    "number": ("MyProcNumber", _NUMBER),
    "text_size": ("pgstat_track_activity_query_size", _NUMBER),
}

_LONGEST = 1 + max(len(name) for name, _ in _VARIABLES.values())

_IO_WORKER = b": io worker"
# More than the texts of 10,000 processes, of the default size.
_MOST_PAGES = 1 << 12
_TITLE = 256


class Program(NamedTuple):
    path: str
    inode: int
    size: int
    variables: dict[str, int]
    """Distances from the begin of the code of a process. Empty: none has the statement; only `text`: no I/O workers."""


class Programs:
    """Those of all servers that run, or ran; each is read once, and keeps its place among the others."""

    def __init__(self, most: int, proc: Path = PROC) -> None:
        self._most, self._proc = most, proc
        self._known: dict[tuple[int, int, int], Program] = {}
        self.processes: dict[str, Program] = {}
        """Those that may be I/O workers, by folder in /proc."""

    def look(self) -> list[Program]:
        running = set()
        self.processes = {}
        for path, executable in self._executables():
            try:
                found = os.stat(executable)  # noqa: PTH116 - one for each server process
                key = found.st_dev, found.st_ino, found.st_size
                if key not in self._known:
                    self._known[key] = _read(path, executable)
            except OSError:
                continue  # it ended, or is hidden from us
            running.add(key)
            if "aio" in self._known[key].variables:
                self.processes[os.path.dirname(executable)] = self._known[key]  # noqa: PTH120
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
        return Program(path, found.st_ino, found.st_size, _variables(fd))
    finally:
        os.close(fd)


def _variables(fd: int) -> dict[str, int]:
    found = elf.symbols(fd)
    if found is None or not found.code:
        return {}
    # As the kernel finds `start_code`, whatever segment that is in.
    code = min(one.address for one in found.code)
    wanted = {name.encode() + b"\0": (key, size) for key, (name, size) in _VARIABLES.items()}
    places: dict[str, int] = {}
    for symbol in found.table:
        if symbol.type == _OBJECT and symbol.section and symbol.size in (_POINTER, _NUMBER):
            end = found.names.find(b"\0", symbol.name, symbol.name + _LONGEST) + 1
            key, size = wanted.get(found.names[symbol.name : end], ("", 0))
            if symbol.size == size:
                places.setdefault(key, symbol.value - code & (1 << 64) - 1)
    if "text" not in places:
        return {}
    return places if len(places) == len(_VARIABLES) else {"text": places["text"]}


# --- The texts of others ----------------------------------------------------------------------------------------------


def map_texts(processes: Mapping[str, Program], constants: Mapping[str, int]) -> None:
    """Bring the texts of all processes into the page tables of I/O workers.

    A program at a hook reads only what is there, and a worker itself never reads the texts of others. Who may write to
    the memory of such a process may have us wait for a page, for as long as he likes: call this in a thread.
    """
    pages = _MOST_PAGES
    for folder, program in processes.items():
        with suppress(OSError, OverflowError, struct.error):  # it ended, or there is nothing at such an address
            if _is_io_worker(folder):
                fd = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    for address in _pages(fd, _code(folder), program.variables, constants):
                        if not pages:
                            return
                        pages -= 1
                        os.pread(fd, 1, address)
                finally:
                    os.close(fd)


def _is_io_worker(folder: str) -> bool:
    fd = os.open(f"{folder}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _IO_WORKER in os.read(fd, _TITLE).partition(b"\0")[0]
    finally:
        os.close(fd)


def _code(folder: str) -> int:
    """Return the address at which the code of a process starts."""
    # The name in this line may have any characters.
    fd = os.open(f"{folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        words = os.read(fd, mmap.PAGESIZE).rpartition(b")")[2].split()
    finally:
        os.close(fd)
    return int(words[23])


def _pages(fd: int, code: int, variables: Mapping[str, int], constants: Mapping[str, int]) -> Iterable[int]:
    """Return the pages with the statements of all processes that may have asynchronous I/O."""

    def read(address: int, layout: str) -> int:
        data = os.pread(fd, struct.calcsize(layout), address)
        return int(struct.unpack(layout, data)[0])

    def variable(name: str, layout: str) -> int:
        return read(code + variables[name] & (1 << 64) - 1, layout)

    handles = read(variable("aio", "<Q") + constants["PG_AIO_COUNT"], "<I")
    own = read(variable("entry", "<Q") + constants["PG_ENTRY_TEXT"], "<Q")
    size, share = variable("text_size", "<I"), variable("share", "<I")
    first = own - variable("number", "<I") * size
    return range(first - first % mmap.PAGESIZE, first + handles // max(share, 1) * size, mmap.PAGESIZE)
