# SPDX-License-Identifier: Apache-2.0
"""Servers of databases by what processes execute; the programs are made up here."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.unit.kernel.test_elf_functions import ADDRESS, elf
from wptrace.kernel.servers import Program, Programs

NAMES = b"\0other\0debug_query_string\0not_debug_query_string\0"
AT = 0x2000
OBJECT = 1


def program(value: int = ADDRESS + AT, size: int = 8, kind: int = OBJECT) -> bytes:
    """With other symbols before it: of another type, and of a name that ends alike."""
    symbols = [(1, ADDRESS, 8), (NAMES.index(b"not_"), ADDRESS, 8), (7, value, size)]
    return elf(symbols, NAMES, type=kind)


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
    assert Programs(16, machine.proc).look() == [Program(str(path), found.st_ino, found.st_size, AT)]


def test_a_variable_below_the_code(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(10, program(value=ADDRESS - 16))
    (found,) = Programs(16, machine.proc).look()
    assert found.text == (1 << 64) - 16


def test_programs_that_are_only_called_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.run(10, b"#!/bin/sh\n")
    machine.run(11, program(size=4))
    machine.run(12, program(kind=2))
    machine.run(13, b"")
    assert [one.text for one in Programs(16, machine.proc).look()] == [None] * 4


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
        assert found.text is None or 0 <= found.text < 1 << 64
