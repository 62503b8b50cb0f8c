# SPDX-License-Identifier: Apache-2.0
"""Codecs between bytes and Python values, made from BTF, so that no C struct is typed again in Python.

    cell = codec(btf, type_id)
    value = cell.unpack(buffer, offset)
    data = cell.pack({"dev": 8, "op": "BLOCK_READ"})

    C type                          unpacked as                    packed from
    integer, pointer, bool, float   int, int, bool, float          the same
    enum                            int; `names` has its name      int, or the name of a value
    char[N]                         bytes up to the first NUL      bytes or str
    unsigned char[N]                bytes, all N of them           bytes or N integers
    any other array                 tuple                          a sequence of N
    struct                          Record: members are attributes a Record or a mapping; what is missing is 0
    union                           Record with all members        the same; what is given must agree

Members of anonymous structs and unions belong to the struct around them, as in C.
"""

from __future__ import annotations

import operator
import struct as packing
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Callable, Final, NamedTuple

from wptrace.bpf.btf import (
    MAX_DEPTH,
    POINTER_SIZE,
    Array,
    Btf,
    Composite,
    Enum,
    Float,
    Int,
    Member,
    Ptr,
    Struct,
    Var,
)
from wptrace.errors import UnsupportedError, UsageError, WptraceError

# With more fields a single format string costs more than it saves.
MAX_FLAT_FIELDS: Final = 6144

_UNSIGNED: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOATS: Final = {2: "e", 4: "f", 8: "d"}


def _certain(layout: packing.Struct | None) -> packing.Struct:
    """The layout of a codec whose kind always has one."""
    if layout is None:
        raise WptraceError("a flat codec has no layout")
    return layout


def codec(btf: Btf, type_id: int) -> Codec:
    """The codec of a type; of a variable's type where the id is a variable's."""
    return _Builder(btf).build(type_id, 0)


def text(data: bytes) -> str:
    """A C string as str: up to the first NUL; bytes that are not UTF-8 become \\xNN."""
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")


class Flat:
    """A layout as a struct format without byte order, how many values the format gives, and their names: a cell has
    thousands, of which few are asked for, so an array of numbers is one name and how many there are; 0 is no array."""

    def __init__(
        self, layout: str, count: int = 1, spans: Callable[[], Iterator[tuple[str, int]]] = lambda: iter([("", 0)])
    ) -> None:
        self.format, self.count, self.spans = layout, count, spans

    @cached_property
    def fields(self) -> tuple[str, ...]:
        found: list[str] = []
        for name, length in self.spans():
            found += [f"{name}[{place}]" for place in range(length)] if length else [name]
        return tuple(found)


class Codec:
    """The memory layout of a type; the subclasses are the rows of the table above."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {self.size} bytes>"

    def unpack(self, buffer: Any, offset: int = 0) -> Any:
        if offset < 0 or len(buffer) - offset < self.size:
            raise WptraceError(
                f"{self.name} has {self.size} bytes at offset {offset}, the buffer ends at {len(buffer)}"
            )
        return self.read(buffer, offset)

    def pack(self, value: Any, path: str = "") -> bytes:
        """The bytes of a value; `path` is what error messages call it."""
        data = bytearray(self.size)
        self.write(data, 0, value, path)
        return bytes(data)

    @cached_property
    def struct(self) -> packing.Struct | None:
        """The format of the whole type, padding included; None with unions, bit fields or too many fields."""
        return packing.Struct("<" + self.flat.format) if self.flat else None

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the values that `struct` gives: `times.start`, `stages[3]`; empty for a lone value."""
        return self.flat.fields if self.flat else ()

    def spans(self) -> Iterator[tuple[str, int]]:
        """Generate names as `fields` has them, but an array of numbers is one name with its length; 0: no array."""
        return self.flat.spans() if self.flat else iter(())

    def read(self, buffer: Any, offset: int) -> Any:
        """`unpack` for callers that know the length of the buffer."""
        raise NotImplementedError

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        """`pack` into memory that is zero so far."""
        raise NotImplementedError

    @cached_property
    def flat(self) -> Flat | None:
        return None

    def _error(self, path: str, problem: str) -> UsageError:
        return UsageError(f"{path}: {problem} ({self.name})" if path else f"{problem} ({self.name})")


