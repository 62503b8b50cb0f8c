# SPDX-License-Identifier: Apache-2.0
"""Types as wptrace/bpf/btf.py has them that libbpf parsed, each made when it is first looked up."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

from wptrace.bpf.btf import Btf, Builder, DataSec, Enum, Func, Int, Kind, Struct, T, Type, Typedef, Union, Var, Void
from wptrace.bpf.lib import Libbpf, libbpf
from wptrace.errors import WptraceError

# Types that are looked up by name, with their kinds (include/uapi/linux/btf.h).
BY_NAME: dict[type[Type], tuple[int, ...]] = {
    Int: (1,),
    Struct: (4,),
    Union: (5,),
    Enum: (6, 19),
    Typedef: (8,),
    Func: (12,),
    Var: (14,),
    DataSec: (15,),
}
_HEAD = struct.Struct("<III")


class ParsedBtf(Btf):
    def __init__(self, handle: Any) -> None:
        """`handle` is libbpf's, and freed with the last reference to it."""
        super().__init__([], None, b"")
        self._libbpf = libbpf()
        self._lib, self._ffi = self._libbpf.lib, self._libbpf.ffi
        self._ids: dict[tuple[str, int], int] = {}
        self._known: dict[int, Type] = {0: Void(0, "")}
        self._handle: Any = self._ffi.gc(handle, self._lib.btf__free)
        self._count = int(self._lib.btf__type_cnt(self._handle))
        # Without a reference to this object, which may have 5 MB, and is freed with the last of its users.
        self._builder = Builder(partial(_string, self._libbpf, self._handle))

    def string(self, offset: int) -> str:
        return _string(self._libbpf, self._handle, offset)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Type]:
        return (self.type(type_id) for type_id in range(self._count))

    def each(self, kind: Kind[T]) -> Iterator[T]:
        """Without making all the other types."""
        by_id, handle, numbers = self._lib.btf__type_by_id, self._handle, BY_NAME[kind]
        found = (at for at in range(1, self._count) if by_id(handle, at).info >> 24 & 0x1F in numbers)
        return (entry for at in found if isinstance(entry := self.type(at), kind))

    def type(self, type_id: int) -> Type:
        known = self._known.get(type_id)
        if known is None:
            if not 0 <= type_id < self._count:
                raise WptraceError(f"BTF has no type {type_id}")
            place: Any = self._lib.btf__type_by_id(self._handle, type_id)
            head = _HEAD.unpack(self._ffi.buffer(place, _HEAD.size))
            words = Builder.words(head[1])
            rest = struct.unpack_from(f"<{words}I", self._ffi.buffer(place, _HEAD.size + 4 * words), _HEAD.size)
            known = self._known[type_id] = self._builder.build(type_id, head, rest)
        return known

    def find(self, name: str, kind: Kind[T]) -> T | None:
        found = next((type_id for number in BY_NAME[kind] if (type_id := self._id(name, number))), 0)
        entry = self.type(found) if found else None
        return entry if isinstance(entry, kind) else None

    def _id(self, name: str, number: int) -> int:
        # libbpf goes through all types: a millisecond in the kernel's, and a function is asked for at its entry and its
        # exit.
        if (name, number) not in self._ids:
            found = self._lib.btf__find_by_name_kind(self._handle, name.encode(), number)
            self._ids[name, number] = max(0, int(found))
        return self._ids[name, number]


def _string(libbpf: Libbpf, handle: Any, offset: int) -> str:
    name = libbpf.lib.btf__name_by_offset(handle, offset)
    if name == libbpf.ffi.NULL:
        raise WptraceError("the BTF is corrupt: a name lies outside the string section")
    return bytes(libbpf.ffi.string(name)).decode("utf-8", "replace")
