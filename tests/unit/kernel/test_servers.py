# SPDX-License-Identifier: Apache-2.0
"""Servers of databases by what processes execute; the programs are made up here."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.unit.kernel.test_elf_functions import ADDRESS, elf
from wptrace.kernel import servers
from wptrace.kernel.servers import Program, Programs

NAMES = b"\0other\0debug_query_string\0not_debug_query_string\0"
AT = 0x2000
OBJECT = 1
# Of a process with I/O workers: by name the place, from the start of the code, and the size.
VARIABLES = {
    "debug_query_string": (AT, 8),
    "pgaio_ctl": (AT + 8, 8),
    "io_max_concurrency": (AT + 16, 4),
    "error_context_stack": (AT + 24, 8),
    "MyBEEntry": (AT + 32, 8),
    "MyProcNumber": (AT + 40, 4),
    "pgstat_track_activity_query_size": (AT + 44, 4),
}
PLACES = dict(
    zip(("text", "aio", "share", "contexts", "entry", "number", "text_size"), (at for at, _ in VARIABLES.values()))
)
CONSTANTS = {"PG_AIO_COUNT": 40, "PG_ENTRY_TEXT": 248}
CODE, CTL, ENTRY, TEXTS = 0x10000, 0x20000, 0x21000, 0x40000


def program(value: int = ADDRESS + AT, size: int = 8, kind: int = OBJECT) -> bytes:
    """Make a program with other symbols before it: one of another type, one whose name has the same end."""
    symbols = [(1, ADDRESS, 8), (NAMES.index(b"not_"), ADDRESS, 8), (7, value, size)]
    return elf(symbols, NAMES, type=kind)


def program_with_workers(without: str = "") -> bytes:
    wanted = {name: found for name, found in VARIABLES.items() if name != without}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in wanted)
    return elf(
        [(names.index(b"\0%b\0" % name.encode()) + 1, ADDRESS + at, size) for name, (at, size) in wanted.items()],
        names,
        type=OBJECT,
    )


class Machine:
    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir()
        (self.proc / "sys").mkdir()
        self._bin = folder / "bin"
        self._bin.mkdir()

    def run(self, pid: int, data: bytes, name: str = "postgres", file: str = "") -> Path:
        path = self._bin / (file or str(pid)) / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(data)
        self.fork(pid, path)
        return path

    def fork(self, pid: int, path: Path) -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "exe").symlink_to(path)

    def end(self, pid: int) -> None:
        (self.proc / str(pid) / "exe").unlink()
        (self.proc / str(pid)).rmdir()


def test_where_a_server_keeps_its_statement(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    path = machine.run(10, program())
    machine.fork(11, path)
    machine.run(12, program(), name="postgresql-helper")
    (machine.proc / "13").mkdir()  # a thread of the kernel
    found = path.stat()
    assert Programs(16, machine.proc).look() == [Program(str(path), found.st_ino, found.st_size, {"text": AT})]


def test_a_variable_below_the_code(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(10, program(value=ADDRESS - 16))
    (found,) = Programs(16, machine.proc).look()
    assert found.variables == {"text": (1 << 64) - 16}


def test_programs_that_are_only_called_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(10, b"#!/bin/sh\n")
    machine.run(11, program(size=4))
    machine.run(12, program(kind=2))
    machine.run(13, b"")
    assert [one.variables for one in Programs(16, machine.proc).look()] == [{}] * 4


def test_programs_with_io_workers(tmp_path: Path) -> None:
    """All variables, or only that of the statement."""
    machine = Machine(tmp_path)
    machine.run(10, program_with_workers())
    machine.run(11, program_with_workers(without="MyBEEntry"))
    machine.run(12, program_with_workers(without="debug_query_string"))
    programs = Programs(16, machine.proc)
    found = {Path(one.path).parent.name: one.variables for one in programs.look()}
    assert found == {"10": PLACES, "11": {"text": AT}, "12": {}}
    assert set(programs.processes) == {str(machine.proc / "10")}


class Worker:
    """A process in memory of which texts of others are."""

    def __init__(self, machine: Machine, numbers: dict[str, int], title: bytes = b"postgres: io worker 0\0") -> None:
        self.folder = machine.proc / "10"
        self.folder.mkdir()
        (self.folder / "cmdline").write_bytes(title)
        (self.folder / "stat").write_text(f"10 (a ) name) S {'0 ' * 22}{CODE} 0")
        variables = {"aio": CTL, "share": 2, "entry": ENTRY, "number": 3, "text_size": 1024, **numbers}
        with (self.folder / "mem").open("wb") as memory:
            for name, value in variables.items():
                if name in PLACES:
                    memory.seek(CODE + PLACES[name])
                    memory.write(value.to_bytes(8 if name in ("aio", "entry") else 4, "little"))
            memory.seek(CTL + CONSTANTS["PG_AIO_COUNT"])
            memory.write(numbers.get("handles", 40).to_bytes(4, "little"))
            memory.seek(ENTRY + CONSTANTS["PG_ENTRY_TEXT"])
            memory.write(numbers.get("own", TEXTS + 3 * 1024).to_bytes(8, "little"))
            memory.truncate(1 << 20)

    def pages(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Return the pages that are read, in the order of their addresses."""
        found, read = [], os.pread

        def noted(fd: int, size: int, address: int) -> bytes:
            if size == 1:
                found.append(address)
            return read(fd, size, address)

        monkeypatch.setattr(os, "pread", noted)
        servers.map_texts({str(self.folder): Program("postgres", 1, 2, PLACES)}, CONSTANTS)
        return found


