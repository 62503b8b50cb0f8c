# SPDX-License-Identifier: Apache-2.0
"""Reader of raw BTF, the type information that clang and the kernel attach to BPF objects.

    btf = Btf.parse(data)
    event = btf.find("event", Struct)
    btf.size(event.id), btf.member(event, "times.start").bit_offset

Kinds are classes: `btf.find(name, Struct)` gives a Struct or None. References between types are type ids.
Whatever the bytes are, the reader raises WptraceError and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Callable, Final, NamedTuple, TypeVar

from wptrace.errors import UnsupportedError, WptraceError

MAGIC: Final = 0xEB9F
# The kernel refuses deeper chains as well (MAX_RESOLVE_DEPTH), so only corrupt input gets here.
MAX_DEPTH: Final = 32

POINTER_SIZE: Final = 8  # BPF objects and the kernels they run on are 64-bit


class Type:
    """A type of any kind; `name` is empty for anonymous types and for kinds that have no name."""

    __slots__ = ("id", "name")

    def __init__(self, type_id: int, name: str) -> None:
        self.id = type_id
        self.name = name

    def __repr__(self) -> str:
        slots = (slot for cls in type(self).__mro__[:-1] for slot in getattr(cls, "__slots__", ()))
        return f"{type(self).__name__}({', '.join(f'{slot}={getattr(self, slot)!r}' for slot in slots)})"


class Void(Type):
    __slots__ = ()


class Sized(Type):
    """A type that says its own size in bytes."""

    __slots__ = ("size",)

    def __init__(self, type_id: int, name: str, size: int) -> None:
        self.id = type_id
        self.name = name
        self.size = size


class Int(Sized):
    """An integer; `bits` < 8 * size, or `offset` > 0, only in bit fields of old compilers."""

    __slots__ = ("bits", "is_bool", "is_char", "offset", "signed")

    def __init__(self, type_id: int, name: str, size: int, encoding: int) -> None:
        super().__init__(type_id, name, size)
        self.signed = bool(encoding & 1 << 24)
        self.is_char = bool(encoding & 2 << 24)
        self.is_bool = bool(encoding & 4 << 24)
        self.offset = encoding >> 16 & 0xFF
        self.bits = encoding & 0xFF


class Member(NamedTuple):
    """A field; `bit_size` is 0 unless it is a bit field. `Btf.bits` covers the older encoding too."""

    name: str
    type: int
    bit_offset: int
    bit_size: int


class Composite(Sized):
    """A struct or a union."""

    __slots__ = ("members",)
    keyword = "struct"

    def __init__(self, type_id: int, name: str, size: int, members: Sequence[Member]) -> None:
        super().__init__(type_id, name, size)
        self.members = members


class Struct(Composite):
    __slots__ = ()


class Union(Composite):
    __slots__ = ()
    keyword = "union"


class Enumerator(NamedTuple):
    name: str
    value: int


class Enum(Sized):
    """An enumeration, of 64 bits or fewer."""

    __slots__ = ("signed", "values")

    def __init__(self, type_id: int, name: str, size: int, signed: bool, values: Sequence[Enumerator]) -> None:
        super().__init__(type_id, name, size)
        self.signed = signed
        self.values = values


class SecVar(NamedTuple):
    """The place of one variable in its section; `type` is the id of a Var."""

    type: int
    offset: int
    size: int


class DataSec(Sized):
    """A section such as .bss; libbpf fills sizes and offsets in, compilers leave them 0."""

    __slots__ = ("vars",)

    def __init__(self, type_id: int, name: str, size: int, variables: Sequence[SecVar]) -> None:
        super().__init__(type_id, name, size)
        self.vars = variables


class Array(Type):
    __slots__ = ("count", "element")

    def __init__(self, type_id: int, element: int, count: int) -> None:
        super().__init__(type_id, "")
        self.element = element
        self.count = count


class Fwd(Type):
    """A struct or union declared but not defined."""

    __slots__ = ("is_union",)

    def __init__(self, type_id: int, name: str, is_union: bool) -> None:
        super().__init__(type_id, name)
        self.is_union = is_union


class Ref(Type):
    """A type that points at one other type; itself a tag on a declaration."""

    __slots__ = ("type",)

    def __init__(self, type_id: int, name: str, target: int) -> None:
        self.id = type_id
        self.name = name
        self.type = target


class Ptr(Ref):
    __slots__ = ()


class Modifier(Ref):
    """Types that `Btf.resolve` looks through: qualifiers, tags on types, typedefs."""

    __slots__ = ()


class Typedef(Modifier):
    __slots__ = ()


class Volatile(Modifier):
    __slots__ = ()


class Const(Modifier):
    __slots__ = ()


class Restrict(Modifier):
    __slots__ = ()


class Func(Ref):
    """A function; `type` is its FuncProto."""

    __slots__ = ()


class Var(Ref):
    """A global variable."""

    __slots__ = ()


class Param(NamedTuple):
    name: str
    type: int


class FuncProto(Ref):
    """A signature; `type` is what it returns. A last parameter without name and type is `...`."""

    __slots__ = ("params",)

    def __init__(self, type_id: int, target: int, params: Sequence[Param]) -> None:
        super().__init__(type_id, "", target)
        self.params = params


T = TypeVar("T", bound=Type)
# `Btf.type` hides the builtin inside the class.
Kind = type[T]


class Btf:
    """The types of one BTF blob; with `base`, those of a module on top of its kernel's."""

    def __init__(self, types: list[Type], base: Btf | None, strings: bytes) -> None:
        self._types = types
        self._base = base
        self._strings = strings
        self._first_id = len(base) if base else 0
        self._names: dict[str, list[Type]] | None = None

    @classmethod
    def parse(cls, data: bytes, base: Btf | None = None) -> Btf:
        """Read a whole blob: the contents of an ELF section .BTF or of a file in /sys/kernel/btf."""
        type_data, strings = _sections(bytes(data))
        types: list[Type] = [] if base else [Void(0, "")]
        try:
            types += Builder(partial(_string, strings, base)).parse(type_data, len(base) if base else 1)
        except struct.error:
            raise WptraceError("the BTF is corrupt: it ends inside a type") from None
        return cls(types, base, strings)

    @property
    def strings_end(self) -> int:
        """The first string offset that belongs to a blob on top of this one."""
        return (self._base.strings_end if self._base else 0) + len(self._strings)

    def string(self, offset: int) -> str:
        return _string(self._strings, self._base, offset)

    def __len__(self) -> int:
        """The number of ids in use, those of the base and void included."""
        return self._first_id + len(self._types)

    def __iter__(self) -> Iterator[Type]:
        """The types of this blob, those of its base left out, in the order of their ids."""
        return iter(self._types)

    def type(self, type_id: int) -> Type:
        if type_id < self._first_id and self._base and type_id >= 0:
            return self._base.type(type_id)
        if not self._first_id <= type_id < len(self):
            raise WptraceError(f"BTF has no type {type_id}")
        return self._types[type_id - self._first_id]

    def find(self, name: str, kind: Kind[T]) -> T | None:
        """The first type of that name and kind (a class of this module), this blob before its base."""
        if self._names is None:
            self._names = {}
            for entry in self._types:
                self._names.setdefault(entry.name, []).append(entry)
        for entry in self._names.get(name, ()):
            if isinstance(entry, kind):
                return entry
        return self._base.find(name, kind) if self._base else None

    def each(self, kind: Kind[T]) -> Iterator[T]:
        """Generate the types of a kind, those of the base left out."""
        return (entry for entry in self if isinstance(entry, kind))

    def enum_with(self, name: str) -> Enum | None:
        """The first enum that has a value of this name, as many have none themselves."""
        for entry in self.each(Enum):
            if any(value.name == name for value in entry.values):
                return entry
        return self._base.enum_with(name) if self._base else None

    def resolve(self, type_id: int) -> Type:
        """The type behind typedefs, qualifiers and type tags."""
        entry = self.type(type_id)
        depth = 0
        while isinstance(entry, Modifier):
            depth += 1
            if depth > MAX_DEPTH:
                raise WptraceError(f"the BTF is corrupt: type {type_id} refers to itself")
            entry = self.type(entry.type)
        return entry

    def size(self, type_id: int) -> int:
        """The size in bytes, as sizeof gives it."""
        count = 1
        for _ in range(MAX_DEPTH):
            entry = self.resolve(type_id)
            if isinstance(entry, Sized):
                return count * entry.size
            if isinstance(entry, Ptr):
                return count * POINTER_SIZE
            if isinstance(entry, Array):
                count *= entry.count
            elif not isinstance(entry, Var):
                break
            type_id = entry.element if isinstance(entry, Array) else entry.type
        raise WptraceError(f"BTF type {self.describe(type_id)} has no size")

    def bits(self, member: Member) -> tuple[int, int]:
        """Bit offset and bit size of a member; the size is 0 unless it is a bit field."""
        if member.bit_size:
            return member.bit_offset, member.bit_size
        entry = self.resolve(member.type)
        # Before BTF had the kind flag, width and shift stood in an integer type made for the bit field.
        if isinstance(entry, Int) and (entry.bits != 8 * entry.size or entry.offset):
            return member.bit_offset + entry.offset, entry.bits
        return member.bit_offset, 0

    def member(self, owner: Composite, path: str) -> Member:
        """The field `a.b` of a struct, found through anonymous members; its offset counts from `owner`."""
        found = Member("", owner.id, 0, 0)
        for name in path.split("."):
            holder = self.resolve(found.type)
            inner = self._member(holder, name, MAX_DEPTH) if isinstance(holder, Composite) else None
            if inner is None:
                raise WptraceError(f"{self.describe(owner.id)} has no member {path}")
            found = inner._replace(bit_offset=found.bit_offset + inner.bit_offset)
        return found

    def _member(self, owner: Composite, name: str, depth: int) -> Member | None:
        for member in owner.members:
            if name and member.name == name:
                bit_offset, bit_size = self.bits(member)
                return Member(name, member.type, bit_offset, bit_size)
            inner = self.resolve(member.type) if not member.name and depth else None
            if isinstance(inner, Composite):
                found = self._member(inner, name, depth - 1)
                if found:
                    return found._replace(bit_offset=member.bit_offset + found.bit_offset)
        return None

    def describe(self, type_id: int) -> str:
        """The name of a type, near to how C writes it; for messages."""
        suffix = ""
        for _ in range(MAX_DEPTH):
            entry = self.type(type_id)
            if isinstance(entry, Array):
                suffix, type_id = f"{suffix}[{entry.count}]", entry.element
            elif isinstance(entry, Ptr):
                suffix, type_id = f"*{suffix}", entry.type
            elif isinstance(entry, Modifier) and not isinstance(entry, Typedef):
                type_id = entry.type
            else:
                return f"{_name(entry)} {suffix}" if suffix.startswith("*") else _name(entry) + suffix
        return f"type {type_id}"


