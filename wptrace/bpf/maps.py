# SPDX-License-Identifier: Apache-2.0
"""BPF maps as Python mappings: keys and values have the types that the object's BTF gives them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any

from wptrace.bpf.lib import libbpf, memory_of
from wptrace.errors import UsageError, WptraceError

if TYPE_CHECKING:
    from wptrace.bpf.btf import Btf

# enum bpf_map_type
HASH, ARRAY = 1, 2
PERCPU_HASH, PERCPU_ARRAY = 5, 6
LRU_PERCPU_HASH = 10
PER_CPU = frozenset({PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH, 21})
ARRAYS = frozenset({ARRAY, PERCPU_ARRAY})
_BATCH = 256
# Reading an element alone takes about as long as this many in a batch.
_SINGLE = 5


class Raw:
    """Stands in for a codec where the object's BTF names no type: plain bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def unpack(self, buffer: Any, offset: int = 0) -> bytes:
        return bytes(buffer[offset : offset + self.size])

    def pack(self, value: bytes) -> bytes:
        if len(value) != self.size:
            raise UsageError(f"{len(value)} bytes were given where {self.size} are needed")
        return bytes(value)


class Map:
    """A map. An element of a per-CPU map has a list with the values of all possible CPUs."""

    def __init__(self, handle: Any, btf: Btf) -> None:
        self._libbpf = libbpf()
        self._lib = self._libbpf.lib
        self._ffi = self._libbpf.ffi
        self._handle = handle
        self._btf = btf
        self.name: str = self._ffi.string(self._lib.bpf_map__name(handle)).decode()
        self.type: int = self._lib.bpf_map__type(handle)
        self.per_cpu = self.type in PER_CPU
        self._cpus = self._libbpf.cpus if self.per_cpu else 1

    @property
    def fd(self) -> int:
        fd = int(self._lib.bpf_map__fd(self._handle))
        if fd < 0:
            raise WptraceError(f"map {self.name} does not exist before its object is loaded")
        return fd

    @property
    def max_entries(self) -> int:
        return int(self._lib.bpf_map__max_entries(self._handle))

    @max_entries.setter
    def max_entries(self, entries: int) -> None:
        result = self._lib.bpf_map__set_max_entries(self._handle, entries)
        self._libbpf.check(result, f"map {self.name} cannot be made {entries} entries large")

    @property
    def value_size(self) -> int:
        return int(self._lib.bpf_map__value_size(self._handle))

    @value_size.setter
    def value_size(self, size: int) -> None:
        """Set the size of values without a type, before the load."""
        result = self._lib.bpf_map__set_value_size(self._handle, size)
        self._libbpf.check(result, f"values of map {self.name} cannot have {size} bytes")

    def disable(self) -> None:
        """Leaves the map out of the load."""
        self._libbpf.check(
            self._lib.bpf_map__set_autocreate(self._handle, False), f"map {self.name} cannot be left out"
        )

    @cached_property
    def key_codec(self) -> Any:
        return self._codec(self._lib.bpf_map__btf_key_type_id(self._handle), self._lib.bpf_map__key_size(self._handle))

    @cached_property
    def value_codec(self) -> Any:
        return self._codec(
            self._lib.bpf_map__btf_value_type_id(self._handle), self._lib.bpf_map__value_size(self._handle)
        )

    def _codec(self, type_id: int, size: int) -> Any:
        from wptrace.bpf.layout import codec

        return codec(self._btf, type_id) if type_id else Raw(size)

    @property
    def _stride(self) -> int:
        # The kernel pads each CPU's value to 8 bytes.
        size = int(self.value_codec.size)
        return (size + 7) & ~7 if self.per_cpu else size

    def _decode(self, buffer: Any, offset: int = 0) -> Any:
        unpack, stride = self.value_codec.unpack, self._stride
        if not self.per_cpu:
            return unpack(buffer, offset)
        return [unpack(buffer, offset + cpu * stride) for cpu in range(self._cpus)]

    def _encode(self, value: Any) -> bytes:
        pack = self.value_codec.pack
        if not self.per_cpu:
            return bytes(pack(value))
        if len(value) != self._cpus:
            raise UsageError(f"map {self.name} takes a list of {self._cpus} values, one per CPU")
        return b"".join(pack(one).ljust(self._stride, b"\0") for one in value)

    def raw(self, key: Any) -> memoryview | None:
        """The bytes of an element, all CPUs' values behind each other; None where there is none."""
        buffer = bytearray(self._stride * self._cpus)
        result = self._lib.bpf_map_lookup_elem(
            self.fd, self.key_codec.pack(key), self._ffi.from_buffer(buffer, require_writable=True)
        )
        if result == -errno.ENOENT:
            return None
        self._libbpf.check(result, f"map {self.name} cannot be read")
        return memoryview(buffer)

    def get(self, key: Any, default: Any = None) -> Any:
        found = self.raw(key)
        return default if found is None else self._decode(found)

    def __getitem__(self, key: Any) -> Any:
        found = self.raw(key)
        if found is None:
            raise KeyError(key)
        return self._decode(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        result = self._lib.bpf_map_update_elem(self.fd, self.key_codec.pack(key), self._encode(value), 0)
        if result == -errno.E2BIG and self.type in ARRAYS:
            raise UsageError(f"map {self.name} has no element {key}: it ends at {self.max_entries - 1}")
        if result == -errno.E2BIG:
            raise WptraceError(f"map {self.name} is full: it holds {self.max_entries} elements")
        self._libbpf.check(result, f"map {self.name} cannot be written")

    def clear(self, key: Any) -> None:
        """Makes all bytes of an array's element 0, those of all CPUs."""
        nothing = bytes(self._stride * self._cpus)
        result = self._lib.bpf_map_update_elem(self.fd, self.key_codec.pack(key), nothing, 0)
        self._libbpf.check(result, f"map {self.name} cannot be written")

    def __delitem__(self, key: Any) -> None:
        result = self._lib.bpf_map_delete_elem(self.fd, self.key_codec.pack(key))
        if result == -errno.ENOENT:
            raise KeyError(key)
        self._libbpf.check(result, f"an element of map {self.name} cannot be deleted")

    def __contains__(self, key: Any) -> bool:
        return self.raw(key) is not None

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def keys(self) -> Iterator[Any]:
        codec = self.key_codec
        following = self._ffi.new("char[]", codec.size)
        previous: Any = self._ffi.NULL
        while True:
            result = self._lib.bpf_map_get_next_key(self.fd, previous, following)
            if result == -errno.ENOENT:
                return
            self._libbpf.check(result, f"map {self.name} cannot be walked")
            found = bytes(self._ffi.buffer(following))
            yield codec.unpack(found)
            previous = found

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All elements, in batches of many a system call where this kernel has them for this type of map."""
        key, size, stride = self.key_codec, self.key_codec.size, self._stride * self._cpus
        for count, keys, values in self._batches():
            for index in range(count):
                yield key.unpack(keys, index * size), self._decode(values, index * stride)

    def used(self) -> Iterator[Any]:
        """The values whose first eight bytes are not 0. Most of a table are, and only the others are decoded."""
        stride = self._stride * self._cpus
        for count, _, values in self._batches():
            first = values.cast("Q")[:: stride // 8].tolist()
            for index in compress(range(count), first):
                yield self._decode(values, index * stride)

    def firsts(self, wanted: int) -> list[int] | None:
        """The first field (64 bits) of each element of an array, added up over CPUs.

        None if it takes less time to read as many elements as are `wanted` one by one.
        """
        if wanted * _SINGLE < self.max_entries:
            return None
        stride = self._stride // 8
        found: list[int] = []
        for count, _, values in self._batches():
            if not found and count == 1 < self.max_entries:
                # This kernel has no batches.
                return None
            words = values[: count * stride * 8 * self._cpus].cast("Q")
            found += map(sum, zip(*(words[cpu * stride :: self._cpus * stride].tolist() for cpu in range(self._cpus))))
        return found

    def _batches(self) -> Iterator[tuple[int, bytes, memoryview]]:
        batch = self._batch(self._ffi.NULL)
        if batch is None:
            for key in self.keys():
                found = self.raw(key)
                if found is not None:  # deleted since its key was read
                    yield 1, self.key_codec.pack(key), found
        while batch is not None:
            count, keys, values, position, last = batch
            yield count, keys, values
            if last:
                return
            batch = self._batch(position)
            if batch is None:
                raise WptraceError(f"map {self.name} cannot be read to its end")

    def _batch(self, position: Any) -> tuple[int, bytes, memoryview, Any, bool] | None:
        """Return a batch from `position` on; None if this kernel has no batches for such a map."""
        ffi = self._ffi
        room = min(self.max_entries, _BATCH)
        while True:
            keys = bytearray(room * self.key_codec.size)
            values = bytearray(room * self._stride * self._cpus)
            count = ffi.new("__u32 *", room)
            # A hash hands out a bucket number (4 bytes), an array its last key.
            reached = ffi.new("char[]", max(self.key_codec.size, 4))
            result = self._lib.bpf_map_lookup_batch(
                self.fd, position, reached, ffi.from_buffer(keys), ffi.from_buffer(values), count, ffi.NULL
            )
            if result == -errno.ENOSPC and room < self.max_entries:  # a bucket holds more than there was room for
                room = min(room * 2, self.max_entries)
                continue
            if result in (-errno.EINVAL, -524, -errno.EOPNOTSUPP):  # 524 is ENOTSUPP, which has no name here
                return None
            if result != -errno.ENOENT:
                self._libbpf.check(result, f"map {self.name} cannot be read")
            return count[0], bytes(keys), memoryview(values), reached, result == -errno.ENOENT

    def summed(self, key: Any) -> Any:
        """The values of all CPUs added up, field by field. Only for a per-CPU map of counters."""
        values = self[key]
        return _add(values) if self.per_cpu else values

    @property
    def planned_bytes(self) -> int:
        """The memory that its elements will take at the load, for all possible CPUs."""
        value = (self.value_size + 7 & ~7) * self._cpus
        # The elements of a ring are bytes, without keys and values.
        return self.max_entries * (self._lib.bpf_map__key_size(self._handle) * (self.type not in ARRAYS) + value or 1)

    def memory(self) -> int:
        return memory_of(self.fd)


def _add(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, (int, float)):
        return sum(values)
    if isinstance(first, tuple) and not hasattr(first, "_fields"):
        return tuple(_add(list(column)) for column in zip(*values))
    return type(first)(**{name: _add([getattr(value, name) for value in values]) for name in first._asdict()})
