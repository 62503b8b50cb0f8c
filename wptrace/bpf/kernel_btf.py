# SPDX-License-Identifier: Apache-2.0
"""The running kernel's types as wptrace/bpf/btf.py has them, each when it is first looked up.

Libbpf parses them; reading all 5 MB of them in Python would take seconds.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from wptrace.bpf.btf import (
    Btf,
    Builder,
    Enum,
    Func,
    FuncProto,
    Kind,
    Modifier,
    Ptr,
    Struct,
    T,
    Type,
    Typedef,
    Union,
    Void,
)
from wptrace.bpf.lib import Libbpf, libbpf, require_kernel_btf
from wptrace.errors import UnsupportedError, WptraceError

# The types that libbpf looks up by name, with their kinds (include/uapi/linux/btf.h).
_BY_NAME: dict[type[Type], tuple[int, ...]] = {Struct: (4,), Union: (5,), Enum: (6, 19), Typedef: (8,), Func: (12,)}
KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("<HBBIIIII")
_HEAD = struct.Struct("<III")
_WORD = struct.Struct("<I")
_LONGEST_NAME = 64


class KernelBtf(Btf):
    """The BTF of vmlinux, or of one module on top of it."""

    def __init__(self, module: str | None = None, base: KernelBtf | None = None) -> None:
        super().__init__([], None, b"")
        require_kernel_btf()
        self._libbpf = libbpf()
        self._lib, self._ffi = self._libbpf.lib, self._libbpf.ffi
        self._ids: dict[tuple[str, int], int] = {}
        self._known: dict[int, Type] = {0: Void(0, "")}
        self._beneath = base  # freed after us: our strings and types continue its own
        if module is None:
            handle = _new_from_mapping(self._lib, self._ffi) or self._lib.btf__load_vmlinux_btf()
        else:
            handle = self._lib.btf__load_module_btf(module.encode(), base._handle if base else self._ffi.NULL)
        what = f"the type information of {module or 'the kernel'} cannot be read"
        self._handle: Any = self._ffi.gc(self._libbpf.pointer(handle, what), self._lib.btf__free)
        self._count = int(self._lib.btf__type_cnt(self._handle))
        # Without a reference to this object, which has 5 MB, and is freed with the last of its users.
        self._builder = Builder(partial(_string, self._libbpf, self._handle))

    def string(self, offset: int) -> str:
        return _string(self._libbpf, self._handle, offset)

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
        found = next((type_id for number in _BY_NAME[kind] if (type_id := self._id(name, number))), 0)
        entry = self.type(found) if found else None
        return entry if isinstance(entry, kind) else None

    def _id(self, name: str, number: int) -> int:
        # libbpf goes through all types: a millisecond, and a function is asked for at its entry and its exit.
        if (name, number) not in self._ids:
            found = self._lib.btf__find_by_name_kind(self._handle, name.encode(), number)
            self._ids[name, number] = max(0, int(found))
        return self._ids[name, number]

    def function(self, name: str) -> int:
        """The id of its type; 0 where there is no such function."""
        return self._id(name, *_BY_NAME[Func])

    def tracepoint_type(self, name: str) -> int:
        """Return the id of the type that a tracepoint calls."""
        return self._id(f"btf_trace_{name}", *_BY_NAME[Typedef])

    def has_function(self, name: str) -> bool:
        return bool(self.function(name))

    def enum_value(self, enum: str, name: str) -> int | None:
        """The value that has this name; None where the enum lacks it, or there is no such enum."""
        found = self.find(enum, Enum)
        return next((one.value for one in found.values if one.name == name), None) if found else None

    def nameless_value(self, name: str) -> int | None:
        """The value of this name in an enum that has none, and starts at 0; None where there is no such."""
        size = self._ffi.new("__u32 *")
        raw = self._lib.btf__raw_data(self._handle, size)
        data = self._ffi.buffer(raw, size[0])
        _, _, _, header, types, types_length, strings, strings_length = _HEADER.unpack_from(data)
        place = self._place(raw, f"\0{name}\0".encode(), header + strings, header + strings + strings_length)
        if place < 0:
            return None
        wanted = _WORD.pack(place + 1 - header - strings)
        first, end = header + types, header + types + types_length
        at = self._place(raw, wanted, first, end)
        while at >= 0:
            value, before = _WORD.unpack_from(data, at + 4)[0], _WORD.unpack_from(data, at - 4)[0]
            # An entry is a name and a value, and the one before has the value before.
            if not (at - first) % 4 and value == before + 1:
                return int(value)
            at = self._place(raw, wanted, at + 1, end)
        return None

    def _place(self, raw: Any, wanted: bytes, begin: int, end: int) -> int:
        """Where these bytes come first, or -1: bytes.find would need a copy of all types."""
        start = self._ffi.cast("char *", raw)
        found = self._lib.memmem(start + begin, max(0, end - begin), wanted, len(wanted))
        return -1 if found == self._ffi.NULL else int(self._ffi.cast("char *", found) - start)

    def tracepoint(self, name: str) -> tuple[str, ...] | None:
        """The types of a tracepoint's arguments ("request *"), or None if this kernel lacks the tracepoint."""
        typedef = self.find(f"btf_trace_{name}", Typedef)
        pointer = self.type(typedef.type) if typedef else None
        proto = self.type(pointer.type) if isinstance(pointer, Ptr) else None
        # The first parameter is the probe's private data.
        return tuple(self._spell(one.type) for one in proto.params[1:]) if isinstance(proto, FuncProto) else None

    def _spell(self, type_id: int) -> str:
        entry = self.type(type_id)
        while isinstance(entry, Modifier) and not isinstance(entry, Typedef):
            entry = self.type(entry.type)
        if isinstance(entry, Ptr):
            return f"{self._spell(entry.type)} *" if entry.type else "void *"
        return entry.name

    def has_field(self, struct: str, path: str) -> bool:
        """Whether `struct` has the field `path` ("part", "bi_iter.bi_size"); anonymous members are looked through."""
        found = self.find(struct, Struct)
        try:
            return found is not None and bool(self.member(found, path))
        except WptraceError:
            return False


