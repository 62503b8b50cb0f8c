# SPDX-License-Identifier: Apache-2.0
"""A BPF object file as a Python object: sections, maps, programs, from open to close."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, TypeVar

from wptrace.bpf import targets
from wptrace.bpf.btf import Btf, DataSec, Enum, Struct
from wptrace.bpf.lib import libbpf, require_kernel_btf
from wptrace.bpf.maps import Map
from wptrace.bpf.parsed_btf import ParsedBtf
from wptrace.bpf.programs import Program
from wptrace.bpf.sections import Section
from wptrace.errors import REBUILD, UnsupportedError, WptraceError

_MAP_NAME = 15

Item = TypeVar("Item")


class Named(Mapping[str, Item]):
    """A mapping by name whose KeyError names what there is."""

    def __init__(self, kind: str, items: dict[str, Item]) -> None:
        self._kind = kind
        self._items = items

    def __getitem__(self, name: str) -> Item:
        try:
            return self._items[name]
        except KeyError:
            raise KeyError(f"there is no {self._kind} {name}; there are {', '.join(sorted(self._items))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class BpfObject:
    """Open, set globals and choose programs, load, attach; closing detaches and frees everything."""

    bss: Section
    data: Section
    rodata: Section

    def __init__(self, path: Path, fit: Callable[[bytes], bytes] | None = None, own_types: bool = False) -> None:
        """`fit` makes of the file what is opened. With `own_types` no program that is loaded has fields of the kernel
        to find: libbpf takes the types of the file, and need not read all that the kernel has."""
        self.path = path
        self._libbpf = libbpf()
        self._lib = self._libbpf.lib
        targets.ask_here(self._libbpf)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise WptraceError(f"{path} cannot be read: {error.strerror}") from None
        if fit is not None:
            data = fit(data)
        ffi = self._libbpf.ffi
        opts = ffi.new("struct bpf_object_open_opts *")
        opts.sz = ffi.sizeof("struct bpf_object_open_opts")
        name = ffi.new("char[]", path.name.split(".")[0].encode())
        opts.object_name = name
        # For a type that the kernel itself lacks libbpf looks at those of modules, and fails if it may not. Told to
        # take a file it does not look there, and what only a module has is as if it were nowhere.
        types = ffi.new("char[]", os.fsencode(path) if own_types else b"/sys/kernel/btf/vmlinux")
        if own_types or not self._libbpf.sees_modules:
            opts.btf_custom_path = types
        with self._libbpf.silent():
            self._handle = self._lib.bpf_object__open_mem(data, len(data), opts)
        if self._handle == ffi.NULL:
            raise self._unreadable()
        self.btf = self._own_btf()
        self._sections: list[Section] = []
        self._tables: list[Section] = []
        """Sections with a single variable each that is all zeros at first."""
        self._structs: dict[str, Any] = {}
        maps: dict[str, Map] = {}
        handle = self._lib.bpf_object__next_map(self._handle, ffi.NULL)
        while handle != ffi.NULL:
            self._add_map(handle, maps)
            handle = self._lib.bpf_object__next_map(self._handle, handle)
        programs: dict[str, Program] = {}
        handle = self._lib.bpf_object__next_program(self._handle, ffi.NULL)
        while handle != ffi.NULL:
            program = Program(handle)
            programs[program.name] = program
            handle = self._lib.bpf_object__next_program(self._handle, handle)
        self.maps: Named[Map] = Named("map", maps)
        self.progs: Named[Program] = Named("program", programs)

    def _unreadable(self) -> WptraceError:
        """Find out what is wrong with the file, more exactly than libbpf says."""
        self._libbpf.recent.clear()
        # Without pyelftools it is only less exact.
        with suppress(ImportError):
            from wptrace.bpf.elf import ObjectFile

            try:
                ObjectFile(self.path)
            except WptraceError as error:
                return error
        return UnsupportedError(
            f"libbpf {self._libbpf.version[0]}.{self._libbpf.version[1]} cannot open {self.path}", REBUILD
        )

    def _own_btf(self) -> Btf:
        """A copy of the object's BTF as libbpf has it: with the places of variables, which compilers leave open."""
        size = self._libbpf.ffi.new("__u32 *")
        found = self._lib.bpf_object__btf(self._handle)
        raw = self._lib.btf__raw_data(found, size) if found != self._libbpf.ffi.NULL else self._libbpf.ffi.NULL
        if raw == self._libbpf.ffi.NULL:
            error = self._unreadable()
            self._lib.bpf_object__close(self._handle)
            raise error
        parsed = self._lib.btf__new(raw, size[0])
        return ParsedBtf(self._libbpf.pointer(parsed, f"the types of {self.path.name} cannot be read"))

    def _add_map(self, handle: Any, maps: dict[str, Map]) -> None:
        if not self._lib.bpf_map__is_internal(handle):
            found = Map(handle, self.btf)
            maps[found.name] = found
            return
        # libbpf calls it by the section's name, or by the object's name before it, cut to the kernel's 15 characters.
        name = self._libbpf.ffi.string(self._lib.bpf_map__name(handle)).decode()
        if name.startswith(".bss."):
            table = Section(self._whole(name), handle, self.btf)
            self._sections.append(table)
            self._tables.append(table)
            return
        name = "." + name.rpartition(".")[2]
        if name in (".bss", ".data", ".rodata"):
            section = Section(name, handle, self.btf)
            self._sections.append(section)
            setattr(self, name[1:], section)

    def _whole(self, name: str) -> str:
        """The name of a section, of which that of its map has no more than the kernel's 15 characters."""
        if len(name) < _MAP_NAME:
            return name
        return next((one for one in self._data_sections if one.startswith(name)), name)

    @cached_property
    def _data_sections(self) -> list[str]:
        return [one.name for one in self.btf.each(DataSec)]

    def _section(self, name: str) -> Section:
        section = next((section for section in self._sections if name in section), None)
        if section is None:
            raise KeyError(f"{self.path.name} has no variable {name}")
        return section

    def view(self, name: str) -> memoryview:
        """The bytes of a variable where they lie, in whichever section: the programs go on writing them."""
        return self._section(name).view(name)

    def length(self, name: str) -> int:
        """Return the length of an array among the variables."""
        return self._section(name).length(name)

    @cached_property
    def constants(self) -> Named[int]:
        """The values of all enums, by their names in C."""
        return Named("constant", {one.name: one.value for entry in self.btf.each(Enum) for one in entry.values})

    def enum(self, name: str) -> list[str]:
        """The names of an enum that counts from 0, without what they share with its name: BLOCK_OP_READ is read."""
        found = self.btf.find(name, Enum)
        if found is None:
            raise KeyError(f"{self.path.name} has no enum {name}")
        prefix = f"{name.upper()}_"
        return [value.name[len(prefix) :].lower() for value in found.values if value.name.startswith(prefix)]

    def struct(self, name: str) -> Any:
        """The codec of a struct."""
        from wptrace.bpf.layout import codec

        if name not in self._structs:
            found = self.btf.find(name, Struct)
            if found is None:
                raise KeyError(f"{self.path.name} has no struct {name}")
            self._structs[name] = codec(self.btf, found.id)
        return self._structs[name]

    @property
    def planned_bytes(self) -> int:
        """The kernel memory that maps and variables will take at the load."""
        return sum(found.planned_bytes for found in self.maps.values()) + sum(one.size for one in self._sections)

    def load(self) -> None:
        """Creates the maps and loads the programs whose autoload is on."""
        require_kernel_btf()
        self._libbpf.recent.clear()
        for section in self._tables:
            section._make()
        with targets.given(program for program in self.progs.values() if program.autoload):
            result = self._lib.bpf_object__load(self._handle)
        self._libbpf.trim()
        self._libbpf.check(result, f"{self.path.name} cannot be loaded")
        self._libbpf.recent.clear()
        for section in self._sections:
            section._loaded()

    def attach(self) -> None:
        """Attaches every loaded program to what its section name says."""
        for program in self.progs.values():
            if program.autoload:
                program.attach()

    def close(self) -> None:
        if self._handle is None:
            return
        for program in self.progs.values():
            program.close()
        for section in self._sections:
            section._close()
        self._lib.bpf_object__close(self._handle)
        self._handle = None

    def __enter__(self) -> BpfObject:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def machine() -> str:
    """The folder name of this machine's objects."""
    name = os.uname().machine
    known = {"x86_64": "x86_64", "aarch64": "arm64"}
    if name not in known:
        raise UnsupportedError(f"wptrace has no BPF objects for {name}", hint="it is built for x86_64 and arm64")
    return known[name]


def named_folder() -> Path | None:
    """Return the folder of WPTRACE_BPF_DIR, which has to exist: otherwise unintended objects would run."""
    named = os.environ.get("WPTRACE_BPF_DIR")
    if named and not os.path.isdir(named):  # noqa: PTH112
        raise WptraceError(f"WPTRACE_BPF_DIR names {named}, which is not a folder", "name one with objects, or none")
    return Path(named) if named else None


def folders() -> list[Path]:
    """Return the folders that are searched for objects, in order."""
    named = named_folder()
    return [*([named] if named else []), Path(__file__).resolve().parent.parent / "objects" / machine()]


def find(name: str) -> Path:
    """The object file `name`.bpf.o."""
    looked = folders()
    for folder in looked:
        path = folder / f"{name}.bpf.o"
        if path.is_file():
            return path
    raise WptraceError(
        f"the BPF object {name}.bpf.o is not installed (looked in {', '.join(map(str, looked))})",
        hint="run make in the source tree, or name the folder in WPTRACE_BPF_DIR",
    )


def open_object(name: str) -> BpfObject:
    return BpfObject(find(name))
