# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.bpf.blob import Blob
from wptrace.bpf import btf
from wptrace.bpf.btf import Btf
from wptrace.bpf.layout import codec
from wptrace.errors import UnsupportedError, WptraceError


def every_kind() -> Blob:
    """One type of each kind, with its id in the comment."""
    blob = Blob()
    u32 = blob.integer("unsigned int", 4)  # 1
    char = blob.integer("char", 1, signed=True)  # 2
    blob.pointer(u32)  # 3
    comm = blob.array(char, 16)  # 4
    inner = blob.composite("", 8, [("low", u32, 0), ("high", u32, 32)])  # 5
    either = blob.composite("", 8, [("", inner, 0), ("whole", u32, 0)], union=True)  # 6
    blob.composite("task", 32, [("", either, 0), ("comm", comm, 64), ("bit", u32, 195, 3)])  # 7
    blob.enum("color", {"RED": 0, "BLUE": 0x80000000})  # 8
    blob.enum("level", {"LOW": -1, "HIGH": 1}, signed=True)  # 9
    blob.enum64("wide", {"HUGE": 1 << 40})  # 10
    blob.enum64("deep", {"LOWEST": -1 << 40}, signed=True)  # 11
    blob.add(7, "file")  # 12
    blob.add(7, "cell", flag=True)  # 13
    typedef = blob.typedef("u32", u32)  # 14
    volatile = blob.add(9, extra=typedef)  # 15
    const = blob.add(10, extra=volatile)  # 16
    blob.add(11, extra=const)  # 17
    blob.add(18, "user", extra=const)  # 18
    proto = blob.function_type(u32, [("count", u32), ("", 0)])  # 19
    function = blob.add(12, "read", proto, vlen=1)  # 20
    variable = blob.variable("total", const)  # 21
    blob.section(".bss", 4, [(variable, 0, 4)])  # 22
    blob.add(16, "double", 8)  # 23
    blob.add(17, "tag", function, [0xFFFFFFFF])  # 24
    blob.add(17, "tag", function, [1])  # 25
    return blob


@pytest.fixture
def kinds() -> Btf:
    return Btf.parse(bytes(every_kind()))


def test_every_kind_is_read(kinds: Btf) -> None:
    assert len(kinds) == 26
    names = " ".join(type(entry).__name__ for entry in kinds)
    assert names == (
        "Void Int Int Ptr Array Struct Union Struct Enum Enum Enum Enum Fwd Fwd Typedef Volatile Const"
        " Restrict Modifier FuncProto Func Var DataSec Sized Ref Ref"
    )
    assert [entry.id for entry in kinds] == list(range(26))


def test_integers(kinds: Btf) -> None:
    u32, char = kinds.find("unsigned int", btf.Int), kinds.find("char", btf.Int)
    assert u32
    assert char
    assert (u32.size, u32.bits, u32.offset, u32.signed, u32.is_bool, u32.is_char) == (
        4,
        32,
        0,
        False,
        False,
        False,
    )
    assert char.signed


def test_enum_values_have_the_sign_that_the_flag_says(kinds: Btf) -> None:
    for name, value in (("color", 0x80000000), ("level", 1), ("wide", 1 << 40), ("deep", -1 << 40)):
        entry = kinds.find(name, btf.Enum)
        assert entry
        assert entry.values[-1].value == value
    level = kinds.find("level", btf.Enum)
    assert level
    assert level.values[0] == ("LOW", -1)


def test_functions_variables_and_tags(kinds: Btf) -> None:
    function, total, bss = (
        kinds.find("read", btf.Func),
        kinds.find("total", btf.Var),
        kinds.find(".bss", btf.DataSec),
    )
    assert function
    assert total
    assert bss
    proto = kinds.type(function.type)
    assert isinstance(proto, btf.FuncProto)
    assert proto.params == [("count", 1), ("", 0)]
    assert bss.vars == [(total.id, 0, 4)]
    assert [tag.type for tag in kinds if type(tag) is btf.Ref] == [function.id] * 2
    assert [each.is_union for each in kinds if isinstance(each, btf.Fwd)] == [False, True]


def test_resolve_looks_through_names_and_qualifiers(kinds: Btf) -> None:
    for type_id in (14, 15, 16, 17, 18, 1):
        assert kinds.resolve(type_id).id == 1