def _name(entry: Type) -> str:
    if isinstance(entry, Void):
        return "void"
    if isinstance(entry, Composite):
        return f"{entry.keyword} {entry.name or '(anonymous)'}"
    if isinstance(entry, Fwd):
        return f"{'union' if entry.is_union else 'struct'} {entry.name}"
    if isinstance(entry, Enum):
        return f"enum {entry.name or '(anonymous)'}"
    if isinstance(entry, FuncProto):
        return "function"
    return entry.name


def _sections(data: bytes) -> tuple[bytes, bytes]:
    """Check the header; return the bytes of the types and of the strings."""
    if len(data) >= 2 and data[:2] == MAGIC.to_bytes(2, "big"):
        raise UnsupportedError("the BTF is big-endian; only little-endian machines are supported")
    if len(data) < 24 or data[:2] != MAGIC.to_bytes(2, "little"):
        raise WptraceError("this is not BTF: the header is missing")
    _, version, _, header, type_offset, type_size, string_offset, string_size = struct.unpack_from("<HBBIIIII", data)
    if version != 1:
        raise UnsupportedError(f"BTF version {version} is unknown; only version 1 is supported")
    types = data[header + type_offset : header + type_offset + type_size]
    strings = data[header + string_offset : header + string_offset + string_size]
    if header < 24 or len(types) != type_size or len(strings) != string_size:
        raise WptraceError("the BTF is truncated")
    return types, strings


