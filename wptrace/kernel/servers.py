# SPDX-License-Identifier: Apache-2.0
"""Servers of databases among the processes, by their programs, and where these keep the statement they work on.

A program may be anybody's, and only be called like a server: of its file nothing is trusted (wptrace/kernel/elf.py).
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple

from wptrace.kernel import elf, files

PROC = Path("/proc")

PROGRAMS = ("postgres", "postmaster", "edb-postgres")
"""Names of PostgreSQL's executables."""
VARIABLE = "debug_query_string"
"""In each of its processes the pointer to the text of the statement, from PostgreSQL 7 on."""

_DELETED = " (deleted)"
_OBJECT, _FUNCTION, _POINTER, _NUMBER = 1, 2, 8, 4  # STT_OBJECT, STT_FUNC
# By the names that `struct server` has for them (bpf_src/block/path/statement.h); all of these, or there are no I/O
# workers.
_OF_WORKERS = {
    "aio": ("pgaio_ctl", _POINTER),
    "share": ("io_max_concurrency", _NUMBER),
    "contexts": ("error_context_stack", _POINTER),
    "entry": ("MyBEEntry", _POINTER),
    "number": ("MyProcNumber", _NUMBER),
    "text_size": ("pgstat_track_activity_query_size", _NUMBER),
}
_VARIABLES = {
    "text": (VARIABLE, _POINTER),
    "database": ("MyDatabaseId", _NUMBER),
    "pid": ("MyProcPid", _NUMBER),
    "application": ("application_name", _POINTER),
    **_OF_WORKERS,
}
# With all of these, a row of pg_stat_activity can be checked.
_OF_ROW = {"entry", "query_id", "database", "pid"}
# A function that only returns the query id: its code says where that is in a row of pg_stat_activity.
_QUERY_ID = b"pgstat_get_my_query_id\0"
_LONGEST_CODE = 256
_X86_64, _ARM64 = 62, 183  # EM_X86_64, EM_AARCH64
# mov DISTANCE(REGISTER), REGISTER; ldr REGISTER, [REGISTER, #DISTANCE].
_LOAD_X86_64 = re.compile(rb"\x48\x8b[\x80-\x83\x85-\x87](.{4})", re.DOTALL)
_LOAD_ARM64, _LOAD_ARM64_MASK = 0xF9400000, 0xFFC00000
_FARTHEST = 1 << 12

_LONGEST = max(len(_QUERY_ID), 1 + max(len(name) for name, _ in _VARIABLES.values()))

_IO_WORKER = b": io worker"
# After the name of the cluster, if it has one: user, database and where the client is.
_CLIENT = re.compile(r": (\S+) (\S+) (?:\[local\]|\S+\([0-9]+\))(?= |\Z)")
Learn = Callable[[int, int, int, str, str], None]
"""Takes the pid of the server, the numbers of a database and a user in its catalogues, and their names."""
# More than the texts of 10,000 processes, of the default size.
_MOST_PAGES = 1 << 12
_TITLE = 256
_NAME = 64  # NAMEDATALEN


class Program(NamedTuple):
    path: str
    inode: int
    size: int
    variables: dict[str, int]
    """By names of `struct server`: distances from the begin of a process's code; `query_id` from that of its row.
    Empty: none has the statement; without `aio`: no I/O workers."""


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
        if not symbol.section:
            continue
        if symbol.type == _OBJECT and symbol.size in (_POINTER, _NUMBER):
            end = found.names.find(b"\0", symbol.name, symbol.name + _LONGEST) + 1
            key, size = wanted.get(found.names[symbol.name : end], ("", 0))
            if symbol.size == size:
                places.setdefault(key, symbol.value - code & (1 << 64) - 1)
        elif symbol.type == _FUNCTION and symbol.size and found.names.startswith(_QUERY_ID, symbol.name):
            places["query_id"] = _place_of_query_id(fd, found.code, symbol)
    if "text" not in places:
        return {}
    if not (places.keys() >= _OF_ROW and places["query_id"]):
        places.pop("query_id", None)
    without = _OF_WORKERS.keys() - places.keys() and _OF_WORKERS.keys() - ({"entry"} if "query_id" in places else set())
    return {key: place for key, place in places.items() if key not in without}