def test_texts_of_all_processes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 of them, of 1,024 bytes."""
    worker = Worker(Machine(tmp_path), {})
    assert worker.pages(monkeypatch) == [TEXTS + page * 4096 for page in range(5)]


def test_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(Machine(tmp_path), {}, title=b"postgres: checkpointer\0 io worker")
    assert worker.pages(monkeypatch) == []


@pytest.mark.parametrize(
    "numbers",
    [
        {"aio": 0, "entry": 0},
        {"aio": (1 << 64) - 1},
        {"entry": 1 << 63},
        {"own": 0},
        {"own": (1 << 64) - 1},
        {"number": (1 << 32) - 1},
        {"share": 0, "handles": (1 << 32) - 1, "text_size": (1 << 32) - 1},
        {"handles": (1 << 32) - 1},
    ],
)
def test_workers_that_say_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: dict[str, int]) -> None:
    assert len(Worker(Machine(tmp_path), numbers).pages(monkeypatch)) <= 1 << 12


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe without a writer would be waited for."""
    machine = Machine(tmp_path)
    pipe = tmp_path / "postgres"
    os.mkfifo(pipe)
    machine.fork(10, pipe)
    machine.fork(11, tmp_path / "gone" / "postgres")
    assert Programs(16, machine.proc).look() == []


def test_programs_keep_their_places_and_those_that_ended_make_room(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    programs = Programs(2, machine.proc)
    first = machine.run(10, program())
    assert [one.path for one in programs.look()] == [str(first)]
    second = machine.run(9, program(), name="postmaster")
    assert [one.path for one in programs.look()] == [str(first), str(second)]
    machine.end(10)
    assert [one.path for one in programs.look()] == [str(first), str(second)]
    third = machine.run(11, program())
    assert [one.path for one in programs.look()] == [str(second), str(third)]
    machine.run(12, program())
    assert [one.path for one in programs.look()] == [str(second), str(third)]


def test_damaged_files(tmp_path: Path) -> None:
    """Whatever is in it, there is an answer."""
    chance, good = random.Random(7), program()  # noqa: S311 - the same damage each time
    for number in range(300):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        folder = tmp_path / str(number)
        folder.mkdir()
        machine = Machine(folder)
        machine.run(10, bytes(data))
        (found,) = Programs(16, machine.proc).look()
        assert set(found.variables) <= {"text"}
        assert all(0 <= one < 1 << 64 for one in found.variables.values())