def test_find_tells_kinds_apart(kinds: Btf) -> None:
    assert kinds.find("task", btf.Struct)
    assert kinds.find("task", btf.Composite)
    assert kinds.find("task", btf.Union) is None
    assert kinds.find("no such thing", btf.Type) is None


@pytest.mark.parametrize(
    ("type_id", "size"),
    [(1, 4), (3, 8), (4, 16), (6, 8), (7, 32), (10, 8), (16, 4), (21, 4), (22, 4), (23, 8)],
)
def test_sizes(kinds: Btf, type_id: int, size: int) -> None:
    assert kinds.size(type_id) == size


@pytest.mark.parametrize("type_id", [0, 12, 19, 20])
def test_what_has_no_size(kinds: Btf, type_id: int) -> None:
    with pytest.raises(WptraceError, match="has no size"):
        kinds.size(type_id)


def test_offsets_are_found_through_anonymous_members(kinds: Btf) -> None:
    task = kinds.find("task", btf.Struct)
    assert task
    assert [kinds.member(task, name).bit_offset for name in ("low", "high", "whole", "comm")] == [0, 32, 0, 64]
    assert kinds.member(task, "bit")[2:] == (195, 3)
    for path in ("nothing", "comm.nothing", "low.nothing", ""):
        with pytest.raises(WptraceError, match="struct task has no member"):
            kinds.member(task, path)


def test_offsets_of_nested_members_add_up() -> None:
    blob = Blob()
    u64 = blob.integer("long", 8)
    times = blob.typedef("times_t", blob.composite("times", 16, [("start", u64, 0), ("end", u64, 64)]))
    outer = blob.composite("event", 24, [("id", u64, 0), ("times", times, 64)])
    parsed = Btf.parse(bytes(blob))
    event = parsed.type(outer)
    assert isinstance(event, btf.Struct)
    assert parsed.member(event, "times.end").bit_offset == 128


def test_bit_fields_of_both_encodings() -> None:
    blob = Blob()
    u32 = blob.integer("unsigned int", 4)
    narrow = blob.integer("unsigned int", 4, bits=3, offset=2)
    new = blob.composite("new", 4, [("field", u32, 9, 3)], flag=True)
    old = blob.composite("old", 4, [("field", narrow, 7)], flag=False)
    parsed = Btf.parse(bytes(blob))
    for type_id in (new, old):
        owner = parsed.type(type_id)
        assert isinstance(owner, btf.Struct)
        assert parsed.bits(owner.members[0]) == (9, 3)


def test_offsets_of_large_structs_need_all_bits_without_the_flag() -> None:
    blob = Blob()
    u8 = blob.integer("unsigned char", 1)
    large = blob.composite("large", 1 << 24, [("last", u8, 8 * ((1 << 24) - 1))], flag=False)
    parsed = Btf.parse(bytes(blob))
    owner = parsed.type(large)
    assert isinstance(owner, btf.Struct)
    assert parsed.member(owner, "last").bit_offset == 8 * ((1 << 24) - 1)


def test_a_module_builds_on_its_kernel() -> None:
    kernel = Blob()
    u32 = kernel.integer("unsigned int", 4)
    kernel.composite("request", 4, [("tag", u32, 0)])
    base = Btf.parse(bytes(kernel))
    module = Blob(first_id=len(base), strings_start=kernel.strings_end)
    command = module.composite("nvme_command", 4, [("id", u32, 0)])
    parsed = Btf.parse(bytes(module), base)
    assert (len(parsed), [entry.name for entry in parsed]) == (4, ["nvme_command"])
    assert parsed.type(command).name == "nvme_command"
    assert parsed.find("request", btf.Struct) is base.find("request", btf.Struct)
    assert parsed.size(command) == 4
    # A name of the base, used by the module.
    borrowed = struct.pack("<III", 1, 8 << 24, u32)
    data = bytearray(bytes(module))
    struct.pack_into("<III", data, 12, 12, 12, len(data) - 24)
    split = data[:24] + borrowed + data[24 + 24 :]
    struct.pack_into("<I", split, 20, len(split) - 24 - 12)
    assert Btf.parse(bytes(split), base).type(3).name == "unsigned int"


def test_descriptions(kinds: Btf) -> None:
    descriptions = [kinds.describe(type_id) for type_id in (0, 1, 3, 4, 5, 6, 7, 8, 12, 13, 16, 19, 22)]
    assert descriptions == [
        "void",
        "unsigned int",
        "unsigned int *",
        "char[16]",
        "struct (anonymous)",
        "union (anonymous)",
        "struct task",
        "enum color",
        "struct file",
        "union cell",
        "u32",
        "function",
        ".bss",
    ]
    assert "name='task'" in repr(kinds.type(7))