def _place_of_query_id(fd: int, code: Iterable[elf.Segment], symbol: elf.Symbol) -> int:
    """Return where the id is in a row of pg_stat_activity, by the last load of the function; 0: unknown."""
    segment = next((one for one in code if one.holds(symbol.value)), None)
    head = elf.header(fd)
    if segment is None or head is None:
        return 0
    data = os.pread(fd, min(symbol.size, _LONGEST_CODE), segment.place(symbol.value))
    found = 0
    if head.machine == _X86_64:
        for match in _LOAD_X86_64.finditer(data):
            found = int.from_bytes(match[1], "little")
    elif head.machine == _ARM64:
        for (word,) in struct.iter_unpack("<I", data[: len(data) // 4 * 4]):
            if word & _LOAD_ARM64_MASK == _LOAD_ARM64:
                found = (word >> 10 & 0xFFF) * 8
    return found if found < _FARTHEST else 0


# --- The memory of processes ------------------------------------------------------------------------------------------


def names_in(title: str) -> tuple[str, str] | None:
    """Return the database and the user that the title of a server process has. Names with blanks are not recognised."""
    found = _CLIENT.search(title)
    return None if found is None else (found[2], found[1])


def visit(processes: Mapping[str, Program], constants: Mapping[str, int], learn: Learn) -> None:
    """Bring the texts of all processes into the page tables of I/O workers, and `learn` names from the others.

    A program at a hook reads only what is there, and a worker itself never reads the texts of others. Who may write to
    the memory of such a process may have us wait for a page, for as long as he likes: call this in a thread.
    """
    pages = _MOST_PAGES
    for folder, program in processes.items():
        with suppress(OSError, OverflowError, struct.error):  # it ended, or there is nothing at such an address
            title = _title(folder)
            names = names_in(title.decode("utf-8", "surrogateescape"))
            is_worker = _IO_WORKER in title
            if not is_worker and names is None:
                continue
            fd = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                parent, code = _parent_and_code(folder)
                if names is not None:
                    entry = _read_at(fd, code + program.variables["entry"], "<Q")
                    database = _read_at(fd, entry + constants["PG_ENTRY_DATABASE"], "<I")
                    user = _read_at(fd, entry + constants["PG_ENTRY_USER"], "<I")
                    learn(parent, database, user, *names)
                    continue
                for address in _pages(fd, code, program.variables, constants):
                    if not pages:
                        return
                    pages -= 1
                    os.pread(fd, 1, address)
            finally:
                os.close(fd)


def _title(folder: str) -> bytes:
    fd = os.open(f"{folder}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _TITLE).partition(b"\0")[0]
    finally:
        os.close(fd)


def _parent_and_code(folder: str) -> tuple[int, int]:
    """Return the parent of a process, and the address at which its code starts."""
    # The name in this line may have any characters.
    fd = os.open(f"{folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        words = os.read(fd, mmap.PAGESIZE).rpartition(b")")[2].split()
    finally:
        os.close(fd)
    return int(words[1]), int(words[23])


def _read_at(fd: int, address: int, layout: str) -> int:
    data = os.pread(fd, struct.calcsize(layout), address & (1 << 64) - 1)
    return int(struct.unpack(layout, data)[0])


def _pages(fd: int, code: int, variables: Mapping[str, int], constants: Mapping[str, int]) -> Iterable[int]:
    """Return the pages with the statements of all processes that may have asynchronous I/O, and with whose they are."""

    def read(address: int, layout: str) -> int:
        return _read_at(fd, address, layout)

    def variable(name: str, layout: str) -> int:
        return read(code + variables[name], layout)

    handles = read(variable("aio", "<Q") + constants["PG_AIO_COUNT"], "<I")
    processes = handles // max(variable("share", "<I"), 1)
    entry, number = variable("entry", "<Q"), variable("number", "<I")
    text, size = read(entry + constants["PG_ENTRY_TEXT"], "<Q"), variable("text_size", "<I")
    arrays = [(text, size)]
    if variables.get("query_id"):
        name = read(entry + constants["PG_ENTRY_APPLICATION"], "<Q")
        arrays += [(entry, constants["PG_ENTRY_BYTES"]), (name, _NAME)]
    for own, stride in arrays:
        first = own - number * stride
        yield from range(first - first % mmap.PAGESIZE, first + processes * stride, mmap.PAGESIZE)
