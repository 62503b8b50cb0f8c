# SPDX-License-Identifier: Apache-2.0
"""Static probes of made-up programs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.unit.kernel.damage import assert_one_sentence, written
from wptrace.errors import UsageError
from wptrace.kernel import binaries, sdt
from wptrace.kernel.sdt import Operand

CODE_AT, CODE, DATA_AT, DATA = 0x1000, 0x401000, 0x2000, 0x602000
SECTIONS = b"\0.note.stapsdt\0.stapsdt.base\0.names\0.go.buildinfo\0"


def note(
    name: bytes = b"began",
    address: int = CODE + 0x10,
    base: int = 0,
    counter: int = 0,
    arguments: bytes = b"",
    owner: bytes = b"stapsdt\0",
    kind: int = 3,
) -> bytes:
    content = struct.pack("<QQQ", address, base, counter) + b"mine\0" + name + b"\0" + arguments + b"\0"
    head = struct.pack("<III", len(owner), len(content), kind) + owner
    return b"".join(part + bytes(-len(part) % 4) for part in (head, content))


def program(notes: bytes, base: int = 0, size: int | None = None, other: bytes = b".names") -> bytes:
    """Build a program with a segment of code, one of data, and a section with these notes."""
    at = 64 + 2 * 56
    names_at = at + len(notes)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, names_at + len(SECTIONS), 0, 64, 56, 2, 64, 4, 3
    )
    segments = [
        struct.pack("<IIQQQQQQ", 1, flags, offset, address, address, 0x1000, 0x1000, 0x1000)
        for flags, offset, address in ((5, CODE_AT, CODE), (6, DATA_AT, DATA))
    ]

    def section(name: bytes, kind: int, address: int, offset: int, length: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", SECTIONS.index(name), kind, 0, address, offset, length, 0, 0, 4, 0)

    sections = [
        bytes(64),
        section(b".note.stapsdt", 7, 0, at, len(notes) if size is None else size),
        section(b".stapsdt.base", 1, base, at, 1),
        section(other, 3, 0, names_at, len(SECTIONS)),
    ]
    return header + b"".join(segments) + notes + SECTIONS + b"".join(sections)


def found(path: str, name: str = "began") -> list[sdt.Site]:
    with binaries.opened(path, "x86_64") as binary:
        return sdt.sites(binary, "mine", name, "x86_64")


def refused(path: str, name: str = "began") -> str:
    with pytest.raises(UsageError) as caught:
        found(path, name)
    return caught.value.message


def test_a_probe_at_two_places(tmp_path: Path) -> None:
    notes = note(arguments=b"8@%rdi") + note(b"other") + note(address=CODE + 0x20, counter=DATA + 2)
    first, second = found(written(tmp_path, program(notes)))
    assert (first.spot.offset, first.spot.counter, first.operands) == (CODE_AT + 0x10, 0, (Operand(8, False, "di"),))
    assert (second.spot.offset, second.spot.counter, second.operands) == (CODE_AT + 0x20, DATA_AT + 2, ())


def test_a_file_that_was_moved_after_it_was_linked(tmp_path: Path) -> None:
    notes = note(address=0x10, base=0x5000, counter=DATA - CODE + 2)
    (site,) = found(written(tmp_path, program(notes, base=CODE + 0x5000)))
    assert (site.spot.offset, site.spot.counter) == (CODE_AT + 0x10, DATA_AT + 2)


def test_notes_of_others_are_left_out(tmp_path: Path) -> None:
    notes = note(owner=b"GNU\0") + note(kind=1) + note(address=CODE + 0x30)
    (site,) = found(written(tmp_path, program(notes)))
    assert site.spot.offset == CODE_AT + 0x30


def test_probes_that_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, program(note()))
    assert refused(path, "begin") == f"{path} has no static probe mine:begin"
    assert refused(written(tmp_path, program(b""))) == f"{path} has no static probes"
    message = f"mine:began of {path} lies outside of what is loaded of it"
    assert refused(written(tmp_path, program(note(address=DATA)))) == message
    assert refused(written(tmp_path, program(note(counter=1 << 62)))) == message
    many = b"".join(note(address=CODE + at) for at in range(17))
    assert refused(written(tmp_path, program(many))) == f"mine:began of {path} is at 17 places; the limit is 16"


def test_names_for_suggestions(tmp_path: Path) -> None:
    path = written(tmp_path, program(note() + note(b"ended") + note()))
    with binaries.opened(path, "x86_64") as binary:
        assert sdt.names(binary) == ["mine:began", "mine:ended"]


@pytest.mark.parametrize("size", [0, 1 << 40, (1 << 64) - 1])
def test_no_size_is_believed(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, program(note(), size=size))
    if size:
        assert len(found(path)) == 1
    else:
        assert "has no static probes" in refused(path)


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    whole = program(note(arguments=b"-4@12(%rsp) 8@$5") + note(counter=DATA))
    assert_one_sentence(tmp_path, whole, lambda path: [site.spot.offset for site in found(path)])


MASK = (1 << 64) - 1


@pytest.mark.parametrize(
    ("machine", "text", "wanted"),
    [
        ("x86_64", "8@%rdi -4@%eax 1@%sil", [Operand(8, False, "di"), Operand(4, True, "ax"), Operand(1, False, "si")]),
        ("x86_64", "2@%r9w", [Operand(2, False, "r9")]),
        ("x86_64", "8@-16(%rbp) 8@(%r12)", [Operand(8, False, "bp", -16, True), Operand(8, False, "r12", 0, True)]),
        ("x86_64", "-4@$-1 4@$0x10", [Operand(4, True, "", MASK), Operand(4, False, "", 16)]),
        ("aarch64", "8@x0 -4@w19", [Operand(8, False, "x0"), Operand(4, True, "x19")]),
        (
            "aarch64",
            "8@[sp, 24] -4@[x29, -8] 8@[x1]",
            [Operand(8, False, "sp", 24, True), Operand(4, True, "x29", -8, True), Operand(8, False, "x1", 0, True)],
        ),
        ("aarch64", "-4@-5", [Operand(4, True, "", -5 & MASK)]),
        ("x86_64", "", []),
    ],
)
def test_arguments(machine: str, text: str, wanted: list[Operand]) -> None:
    assert list(sdt.operands(text, machine)) == wanted


@pytest.mark.parametrize(
    ("machine", "word"),
    [
        ("x86_64", "4@NBuffers(%rip)"),
        ("x86_64", "8@8(%rax,%rbx,8)"),
        ("x86_64", "8@(%rip)"),
        ("x86_64", "8f@%xmm0"),
        ("x86_64", "8@%xmm0"),
        ("x86_64", "1@%ah"),
        ("x86_64", "16@%rax"),
        ("x86_64", "8@x0"),
        ("x86_64", "8@99999999999(%rax)"),
        ("x86_64", "%rax"),
        ("aarch64", "8@[x0, x1]"),
        ("aarch64", "8@v0"),
        ("aarch64", "8@x31"),
        ("aarch64", "8@%rdi"),
        ("riscv64", "8@a0"),
    ],
)
def test_what_is_not_understood_stays_as_it_is(machine: str, word: str) -> None:
    before = "8@%rdi" if machine == "x86_64" else "8@x3" if machine == "aarch64" else ""
    assert list(sdt.operands(f"{before} {word}", machine))[-1] == word


def test_there_are_never_too_many() -> None:
    assert len(list(sdt.operands("8@%rdi " * 1000, "x86_64"))) == 12
