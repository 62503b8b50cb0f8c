# SPDX-License-Identifier: Apache-2.0
"""Turns an expression into the reads that it takes on this kernel."""

from __future__ import annotations

from typing import NamedTuple

from wptrace.bpf.btf import Array, Btf, Composite, Enum, Fwd, Int, Modifier, Ptr, Struct, Type, Typedef, Union
from wptrace.engine.definition import recipe as r
from wptrace.engine.definition.definition import RETURN, USER_RETURN
from wptrace.engine.definition.expression import Choice, Expression, Path, Step
from wptrace.engine.definition.faults import Fault, did_you_mean
from wptrace.engine.definition.hook import Hook
from wptrace.engine.definition.kernel import Kernel
from wptrace.engine.definition.recipe import Load, Recipe
from wptrace.engine.definition.registers import OFFSETS

TEXT_SIZE = 16
"""Bytes of a text, with the 0 at its end."""
_MAX_NESTING = 16
_INTEGERS = (1, 2, 4, 8)
_CGROUP = ("cgroups", "dfl_cgrp")
_EVENT_TEXT = "text of an event"
_WORD = 8
_INT_BITS = 32
"""Without types, so many bits are an `int`, and others have no sign."""


class WalkError(Exception):
    """Something that this kernel lacks, with the position in the expression."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class Found(NamedTuple):
    recipe: Recipe
    type: Type | None
    """The type of the value; None if unknown."""
    cgroup: bool = False
    """The value is the id of a cgroup."""


class _Object(NamedTuple):
    """The current end of a path: a value, or a place in the object that the loads lead to."""

    source: str
    number: int
    type: int
    """The BTF id; -1 if unknown."""
    loads: tuple[Load, ...] = ()
    offset: int | None = None
    """The offset in the object; None: the source itself."""
    bit_offset: int = 0
    bits: int = 0
    known: bool = False
    """The verifier knows the type of the object."""
    inside_union: bool = False
    located: int | None = None
    """For a text in an event's record, as in Recipe."""
    struct: Struct | None = None
    """The struct it points to, because of a cast or because it is the current task."""
    signed: bool = False
    size: int = _WORD
    """The bytes of a value without a type."""
    user: bool = False
    """The memory that it leads to is that of the program."""