class Integer(Codec):
    """Integers, pointers, bools, enums; a bit field is `bits` bits of `size` bytes, from bit `shift` on."""

    def __init__(self, name: str, size: int, signed: bool, bits: int = 0, shift: int = 0) -> None:
        super().__init__(f"{name} : {bits}" if bits else name, size)
        self.code = "" if bits else _UNSIGNED.get(size, "")
        if signed:
            self.code = self.code.lower()
        self.signed = signed
        self.bits = bits or 8 * size
        self.shift = shift
        self.low = -(1 << self.bits - 1) if signed else 0
        self.high = self.low + (1 << self.bits) - 1

    def read(self, buffer: Any, offset: int) -> int:
        if self.struct:
            return int(self.struct.unpack_from(buffer, offset)[0])
        whole = int.from_bytes(buffer[offset : offset + self.size], "little")
        number = whole >> self.shift & (1 << self.bits) - 1
        return number - (1 << self.bits) if self.signed and number >> self.bits - 1 else number

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        number = self.number(value, path)
        if not self.low <= number <= self.high:
            raise self._error(path, f"{number} is outside {self.low}..{self.high}")
        end = offset + self.size
        # Bit fields share bytes with their neighbours.
        whole = int.from_bytes(data[offset:end], "little")
        whole |= (number & (1 << self.bits) - 1) << self.shift
        data[offset:end] = whole.to_bytes(self.size, "little")

    def number(self, value: Any, path: str) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise self._error(path, f"{value!r} is not an integer") from None

    @cached_property
    def flat(self) -> Flat | None:
        return Flat(self.code) if self.code else None


class Boolean(Integer):
    def __init__(self, name: str, size: int, bits: int = 0, shift: int = 0) -> None:
        super().__init__(name, size, False, bits, shift)
        self.code = self.code.replace("B", "?")
        self.high = 1

    def read(self, buffer: Any, offset: int) -> bool:
        return bool(super().read(buffer, offset))


class Enumeration(Integer):
    """An enum; values without a name are allowed, flags and newer kernels have them."""

    def __init__(self, name: str, declared: Enum, size: int, bits: int = 0, shift: int = 0) -> None:
        super().__init__(name, size, declared.signed, bits, shift)
        self.values = {each.name: each.value for each in declared.values}
        self.names = {value: name for name, value in reversed(self.values.items())}

    def number(self, value: Any, path: str) -> int:
        if not isinstance(value, str):
            return super().number(value, path)
        if value not in self.values:
            raise self._error(path, f"{value!r} is none of {', '.join(self.values)}")
        return self.values[value]


class Real(Codec):
    @cached_property
    def flat(self) -> Flat | None:
        return Flat(_FLOATS[self.size])

    def read(self, buffer: Any, offset: int) -> float:
        return float(_certain(self.struct).unpack_from(buffer, offset)[0])

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        try:
            _certain(self.struct).pack_into(data, offset, value)
        except (packing.error, OverflowError):
            raise self._error(path, f"{value!r} is not a number of {self.size} bytes") from None


class Bytes(Codec):
    """An array of unsigned bytes."""

    def read(self, buffer: Any, offset: int) -> bytes:
        return bytes(buffer[offset : offset + self.size])

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        try:
            content = bytes(value if isinstance(value, (bytes, bytearray, memoryview)) else list(value))
        except (TypeError, ValueError):
            raise self._error(path, f"{value!r} is neither bytes nor integers in 0..255") from None
        if len(content) != self.size:
            raise self._error(path, f"{len(content)} bytes were given where {self.size} are needed")
        data[offset : offset + self.size] = content

    @cached_property
    def flat(self) -> Flat | None:
        return Flat(f"{self.size}s")


