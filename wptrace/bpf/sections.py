# SPDX-License-Identifier: Apache-2.0
"""The globals of an object (.bss, .data, .rodata) as attributes: `obj.bss.target_tgid = 42`."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wptrace.bpf.lib import libbpf
from wptrace.errors import WptraceError

if TYPE_CHECKING:
    from wptrace.bpf.btf import Btf

_ARRAY = 2  # enum bpf_map_type
_MMAPABLE = 1 << 10


class Section:
    """One data section. Names, types and ranges come from the object's BTF.

    Before the load a write changes the section's initial content; afterwards the memory that the programs see, which
    .rodata no longer allows.
    """

    def __init__(self, name: str, handle: Any, btf: Btf) -> None:
        from wptrace.bpf.btf import DataSec, Var

        fields: dict[str, tuple[int, int]] = {}
        found = btf.find(name, DataSec)
        if found is not None:
            for variable in found.vars:
                declared = btf.type(variable.type)
                if isinstance(declared, Var):
                    fields[declared.name] = (variable.offset, declared.type)
        lib = libbpf()
        size = lib.ffi.new("size_t *")
        start = lib.pointer(lib.lib.bpf_map__initial_value(handle, size), f"section {name} has no content")
        # Underscored and set past __setattr__: every other attribute is a global of the BPF program.
        put = super().__setattr__
        put("_name", name)
        put("_handle", handle)
        put("_btf", btf)
        put("_fields", fields)
        put("_codecs", {})
        put("_views", {})
        put("_memory", memoryview(lib.ffi.buffer(start, size[0])))
        put("_mapped", None)

    _name: str
    _handle: Any
    _btf: Btf
    _fields: dict[str, tuple[int, int]]
    _codecs: dict[str, Any]
    _views: dict[str, memoryview]
    _memory: memoryview | None
    _mapped: mmap.mmap | None

    def _find(self, name: str) -> tuple[int, Any]:
        if name not in self._fields:
            raise AttributeError(f"{self._name} has no global {name}; it has {', '.join(sorted(self._fields))}")
        offset, type_id = self._fields[name]
        if name not in self._codecs:
            from wptrace.bpf.layout import codec

            self._codecs[name] = codec(self._btf, type_id)
        return offset, self._codecs[name]

    def __getattr__(self, name: str) -> Any:
        offset, codec = self._find(name)
        return codec.unpack(self._bytes(name), offset)

    def __setattr__(self, name: str, value: Any) -> None:
        offset, codec = self._find(name)
        if self._mapped is not None and self._name == ".rodata":
            raise WptraceError(
                f"{name} is a constant of the loaded program and cannot change any more",
                hint="set it before load(), or make it a plain global",
            )
        self._bytes(name)[offset : offset + codec.size] = codec.pack(value, name)

    def _bytes(self, name: str) -> memoryview:
        if self._memory is None:
            raise WptraceError(f"{name} cannot be accessed: its object is closed")
        return self._memory

    def map_place(self, name: str) -> tuple[int, int]:
        """The map in which a variable is, and its offset there, as instructions have them once all is loaded."""
        return int(libbpf().lib.bpf_map__fd(self._handle)), self._find(name)[0]

    @property
    def size(self) -> int:
        return len(self._bytes(self._name))

    def view(self, name: str) -> memoryview:
        """The bytes of a variable in place: no copy, and the programs go on writing them until the object is closed."""
        memory = self._bytes(name)
        if name not in self._views:
            offset, codec = self._find(name)
            self._views[name] = memory[offset : offset + codec.size]
        return self._views[name]

    def length(self, name: str) -> int:
        """Return the number of elements of an array."""
        return int(self._find(name)[1].count)

    def __dir__(self) -> list[str]:
        return sorted(self._fields)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def _make(self) -> None:
        """Makes the map of a section that begins as zeros. libbpf would write them into it, and so have all of its
        pages in this process twice: for tables that was 17 MiB."""
        lib = libbpf()
        opts = lib.ffi.new("struct bpf_map_create_opts *", {"map_flags": _MMAPABLE})
        opts.sz = lib.ffi.sizeof("struct bpf_map_create_opts")
        what = f"the map of section {self._name} cannot be made"
        name = lib.lib.bpf_map__name(self._handle)
        fd = lib.check(lib.lib.bpf_map_create(_ARRAY, name, 4, len(self._bytes(self._name)), 1, opts), what)
        try:
            lib.check(lib.lib.bpf_map__reuse_fd(self._handle, fd), what)
        finally:
            os.close(fd)

    def _loaded(self) -> None:
        """Switches to the memory that the kernel shares with the programs."""
        lib = libbpf()
        size = -(-len(self._bytes(self._name)) // mmap.PAGESIZE) * mmap.PAGESIZE
        access = mmap.PROT_READ if self._name == ".rodata" else mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(lib.lib.bpf_map__fd(self._handle), size, mmap.MAP_SHARED, access)
        self._close()
        put = super().__setattr__
        put("_mapped", mapped)
        put("_memory", memoryview(mapped))

    def _close(self) -> None:
        for view in (*self._views.values(), *([] if self._memory is None else [self._memory])):
            view.release()
        self._views.clear()
        super().__setattr__("_memory", None)
        if self._mapped is not None:
            # Slices that a caller still holds keep the pages mapped until the last of them is gone.
            with suppress(BufferError):
                self._mapped.close()
