# SPDX-License-Identifier: Apache-2.0
"""The readers of BTF and layouts, against clang and bpftool."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from tests.objects.building import ARCHES
from wptrace.bpf import btf
from wptrace.bpf.btf import Btf
from wptrace.bpf.elf import ObjectFile
from wptrace.bpf.layout import Record, codec
from wptrace.bpf.object import BpfObject

NAMES = [f"{arch}/types.bpf.o" for arch in ARCHES]


def opened(path: Path) -> tuple[ObjectFile, Btf]:
    """Return the file, and its types with the places of variables, which libbpf fills in."""
    with BpfObject(path) as obj:
        return ObjectFile(path), obj.btf


def variable(file: ObjectFile, parsed: Btf, section: str, name: str) -> Any:
    """Return the initial value of a global, decoded at its place in BTF."""
    found, declared = parsed.find(section, btf.DataSec), parsed.find(name, btf.Var)
    assert found
    assert declared
    (place,) = [each for each in found.vars if each.type == declared.id]
    return codec(parsed, declared.id).unpack(file.content(section), place.offset)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_read_as_clang_wrote_them(types_objects: dict[str, Path], name: str) -> None:
    file, parsed = opened(types_objects[name])
    value = variable(file, parsed, ".rodata", "constants")
    assert isinstance(value, Record)
    value = cast("Any", value)
    pairs, packed = value.pairs, value.packed
    assert (value.u8, value.s16, value.u32, value.s64, value.yes) == (
        200,
        -300,
        4000000000,
        -5000000000,
        True,
    )
    assert (value.comm, value.raw) == (b"worker", b"\1\0\xff")
    assert (value.color, value.wide, value.pointer, value.callback) == (0xFFFFFFF0, 1 << 40, 0, 0)
    assert [(pair.first, pair.second) for pair in pairs] == [(1, 2), (3, 4)]
    assert value.grid == ((1, 2, 3), (4, 5, 6))
    assert (value.lower, value.upper, packed.inner) == (7, 8, 9)
    layout = codec(parsed, parsed.find("all", btf.Struct).id)  # type: ignore[union-attr]
    assert layout.pack(value) == file.content(".rodata")[: layout.size]


@pytest.mark.parametrize("name", NAMES)
def test_globals_lie_where_the_linker_would_put_them(types_objects: dict[str, Path], name: str) -> None:
    file, parsed = opened(types_objects[name])
    assert variable(file, parsed, ".data", "first_value") == 11
    assert variable(file, parsed, ".data", "second_value") == 22
    bss = parsed.find(".bss", btf.DataSec)
    assert bss
    assert {parsed.type(each.type).name: (each.offset, each.size) for each in bss.vars} == {
        "total": (0, 8),
        "hidden": (8, 24),
    }
    assert file.content("license") == b"Dual BSD/GPL\0"


def as_bpftool_says(parsed: Btf, entry: btf.Type) -> dict[str, Any]:
    """Return a type in the words of `bpftool --json btf dump`."""
    words: dict[str, Any] = {"id": entry.id, "name": entry.name or "(anon)"}
    if isinstance(entry, (btf.Int, btf.Composite, btf.Enum)):
        words["size"] = entry.size
    if isinstance(entry, btf.Int):
        words["nr_bits"] = entry.bits
        words["bits_offset"] = entry.offset
    if isinstance(entry, btf.Composite):
        words["members"] = [
            {"name": each.name or "(anon)", "type_id": each.type, "bits_offset": each.bit_offset}
            | ({"bitfield_size": each.bit_size} if each.bit_size else {})
            for each in entry.members
        ]
    if isinstance(entry, btf.Enum):
        words["values"] = [{"name": each.name, "val": each.value % (1 << 64)} for each in entry.values]
    if isinstance(entry, (btf.Ptr, btf.Modifier, btf.Func, btf.Var)):
        words["type_id"] = entry.type
    if isinstance(entry, btf.Array):
        words |= {"type_id": entry.element, "nr_elems": entry.count}
    if isinstance(entry, btf.FuncProto):
        words["ret_type_id"] = entry.type
        words["params"] = [{"name": each.name or "(anon)", "type_id": each.type} for each in entry.params]
    return words


@pytest.mark.parametrize("name", NAMES)
def test_bpftool_reads_the_same_types(types_objects: dict[str, Path], name: str) -> None:
    path = types_objects[name]
    command = ["bpftool", "--json", "btf", "dump", "file", str(path)]
    dump = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["types"]
    parsed = Btf.parse(ObjectFile(path).content(".BTF"))
    kinds = {
        "INT": btf.Int, "PTR": btf.Ptr, "ARRAY": btf.Array, "STRUCT": btf.Struct, "UNION": btf.Union,
        "ENUM": btf.Enum, "ENUM64": btf.Enum, "FWD": btf.Fwd, "TYPEDEF": btf.Typedef, "CONST": btf.Const,
        "VOLATILE": btf.Volatile, "RESTRICT": btf.Restrict, "FUNC": btf.Func, "FUNC_PROTO": btf.FuncProto,
        "VAR": btf.Var, "DATASEC": btf.DataSec, "FLOAT": btf.Sized, "TYPE_TAG": btf.Modifier,
        "DECL_TAG": btf.Ref,
    }  # fmt: skip
    assert len(dump) == len(parsed) - 1
    for theirs in dump:
        ours = parsed.type(theirs["id"])
        assert type(ours) is kinds[theirs["kind"]]
        said = as_bpftool_says(parsed, ours)
        for value in theirs.get("values", ()):
            # bpftool 7.1 sign-extends unsigned values as well.
            unsigned = isinstance(ours, btf.Enum) and not ours.signed
            value["val"] %= 1 << (32 if unsigned and theirs["kind"] == "ENUM" else 64)
        assert {word: theirs[word] for word in said} == said