class _Head(NamedTuple):
    """The words that every type starts with; `extra` is a size or a type id, as the kind has it."""

    id: int
    name: str
    vlen: int
    flag: bool
    extra: int


class Builder:
    """Makes types of their words; `read_name` reads a name at its offset."""

    def __init__(self, read_name: Callable[[int], str]) -> None:
        self._read_name = read_name
        self._names: dict[int, str] = {0: ""}
        self._max_ref = 0

    def parse(self, data: bytes, type_id: int) -> list[Type]:
        """Make all types of a blob, the first of which gets this id."""
        types: list[Type] = []
        offset, end = 0, len(data)
        header = struct.Struct("<III").unpack_from
        names = self._names
        while offset < end:
            name_offset, info, extra = header(data, offset)
            kind, vlen = info >> 24 & 0x1F, info & 0xFFFF
            if not 0 < kind < len(_KINDS):
                raise UnsupportedError(f"BTF type {type_id} is of the unknown kind {kind}")
            fixed, each, build = _KINDS[kind]
            words = fixed + each * vlen
            rest = struct.unpack_from(f"<{words}I", data, offset + 12) if words else ()
            offset += 12 + 4 * words
            name = names.get(name_offset)
            if name is None:
                name = self._name(name_offset)
            types.append(build(self, _Head(type_id, name, vlen, info >> 31 == 1, extra), rest))
            type_id += 1
        if self._max_ref >= type_id:
            raise WptraceError(f"the BTF is corrupt: it refers to type {self._max_ref} of {type_id}")
        return types

    @staticmethod
    def words(info: int) -> int:
        """Return how many 32-bit words follow the first three of a type; `info` is the second of those."""
        fixed, each, _ = _KINDS[_kind_of(info)]
        return fixed + each * (info & 0xFFFF)

    def build(self, type_id: int, head: tuple[int, int, int], rest: tuple[int, ...]) -> Type:
        """Make a single type."""
        name_offset, info, extra = head
        made = _Head(type_id, self._name(name_offset), info & 0xFFFF, info >> 31 == 1, extra)
        return _KINDS[_kind_of(info)][2](self, made, rest)

    def _name(self, offset: int) -> str:
        name = self._names.get(offset)
        if name is None:
            name = self._names[offset] = self._read_name(offset)
        return name

    def _ref(self, type_id: int) -> int:
        if type_id > self._max_ref:
            self._max_ref = type_id
        return type_id

    def _int(self, head: _Head, rest: tuple[int, ...]) -> Type:
        if not 0 < head.extra <= 16 or (rest[0] & 0xFF) + (rest[0] >> 16 & 0xFF) > 8 * head.extra:
            raise WptraceError(f"the BTF is corrupt: the integer {head.name} does not fit its {head.extra} bytes")
        return Int(head.id, head.name, head.extra, rest[0])

    def _array(self, head: _Head, rest: tuple[int, ...]) -> Type:
        return Array(head.id, self._ref(rest[0]), rest[2])

    def _members(self, head: _Head, rest: tuple[int, ...]) -> list[Member]:
        size_shift = 24 if head.flag else 32
        offset_mask = (1 << size_shift) - 1
        return [
            Member(self._name(name), self._ref(target), place & offset_mask, place >> size_shift)
            for name, target, place in zip(rest[::3], rest[1::3], rest[2::3])
        ]

    def _enum(self, head: _Head, rest: tuple[int, ...]) -> Type:
        return Enum(head.id, head.name, head.extra, head.flag, self._values(head, 32, zip(rest[::2], rest[1::2])))

    def _enum64(self, head: _Head, rest: tuple[int, ...]) -> Type:
        wide = (high << 32 | low for low, high in zip(rest[1::3], rest[2::3]))
        return Enum(head.id, head.name, head.extra, head.flag, self._values(head, 64, zip(rest[::3], wide)))

    def _values(self, head: _Head, bits: int, found: Iterable[tuple[int, int]]) -> list[Enumerator]:
        if head.extra not in (1, 2, 4, 8):
            raise WptraceError(f"the BTF is corrupt: the enum {head.name} has {head.extra} bytes")
        wrap = 1 << bits - 1 if head.flag else 0
        return [Enumerator(self._name(name), (value ^ wrap) - wrap) for name, value in found]

    def _fwd(self, head: _Head, rest: tuple[int, ...]) -> Type:
        return Fwd(head.id, head.name, head.flag)

    def _func_proto(self, head: _Head, rest: tuple[int, ...]) -> Type:
        params = [Param(self._name(name), self._ref(target)) for name, target in zip(rest[::2], rest[1::2])]
        return FuncProto(head.id, self._ref(head.extra), params)

    def _datasec(self, head: _Head, rest: tuple[int, ...]) -> Type:
        places = [SecVar(self._ref(var), at, size) for var, at, size in zip(rest[::3], rest[1::3], rest[2::3])]
        return DataSec(head.id, head.name, head.extra, places)

    def _float(self, head: _Head, rest: tuple[int, ...]) -> Type:
        return Sized(head.id, head.name, head.extra)


