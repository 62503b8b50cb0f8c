# SPDX-License-Identifier: Apache-2.0
"""Targets of fentry, fexit and tp_btf programs, found in the kernel's types before a load.

Left alone, libbpf goes through all types of the kernel for each program, and for a function of a module once more with
those of each module that was loaded before its own: with three file systems that was half of a start.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from wptrace.bpf.kernel_btf import KERNEL_BTF, module, module_descriptor, vmlinux

if TYPE_CHECKING:
    from wptrace.bpf.lib import Libbpf

# enum bpf_prog_type and enum bpf_attach_type
TRACING = 26
KINDS = {"tp_btf": 23, "fentry": 24, "fexit": 25}


class Target(NamedTuple):
    type_id: int
    module: str
    """The module of these types; empty: the kernel's own."""


def find(section: str, modules: Iterable[str]) -> Target | None:
    """Find the target of a program of this section; None where neither the kernel nor these modules have it."""
    kind, _, name = section.partition("/")
    kernel = vmlinux()
    loaded = [(one, types) for one in modules if one and (types := module(one)) is not None]
    # The types of a module continue those of the kernel, and a lookup in them looks in both.
    for owner, types in loaded or [("", kernel)]:
        found = types.tracepoint_type(name) if kind == "tp_btf" else types.function(name)
        if found:
            return Target(found, owner if found >= len(kernel) else "")
    return None


_given: dict[int, tuple[int, int]] = {}
"""Targets of programs during their load, by the program's address: a type, and a descriptor of the module's BTF."""


class Targeted(Protocol):
    """A program before it is loaded."""

    @property
    def section(self) -> str: ...
    @property
    def traces_types(self) -> bool: ...
    @property
    def target(self) -> Target | None: ...
    @property
    def address(self) -> int: ...


@contextmanager
def given(programs: Iterable[Targeted]) -> Iterator[None]:
    """Tell libbpf the targets of these programs while they are loaded. Those without one are searched everywhere."""
    descriptors = {"": 0}
    try:
        for program in programs:
            if not program.traces_types:
                continue
            target = program.target or find(program.section, ()) or find(program.section, _modules())
            if target is not None:
                if target.module not in descriptors:
                    descriptors[target.module] = module_descriptor(target.module)
                _given[program.address] = target.type_id, descriptors[target.module]
        yield
    finally:
        _given.clear()
        for fd in descriptors.values():
            if fd:
                os.close(fd)


def _modules() -> list[str]:
    return sorted(path.name for path in KERNEL_BTF.parent.iterdir() if path.name != KERNEL_BTF.name)


@cache
def ask_here(lib: Libbpf) -> Any:
    """Let libbpf ask this module for objects that are opened from now on. The returned callback has to stay alive."""
    ffi = lib.ffi

    def prepare(program: Any, options: Any, cookie: int) -> int:
        found = _given.get(int(ffi.cast("uintptr_t", program)))
        if found is None:
            return -errno.ESRCH
        options.attach_btf_id, options.attach_btf_obj_fd = found
        return 0

    callback = ffi.callback(
        "int(struct bpf_program *, struct bpf_prog_load_opts *, long)", prepare, error=-errno.EINTR, onerror=lib.failed
    )
    options = ffi.new("struct libbpf_prog_handler_opts *", {"prog_prepare_load_fn": callback})
    options.sz = ffi.sizeof("struct libbpf_prog_handler_opts")
    for kind, attaches in KINDS.items():
        number = lib.lib.libbpf_register_prog_handler(f"{kind}/".encode(), TRACING, attaches, options)
        lib.check(min(number, 0), f"libbpf takes no sections {kind}")
    return callback
