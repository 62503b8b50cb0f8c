# SPDX-License-Identifier: Apache-2.0
"""A target of a definition on one kernel: its arguments, and the ways to observe it."""

from __future__ import annotations

from typing import NamedTuple

from wptrace.bpf.btf import Btf, Composite, Func, FuncProto, Ptr, Typedef
from wptrace.engine.definition import recipe as r
from wptrace.engine.definition.definition import (
    EVENT,
    FUNCTION,
    IN_PROGRAMS,
    STATIC_PROBE,
    TRACEPOINT,
    USER_RETURN,
    Target,
)
from wptrace.engine.definition.faults import did_you_mean
from wptrace.engine.definition.kernel import EventField, Kernel
from wptrace.engine.definition.registers import ARGUMENTS
from wptrace.errors import UsageError
from wptrace.kernel import binaries, sdt
from wptrace.kernel.binaries import Spot
from wptrace.kernel.sdt import Operand


class Argument(NamedTuple):
    name: str
    """Empty if it is unknown."""
    type: int


class Hook(NamedTuple):
    target: Target
    types: Btf
    arguments: tuple[Argument, ...]
    """Empty if the kernel has no types for it: see `typed`."""
    returned: int = 0
    """The type of the result; 0 is void."""
    btf_id: int = 0
    module: str = ""
    typed: bool = True
    by_value: bool = False
    """Structs are passed by value, or there are arguments that it does not name."""
    fields: dict[str, EventField] | None = None
    """The fields of a classic event."""
    spot: Spot | None = None
    """In a program: the instruction."""
    operands: tuple[Operand | str, ...] | None = None
    """The arguments of a static probe; a text is one that was not understood."""
    sites: int = 1
    """The number of places of a static probe."""

    @property
    def name(self) -> str:
        if self.sites == 1:
            return self.target.name
        return f"{self.target.name} (place {self.target.site + 1} of {self.sites})"

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to observe it, best first."""
        kind = self.target.kind
        if kind == EVENT:
            return (r.EVENT,)
        if kind in IN_PROGRAMS:
            return (r.URETPROBE,) if kind == USER_RETURN else (r.UPROBE,)
        if kind == TRACEPOINT:
            return (r.TP_BTF, r.RAW_TP) if self.typed else (r.RAW_TP,)
        best, other = (r.FENTRY, r.KPROBE) if kind == FUNCTION else (r.FEXIT, r.KRETPROBE)
        return (best, other) if self.typed and not self.by_value else (other,)

    def register(self, number: int, machine: str) -> int | None:
        """The register of this argument on entry; None if it is on the stack."""
        place, most = 0, len(ARGUMENTS.get(machine, range(6)))
        for at, argument in enumerate(self.arguments):
            entry = self.types.resolve(argument.type)
            size = entry.size if isinstance(entry, Composite) else 8
            registers = 1 if size <= 8 else 2 if size <= 16 else 1 if machine == "aarch64" else 0
            if at == number:
                return place if registers == 1 and place < most else None
            place += registers
        return number if not self.arguments and number < most else None


class Missing(NamedTuple):
    """The reason why there is no such hook."""

    why: str
    hint: str = ""
    """A suggestion to append to the reason."""


def find(target: Target, kernel: Kernel, modules: tuple[str, ...]) -> Hook | Missing:
    if target.kind in IN_PROGRAMS:
        return _in_program(target, kernel)
    if target.kind == EVENT:
        fields = kernel.event(target.name)
        if fields is None:
            return Missing(
                f"there is no event {target.name}", "" if kernel.runs else ": its types say nothing of events"
            )
        return Hook(target, kernel.types, (), typed=False, fields=fields)
    places = [("", kernel.types)]
    places += [(name, types) for name in modules if (types := kernel.module(name)) is not None]
    for module, types in places:
        found = _tracepoint(target, types) if target.kind == TRACEPOINT else _function(target, types)
        if found is not None:
            # A module's types include the kernel's own.
            return found if not module else found._replace(module=module)
    untyped = _untyped(target, kernel)
    unknown = next((name for name in modules if kernel.module(name) is None), None)
    if isinstance(untyped, Missing) and unknown is not None:
        return untyped._replace(hint=kernel.without_module(unknown) or untyped.hint)
    return untyped


def _in_program(target: Target, kernel: Kernel) -> Hook | Missing:
    """A place in a program or library of this machine, whichever kernel's types are used."""
    path, _, name = target.name.partition(":")
    provider, _, probe = name.partition(":")
    try:
        with binaries.opened(path, kernel.machine) as binary:
            if target.kind != STATIC_PROBE:
                find_it = binary.returning if target.kind == USER_RETURN else binary.function
                try:
                    return Hook(target, kernel.types, (), typed=False, spot=find_it(name))
                except binaries.UnknownNameError as error:
                    return Missing(error.message, did_you_mean(name, binary.functions()))
            try:
                found = sdt.sites(binary, provider, probe, kernel.machine)
            except binaries.UnknownNameError as error:
                return Missing(error.message, did_you_mean(name, sdt.names(binary)))
    except UsageError as error:
        return Missing(error.message)
    spot, operands = found[target.site]
    return Hook(target, kernel.types, (), typed=False, spot=spot, operands=operands, sites=len(found))