def _string(libbpf: Libbpf, handle: Any, offset: int) -> str:
    name = libbpf.lib.btf__name_by_offset(handle, offset)
    if name == libbpf.ffi.NULL:
        raise WptraceError("the BTF is corrupt: a name lies outside the string section")
    return bytes(libbpf.ffi.string(name)).decode("utf-8", "replace")


def _new_from_mapping(lib: Any, ffi: Any) -> Any:
    """Parse the kernel's types without a copy of the file; NULL before Linux 6.16, where the file cannot be mapped."""
    try:
        with KERNEL_BTF.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
            return lib.btf__new(ffi.from_buffer(mapped), len(mapped))
    except (OSError, ValueError):
        return ffi.NULL


@lru_cache(maxsize=1)
def vmlinux() -> KernelBtf:
    return KernelBtf()


def free_types() -> None:
    """Free the types of the kernel and its modules, unless somebody has them. They are read again when needed."""
    _module.cache_clear()
    vmlinux.cache_clear()


def module(name: str) -> KernelBtf | None:
    """The BTF of a loaded module; None where it is built in, not loaded, or the kernel has none for modules."""
    try:
        # A module may be loaded later, and when it is loaded again it may be another one.
        return _module(name, os.stat(f"/sys/kernel/btf/{name}").st_ino)  # noqa: PTH116
    except FileNotFoundError:
        return None


@cache
def _module(name: str, inode: int) -> KernelBtf:
    return KernelBtf(name, vmlinux())


def module_descriptor(name: str) -> int:
    """A descriptor of a module's type information, which its caller closes."""
    lib = libbpf()
    ffi = lib.ffi
    number = ffi.new("__u32 *", 0)
    refused = False
    while (fd := lib.lib.bpf_btf_get_next_id(number[0], number)) == 0:
        fd = lib.lib.bpf_btf_get_fd_by_id(number[0])
        if fd < 0:
            refused |= fd == -errno.EPERM
            continue
        text = ffi.new("char[]", _LONGEST_NAME)
        info = ffi.new("struct bpf_btf_info *", {"name": int(ffi.cast("uintptr_t", text)), "name_len": _LONGEST_NAME})
        size = ffi.new("__u32 *", ffi.sizeof("struct bpf_btf_info"))
        known = lib.lib.bpf_obj_get_info_by_fd(fd, info, size) == 0
        if known and info.kernel_btf and bytes(ffi.string(text)).decode() == name:
            return int(fd)
        os.close(fd)
    refused |= fd == -errno.EPERM
    why = "it takes CAP_SYS_ADMIN, which is missing" if refused else None
    raise UnsupportedError(f"the type information of the module {name} cannot be read", why)
