# SPDX-License-Identifier: Apache-2.0
"""Questions to the running kernel's type information, answered by libbpf: parsing its 5 MB here would take seconds."""

from __future__ import annotations

import errno
import os
import struct
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from wptrace.bpf.lib import libbpf, require_kernel_btf
from wptrace.errors import UnsupportedError

# BTF kinds looked up by name (include/uapi/linux/btf.h)
_PTR, _STRUCT, _UNION, _ENUM, _TYPEDEF, _FUNC = 2, 4, 5, 6, 8, 12
KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("<HBBIIIII")
_WORD = struct.Struct("<I")
_LONGEST_NAME = 64
_MODIFIERS = (9, 10, 11, 18)  # volatile, const, restrict, type tag


class KernelBtf:
    """The BTF of vmlinux, or of one module on top of it."""

    def __init__(self, module: str | None = None, base: KernelBtf | None = None) -> None:
        require_kernel_btf()
        self._libbpf = libbpf()
        self._lib, self._ffi = self._libbpf.lib, self._libbpf.ffi
        self._ids: dict[tuple[str, int], int] = {}
        self._base = base  # freed after us: our strings and types continue its own
        if module is None:
            handle = self._lib.btf__load_vmlinux_btf()
        else:
            handle = self._lib.btf__load_module_btf(module.encode(), base._handle if base else self._ffi.NULL)
        what = f"the type information of {module or 'the kernel'} cannot be read"
        self._handle: Any = self._ffi.gc(self._libbpf.pointer(handle, what), self._lib.btf__free)

    def _find(self, name: str, kind: int) -> Any | None:
        found = self._id(name, kind)
        return self._type(found) if found else None

    def _type(self, type_id: int) -> Any:
        return self._lib.btf__type_by_id(self._handle, type_id)

    def _kind(self, kind: Any) -> int:
        return (int(kind.info) >> 24) & 0x1F

    def _count(self, kind: Any) -> int:
        return int(kind.info) & 0xFFFF

    def _name(self, offset: int) -> str:
        return bytes(self._ffi.string(self._lib.btf__name_by_offset(self._handle, offset))).decode()

    def _target(self, type_id: int) -> Any:
        kind = self._type(type_id)
        while self._kind(kind) in (*_MODIFIERS, _TYPEDEF):
            kind = self._type(kind.size_or_type)
        return kind

    def name_of(self, type_id: int) -> str:
        """The name of a type, a function for one; empty where there is none."""
        kind = self._type(type_id)
        return "" if kind == self._ffi.NULL else self._name(kind.name_off)

    @property
    def count(self) -> int:
        """The number of types; those of a module continue from here."""
        return int(self._lib.btf__type_cnt(self._handle))

    def _id(self, name: str, kind: int) -> int:
        # libbpf goes through all types: a millisecond, and a function is asked for at its entry and its exit.
        if (name, kind) not in self._ids:
            self._ids[name, kind] = max(0, self._lib.btf__find_by_name_kind(self._handle, name.encode(), kind))
        return self._ids[name, kind]

    def function(self, name: str) -> int:
        """The id of its type; 0 where there is no such function."""
        return self._id(name, _FUNC)

    def tracepoint_type(self, name: str) -> int:
        """Return the id of the type that a tracepoint calls."""
        return self._id(f"btf_trace_{name}", _TYPEDEF)

    def has_function(self, name: str) -> bool:
        return bool(self.function(name))

    def enum_value(self, enum: str, name: str) -> int | None:
        """The value that has this name; None where the enum lacks it, or there is no such enum."""
        kind = self._find(enum, _ENUM)
        if kind is None:
            return None
        words = self._ffi.cast("__u32 *", kind) + 3
        pairs = ((words[2 * index], words[2 * index + 1]) for index in range(self._count(kind)))
        return next((int(value) for offset, value in pairs if self._name(offset) == name), None)

    @staticmethod
    def nameless_value(name: str) -> int | None:
        """The value of this name in an enum that has none, and starts at 0; None where there is no such."""
        data = KERNEL_BTF.read_bytes()
        _, _, _, header, types, types_length, strings, strings_length = _HEADER.unpack_from(data)
        place = data.find(f"\0{name}\0".encode(), header + strings, header + strings + strings_length)
        if place < 0:
            return None
        wanted = _WORD.pack(place + 1 - header - strings)
        first, end = header + types, header + types + types_length
        at = data.find(wanted, first, end)
        while at >= 0:
            value, before = _WORD.unpack_from(data, at + 4)[0], _WORD.unpack_from(data, at - 4)[0]
            # An entry is a name and a value, and the one before has the value before.
            if not (at - first) % 4 and value == before + 1:
                return int(value)
            at = data.find(wanted, at + 1, end)
        return None

    def tracepoint(self, name: str) -> tuple[str, ...] | None:
        """The types of a tracepoint's arguments ("request *"), or None if this kernel lacks the tracepoint."""
        typedef = self._find(f"btf_trace_{name}", _TYPEDEF)
        if typedef is None:
            return None
        proto = self._type(self._type(typedef.size_or_type).size_or_type)
        words = self._ffi.cast("__u32 *", proto) + 3
        # The first parameter is the probe's private data.
        return tuple(self._spell(words[2 * index + 1]) for index in range(1, self._count(proto)))

    def _spell(self, type_id: int) -> str:
        kind = self._type(type_id)
        while self._kind(kind) in _MODIFIERS:
            kind = self._type(kind.size_or_type)
        if self._kind(kind) == _PTR:
            return f"{self._spell(kind.size_or_type)} *" if kind.size_or_type else "void *"
        return self._name(kind.name_off)

    def has_field(self, struct: str, path: str) -> bool:
        """Whether `struct` has the field `path` ("part", "bi_iter.bi_size"); anonymous members are looked through."""
        kind = self._find(struct, _STRUCT)
        for name in path.split("."):
            if kind is None:
                return False
            kind = self._member(kind, name)
        return kind is not None

    def _member(self, kind: Any, name: str) -> Any | None:
        if self._kind(kind) not in (_STRUCT, _UNION):
            return None
        words = self._ffi.cast("__u32 *", kind) + 3
        for index in range(self._count(kind)):
            label, type_id = self._name(words[3 * index]), words[3 * index + 1]
            if label == name:
                return self._target(type_id)
            if not label:
                found = self._member(self._target(type_id), name)
                if found is not None:
                    return found
        return None


@lru_cache(maxsize=1)
def vmlinux() -> KernelBtf:
    return KernelBtf()


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
