# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import math
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
        self.u128 = self.blob.integer("__int128 unsigned", 16)
        self.f32 = self.blob.add(16, "float", 4)
        self.f64 = self.blob.add(16, "double", 8)
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
        ("u128", 1 << 120, "00000000000000000000000000000001"),
        ("bool", True, "01"),
        ("f32", 1.5, "0000c03f"),
        ("f64", -2.0, "00000000000000c0"),
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
    if scalar.struct:
        assert scalar.fields == ("",)
        assert scalar.struct.unpack(raw) == (value,)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("u32", -1, "x: -1 is outside 0..4294967295 (u32)"),
        ("u8", 256, "x: 256 is outside 0..255 (u8)"),
        ("s8", 128, "x: 128 is outside -128..127 (signed char)"),
        ("u128", 1 << 128, f"x: {1 << 128} is outside 0..{(1 << 128) - 1} (__int128 unsigned)"),
        ("bool", 2, "x: 2 is outside 0..1 (_Bool)"),
        ("u32", "7", "x: '7' is not an integer (u32)"),
        ("u32", 1.0, "x: 1.0 is not an integer (u32)"),
        ("u32", None, "x: None is not an integer (u32)"),
        ("pointer", -1, "x: -1 is outside 0..18446744073709551615 (void *)"),
        ("color", "PINK", "x: 'PINK' is none of RED, GREEN, VERDE (enum color)"),
        ("f32", "x", "x: 'x' is not a number of 4 bytes (float)"),
        ("f32", 1e300, "x: 1e+300 is not a number of 4 bytes (float)"),
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


