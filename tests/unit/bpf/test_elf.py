# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.unit.bpf.blob import Blob
from wptrace.bpf.btf import Btf
from wptrace.bpf.elf import ObjectFile
from wptrace.errors import WptraceError

ET_REL = 1
EM_BPF = 247
PROGBITS = 1
KINDS = {"": 0, ".bss": 8, ".strtab": 3}


def blob() -> bytes:
    types = Blob()
    u32 = types.integer("unsigned int", 4)
    first, second = types.variable("first", u32), types.variable("second", u32)
    types.section(".bss", 8, [(first, 0, 4), (second, 0, 4)])
    return bytes(types)


def elf(sections: dict[str, bytes], kind: int = ET_REL, machine: int = EM_BPF) -> bytes:
    """Build an ELF file of these sections; .bss has no bytes in it."""
    names = ["", *sections, ".strtab"]
    strings = b"\0".join(name.encode() for name in names) + b"\0"
    contents = [b"", *sections.values(), strings]
    body = bytearray(64)
    headers = b""
    for name, content in zip(names, contents):
        at = strings.index(b"\0" + name.encode() + b"\0") + 1 if name else 0
        headers += struct.pack("<IIQQQQIIQQ", at, KINDS.get(name, PROGBITS), 0, 0, len(body), len(content), 0, 0, 1, 0)
        body += b"" if name == ".bss" else content
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    struct.pack_into(
        "<16sHHIQQQIHHHHHH",
        body, 0, ident, kind, machine, 1, 0, 0, len(body), 0, 64, 0, 0, 64, len(names), len(names) - 1,
    )  # fmt: skip
    return bytes(body) + headers


WHOLE = elf({".bss": bytes(8), "license": b"GPL\0", ".BTF": blob(), ".BTF.ext": b"ext"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "io.bpf.o"


def test_an_object_is_read(path: Path) -> None:
    path.write_bytes(WHOLE)
    file = ObjectFile(path)
    assert file.data == WHOLE
    assert list(file.sections) == ["", ".bss", "license", ".BTF", ".BTF.ext", ".strtab"]
    assert (file.content("license"), file.content(".BTF"), file.content(".bss")) == (b"GPL\0", blob(), b"")
    with pytest.raises(WptraceError, match="has no section nothing"):
        file.content("nothing")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not a 64-bit little-endian ELF file"),
        (b"#!/bin/sh\n", "is not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "is not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x02" + bytes(60), "is not a 64-bit little-endian ELF file"),
        (b"\x7fELF\x02\x01", "is truncated"),
        (
            elf({".BTF": blob(), ".BTF.ext": b"x"}, machine=62),
            "is an ELF file, but not a relocatable BPF object",
        ),
        (elf({}, kind=2), "is an ELF file, but not a relocatable BPF object"),
        (elf({"license": b"GPL\0"}), "has no .BTF: it was built without -g, or stripped of it"),
        (elf({".BTF": blob()}), "has no .BTF.ext: it was built without -g, or stripped of it"),
        (elf({".BTF": b"", ".BTF.ext": b"x"}), "has no .BTF: it was built without -g, or stripped of it"),
        (WHOLE[:-100], "is truncated"),
    ],
)
def test_what_is_no_object_is_refused_in_one_sentence(path: Path, data: bytes, problem: str) -> None:
    path.write_bytes(data)
    with pytest.raises(WptraceError) as caught:
        ObjectFile(path)
    assert caught.value.message == f"{path} {problem}"
    assert caught.value.hint == "rebuild it with make, or reinstall wptrace"
    assert caught.value.exit_code == 1


def test_other_files_are_refused(path: Path) -> None:
    with pytest.raises(WptraceError, match="cannot be read: No such file"):
        ObjectFile(path)
    with pytest.raises(WptraceError, match="cannot be read: Is a directory"):
        ObjectFile(path.parent)
    with pytest.raises(WptraceError, match="is an ELF file, but not"):
        ObjectFile(Path(sys.executable))


def use(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    with suppress(WptraceError):
        file = ObjectFile(path)
        with suppress(WptraceError):
            Btf.parse(file.content(".BTF"))
        with suppress(WptraceError):
            file.content("license")


def test_no_truncation_crashes(path: Path) -> None:
    for length in range(0, len(WHOLE), 5):
        use(WHOLE[:length], path)


@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8))
@example(changes=[(47, 255)])  # section headers beyond the range of an index
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_crashes(path: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place % len(data)] = value
    use(bytes(data), path)