class Text(Bytes):
    """An array of char: a C string, which need not end with NUL where it fills the array."""

    def read(self, buffer: Any, offset: int) -> bytes:
        return super().read(buffer, offset).split(b"\0", 1)[0]

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        if not isinstance(value, (str, bytes, bytearray, memoryview)):
            raise self._error(path, f"{value!r} is neither bytes nor str")
        content = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)
        if len(content) > self.size:
            raise self._error(path, f"{len(content)} bytes do not fit into {self.size}")
        data[offset : offset + len(content)] = content


class Tuple(Codec):
    """Any other array."""

    def __init__(self, name: str, element: Codec, count: int) -> None:
        super().__init__(name, element.size * count)
        self.element = element
        self.count = count if element.size else 0

    def read(self, buffer: Any, offset: int) -> tuple[Any, ...]:
        if self._numbers:
            return self._numbers.unpack_from(buffer, offset)
        read, size = self.element.read, self.element.size
        return tuple([read(buffer, offset + i * size) for i in range(self.count)])

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise self._error(path, f"{value!r} is not a sequence")
        if len(value) != self.count:
            raise self._error(path, f"{len(value)} values were given where {self.count} are needed")
        for index, each in enumerate(value):
            self.element.write(data, offset + index * self.element.size, each, f"{path}[{index}]")

    @cached_property
    def _numbers(self) -> packing.Struct | None:
        code = self.element.code if isinstance(self.element, Integer) else ""
        return packing.Struct(f"<{self.count}{code}") if code else None

    @cached_property
    def flat(self) -> Flat | None:
        inner = self.element.flat
        if not inner or self.count * inner.count > MAX_FLAT_FIELDS:
            return None
        if isinstance(self.element, (Integer, Real)):
            whole = [("", self.count)] if self.count else []
            return Flat(f"{self.count}{inner.format}", self.count, lambda: iter(whole))
        places = range(self.count)
        spans = lambda: (  # noqa: E731
            (_join(f"[{place}]", name), length) for place in places for name, length in inner.spans()
        )
        return Flat(inner.format * self.count, self.count * inner.count, spans)


class Record:
    """The value of a struct or union: its members are attributes."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Record) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _asdict(self) -> dict[str, Any]:
        return dict(vars(self))


class Place(NamedTuple):
    """A member and its offset; an anonymous struct or union has no name."""

    name: str
    offset: int
    codec: Codec


class Aggregate(Codec):
    """The base of structs and unions: members by name."""

    def __init__(self, name: str, size: int, places: list[Place]) -> None:
        super().__init__(name, size)
        self.places = places
        self.names = tuple(_names(places))
        self.record: type[Record] = type(name.split(" ")[-1], (Record,), {})

    def member(self, name: str) -> Codec:
        """Raises KeyError where there is none of that name."""
        for place in self.places:
            if place.name == name:
                return place.codec
        raise KeyError(name)

    def read(self, buffer: Any, offset: int) -> Record:
        record = self.record()
        record.__dict__.update(self.items(buffer, offset))
        return record

    def items(self, buffer: Any, offset: int) -> Iterator[tuple[str, Any]]:
        """Names and values, those of anonymous members in their place."""
        for name, start, inner in self.places:
            if not name and isinstance(inner, Aggregate):
                yield from inner.items(buffer, offset + start)
            else:
                yield name, inner.read(buffer, offset + start)

    def given(self, value: Any, path: str) -> Mapping[str, Any]:
        members = vars(value) if isinstance(value, Record) else value
        if not isinstance(members, Mapping):
            raise self._error(path, f"{value!r} has no members by name")
        for name in members:
            if name not in self.names:
                raise self._error(path, f"there is no member {name}; there are {', '.join(self.names)}")
        return members

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        self.write_members(data, offset, self.given(value, path), path)

    def write_members(self, data: bytearray, offset: int, members: Mapping[str, Any], path: str) -> None:
        """Write those of the members that are this aggregate's."""
        raise NotImplementedError


