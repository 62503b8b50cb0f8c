# SPDX-License-Identifier: Apache-2.0
"""Codecs between bytes and Python values, made from BTF, so that no C struct is typed again in Python.

    cell = codec(btf, type_id)
    value = cell.unpack(buffer, offset)
    data = cell.pack({"dev": 8, "op": "BLOCK_READ"})

    C type                          unpacked as                    packed from
    integer, pointer, bool          int, int, bool                 the same
    enum                            int; `names` has its name      int, or the name of a value
    char[N]                         bytes up to the first NUL      bytes or str
    unsigned char[N]                bytes, all N of them           bytes or N integers
    any other array                 tuple                          a sequence of N
    struct                          Record: members are attributes a Record or a mapping; what is missing is 0

Members of anonymous structs belong to the struct around them, as in C. Unions, bit fields and floats, which records and
globals do without, are refused.
"""

from __future__ import annotations

import operator
import struct as packing
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Callable, Final, NamedTuple

from wptrace.bpf.btf import MAX_DEPTH, POINTER_SIZE, Array, Btf, Enum, Int, Member, Ptr, Struct, Var
from wptrace.errors import UnsupportedError, UsageError, WptraceError

# With more fields a single format string costs more than it saves.
MAX_FLAT_FIELDS: Final = 6144

_UNSIGNED: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


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
        """The format of the whole type, padding included; None with too many fields."""
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
    """Integers, pointers, bools, enums."""

    def __init__(self, name: str, size: int, signed: bool = False) -> None:
        super().__init__(name, size)
        self.code = _UNSIGNED[size].lower() if signed else _UNSIGNED[size]
        self.signed = signed
        self.low = -(1 << 8 * size - 1) if signed else 0
        self.high = self.low + (1 << 8 * size) - 1

    @cached_property
    def _format(self) -> packing.Struct:
        return packing.Struct(f"<{self.code}")

    def read(self, buffer: Any, offset: int) -> int:
        (found,) = self._format.unpack_from(buffer, offset)
        return found  # type: ignore[no-any-return]

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        number = self.number(value, path)
        if not self.low <= number <= self.high:
            raise self._error(path, f"{number} is outside {self.low}..{self.high}")
        self._format.pack_into(data, offset, number)

    def number(self, value: Any, path: str) -> int:
        try:
            return operator.index(value)
        except TypeError:
            raise self._error(path, f"{value!r} is not an integer") from None

    @cached_property
    def flat(self) -> Flat | None:
        return Flat(self.code)


class Boolean(Integer):
    def __init__(self, name: str) -> None:
        super().__init__(name, 1)
        self.code, self.high = "?", 1


class Enumeration(Integer):
    """An enum; values without a name are allowed, flags and newer kernels have them."""

    def __init__(self, name: str, declared: Enum) -> None:
        super().__init__(name, declared.size, declared.signed)
        self.values = {each.name: each.value for each in declared.values}
        self.names = {value: name for name, value in reversed(self.values.items())}

    def number(self, value: Any, path: str) -> int:
        if not isinstance(value, str):
            return super().number(value, path)
        if value not in self.values:
            raise self._error(path, f"{value!r} is none of {', '.join(self.values)}")
        return self.values[value]


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
        return packing.Struct(f"<{self.count}{self.element.code}") if isinstance(self.element, Integer) else None

    @cached_property
    def flat(self) -> Flat | None:
        inner = self.element.flat
        if not inner or self.count * inner.count > MAX_FLAT_FIELDS:
            return None
        if isinstance(self.element, Integer):
            whole = [("", self.count)] if self.count else []
            return Flat(f"{self.count}{inner.format}", self.count, lambda: iter(whole))
        places = range(self.count)
        spans = lambda: (  # noqa: E731
            (_join(f"[{place}]", name), length) for place in places for name, length in inner.spans()
        )
        return Flat(inner.format * self.count, self.count * inner.count, spans)


class Record:
    """The value of a struct; its members are attributes."""

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
    """A member and its offset."""

    name: str
    offset: int
    codec: Codec


class Structure(Codec):
    """A struct: members by name."""

    def __init__(self, name: str, size: int, places: list[Place]) -> None:
        super().__init__(name, size)
        self.places = places
        self.names = tuple(place.name for place in places)
        self.record: type[Record] = type(name.split(" ")[-1], (Record,), {})

    def member(self, name: str) -> Codec:
        """Raises KeyError where there is none of that name."""
        for place in self.places:
            if place.name == name:
                return place.codec
        raise KeyError(name)

    def read(self, buffer: Any, offset: int) -> Record:
        record = self.record()
        if self._plain:
            record.__dict__.update(zip(self.names, self._plain.unpack_from(buffer, offset)))
        else:
            record.__dict__.update({name: inner.read(buffer, offset + start) for name, start, inner in self.places})
        return record

    def write(self, data: bytearray, offset: int, value: Any, path: str) -> None:
        members = vars(value) if isinstance(value, Record) else value
        if not isinstance(members, Mapping):
            raise self._error(path, f"{value!r} has no members by name")
        for name in members:
            if name not in self.names:
                raise self._error(path, f"there is no member {name}; there are {', '.join(self.names)}")
        for name, start, inner in self.places:
            if name in members:
                inner.write(data, offset + start, members[name], _join(path, name))

    @cached_property
    def _plain(self) -> packing.Struct | None:
        """The format of the whole, if each of its values is that of a member."""
        return self.struct if all(isinstance(place.codec, Integer) for place in self.places) else None

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
        if isinstance(entry, Int) and entry.size in _UNSIGNED:
            return Boolean(name) if entry.is_bool and entry.size == 1 else Integer(name, entry.size, entry.signed)
        if isinstance(entry, Enum):
            return Enumeration(name, entry)
        if isinstance(entry, Ptr):
            return Integer(name, POINTER_SIZE)
        if isinstance(entry, Array):
            return self._array(name, entry, depth)
        if isinstance(entry, Struct):
            made = Structure(
                name, entry.size, [place for one in entry.members for place in self._place(entry, one, depth)]
            )
            if len(set(made.names)) != len(made.names):
                raise WptraceError(f"the BTF is corrupt: {name} has two members of one name")
            return made
        raise UnsupportedError(f"values of the type {name} cannot be read or written")

    def _array(self, name: str, entry: Array, depth: int) -> Codec:
        element = self._btf.resolve(entry.element)
        if isinstance(element, Int) and element.size == 1 and not element.is_bool:
            # clang and pahole do not set BTF_INT_CHAR.
            if element.is_char or element.name == "char":
                return Text(name, entry.count)
            if not element.signed:
                return Bytes(name, entry.count)
        return Tuple(name, self.build(entry.element, depth + 1), entry.count)

    def _place(self, owner: Struct, member: Member, depth: int) -> list[Place]:
        """Return the place of a member, or those of an anonymous struct's members; nothing for padding."""
        bit_offset, bits = self._btf.bits(member)
        if bits and member.name:
            raise UnsupportedError(f"the bit field {member.name} of {self._btf.describe(owner.id)} cannot be read")
        if bits:
            return []
        offset, shift = divmod(bit_offset, 8)
        inner = self.build(member.type, depth + 1)
        if shift or offset + inner.size > owner.size:
            outer = self._btf.describe(owner.id)
            raise WptraceError(f"the BTF is corrupt: {member.name} lies outside {outer}")
        if member.name:
            return [Place(member.name, offset, inner)]
        places = inner.places if isinstance(inner, Structure) else []
        return [place._replace(offset=offset + place.offset) for place in places]
