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
OBJECT, FUNCTION = 1, 2
# Places in files that are made up: the machine, the table of symbols and the size of one, the code.
MACHINE_AT, SYMBOLS_AT, SYMBOL, FILE_CODE = 18, 64 + 56, 24, 0x1000
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
CONSTANTS = {
    "PG_AIO_COUNT": 40,
    "PG_ENTRY_DATABASE": 48,
    "PG_ENTRY_USER": 52,
    "PG_ENTRY_APPLICATION": 240,
    "PG_ENTRY_TEXT": 248,
    "PG_ENTRY_BYTES": 440,
}
CODE, CTL, ENTRY, TEXTS, NAMES_AT = 0x10000, 0x20000, 0x21000, 0x40000, 0x48000
# What checks a row of pg_stat_activity, besides MyBEEntry.
OF_ROW = {"MyDatabaseId": (AT + 48, 4), "MyProcPid": (AT + 52, 4)}
QUERY_ID, CODE_AT = "pgstat_get_my_query_id", 0x300
# mov MyBEEntry(%rip),%rax; test %rax,%rax; je; mov 0x1a8(%rax),%rax; ret
X86_64 = bytes.fromhex("488b05b1434000 4885c0 740c 488b80a8010000 c3")
# adrp x0; ldr x0, [x0, #3000]; cbz; ldr x0, [x0, #424]; ret
ARM64 = b"".join(one.to_bytes(4, "little") for one in (0x90000000, 0xF945DC00, 0xB4000060, 0xF940D400, 0xD65F03C0))


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


def program_with_rows(code: bytes, machine: int = 62, without: str = "") -> bytes:
    """A program whose processes have rows of pg_stat_activity, and the function that returns the query id."""
    wanted = {one: VARIABLES[one] for one in ("debug_query_string", "MyBEEntry")} | OF_ROW
    wanted = {one: found for one, found in wanted.items() if one != without} | {QUERY_ID: (CODE_AT, len(code))}
    names = b"\0" + b"".join(name.encode() + b"\0" for name in wanted)
    symbols = [(names.index(name.encode()), ADDRESS + at, size) for name, (at, size) in wanted.items()]
    made = bytearray(elf(symbols, names, type=OBJECT).ljust(FILE_CODE + 0x1000, b"\0"))
    made[SYMBOLS_AT + (len(symbols) - 1) * SYMBOL + 4] = FUNCTION
    made[MACHINE_AT : MACHINE_AT + 2] = machine.to_bytes(2, "little")
    made[FILE_CODE + CODE_AT : FILE_CODE + CODE_AT + len(code)] = code
    return bytes(made)


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
        (self.folder / "stat").write_text(f"10 (a ) name) S 7 {'0 ' * 21}{CODE} 0")
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
            memory.seek(ENTRY + CONSTANTS["PG_ENTRY_APPLICATION"])
            memory.write((NAMES_AT + 3 * 64).to_bytes(8, "little"))
            for name, value in (("DATABASE", 5), ("USER", 10)):
                memory.seek(ENTRY + CONSTANTS[f"PG_ENTRY_{name}"])
                memory.write(value.to_bytes(4, "little"))
            memory.truncate(1 << 20)

    def learnt(self) -> list[tuple[int, int, int, str, str]]:
        """Return the names that the process has."""
        found: list[tuple[int, int, int, str, str]] = []
        servers.visit({str(self.folder): Program("postgres", 1, 2, PLACES)}, CONSTANTS, lambda *one: found.append(one))
        return found

    def pages(self, monkeypatch: pytest.MonkeyPatch, **more: int) -> list[int]:
        """Return the pages that are read, in the order of their addresses."""
        found, read = [], os.pread

        def noted(fd: int, size: int, address: int) -> bytes:
            if size == 1:
                found.append(address)
            return read(fd, size, address)

        monkeypatch.setattr(os, "pread", noted)
        program = Program("postgres", 1, 2, {**PLACES, **more})
        servers.visit({str(self.folder): program}, CONSTANTS, lambda *one: None)
        return found


def test_texts_of_all_processes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 of them, of 1,024 bytes."""
    worker = Worker(Machine(tmp_path), {})
    assert worker.pages(monkeypatch) == [TEXTS + page * 4096 for page in range(5)]


def test_rows_and_names_of_all_processes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If their place is known."""
    worker = Worker(Machine(tmp_path), {})
    rows = [ENTRY - 3 * 440 & ~4095, ENTRY, ENTRY + 4096]
    assert worker.pages(monkeypatch, query_id=424) == [*(TEXTS + page * 4096 for page in range(5)), *rows, NAMES_AT]


def test_names_are_those_of_titles(tmp_path: Path) -> None:
    title = b"postgres: 15/main: app shop [local] idle\0"
    assert Worker(Machine(tmp_path), {}, title).learnt() == [(7, 5, 10, "shop", "app")]


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("postgres: app shop [local] SELECT", ("shop", "app")),
        ("postgres: a cluster: app shop 10.0.0.1(5432) idle in transaction", ("shop", "app")),
        ("postgres: app shop ::1(5432)", ("shop", "app")),
        ("postgres: the app shop [local] idle", None),
        ("postgres: app the shop [local] idle", None),
        ("postgres: autovacuum worker shop", None),
        ("postgres: parallel worker for PID 77 ", None),
        ("postgres: io worker 0", None),
        ("", None),
    ],
)
def test_names_in_titles(title: str, found: tuple[str, str] | None) -> None:
    assert servers.names_in(title) == found


@pytest.mark.parametrize(
    ("code", "machine", "found"),
    [
        (X86_64, 62, 424),
        (b"\xf3\x0f\x1e\xfa" + X86_64, 62, 424),  # endbr64
        (ARM64, 183, 424),
        (X86_64, 183, 0),
        (X86_64[:12] + b"\xc3", 62, 0),
        (X86_64.replace(b"\xa8\x01\0\0", b"\xa8\x01\0\1"), 62, 0),
    ],
)
def test_the_query_id_is_where_the_server_itself_reads_it(
    tmp_path: Path, code: bytes, machine: int, found: int
) -> None:
    there = Machine(tmp_path)
    there.run(10, program_with_rows(code, machine))
    (one,) = Programs(16, there.proc).look()
    assert one.variables.get("query_id", 0) == found
    assert ("entry" in one.variables) == (found > 0)
    assert one.variables["text"] == AT


@pytest.mark.parametrize("without", ["MyBEEntry", "MyDatabaseId", "MyProcPid"])
def test_without_what_checks_a_row_there_is_no_id(tmp_path: Path, without: str) -> None:
    machine = Machine(tmp_path)
    machine.run(10, program_with_rows(X86_64, without=without))
    (one,) = Programs(16, machine.proc).look()
    assert not {"query_id", "entry"} & one.variables.keys()


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
    """Any content has an answer."""
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