class Structure(Aggregate):
    def read(self, buffer: Any, offset: int) -> Record:
        if not self._plain:
            return super().read(buffer, offset)
        record = self.record()
        record.__dict__.update(zip(self.names, _certain(self.struct).unpack_from(buffer, offset)))
        return record

    def write_members(self, data: bytearray, offset: int, members: Mapping[str, Any], path: str) -> None:
        for name, start, inner in self.places:
            if not name and isinstance(inner, Aggregate):
                inner.write_members(data, offset + start, members, path)
            elif name in members:
                inner.write(data, offset + start, members[name], _join(path, name))

    @cached_property
    def _plain(self) -> bool:
        """Each value of the format is the value of a member."""
        return self.flat is not None and all(isinstance(place.codec, (Integer, Real)) for place in self.places)

    @cached_property
    def flat(self) -> Flat | None:
        return self._flat(())

    def packed(self, *whole: str) -> tuple[packing.Struct, tuple[str, ...]]:
        """Return `struct` and `fields` with these members as bytes, because skipping is much quicker than unpacking."""
        flat = self._flat(whole)
        if flat is None:
            raise UnsupportedError(f"{self.name} has no flat layout")
        return packing.Struct("<" + flat.format), flat.fields

    def before(self, name: str) -> Structure:
        """Return the part before a member, or all of it if there is no such member."""
        end = next((place.offset for place in self.places if place.name == name), self.size)
        return Structure(self.name, end, [place for place in self.places if place.offset < end])

    def only(self, names: Collection[str]) -> Structure:
        """Return the layout with these members only, at their offsets. Raise KeyError for an unknown name."""
        for name in names:
            self.member(name)
        return Structure(self.name, self.size, [place for place in self.places if place.name in names])

    def shortened(self, count: int) -> Structure:
        """Return the layout with fewer elements in the array that is its last member."""
        *places, (name, offset, array) = self.places
        if not isinstance(array, Tuple):
            raise UnsupportedError(f"{self.name} does not end with an array")
        last = Tuple(array.name, array.element, min(count, array.count))
        return Structure(self.name, offset + last.size, [*places, Place(name, offset, last)])

    def _flat(self, whole: Collection[str]) -> Flat | None:
        layout, end, count = "", 0, 0
        members: list[tuple[str, Flat]] = []
        for name, start, inner in self.places:
            flat = Flat(f"{inner.size}s") if name in whole else inner.flat
            if not flat or start < end or count + flat.count > MAX_FLAT_FIELDS:
                return None
            layout += _padding(start - end) + flat.format
            members.append((name, flat))
            end, count = start + inner.size, count + flat.count
        spans = lambda: (  # noqa: E731
            (_join(outer, name), length) for outer, flat in members for name, length in flat.spans()
        )
        return Flat(layout + _padding(self.size - end), count, spans)


class Overlay(Aggregate):
    """A union."""

    def write_members(self, data: bytearray, offset: int, members: Mapping[str, Any], path: str) -> None:
        chosen = [place for place in self.places if members.keys() & _names([place])]
        if not chosen:
            return
        # Members may leave holes (padding, spare bits): what agrees with all the others is the whole.
        for candidate in chosen:
            content = bytearray(self.size)
            _write_place(candidate, content, members, path)
            if all(_agrees(place, content, members) for place in chosen if place is not candidate):
                data[offset : offset + self.size] = content
                return
        names = ", ".join(name for name in self.names if name in members)
        raise self._error(path, f"{names} share memory and do not agree: give one of them")


def _write_place(place: Place, data: bytearray, members: Mapping[str, Any], path: str) -> None:
    if not place.name and isinstance(place.codec, Aggregate):
        place.codec.write_members(data, place.offset, members, path)
    else:
        place.codec.write(data, place.offset, members[place.name], _join(path, place.name))


def _agrees(place: Place, data: bytearray, members: Mapping[str, Any]) -> bool:
    """Whether a member has the value that was given for it, where `data` is what the union holds."""
    if not place.name and isinstance(place.codec, Aggregate):
        values = dict(place.codec.items(data, place.offset))
        return all(values[name] == members[name] for name in values.keys() & members.keys())
    held, given = place.codec.read(data, place.offset), members[place.name]
    return bool(held == given) or (held != held and given != given)  # NaN


