# SPDX-License-Identifier: Apache-2.0
"""The running kernel's types as wptrace/bpf/btf.py has them, each when it is first looked up.

Libbpf has parsed them already; reading all of them in Python would take a second.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from wptrace.bpf import kernel_btf
from wptrace.bpf.btf import Btf, Builder, Enum, Func, Kind, Struct, T, Type, Typedef, Union, Void
from wptrace.bpf.kernel_btf import KernelBtf
from wptrace.errors import WptraceError

_HEAD = struct.Struct("<III")
# The types that libbpf looks up by name, with their kinds (include/uapi/linux/btf.h).
_BY_NAME: dict[type[Type], tuple[int, ...]] = {Struct: (4,), Union: (5,), Enum: (6, 19), Typedef: (8,), Func: (12,)}


class KernelTypes(Btf):
    """Types of vmlinux, or of a module on top of it."""

    def __init__(self, kernel: KernelBtf) -> None:
        super().__init__([], None, b"")
        # All that libbpf hands out lies in this.
        self._kernel = kernel
        self._lib, self._ffi, self._handle = kernel._lib, kernel._ffi, kernel._handle
        self._count = int(self._lib.btf__type_cnt(self._handle))
        self._known: dict[int, Type] = {0: Void(0, "")}
        self._found: dict[tuple[str, type[Type]], Type | None] = {}
        self._builder = Builder(self.string)

    def string(self, offset: int) -> str:
        name = self._lib.btf__name_by_offset(self._handle, offset)
        if name == self._ffi.NULL:
            raise WptraceError("the BTF is corrupt: a name lies outside the string section")
        return bytes(self._ffi.string(name)).decode("utf-8", "replace")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Type]:
        return (self.type(type_id) for type_id in range(self._count))

    def enum_with(self, name: str) -> Enum | None:
        """Without building all the other types."""
        by_id, handle = self._lib.btf__type_by_id, self._handle
        enums = (at for at in range(1, self._count) if by_id(handle, at).info >> 24 & 0x1F in _BY_NAME[Enum])
        found = (self.type(at) for at in enums)
        return next((one for one in found if isinstance(one, Enum) and name in {v.name for v in one.values}), None)

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
        """Find a struct, union, enum, typedef or function by name."""
        if (name, kind) not in self._found:
            ids = (
                int(self._lib.btf__find_by_name_kind(self._handle, name.encode(), number)) for number in _BY_NAME[kind]
            )
            found = next((type_id for type_id in ids if type_id > 0), 0)
            self._found[name, kind] = self.type(found) if found else None
        entry = self._found[name, kind]
        return entry if isinstance(entry, kind) else None


@lru_cache(maxsize=1)
def vmlinux() -> KernelTypes:
    return KernelTypes(kernel_btf.vmlinux())


def module(name: str) -> KernelTypes | None:
    """None where it is built in, not loaded, or the kernel has no types of modules."""
    found = kernel_btf.module(name)
    return None if found is None else _of_module(found)


@lru_cache(maxsize=16)
def _of_module(found: KernelBtf) -> KernelTypes:
    return KernelTypes(found)
