# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.bpf.blob import Blob
from wptrace.bpf.btf import Btf
from wptrace.bpf.layout import MAX_FLAT_FIELDS, Codec, Enumeration, Record, Structure, codec, text
from wptrace.errors import UnsupportedError, UsageError, WptraceError


class Types:
    """The types that most tests use, by name."""

    def __init__(self) -> None:
        self.blob = Blob()
        self.u8 = self.blob.typedef("u8", self.blob.integer("unsigned char", 1))
        self.s8 = self.blob.integer("signed char", 1, signed=True)
        self.char = self.blob.integer("char", 1, signed=True)
        self.u16 = self.blob.typedef("u16", self.blob.integer("unsigned short", 2))
        self.u32 = self.blob.typedef("u32", self.blob.integer("unsigned int", 4))
        self.s32 = self.blob.integer("int", 4, signed=True)
        self.u64 = self.blob.typedef("u64", self.blob.integer("unsigned long", 8))
        self.s64 = self.blob.integer("long", 8, signed=True)
        self.bool = self.blob.integer("_Bool", 1, boolean=True)
        self.pointer = self.blob.pointer(0)
        self.color = self.blob.enum("color", {"RED": 0, "GREEN": 1, "VERDE": 1})
        self.level = self.blob.enum("level", {"LOW": -1, "HIGH": 1}, signed=True)

    def codec(self, type_id: int) -> Codec:
        return codec(Btf.parse(bytes(self.blob)), type_id)

    def struct(self, size: int, members: list[Any], **options: Any) -> int:
        return self.blob.composite("thing", size, members, **options)