def _untyped(target: Target, kernel: Kernel) -> Hook | Missing:
    """A function without BTF, like all functions of modules on old kernels; its arguments are known by number only."""
    if target.kind == TRACEPOINT:
        if kernel.has_tracepoint(target.name):
            return Hook(target, kernel.types, (), typed=False)
        return Missing(f"there is no tracepoint {target.name}", did_you_mean(target.name, kernel.tracepoints()))
    if target.name in kernel.symbols:
        module = kernel.modules_of.get(target.name, "")
        if module and kernel.module(module) is not None:
            return Missing(f"{target.name} is a function of a module", f': write module = "{module}"')
        return Hook(target, kernel.types, (), typed=False)
    return Missing(f"there is no function {target.name}", renamed(target.name, kernel))


def renamed(name: str, kernel: Kernel) -> str:
    """The name that the compiler gave a function, to append to a message; empty if that is not known."""
    found = sorted(symbol for symbol in kernel.symbols if symbol.startswith(f"{name}."))
    if found:
        return f": the compiler made {found[0]} of it"
    return did_you_mean(name, kernel.symbols) if kernel.symbols else ""


def _tracepoint(target: Target, types: Btf) -> Hook | None:
    typedef = types.find(f"btf_trace_{target.name}", Typedef)
    pointer = types.resolve(typedef.id) if typedef else None
    proto = types.resolve(pointer.type) if isinstance(pointer, Ptr) else None
    if typedef is None or not isinstance(proto, FuncProto):
        return None
    # The first one belongs to the probe itself.
    kinds = [param.type for param in proto.params[1:]]
    # The kernel's functions have the names: __traceiter_ from 5.10 on, __probestub_ from 6.4 on.
    names = [""] * len(kinds)
    for prefix in ("__traceiter_", "__probestub_", "__bpf_trace_"):
        caller = types.find(f"{prefix}{target.name}", Func)
        called = types.resolve(caller.type) if caller else None
        if isinstance(called, FuncProto) and len(called.params) == len(proto.params):
            names = [param.name for param in called.params[1:]]
            break
    arguments = tuple(Argument(name, kind) for name, kind in zip(names, kinds))
    return Hook(target, types, arguments, btf_id=typedef.id)


def _function(target: Target, types: Btf) -> Hook | None:
    function = types.find(target.name, Func)
    proto = types.resolve(function.type) if function else None
    if function is None or not isinstance(proto, FuncProto):
        return None
    arguments = tuple(Argument(param.name, param.type) for param in proto.params)
    by_value = any(not each.type or isinstance(types.resolve(each.type), Composite) for each in arguments)
    arguments = tuple(each for each in arguments if each.type)
    return Hook(target, types, arguments, proto.type, function.id, by_value=by_value)
