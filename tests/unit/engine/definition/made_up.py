# SPDX-License-Identifier: Apache-2.0
"""A made-up kernel with one of each thing that a definition can refer to."""

from __future__ import annotations

from wptrace.bpf.btf import (
    Array,
    Btf,
    Const,
    Enum,
    Enumerator,
    Func,
    FuncProto,
    Fwd,
    Int,
    Member,
    Param,
    Ptr,
    Struct,
    Type,
    Typedef,
    Union,
    Void,
)
from wptrace.engine.definition.kernel import EventField, Kernel

_SIGNED, _CHAR = 1 << 24, 2 << 24


class Types:
    """BTF types, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self.all: list[Type] = [Void(0, "")]

    def add(self, kind: type[Type], *arguments: object) -> int:
        self.all.append(kind(len(self.all), *arguments))  # type: ignore[arg-type]
        return len(self.all) - 1

    def integer(self, name: str, size: int, encoding: int = 0) -> int:
        return self.add(Int, name, size, encoding | size * 8)

    def pointer(self, to: int) -> int:
        return self.add(Ptr, "", to)

    def struct(self, name: str, size: int, *members: tuple[str, int, int] | tuple[str, int, int, int]) -> int:
        """Add a struct of members: name, type, bit offset and, for bit fields, size in bits."""
        return self.add(
            Struct, name, size, [Member(*member) if len(member) == 4 else Member(*member, 0) for member in members]
        )

    def function(self, name: str, returned: int, *params: tuple[str, int]) -> int:
        proto = self.add(FuncProto, returned, [Param(*param) for param in params])
        return self.add(Func, name, proto)

    def tracepoint(self, name: str, *params: tuple[str, int]) -> int:
        nameless = self.add(FuncProto, 0, [Param("", self.pointer(0)), *(Param("", kind) for _, kind in params)])
        typedef = self.add(Typedef, f"btf_trace_{name}", self.pointer(nameless))
        self.function(f"__traceiter_{name}", 0, ("__data", 1), *params)
        return typedef


def kernel() -> Kernel:
    t = Types()
    t.pointer(0)
    u32, u64, i32 = t.integer("unsigned int", 4), t.integer("long unsigned int", 8), t.integer("int", 4, _SIGNED)
    u16, char, u8 = t.integer("short unsigned int", 2), t.integer("char", 1, _SIGNED | _CHAR), t.integer("u8", 1)
    big = t.integer("__int128", 16)
    text, bytes_, list_ = t.add(Array, char, 32), t.add(Array, u8, 6), t.add(Array, u32, 4)
    op = t.add(Enum, "op", 4, False, [Enumerator("MY_OP_READ", 0), Enumerator("MY_OP_WRITE", 1)])
    kuid = t.struct("kuid", 4, ("val", u32, 0))
    kn = t.struct("kernfs_node", 16, ("id", u64, 64))
    cgroup_pointer = t.pointer(len(t.all) + 1)
    t.struct(
        "cgroup",
        64,
        ("kn", t.pointer(kn), 0),
        ("level", i32, 64),
        ("ancestors", t.add(Array, cgroup_pointer, 0), 128),
    )
    # The pointer above refers to a type that was added after it.
    cgroup = next(entry.id for entry in t.all if entry.name == "cgroup")
    t.all[cgroup_pointer] = Ptr(cgroup_pointer, "", cgroup)
    css = t.struct("css_set", 16, ("dfl_cgrp", cgroup_pointer, 64))
    task = t.struct("task_struct", 128, ("pid", i32, 64), ("comm", text, 128), ("cgroups", t.pointer(css), 512))
    unsigned_char = t.integer("unsigned char", 1)
    numbers = t.pointer(t.add(Typedef, "byte", unsigned_char))
    letters = t.pointer(t.add(Const, "", unsigned_char))
    t.add(Enum, "", 4, False, [Enumerator(name, at) for at, name in enumerate(("IN_PART", "OUT_PART", "NR_PARTS"))])
    dev = t.struct(
        "dev",
        64,
        ("name", text, 8),
        ("title", t.pointer(char), 320),
        ("uid", kuid, 384),
        ("letters", letters, 416),
        ("numbers", numbers, 448),
    )
    inner = t.add(Union, "", 8, [Member("owner", t.pointer(task), 0, 0), Member("hash", u64, 0, 0)])
    item = t.struct(
        "item",
        128,
        ("dev", t.pointer(dev), 0),
        ("", inner, 64),
        ("len", u32, 128),
        ("port", u16, 160),
        ("op", op, 192),
        ("low", u32, 224, 4),
        ("high", u32, 228, 12),
        ("list", list_, 256),
        ("mac", bytes_, 384),
        ("embedded", dev, 448),
        ("private", t.pointer(0), 960),
        ("hidden", t.pointer(t.add(Fwd, "hidden", False)), 1024),
    )
    t.struct("outer", 256, ("item", item, 0), ("more", u32, 1100))
    items, tasks = t.pointer(item), t.pointer(task)
    t.tracepoint("made", ("it", items), ("count", i32), ("where", t.pointer(0)))
    t.tracepoint("moved", ("count", i32), ("it", items))
    t.tracepoint("switched", ("prev", tasks), ("next", tasks))
    t.tracepoint("ended", ("it", items), ("ret", i32))
    t.function("do_item", i32, ("it", items), ("flags", u64))
    t.function("put_item", 0, ("it", items))
    t.function("by_value", i32, ("uid", kuid), ("it", items))
    t.function("wide", i32, *((f"a{number}", u64) for number in range(7)), ("it", items))
    t.function("large", big, ("it", items))
    return _MadeUp("made-up", Btf(t.all, None, b""))


class _MadeUp(Kernel):
    runs = True

    def __init__(self, name: str, types: Btf) -> None:
        super().__init__(name, types)
        self.machine = "x86_64"

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset({"do_item", "put_item.constprop.0", "by_value", "wide", "large", "untyped"})

    def event(self, name: str) -> dict[str, EventField] | None:
        return _EVENTS.get(name)

    def has_tracepoint(self, name: str) -> bool:
        return name == "of_module"

    def cgroup(self, path: str) -> tuple[int, int]:
        return 4711, len([name for name in path.split("/") if name])


_EVENTS = {
    "made/item": {
        "dev": EventField("unsigned int", 8, 4, False),
        "delta": EventField("int", 12, 4, True),
        "comm": EventField("char[16]", 16, 16, False),
        "line": EventField("__data_loc char[]", 32, 4, False),
        "words": EventField("u32[4]", 36, 16, False),
        "rest": EventField("__rel_loc char[]", 64, 4, False),
        "lines": EventField("__data_loc u32[]", 68, 4, False),
        "skb": EventField("void *", 56, 8, False),
    }
}