class Walker:
    """Resolves expressions at one hook that is observed in one way."""

    def __init__(self, hook: Hook, kernel: Kernel, way: str, direct: bool) -> None:
        """With `direct`, fields are read by plain loads wherever the verifier can follow."""
        self._hook = hook
        self._kernel = kernel
        self._types: Btf = hook.types
        self._way = way
        self._direct = direct

    def value(self, expression: Expression, text: bool = False) -> Found:
        """Resolve an expression. With `text`, a text is kept as such. Raises WalkError."""
        found = [self._choice(choice, text) for choice in expression.choices]
        if len(found) > 1 and any(one.recipe.text for one in found):
            raise WalkError("a text cannot be combined with ||", expression.choices[1][0].at)
        recipe = found[-1].recipe
        for one in reversed(found[:-1]):
            recipe = one.recipe._replace(otherwise=recipe)
        return found[0]._replace(recipe=recipe)

    def _choice(self, choice: Choice, text: bool) -> Found:
        first: WalkError | None = None
        for path in choice:
            try:
                return self._finish(path, self._path(path), text)
            except WalkError as error:
                first = first or error
        if first is None:
            raise WalkError("there is nothing to read", 0)
        raise first

    def _path(self, path: Path) -> _Object:
        if isinstance(path.root, Path):
            start = self._path(path.root)
        elif isinstance(path.root, int):
            return _Object(r.CONSTANT, path.root, -1)
        else:
            start = self._root(path.root, path.at)
        steps = path.steps
        if path.root == "task" and not path.cast and steps and steps[0].name == "cgroup":
            start, steps = self._cgroup(start, steps)
        if path.cast:
            start = self._pointer_to(start, path)
        for step in steps:
            start = self._step(start, step)
        return start

    # Where it begins

    def _root(self, name: str, at: int) -> _Object:
        if name == "cpu":
            return _Object(r.CPU, 0, -1)
        if name == "task":
            return _Object(r.TASK, 0, -1, struct=self._struct("task_struct"))
        if self._hook.fields is not None:
            return self._field_of_event(name, at)
        if name == "ret" and self._hook.target.kind in (RETURN, USER_RETURN):
            return self._returned(at)
        number = self._number(name, at)
        if self._hook.operands is not None:
            return self._operand(number, at)
        known = number < len(self._hook.arguments)
        if self._hook.arguments and not known:
            raise WalkError(f"{self._hook.target} has {_count(len(self._hook.arguments))}, counted from arg0", at)
        return self._argument(number, self._hook.arguments[number].type if known else -1, at)

    def _argument(self, number: int, kind: int, at: int) -> _Object:
        if self._way in (r.FEXIT, r.FENTRY, r.TP_BTF):
            return _Object(r.ARGUMENT, number, kind, known=self._direct)
        if self._way in (r.KRETPROBE, r.URETPROBE):
            raise WalkError(f"a {self._way} has no arguments: take the task as the key", at)
        if self._way in (r.KPROBE, r.UPROBE):
            register = self._hook.register(number, self._kernel.machine)
            if register is None:
                raise WalkError(f"a {self._way} does not see argument {number}, which is not in a register", at)
            number = register
        return _Object(r.ARGUMENT, number, kind, signed=kind < 0, user=self._way == r.UPROBE)

    def _operand(self, number: int, at: int) -> _Object:
        """An argument of a static probe."""
        operands = self._hook.operands or ()
        if number >= len(operands):
            raise WalkError(f"{self._hook.target} has {_count(len(operands))}, counted from arg0", at)
        found = operands[number]
        if isinstance(found, str):
            raise WalkError(f"argument {number} of {self._hook.target} is at {found!r}, which cannot be read here", at)
        if not found.register:
            return _Object(r.CONSTANT, found.number, -1, user=True)
        register = OFFSETS[self._kernel.machine][found.register]
        place = found.number if found.in_memory else None
        return _Object(r.REGISTER, register, -1, offset=place, signed=found.signed, size=found.size, user=True)

    def _returned(self, at: int) -> _Object:
        if self._hook.typed and not self._hook.returned:
            raise WalkError(f"{self._hook.target.name} returns nothing", at)
        kind = self._hook.returned if self._hook.typed else -1
        # A fexit program gets the result after the arguments.
        known = self._direct and self._way == r.FEXIT
        number = len(self._hook.arguments)
        return _Object(r.RETURNED, number, kind, known=known, signed=kind < 0, user=self._way == r.URETPROBE)

    def _field_of_event(self, name: str, at: int) -> _Object:
        fields = self._hook.fields or {}
        if name not in fields:
            hint = did_you_mean(name, fields) or f"; it has {', '.join(fields) or 'none'}"
            raise WalkError(f"the event {self._hook.target.name} has no field {name}{hint}", at)
        field = fields[name]
        place, _, kind = field.type.rpartition("_loc ")
        if "[" in kind:
            if not kind.startswith(("char", "const char", "unsigned char")):
                raise WalkError(f"{name} is a list, which cannot be read here", at)
            if place:
                # __rel_loc counts from the end of the field.
                base = field.offset + field.size if place == "__rel" else 0
                return _Object(_EVENT_TEXT, field.offset, -1, bits=TEXT_SIZE, located=base)
            return _Object(_EVENT_TEXT, field.offset, -1, bits=field.size)
        if field.size not in _INTEGERS:
            raise WalkError(f"{name} has {field.size} bytes, which is not a number", at)
        return _Object(r.ARGUMENT, field.offset, -1, bits=field.size, signed=field.signed)

    def _number(self, name: str, at: int) -> int:
        """The index of the argument that a name stands for."""
        arguments = self._hook.arguments
        if name.startswith("arg") and name[3:].isdecimal() and len(name) <= 5:
            return int(name[3:])
        if not self._hook.typed:
            raise WalkError(
                f"the argument types of {self._hook.target} are unknown here: write arg0, arg1 and so on", at
            )
        by_type = [number for number, each in enumerate(arguments) if self._points_to(each.type) == name]
        by_name = [number for number, each in enumerate(arguments) if each.name == name]
        if len(by_type) > 1 and not by_name:
            names = " or ".join(arguments[number].name or f"arg{number}" for number in by_type)
            raise WalkError(f"{self._hook.target} has {len(by_type)} arguments of the type {name}: write {names}", at)
        found = dict.fromkeys([*by_type, *by_name])
        if len(by_type) == 1 and len(found) > 1:
            raise WalkError(f"{name} is the type of one argument of {self._hook.target} and the name of another", at)
        if not found:
            known = [each.name or self._points_to(each.type) or f"arg{at}" for at, each in enumerate(arguments)]
            known += [kind for each in arguments if (kind := self._points_to(each.type))]
            hint = did_you_mean(name, known)
            has = ", ".join(self._spelled(number) for number in range(len(arguments))) or "no argument"
            raise WalkError(f"{self._hook.target} has no {name}{hint or f'; it has {has}'}", at)
        return by_name[0] if by_name else by_type[0]

    def _spelled(self, number: int) -> str:
        argument = self._hook.arguments[number]
        return f"{self._types.describe(argument.type)} {argument.name or f'arg{number}'}"

    def _points_to(self, type_id: int) -> str:
        """The name of the struct that a type points to; empty if it does not point to one."""
        entry = self._types.resolve(type_id)
        target = self._types.resolve(entry.type) if isinstance(entry, Ptr) else None
        return target.name if isinstance(target, (Composite, Fwd)) else ""

    # The way from there

    def _struct(self, name: str) -> Struct | None:
        return self._types.find(name, Struct)

    def _pointer_to(self, start: _Object, path: Path) -> _Object:
        """Only the cast gives the type that the value points to."""
        struct = self._struct(path.cast)
        if struct is None:
            raise WalkError(f"this kernel has no struct {path.cast}", path.at)
        if start.source == _EVENT_TEXT:
            raise WalkError("a text is not a pointer", path.at)
        if start.user:
            raise WalkError("the memory of a program has no types", path.at)
        start = self._loaded(start, path.at, any_pointer=True)
        return start._replace(type=-1, struct=struct, known=False)

    def _loaded(self, start: _Object, at: int, any_pointer: bool = False) -> _Object:
        """Follow the pointer at this place."""
        if start.user and start.size != _WORD:
            raise WalkError(f"this has {start.size} bytes, and is no address", at)
        if start.offset is None:
            return start
        if start.bits or (start.type >= 0 and not any_pointer and not self._is_pointer(start.type)):
            raise WalkError(f"{self._what(start.type)} is not a pointer", at)
        if start.type >= 0 and any_pointer and self._types.size(start.type) != 8:
            raise WalkError(f"{self._what(start.type)} is not a pointer", at)
        load = Load(start.offset, 8, start.known, start.user)
        known = start.known and not start.inside_union
        loads = (*start.loads, load)
        return _Object(start.source, start.number, start.type, loads, None, known=known, user=start.user)

    def _is_pointer(self, type_id: int) -> bool:
        return isinstance(self._types.resolve(type_id), Ptr)

    def _what(self, type_id: int) -> str:
        return self._types.describe(type_id) if type_id >= 0 else "this"

    def _step(self, start: _Object, step: Step) -> _Object:
        if step.element is not None:
            return self._element(start, step)
        holder, start = self._holder(start, step)
        found = self._member(holder, step.name, 0, False, 0)
        if found is None:
            names = [name for name in self._names(holder, 0) if name]
            hint = did_you_mean(step.name, names)
            raise WalkError(f"{holder.keyword} {holder.name} has no field {step.name} on this kernel{hint}", step.at)
        type_id, bit_offset, bits, in_union = found
        offset = (start.offset or 0) + bit_offset // 8
        return start._replace(
            type=type_id,
            offset=offset,
            bits=bits,
            bit_offset=bit_offset % 8,
            inside_union=start.inside_union or in_union,
        )

    def _holder(self, start: _Object, step: Step) -> tuple[Composite, _Object]:
        """The struct that has the field, and the place where it begins."""
        if start.struct is not None:
            return start.struct, start._replace(offset=0, struct=None)
        if start.user:
            raise WalkError("the memory of a program has no types: write [0] for its first 8 bytes", step.at)
        if start.type < 0:
            raise WalkError("the type of this is unknown: write (struct NAME *) before it", step.at)
        entry = self._types.resolve(start.type)
        if isinstance(entry, Composite):
            return entry, start
        if not isinstance(entry, Ptr):
            raise WalkError(f"{self._what(start.type)} has no fields", step.at)
        target = self._types.resolve(entry.type) if entry.type else None
        if isinstance(target, Fwd):
            target = self._types.find(target.name, Union if target.is_union else Struct) or target
            start = start._replace(known=False)
        if not isinstance(target, Composite):
            what = self._types.describe(start.type)
            raise WalkError(f"{what} does not point to a struct: write (struct NAME *) before it", step.at)
        start = self._loaded(start, step.at)
        return target, start._replace(offset=0, inside_union=isinstance(target, Union))

    def _element(self, start: _Object, step: Step) -> _Object:
        index = step.element or 0
        if start.user:
            place = self._loaded(start, step.at)
            return place._replace(offset=self._bounded(index * _WORD, step.at), signed=True, size=_WORD)
        entry = self._types.resolve(start.type) if start.type >= 0 else None
        if isinstance(entry, Array):
            if entry.count and index >= entry.count:
                raise WalkError(f"it has {entry.count} elements", step.at)
            place = start
        elif isinstance(entry, Ptr) and entry.type:
            place = self._loaded(start, step.at)._replace(offset=0, known=False)
        else:
            raise WalkError("this is neither a list nor a pointer to one", step.at)
        target = entry.element if isinstance(entry, Array) else entry.type
        offset = self._bounded((place.offset or 0) + index * self._types.size(target), step.at)
        return place._replace(type=target, offset=offset)

    @staticmethod
    def _bounded(offset: int, at: int) -> int:
        if offset > 1 << 20:
            raise WalkError("the offset is too large", at)
        return offset

    def _member(
        self, holder: Composite, name: str, bit_offset: int, in_union: bool, depth: int
    ) -> tuple[int, int, int, bool] | None:
        """Type, bit offset, bits of a bit field, and whether it lies in a union."""
        in_union = in_union or isinstance(holder, Union)
        for member in holder.members:
            if member.name == name:
                at, bits = self._types.bits(member)
                return member.type, bit_offset + at, bits, in_union
            if member.name or depth == _MAX_NESTING:
                continue
            inner = self._types.resolve(member.type)
            if isinstance(inner, Composite):
                found = self._member(inner, name, bit_offset + member.bit_offset, in_union, depth + 1)
                if found is not None:
                    return found
        return None

    def _names(self, holder: Composite, depth: int) -> list[str]:
        found = []
        for member in holder.members:
            inner = self._types.resolve(member.type) if not member.name and depth < _MAX_NESTING else None
            found += self._names(inner, depth + 1) if isinstance(inner, Composite) else [member.name]
        return found

    def _cgroup(self, start: _Object, steps: tuple[Step, ...]) -> tuple[_Object, tuple[Step, ...]]:
        """task.cgroup is the id of its cgroup of v2; with fields after it, they are read from that cgroup."""
        at = steps[0].at
        for name in _CGROUP:
            start = self._step(start, Step(name, None, at))
        if len(steps) == 1:
            for name in ("kn", "id"):
                start = self._step(start, Step(name, None, at))
            entry = self._types.resolve(start.type)
            if isinstance(entry, Union):
                # The id is a union of a number and its halves, until 5.4.
                start = self._step(start, Step("id", None, at))
        return start, steps[1:]

    # What is there

    def _finish(self, path: Path, found: _Object, text: bool) -> Found:
        end = path.at + max(len(path.text) - 1, 0)
        cgroup = path.root == "task" and len(path.steps) == 1 and path.steps[0].name == "cgroup"
        if found.source == _EVENT_TEXT:
            if not text:
                raise WalkError("this is a text, and a number is needed", path.at)
            size = min(found.bits, TEXT_SIZE)
            return Found(Recipe(r.ARGUMENT, found.number, text=True, size=size, located=found.located), None)
        if path.string:
            return Found(self._text_behind(found, path, text), None)
        if found.type < 0:
            return Found(self._plain(found, path), None)
        entry = self._types.resolve(found.type)
        if found.offset is not None:
            found, entry = self._only_member(found, entry)
        if text and not path.swap and not path.bits:
            size = self._text_size(entry)
            if size:
                return Found(self._as_text(found, entry, min(size, TEXT_SIZE)), entry)
        if isinstance(entry, Composite):
            names = ", ".join(name for name in self._names(entry, 0)[:4] if name)
            raise WalkError(f"{entry.keyword} {entry.name} is not a number: name a field of it, as {names}", end)
        if isinstance(entry, Array):
            is_text = bool(self._text_size(entry))
            hint = "this is a text, and a number is needed" if is_text else "this is a list: name an element, as [0]"
            raise WalkError(hint, end)
        recipe = self._number_at(found, entry, end)
        if path.swap and recipe.size * 8 != path.swap:
            raise WalkError(f"it has {recipe.size} bytes, but the swap is of {path.swap // 8}", path.at)
        if path.bits:
            if recipe.pointer or path.bits >= (recipe.bits or 8 * recipe.size):
                raise WalkError(f"it is an address, or has no more than {path.bits} bits", path.at)
            return Found(recipe._replace(bits=path.bits, signed=False), None)
        return Found(recipe._replace(swap=path.swap), entry, cgroup)

    def _text_behind(self, found: _Object, path: Path, text: bool) -> Recipe:
        if not text:
            raise WalkError("this is a text, and a number is needed", path.at)
        if found.source not in (r.ARGUMENT, r.RETURNED, r.REGISTER) or found.bits:
            raise WalkError(f"{path.text.rpartition(':')[0]} is not the address of a text", path.at)
        found = self._loaded(found, path.at, any_pointer=True)
        loads = (*found.loads, Load(0, 1, False, found.user))
        return Recipe(found.source, found.number, loads, text=True, size=TEXT_SIZE)

    def _plain(self, found: _Object, path: Path) -> Recipe:
        """A value without a type in BTF."""
        of_event = self._hook.fields is not None and found.bits > 0
        size = found.size if found.user else found.bits if of_event else 0
        if path.bits and path.bits >= 8 * size:
            raise WalkError("it has no more bits" if size else "its number of bits is unknown", path.at)
        if found.user and found.source != r.CONSTANT:
            if path.swap and path.swap != 8 * found.size:
                raise WalkError(f"it has {found.size} bytes, but the swap is of {path.swap // 8}", path.at)
            loads = found.loads
            if found.offset is not None:
                loads = (*loads, Load(found.offset, found.size, False, True))
            signed = path.bits == _INT_BITS if path.bits else found.signed
            return Recipe(found.source, found.number, loads, signed, found.size, bits=path.bits, swap=path.swap)
        if found.source == r.CPU:
            return Recipe(r.CPU, size=4, swap=path.swap)
        if found.source == r.CONSTANT:
            return Recipe(r.CONSTANT, found.number)
        if of_event:
            signed = found.signed and not path.bits
            return Recipe(r.ARGUMENT, found.number, (), signed, size, bits=path.bits, swap=path.swap)
        if path.swap:
            raise WalkError("its size is unknown", path.at)
        # Without a type the value may be an address or a number. It serves as a key in either case: all untyped keys
        # have bit 63 set.
        pointer = found.struct is not None
        return Recipe(found.source, found.number, found.loads, found.signed and not pointer, pointer=pointer)

    def _only_member(self, found: _Object, entry: Type) -> tuple[_Object, Type]:
        """The only member of a struct such as atomic_t or kuid_t."""
        for _ in range(_MAX_NESTING):
            if not isinstance(entry, Struct) or len(entry.members) != 1 or entry.size > 8:
                break
            member = entry.members[0]
            at, bits = self._types.bits(member)
            offset = (found.offset or 0) + at // 8
            found = found._replace(type=member.type, offset=offset, bits=bits, bit_offset=at % 8)
            entry = self._types.resolve(member.type)
        return found, entry

    def _text_size(self, entry: Type) -> int:
        """The bytes of the text that a value is, or points to; 0 if it is not a text."""
        if isinstance(entry, Array) and self._is_char(entry.element):
            return entry.count or TEXT_SIZE
        if isinstance(entry, Ptr) and entry.type and (self._is_char(entry.type) or self._is_name(entry.type)):
            return TEXT_SIZE
        return 0

    def _is_char(self, type_id: int) -> bool:
        entry = self._types.resolve(type_id)
        # An array of char, not of u8: lists of bytes are not text.
        return isinstance(entry, Int) and entry.size == 1 and entry.name == "char"

    def _is_name(self, type_id: int) -> bool:
        """Whether it is an `unsigned char` by that name, as in d_name.name; u8 is a number."""
        entry = self._types.type(type_id)
        while isinstance(entry, Modifier) and not isinstance(entry, Typedef):
            entry = self._types.type(entry.type)
        return isinstance(entry, Int) and entry.size == 1 and entry.name == "unsigned char"

    def _as_text(self, found: _Object, entry: Type, size: int) -> Recipe:
        if isinstance(entry, Ptr):
            found = self._loaded(found, 0)._replace(offset=0)
        loads = (*found.loads, Load(found.offset or 0, 1, False))
        return Recipe(found.source, found.number, loads, text=True, size=size)

    def _number_at(self, found: _Object, entry: Type, at: int) -> Recipe:
        pointer = isinstance(entry, Ptr)
        if isinstance(entry, (Int, Enum)):
            size, signed = entry.size, entry.signed
        elif pointer:
            size, signed = 8, False
        else:
            raise WalkError(f"{self._what(found.type)} is not a number", at)
        if size not in _INTEGERS:
            raise WalkError(f"{self._what(found.type)} has {size} bytes; 8 is the maximum", at)
        if found.offset is None:
            return Recipe(found.source, found.number, found.loads, signed, size, pointer=pointer)
        if not found.bits:
            load = Load(found.offset, size, found.known)
            return Recipe(found.source, found.number, (*found.loads, load), signed, size, pointer=pointer)
        bit = found.offset * 8 + found.bit_offset
        for width in _INTEGERS:
            start = bit // (8 * width) * width
            shift = bit - 8 * start
            if shift + found.bits <= 8 * width:
                loads = (*found.loads, Load(start, width, found.known))
                return Recipe(found.source, found.number, loads, signed, width, shift, found.bits)
        raise WalkError("this bit field crosses an 8-byte boundary", at)


def _count(count: int) -> str:
    return f"{count or 'no'} argument{'s' * (count != 1)}"


def fault(error: WalkError, expression: Expression) -> Fault:
    place = expression.place
    return Fault(error.message, place._replace(column=place.column + error.at) if place.line else place)