def test_bit_fields_cross_bytes_and_have_signs(types: Types) -> None:
    members = [
        ("low", types.u32, 0, 3),
        ("wide", types.u64, 3, 43),
        ("sign", types.s32, 46, 2),
        ("flag", types.bool, 48, 1),
    ]
    members.append(("color", types.color, 49, 2))
    thing = types.codec(types.struct(8, members))
    data = thing.pack({"low": 5, "wide": (1 << 43) - 2, "sign": -2, "flag": True, "color": "GREEN"})
    assert int.from_bytes(data, "little") == 5 | ((1 << 43) - 2) << 3 | 2 << 46 | 1 << 48 | 1 << 49
    value = thing.unpack(data)
    assert (value.low, value.wide, value.sign, value.flag, value.color) == (5, (1 << 43) - 2, -2, True, 1)
    assert thing.struct is None
    for member, wrong, message in (
        ("low", 8, "low: 8 is outside 0..7 (u32 : 3)"),
        ("sign", 2, "sign: 2 is outside -2..1 (int : 2)"),
        ("flag", 2, "flag: 2 is outside 0..1 (_Bool : 1)"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            thing.pack({member: wrong})


def test_bit_fields_of_old_compilers(types: Types) -> None:
    narrow = types.blob.integer("int", 4, signed=True, bits=4, offset=1)
    thing = types.codec(types.struct(4, [("field", narrow, 6)], flag=False))
    assert thing.pack({"field": -8}) == (8 << 7).to_bytes(4, "little")
    assert thing.unpack((8 << 7).to_bytes(4, "little")).field == -8


def test_unions_show_all_members_and_take_one(types: Types) -> None:
    halves = types.blob.composite("", 8, [("low", types.u32, 0), ("high", types.u32, 32)])
    union = types.codec(types.struct(8, [("", halves, 0), ("whole", types.u64, 0), ("byte", types.u8, 0)], union=True))
    value = union.unpack(b"\1\0\0\0\2\0\0\0")
    assert value._asdict() == {"low": 1, "high": 2, "whole": 1 | 2 << 32, "byte": 1}
    assert union.pack(value) == b"\1\0\0\0\2\0\0\0"
    assert union.pack({"high": 2}) == b"\0\0\0\0\2\0\0\0"
    assert union.pack({"byte": 7}) == b"\7" + bytes(7)
    assert union.pack({}) == bytes(8)
    value.whole = 5
    with pytest.raises(UsageError, match="x: low, high, whole, byte share memory and do not agree"):
        union.pack(value, "x")


def test_a_union_survives_holes_in_one_of_its_members(types: Types) -> None:
    holes = types.blob.composite("holes", 8, [("a", types.u8, 0), ("b", types.u32, 32)])
    raw = types.blob.array(types.u8, 8)
    union = types.codec(types.struct(8, [("holes", holes, 0), ("raw", raw, 0)], union=True))
    data = bytes(range(8))
    assert union.pack(union.unpack(data)) == data


def test_anonymous_members_belong_to_the_outer_struct(types: Types) -> None:
    inner = types.blob.composite("", 8, [("x", types.u32, 0), ("y", types.u32, 32)])
    either = types.blob.composite("", 8, [("whole", types.u64, 0), ("", inner, 0)], union=True)
    deep = types.blob.composite("", 8, [("z", types.u32, 32)])
    const = types.blob.add(10, extra=deep)
    thing = types.codec(types.struct(24, [("id", types.u32, 0), ("", either, 64), ("", const, 128)]))
    data = thing.pack({"id": 1, "x": 2, "y": 3, "z": 4})
    assert thing.unpack(data)._asdict() == {"id": 1, "whole": 2 | 3 << 32, "x": 2, "y": 3, "z": 4}
    assert thing.pack(thing.unpack(data)) == data
    with pytest.raises(UsageError, match=re.escape("x: -1 is outside 0..4294967295 (u32)")):
        thing.pack({"x": -1})


def test_only_structs_without_unions_are_flattened(types: Types) -> None:
    inner = types.blob.composite("", 8, [("x", types.u32, 0), ("y", types.u32, 32)])
    flat = types.codec(types.struct(16, [("id", types.u32, 0), ("", inner, 64)]))
    assert flat.fields == ("id", "x", "y")
    assert flat.unpack(flat.pack({"x": 1}))._asdict() == {"id": 0, "x": 1, "y": 0}


def test_variables_and_what_has_no_values(types: Types) -> None:
    variable = types.blob.variable("total", types.u32)
    function = types.blob.function_type(0, [])
    forward = types.blob.add(7, "file")
    long_double = types.blob.add(16, "long double", 16)
    assert types.codec(variable).pack(5) == b"\5\0\0\0"
    assert "u32" in repr(types.codec(variable))
    for type_id in (function, forward, long_double, 0):
        with pytest.raises(UnsupportedError, match="cannot be read or written"):
            types.codec(type_id)


@pytest.mark.parametrize(
    "members",
    [
        [("a", "u64", 8)],
        [("a", "u32", 3)],
        [("a", "u32", 0), ("a", "u32", 32)],
        [("a", "pointer", 0, 3)],
        [("a", "u64", 60, 8)],
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
    """A C type: a scalar by name, an array of a shape, or a struct or union of several."""

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
    "f64": ctypes.c_double,
    "pointer": ctypes.c_uint64,
    "color": ctypes.c_uint32,
    "level": ctypes.c_int32,
}


def shapes(kinds: tuple[str, ...] = ("struct", "union")) -> st.SearchStrategy[Shape]:
    def larger(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
        parts = st.lists(inner, min_size=1, max_size=5).map(tuple)
        return st.one_of(
            st.builds(Shape, st.just("array"), st.tuples(inner), st.integers(1, 4)),
            st.builds(Shape, st.sampled_from(kinds), parts),
        )

    return st.recursive(st.builds(Shape, st.sampled_from(sorted(SCALARS))), larger, max_leaves=12)


def as_ctypes(shape: Shape) -> Any:
    if shape.kind in SCALARS:
        return SCALARS[shape.kind]
    if shape.kind == "array":
        return as_ctypes(shape.parts[0]) * shape.count
    base: Any = ctypes.Union if shape.kind == "union" else ctypes.Structure
    fields = [(f"m{index}", as_ctypes(part)) for index, part in enumerate(shape.parts)]
    return type("C", (base,), {"_fields_": fields})


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
    return types.struct(ctypes.sizeof(layout), members, union=shape.kind == "union")


def plain(value: Any) -> Any:
    """Convert a value of this package or of ctypes to dicts, tuples, bytes and numbers."""
    if isinstance(value, Record):
        return {name: plain(member) for name, member in value._asdict().items()}
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array):
        items = tuple(plain(item) for item in value)
        return bytes(items) if value._type_ is ctypes.c_uint8 else items
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


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
@given(shapes(("struct",)), st.data())
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


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 64), st.booleans(), st.integers(0, 9)), min_size=1, max_size=9),
    st.data(),
)
def test_random_bit_fields_survive_packing(fields: list[tuple[int, bool, int]], data: st.DataObject) -> None:
    types = Types()
    members, values, end, expected = [], {}, 0, 0
    for index, (bits, signed, gap) in enumerate(fields):
        start = end + gap
        end = start + bits
        members.append((f"m{index}", types.s64 if signed else types.u64, start, bits))
        low = -(1 << bits - 1) if signed else 0
        values[f"m{index}"] = data.draw(st.integers(low, low + (1 << bits) - 1))
        expected |= (values[f"m{index}"] & (1 << bits) - 1) << start
    layout = types.codec(types.struct((end + 7) // 8, members))
    packed = layout.pack(values)
    assert int.from_bytes(packed, "little") == expected
    assert layout.unpack(packed)._asdict() == values
    assert layout.pack(layout.unpack(packed)) == packed