def _names(places: list[Place]) -> Iterator[str]:
    for name, _, inner in places:
        if not name and isinstance(inner, Aggregate):
            yield from inner.names
        else:
            yield name


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and not name.startswith("[") else path + name


def _padding(size: int) -> str:
    return f"{size}x" if size else ""


class _Builder:
    def __init__(self, btf: Btf) -> None:
        self._btf = btf
        self._built: dict[int, Codec] = {}

    def build(self, type_id: int, depth: int) -> Codec:
        if depth > MAX_DEPTH:
            raise WptraceError(f"the BTF is corrupt: {self._btf.describe(type_id)} holds itself")
        if type_id not in self._built:
            self._built[type_id] = self._build(type_id, depth)
        return self._built[type_id]

    def _build(self, type_id: int, depth: int) -> Codec:
        name = self._btf.describe(type_id)
        entry = self._btf.resolve(type_id)
        if isinstance(entry, Var):
            return self.build(entry.type, depth + 1)
        if isinstance(entry, (Int, Enum)):
            return self._integer(name, entry, entry.size)
        if isinstance(entry, Ptr):
            return Integer(name, POINTER_SIZE, signed=False)
        if isinstance(entry, Float) and entry.size in _FLOATS:
            return Real(name, entry.size)
        if isinstance(entry, Array):
            return self._array(name, entry, depth)
        if isinstance(entry, Composite):
            places = [place for member in entry.members for place in self._place(entry, member, depth)]
            if len(set(_names(places))) != len(list(_names(places))):
                raise WptraceError(f"the BTF is corrupt: {name} has two members of one name")
            return (Structure if isinstance(entry, Struct) else Overlay)(name, entry.size, places)
        raise UnsupportedError(f"values of the type {name} cannot be read or written")

    @staticmethod
    def _integer(name: str, entry: Int | Enum, size: int, bits: int = 0, shift: int = 0) -> Integer:
        if isinstance(entry, Enum):
            return Enumeration(name, entry, size, bits, shift)
        if entry.is_bool:
            return Boolean(name, size, bits, shift)
        return Integer(name, size, entry.signed, bits, shift)

    def _array(self, name: str, entry: Array, depth: int) -> Codec:
        element = self._btf.resolve(entry.element)
        if isinstance(element, Int) and element.size == 1 and not element.is_bool:
            # clang and pahole do not set BTF_INT_CHAR.
            if element.is_char or element.name == "char":
                return Text(name, entry.count)
            if not element.signed:
                return Bytes(name, entry.count)
        return Tuple(name, self.build(entry.element, depth + 1), entry.count)

    def _place(self, owner: Composite, member: Member, depth: int) -> list[Place]:
        """Return the place of a member, or those of an anonymous struct's members; nothing for padding."""
        bit_offset, bits = self._btf.bits(member)
        offset, shift = divmod(bit_offset, 8)
        inner = self._bit_field(member, bits, shift) if bits else self.build(member.type, depth + 1)
        if (shift and not bits) or offset + inner.size > owner.size:
            outer = self._btf.describe(owner.id)
            raise WptraceError(f"the BTF is corrupt: {member.name} lies outside {outer}")
        if not member.name and not isinstance(inner, Aggregate):
            return []
        # Only unions stay together: packing looks at their members at once.
        if not member.name and isinstance(inner, Structure) and isinstance(owner, Struct):
            return [Place(each.name, offset + each.offset, each.codec) for each in inner.places]
        return [Place(member.name, offset, inner)]

    def _bit_field(self, member: Member, bits: int, shift: int) -> Codec:
        entry = self._btf.resolve(member.type)
        if not isinstance(entry, (Int, Enum)):
            raise WptraceError(f"the BTF is corrupt: the bit field {member.name} is not an integer")
        size = (shift + bits + 7) // 8
        return self._integer(self._btf.describe(member.type), entry, size, bits, shift)
