# SPDX-License-Identifier: Apache-2.0
"""Functions of programs by name; the programs are made up here."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.unit.kernel.damage import SIZE, assert_one_sentence, written
from tests.unit.kernel.test_elf_functions import ADDRESS, CODE, SYMBOLS, elf
from tests.unit.kernel.test_sdt import program as with_sections
from wptrace.errors import UsageError
from wptrace.kernel import binaries

NAMES = b"\0one\0two\0twin\0late\0outside\0"
_TYPE_AT, _MACHINE_AT = 16, 18


def program(type: int = 2, kind: int = SYMBOLS) -> bytes:  # noqa: A002 - as the symbols have it
    """Two functions, two of one name, and one without code; `one` is also the tail of another name."""
    symbols = [
        (NAMES.index(b"one"), ADDRESS + 0x20, 0x10),
        (NAMES.index(b"two"), ADDRESS + 0x40, 0x10),
        (NAMES.index(b"twin"), ADDRESS + 0x60, 0x10),
        (NAMES.index(b"twin"), ADDRESS + 0x80, 0x10),
        (NAMES.index(b"outside"), 0x10, 0x10),
    ]
    return elf(symbols, NAMES, kind, type=type)


def found(path: str, name: str) -> binaries.Spot:
    with binaries.opened(path, "x86_64") as binary:
        return binary.function(name)


def refused(path: str, name: str = "one") -> str:
    with pytest.raises(UsageError) as caught:
        found(path, name)
    return caught.value.message


def test_a_function_by_its_place_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, program())
    spot = found(path, "two")
    status = Path(path).stat()
    assert (spot.path, spot.offset, spot.counter) == (path, CODE + 0x40, 0)
    assert spot.file == (status.st_dev, status.st_ino, SIZE, status.st_ctime_ns)


def test_functions_that_cannot_be_probed(tmp_path: Path) -> None:
    path = written(tmp_path, program())
    assert refused(path, "on") == f"{path} has no function on"
    assert refused(path, "ne") == f"{path} has no function ne"
    assert refused(path, "twin") == f"{path} has 2 functions twin"
    assert refused(path, "outside") == f"outside of {path} lies outside of what is loaded of it"
    path = written(tmp_path, program(type=10))
    assert refused(path) == f"one of {path} has several versions, one of which the program chooses (IFUNC)"
    path = written(tmp_path, program(type=1))
    assert refused(path) == f"{path} has no function one"
    path = written(tmp_path, program(kind=11))
    assert (
        refused(path, "three") == f"{path} has no function three: it is stripped of all names but those that others use"
    )
    assert found(path, "two").offset == CODE + 0x40


def test_returns_of_go_are_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path, with_sections(b"", other=b".go.buildinfo"))
    with binaries.opened(path, "x86_64") as binary:
        for probe, message in ((binary.function, "has no names of functions"), (binary.returning, "is written in Go")):
            with pytest.raises(UsageError, match=f"{path} {message}"):
                probe("main.main")


def test_what_is_no_program(tmp_path: Path) -> None:
    whole = program()

    def changed(at: int, value: bytes) -> str:
        return written(tmp_path, whole[:at] + value + whole[at + len(value) :])

    path = str(tmp_path / "program")
    assert refused(written(tmp_path, b"#!/bin/sh\n")) == f"{path} is not an ELF file"
    assert refused(changed(4, b"\1")) == f"{path} is not a 64-bit program"
    assert refused(changed(_MACHINE_AT, struct.pack("<H", 183))) == f"{path} is code for aarch64, not for x86_64"
    assert refused(changed(_MACHINE_AT, struct.pack("<H", 8))) == f"{path} is code for machine 8, not for x86_64"
    assert refused(changed(_TYPE_AT, b"\1")) == f"{path} is neither a program nor a library"
    assert refused(written(tmp_path, elf([], b"", kind=7))) == f"{path} has no names of functions: it is stripped"


def test_what_is_no_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refused(str(pipe)) == f"{pipe} is not a regular file"
    assert refused(str(tmp_path)) == f"{tmp_path} cannot be read: Is a directory"
    assert refused(str(tmp_path / "none")) == f"{tmp_path / 'none'} cannot be read: No such file or directory"
    assert refused("a/b") == "a/b is neither an absolute path nor a plain name"


def test_a_name_is_looked_up_as_by_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("first", "second", "third"):
        (tmp_path / folder).mkdir()
    (tmp_path / "first" / "program").mkdir()
    (tmp_path / "second" / "program").touch(0o644)
    wanted = written(tmp_path / "third", program())
    Path(wanted).chmod(0o755)
    monkeypatch.chdir(tmp_path / "third")
    monkeypatch.setenv("PATH", f":.:{tmp_path}/first:{tmp_path}/second:{tmp_path}/third")
    assert found("program", "one").path == wanted
    assert refused("other") == "there is no program other in PATH"


def test_a_file_is_opened_again_only_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path, program())
    spot = found(path, "one")
    os.close(binaries.reopened(spot))
    os.utime(path, ns=(1, 1))
    with pytest.raises(UsageError, match="has changed since it was read: start again"):
        binaries.reopened(spot)


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    assert_one_sentence(tmp_path, program(), lambda path: [found(path, "one").offset])


def test_names_for_suggestions(tmp_path: Path) -> None:
    with binaries.opened(written(tmp_path, program()), "x86_64") as binary:
        assert list(binary.functions()) == ["one", "two", "twin", "twin", "outside"]
