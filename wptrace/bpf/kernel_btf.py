# SPDX-License-Identifier: Apache-2.0
"""The running kernel's types. To parse all 5 MB of them in Python would take seconds."""

from __future__ import annotations

import errno
import mmap
import os
import struct
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from wptrace.bpf.btf import Enum, Func, FuncProto, Modifier, Ptr, Struct, Typedef
from wptrace.bpf.lib import libbpf, require_kernel_btf
from wptrace.bpf.parsed_btf import BY_NAME, ParsedBtf
from wptrace.errors import UnsupportedError, WptraceError

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("<HBBIIIII")
_WORD = struct.Struct("<I")
_LONGEST_NAME = 64


class KernelBtf(ParsedBtf):
    """The BTF of vmlinux, or of one module on top of it."""

    def __init__(self, module: str | None = None, base: KernelBtf | None = None) -> None:
        require_kernel_btf()
        found = libbpf()
        lib, ffi = found.lib, found.ffi
        self._beneath = base  # freed after us: our strings and types continue its own
        if module is None:
            handle = _new_from_mapping(lib, ffi) or lib.btf__load_vmlinux_btf()
        else:
            handle = lib.btf__load_module_btf(module.encode(), base._handle if base else ffi.NULL)
        super().__init__(found.pointer(handle, f"the type information of {module or 'the kernel'} cannot be read"))

    def function(self, name: str) -> int:
        """The id of its type; 0 where there is no such function."""
        return self._id(name, *BY_NAME[Func])

    def tracepoint_type(self, name: str) -> int:
        """Return the id of the type that a tracepoint calls."""
        return self._id(f"btf_trace_{name}", *BY_NAME[Typedef])

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
    why = "it needs CAP_SYS_ADMIN, which is missing" if refused else None
    raise UnsupportedError(f"the type information of the module {name} cannot be read", why)