_Build = Callable[[Builder, _Head, tuple[int, ...]], Type]


def _composite(kind: type[Composite]) -> _Build:
    return lambda builder, head, rest: kind(head.id, head.name, head.extra, builder._members(head, rest))


def _reference(kind: type[Ref]) -> _Build:
    return lambda builder, head, rest: kind(head.id, head.name, builder._ref(head.extra))


def _kind_of(info: int) -> int:
    kind = info >> 24 & 0x1F
    if not 0 < kind < len(_KINDS):
        raise UnsupportedError(f"BTF has a type of the unknown kind {kind}")
    return kind


def _string(strings: bytes, base: Btf | None, offset: int) -> str:
    if base is not None:
        if offset < base.strings_end:
            return base.string(offset)
        offset -= base.strings_end
    end = strings.find(b"\0", offset)
    if end < 0:
        raise WptraceError("the BTF is corrupt: a name lies outside the string section")
    return strings[offset:end].decode("utf-8", "replace")


# By info.kind: the number of 32-bit words after the head, the number of further ones for each of info.vlen, the
# builder.
_KINDS: Final[tuple[tuple[int, int, _Build], ...]] = (
    (0, 0, Builder._float),  # 0 is void, which never appears
    (1, 0, Builder._int),
    (0, 0, _reference(Ptr)),
    (3, 0, Builder._array),
    (0, 3, _composite(Struct)),
    (0, 3, _composite(Union)),
    (0, 2, Builder._enum),
    (0, 0, Builder._fwd),
    (0, 0, _reference(Typedef)),
    (0, 0, _reference(Volatile)),
    (0, 0, _reference(Const)),
    (0, 0, _reference(Restrict)),
    (0, 0, _reference(Func)),
    (0, 2, Builder._func_proto),
    (1, 0, _reference(Var)),
    (0, 3, Builder._datasec),
    (0, 0, Builder._float),
    (1, 0, _reference(Ref)),  # a tag on a declaration
    (0, 0, _reference(Modifier)),  # a tag on a type
    (0, 3, Builder._enum64),
)