def header(**changes: int) -> bytes:
    fields = {
        "magic": 0xEB9F,
        "version": 1,
        "flags": 0,
        "header": 24,
        "types": 0,
        "types_size": 0,
        "strings": 0,
        "strings_size": 1,
    }
    return struct.pack("<HBBIIIII", *{**fields, **changes}.values()) + b"\0"


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", WptraceError, "not BTF"),
        (b"\x7fELF" + bytes(60), WptraceError, "not BTF"),
        (header()[:20], WptraceError, "not BTF"),
        (b"\xeb\x9f" + bytes(40), UnsupportedError, "big-endian"),
        (header(version=2), UnsupportedError, "version 2"),
        (header(strings_size=100), WptraceError, "truncated"),
        (header(types_size=100), WptraceError, "truncated"),
        (header(header=4), WptraceError, "truncated"),
        (header(types=1 << 31, types_size=1 << 31), WptraceError, "truncated"),
    ],
)
def test_a_bad_header_is_refused(data: bytes, error: type[WptraceError], message: str) -> None:
    with pytest.raises(error, match=message):
        Btf.parse(data)


def test_an_unknown_kind_is_named() -> None:
    blob = Blob()
    blob.add(20, "future")
    with pytest.raises(UnsupportedError, match="type 1 is of the unknown kind 20"):
        Btf.parse(bytes(blob))


def test_references_and_names_must_exist() -> None:
    blob = Blob()
    blob.pointer(7)
    with pytest.raises(WptraceError, match="refers to type 7 of 2"):
        Btf.parse(bytes(blob))
    data = bytearray(bytes(every_kind()))
    struct.pack_into("<I", data, 24, 1 << 20)
    with pytest.raises(WptraceError, match="name lies outside"):
        Btf.parse(bytes(data))


def test_chains_that_never_end_are_refused() -> None:
    blob = Blob()
    blob.typedef("loop", 1)
    blob.array(2, 2)
    blob.pointer(3)
    blob.composite("self", 8, [("", 4, 0)])
    parsed = Btf.parse(bytes(blob))
    for question, type_id in ((parsed.resolve, 1), (parsed.size, 1), (parsed.size, 2)):
        with pytest.raises(WptraceError):
            question(type_id)
    for type_id in (1, 2, 4):
        with pytest.raises(WptraceError):
            codec(parsed, type_id)
    assert parsed.describe(2)
    assert parsed.describe(3)
    owner = parsed.type(4)
    assert isinstance(owner, btf.Struct)
    with pytest.raises(WptraceError):
        parsed.member(owner, "x")


@pytest.mark.parametrize("type_id", [-1, 26, 1 << 31])
def test_ids_out_of_range(kinds: Btf, type_id: int) -> None:
    with pytest.raises(WptraceError, match="no type"):
        kinds.type(type_id)


def ask_everything(data: bytes) -> None:
    """Query everything: arbitrary bytes only raise errors of this package."""
    with suppress(WptraceError):
        parsed = Btf.parse(data)
        for entry in parsed:
            parsed.describe(entry.id)
            repr(entry)
            parsed.find(entry.name, btf.Composite)
            for question in (parsed.resolve, parsed.size):
                with suppress(WptraceError):
                    question(entry.id)
            if isinstance(entry, btf.Composite):
                with suppress(WptraceError):
                    parsed.member(entry, "comm.x")
            with suppress(WptraceError):
                layout = codec(parsed, entry.id)
                if layout.size < 1 << 12:
                    layout.fields  # noqa: B018
                    value = layout.unpack(bytes(range(256)) * 16)
                    layout.pack(value)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_random_types_never_crash(types: bytes) -> None:
    strings = b"\0one\0two\0"
    ask_everything(
        struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings)) + types + strings
    )


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_never_crash(data: bytes) -> None:
    ask_everything(data)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8), st.data())
def test_damaged_blobs_never_crash(changes: list[tuple[int, int]], data: st.DataObject) -> None:
    blob = bytearray(bytes(every_kind()))
    for place, value in changes:
        blob[place % len(blob)] = value
    ask_everything(bytes(blob))
    ask_everything(bytes(blob[: data.draw(st.integers(0, len(blob)))]))