@pytest.fixture
def types() -> Types:
    return Types()


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("u8", 255, "ff"),
        ("s8", -1, "ff"),
        ("char", -128, "80"),
        ("u16", 0x1234, "3412"),
        ("u32", 0xFFFFFFFF, "ffffffff"),
        ("s32", -2, "feffffff"),
        ("u64", 1 << 63, "0000000000000080"),
        ("s64", -1, "ffffffffffffffff"),
        ("bool", True, "01"),
        ("pointer", 0xFFFF888000000000, "0000000080 88ffff"),
        ("color", 7, "07000000"),
        ("level", -1, "ffffffff"),
    ],
)
def test_scalars(types: Types, name: str, value: Any, data: str) -> None:
    scalar = types.codec(getattr(types, name))
    raw = bytes.fromhex(data)
    assert scalar.size == len(raw)
    assert scalar.pack(value) == raw
    assert scalar.unpack(raw) == value
    assert type(scalar.unpack(raw)) is type(value)
    assert scalar.unpack(b"\xaa" + raw, 1) == value
    assert scalar.unpack(memoryview(raw)) == value
    assert scalar.struct
    assert scalar.fields == ("",)
    assert scalar.struct.unpack(raw) == (value,)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("u32", -1, "x: -1 is outside 0..4294967295 (u32)"),
        ("u8", 256, "x: 256 is outside 0..255 (u8)"),
        ("s8", 128, "x: 128 is outside -128..127 (signed char)"),
        ("bool", 2, "x: 2 is outside 0..1 (_Bool)"),
        ("u32", "7", "x: '7' is not an integer (u32)"),
        ("u32", 1.0, "x: 1.0 is not an integer (u32)"),
        ("u32", None, "x: None is not an integer (u32)"),
        ("pointer", -1, "x: -1 is outside 0..18446744073709551615 (void *)"),
        ("color", "PINK", "x: 'PINK' is none of RED, GREEN, VERDE (enum color)"),
    ],
)
def test_wrong_scalars_are_named(types: Types, name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        types.codec(getattr(types, name)).pack(value, "x")
    with pytest.raises(UsageError, match=f"^{re.escape(message[3:])}$"):
        types.codec(getattr(types, name)).pack(value)


def test_any_byte_but_zero_is_true(types: Types) -> None:
    assert [types.codec(types.bool).unpack(bytes([byte])) for byte in (0, 1, 2, 128)] == [
        False,
        True,
        True,
        True,
    ]


def test_enums_have_names(types: Types) -> None:
    color = types.codec(types.color)
    assert isinstance(color, Enumeration)
    assert color.pack("GREEN") == b"\1\0\0\0"
    assert color.names == {0: "RED", 1: "GREEN"}
    assert color.values == {"RED": 0, "GREEN": 1, "VERDE": 1}


def test_strings(types: Types) -> None:
    comm = types.codec(types.blob.array(types.char, 8))
    assert comm.unpack(b"fio\0junk") == b"fio"
    assert comm.unpack(b"12345678") == b"12345678"
    assert comm.pack("fio") == comm.pack(b"fio") == b"fio\0\0\0\0\0"
    assert comm.pack("é") == "é".encode() + bytes(6)
    with pytest.raises(UsageError, match=re.escape("comm: 9 bytes do not fit into 8 (char[8])")):
        comm.pack("123456789", "comm")
    with pytest.raises(UsageError, match="7 is neither bytes nor str"):
        comm.pack(7)
    assert text(b"fio\0junk") == "fio"
    assert text(b"\xff") == "\\xff"


def test_byte_arrays_keep_all_bytes(types: Types) -> None:
    raw = types.codec(types.blob.array(types.u8, 4))
    assert raw.unpack(b"a\0b\0") == b"a\0b\0"
    assert raw.pack(b"a\0b\0") == raw.pack([97, 0, 98, 0]) == b"a\0b\0"
    for wrong in ([1, 2, 3, 256], 5, "abcd"):
        with pytest.raises(UsageError, match="neither bytes nor integers"):
            raw.pack(wrong)
    with pytest.raises(UsageError, match="3 bytes were given where 4 are needed"):
        raw.pack(b"abc")


def test_arrays(types: Types) -> None:
    rows = types.codec(types.blob.array(types.blob.array(types.u16, 2), 3))
    assert rows.unpack(bytes(range(12))) == ((0x100, 0x302), (0x504, 0x706), (0x908, 0xB0A))
    assert rows.pack([(1, 2), [3, 4], (5, 6)]) == b"\1\0\2\0\3\0\4\0\5\0\6\0"
    assert rows.fields == ("[0][0]", "[0][1]", "[1][0]", "[1][1]", "[2][0]", "[2][1]")
    with pytest.raises(UsageError, match=re.escape("2 values were given where 3 are needed (u16[3][2])")):
        rows.pack([(1, 2), (3, 4)])
    with pytest.raises(UsageError, match=re.escape("x[1][0]: -1 is outside 0..65535 (u16)")):
        rows.pack([(1, 2), (-1, 4), (5, 6)], "x")
    with pytest.raises(UsageError, match="7 is not a sequence"):
        rows.pack(7)
    assert types.codec(types.blob.array(types.u32, 0)).unpack(b"") == ()


def test_flat_structs_are_one_format(types: Types) -> None:
    times = types.blob.composite("times", 16, [("start", types.u64, 0), ("end", types.u64, 64)])
    record = types.codec(
        types.struct(
            64,
            [
                ("kind", types.u8, 0),
                ("dev", types.u32, 32),
                ("times", times, 64),
                ("stages", types.blob.array(types.u32, 2), 192),
                ("comm", types.blob.array(types.char, 8), 256),
                ("pairs", types.blob.array(types.blob.composite("pair", 4, [("a", types.u8, 0)]), 2), 320),
                ("done", types.bool, 384),
            ],
        )
    )
    assert record.struct
    assert record.struct.size == record.size == 64
    assert " ".join(record.fields) == (
        "kind dev times.start times.end stages[0] stages[1] comm pairs[0].a pairs[1].a done"
    )
    data = record.pack(
        {
            "kind": 1,
            "dev": 2,
            "times": {"start": 3, "end": 4},
            "stages": (5, 6),
            "comm": "fio",
            "pairs": [{"a": 7}, {"a": 8}],
            "done": True,
        }
    )
    assert record.struct.unpack(data) == (1, 2, 3, 4, 5, 6, b"fio\0\0\0\0\0", 7, 8, True)
    assert list(record.struct.iter_unpack(data * 3)) == [record.struct.unpack(data)] * 3


def test_a_struct_may_end_with_fewer_elements(types: Types) -> None:
    pair = types.blob.composite("pair", 8, [("a", types.u32, 0), ("b", types.u8, 32)])
    cell = types.codec(types.struct(32, [("count", types.u64, 0), ("pairs", types.blob.array(pair, 3), 64)]))
    assert isinstance(cell, Structure)
    short = cell.shortened(2)
    assert short.fields == ("count", "pairs[0].a", "pairs[0].b", "pairs[1].a", "pairs[1].b")
    assert short.struct
    assert short.size == short.struct.size == 24
    assert short.struct.unpack(cell.pack({"count": 7, "pairs": [{"a": 1}, {"b": 2}, {"a": 3}]})[:24]) == (7, 1, 0, 0, 2)
    assert cell.shortened(9).fields == cell.fields
    with pytest.raises(UnsupportedError, match="does not end with an array"):
        cell.before("pairs").shortened(1)


def test_large_layouts_are_not_flattened(types: Types) -> None:
    assert types.codec(types.blob.array(types.u32, MAX_FLAT_FIELDS + 1)).struct is None
    assert types.codec(types.blob.array(types.u32, MAX_FLAT_FIELDS + 1)).fields == ()


def test_structs_are_objects(types: Types) -> None:
    thing = types.codec(types.struct(8, [("a", types.u32, 0), ("__b", types.u16, 32)]))
    value = thing.unpack(b"\1\0\0\0\2\0\3\0")
    assert (value.a, getattr(value, "__b")) == (1, 2)
    assert repr(value) == "thing(a=1, __b=2)"
    assert value._asdict() == {"a": 1, "__b": 2}
    assert value == thing.unpack(b"\1\0\0\0\2\0\0\0")
    assert value != thing.unpack(b"\2\0\0\0\2\0\0\0")
    assert value != 5
    value.a = 9
    assert thing.pack(value) == b"\t\0\0\0\2\0\0\0"
    assert thing.pack({}) == bytes(8)
    assert thing.pack({"a": 1}) == b"\1" + bytes(7)


def test_wrong_structs_are_named(types: Types) -> None:
    inner = types.blob.composite("inner", 4, [("x", types.s32, 0)])
    outer = types.codec(types.struct(8, [("inner", inner, 0), ("more", types.blob.array(inner, 1), 32)]))
    for value, message in (
        ({"inner": {"y": 1}}, "root.inner: there is no member y; there are x (struct inner)"),
        ({"inner": 4}, "root.inner: 4 has no members by name (struct inner)"),
        ({"more": [{"x": 1 << 31}]}, "root.more[0].x: 2147483648 is outside -2147483648..2147483647 (int)"),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
            outer.pack(value, "root")
    record = outer.unpack(bytes(8))
    record.typo = 1
    with pytest.raises(UsageError, match="there is no member typo; there are inner, more"):
        outer.pack(record)


def test_short_buffers_are_refused(types: Types) -> None:
    thing = types.codec(types.struct(8, [("a", types.u64, 0)]))
    for buffer, offset in ((bytes(7), 0), (bytes(8), 1), (bytes(16), -1)):
        with pytest.raises(WptraceError, match="struct thing has 8 bytes at offset"):
            thing.unpack(buffer, offset)


def test_anonymous_members_belong_to_the_outer_struct(types: Types) -> None:
    inner = types.blob.composite("", 8, [("x", types.u32, 0), ("y", types.u32, 32)])
    deep = types.blob.composite("", 8, [("z", types.u32, 32)])
    const = types.blob.add(10, extra=deep)
    thing = types.codec(types.struct(24, [("id", types.u32, 0), ("", inner, 64), ("", const, 128), ("", types.u8, 32)]))
    data = thing.pack({"id": 1, "x": 2, "y": 3, "z": 4})
    assert thing.fields == ("id", "x", "y", "z")
    assert thing.unpack(data)._asdict() == {"id": 1, "x": 2, "y": 3, "z": 4}
    assert thing.pack(thing.unpack(data)) == data
    with pytest.raises(UsageError, match=re.escape("x: -1 is outside 0..4294967295 (u32)")):
        thing.pack({"x": -1})


def test_variables_and_what_has_no_values(types: Types) -> None:
    variable = types.blob.variable("total", types.u32)
    function = types.blob.function_type(0, [])
    forward = types.blob.add(7, "file")
    double = types.blob.add(16, "double", 8)
    wide = types.blob.integer("__int128 unsigned", 16)
    union = types.struct(8, [("whole", types.u64, 0), ("byte", types.u8, 0)], union=True)
    holder = types.blob.composite("holder", 8, [("", union, 0)])
    narrow = types.blob.integer("int", 4, signed=True, bits=4, offset=1)
    of_old_compilers = types.blob.composite("old", 4, [("field", narrow, 6)], flag=False)
    of_bits = types.blob.composite("new", 4, [("field", types.u32, 6, 4)])
    assert types.codec(variable).pack(5) == b"\5\0\0\0"
    assert "u32" in repr(types.codec(variable))
    for type_id in (function, forward, double, wide, union, holder, 0):
        with pytest.raises(UnsupportedError, match="cannot be read or written"):
            types.codec(type_id)
    for type_id in (of_old_compilers, of_bits):
        with pytest.raises(UnsupportedError, match=r"the bit field field of struct .* cannot be read"):
            types.codec(type_id)


@pytest.mark.parametrize(
    "members",
    [
        [("a", "u64", 8)],
        [("a", "u32", 3)],
        [("a", "u32", 0), ("a", "u32", 32)],
    ],
)
def test_impossible_members_are_refused(types: Types, members: list[Any]) -> None:
    placed = [(name, getattr(types, kind), *place) for name, kind, *place in members]
    thing = types.struct(8, placed)
    with pytest.raises(WptraceError, match="the BTF is corrupt"):
        types.codec(thing)


# --- Random layouts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A C type: a scalar by name, an array of a shape, or a struct of several."""

    kind: str
    parts: tuple[Shape, ...] = ()
    count: int = 0


SCALARS = {
    "u8": ctypes.c_uint8,
    "s8": ctypes.c_int8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "s32": ctypes.c_int32,
    "u64": ctypes.c_uint64,
    "s64": ctypes.c_int64,
    "bool": ctypes.c_bool,
    "pointer": ctypes.c_uint64,
    "color": ctypes.c_uint32,
    "level": ctypes.c_int32,
}


def shapes() -> st.SearchStrategy[Shape]:
    def larger(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
        parts = st.lists(inner, min_size=1, max_size=5).map(tuple)
        return st.one_of(
            st.builds(Shape, st.just("array"), st.tuples(inner), st.integers(1, 4)),
            st.builds(Shape, st.just("struct"), parts),
        )

    return st.recursive(st.builds(Shape, st.sampled_from(sorted(SCALARS))), larger, max_leaves=12)


def as_ctypes(shape: Shape) -> Any:
    if shape.kind in SCALARS:
        return SCALARS[shape.kind]
    if shape.kind == "array":
        return as_ctypes(shape.parts[0]) * shape.count
    fields = [(f"m{index}", as_ctypes(part)) for index, part in enumerate(shape.parts)]
    return type("C", (ctypes.Structure,), {"_fields_": fields})


def as_btf(shape: Shape, types: Types) -> int:
    if shape.kind in SCALARS:
        return int(getattr(types, shape.kind))
    if shape.kind == "array":
        return types.blob.array(as_btf(shape.parts[0], types), shape.count)
    layout = as_ctypes(shape)
    members = [
        (f"m{index}", as_btf(part, types), 8 * getattr(layout, f"m{index}").offset)
        for index, part in enumerate(shape.parts)
    ]
    return types.struct(ctypes.sizeof(layout), members)


def plain(value: Any) -> Any:
    """Convert a value of this package or of ctypes to dicts, tuples, bytes and numbers."""
    if isinstance(value, Record):
        return {name: plain(member) for name, member in value._asdict().items()}
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array):
        items = tuple(plain(item) for item in value)
        return bytes(items) if value._type_ is ctypes.c_uint8 else items
    return tuple(plain(item) for item in value) if isinstance(value, tuple) else value


@settings(deadline=None)
@given(shapes(), st.data())
def test_random_layouts_read_as_c_reads_them(shape: Shape, data: st.DataObject) -> None:
    types = Types()
    ours, theirs = types.codec(as_btf(shape, types)), as_ctypes(shape)
    assert ours.size == ctypes.sizeof(theirs)
    raw = data.draw(st.binary(min_size=ours.size, max_size=ours.size))
    value, expected = ours.unpack(raw), theirs.from_buffer_copy(raw)
    if shape.kind in SCALARS:
        expected = expected.value
    assert plain(value) == plain(expected)


@settings(deadline=None)
@given(shapes(), st.data())
def test_random_layouts_survive_packing(shape: Shape, data: st.DataObject) -> None:
    types = Types()
    layout = types.codec(as_btf(shape, types))
    raw = data.draw(st.binary(min_size=layout.size, max_size=layout.size))
    value = layout.unpack(raw)
    packed = layout.pack(value)
    assert plain(layout.unpack(packed)) == plain(value)
    assert layout.pack(layout.unpack(packed)) == packed
    if layout.struct:
        assert layout.struct.size == layout.size
        assert len(layout.fields) == len(layout.struct.unpack(packed))
        for field, flat in zip(layout.fields, layout.struct.unpack(packed)):
            nested: Any = value
            for name, index in re.findall(r"(\w+)|\[(\d+)\]", field.replace(".", " ")):
                nested = getattr(nested, name) if name else nested[int(index)]
            assert plain(nested) == plain(flat)
