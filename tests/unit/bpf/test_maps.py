# SPDX-License-Identifier: Apache-2.0
"""Maps on a kernel made of Python, without BPF or types of keys and values."""

from __future__ import annotations

import errno
import struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.bpf import maps
from wptrace.bpf.lib import Libbpf, libbpf
from wptrace.bpf.maps import ARRAY, HASH, LRU_PERCPU_HASH, PERCPU_ARRAY, PERCPU_HASH, Map, Raw
from wptrace.errors import LibbpfError, NotPermittedError, UsageError, WptraceError

ENOTSUPP = 524


class Kernel:
    """A map, and the part of libbpf that accesses it."""

    def __init__(self, kind: int, key_size: int = 4, value_size: int = 8, entries: int = 1000, cpus: int = 1) -> None:
        self.ffi = libbpf().ffi
        self.lib = self
        self.kind, self.key_size, self.value_size, self.entries, self.cpus = kind, key_size, value_size, entries, cpus
        self.elements: dict[bytes, bytes] = {}
        self.fd = 7
        self.autocreate = True
        self.batch_error = 0
        self.bucket = 0
        """How many elements come at once at least; with less room there is an error."""
        self.batches = 0
        self.error = 0
        self.fail = Libbpf.fail.__get__(self)
        self.check = Libbpf.check.__get__(self)
        self._interrupt = Libbpf._interrupt.__get__(self)
        self._interrupted = False
        self.recent: list[str] = []

    def bpf_map__name(self, handle: object) -> Any:
        return self.ffi.new("char[]", b"table")

    def bpf_map__type(self, handle: object) -> int:
        return self.kind

    def bpf_map__fd(self, handle: object) -> int:
        return self.fd

    def bpf_map__max_entries(self, handle: object) -> int:
        return self.entries

    def bpf_map__set_max_entries(self, handle: object, entries: int) -> int:
        if self.error == 0:
            self.entries = entries
        return -self.error

    def bpf_map__set_autocreate(self, handle: object, on: bool) -> int:
        self.autocreate = on
        return -self.error

    def bpf_map__btf_key_type_id(self, handle: object) -> int:
        return 0

    bpf_map__btf_value_type_id = bpf_map__btf_key_type_id

    def bpf_map__key_size(self, handle: object) -> int:
        return self.key_size

    def bpf_map__value_size(self, handle: object) -> int:
        return self.value_size

    @property
    def room(self) -> int:
        """Bytes of an element; values of a per-CPU map are padded to 8 bytes."""
        return (self.value_size + 7 & ~7) * self.cpus if self.kind in maps.PER_CPU else self.value_size

    def bpf_map_lookup_elem(self, fd: int, key: bytes, value: Any) -> int:
        if self.error:
            return -self.error
        if bytes(key) not in self.elements:
            return -errno.ENOENT
        self.ffi.buffer(value)[:] = self.elements[bytes(key)]
        return 0

    def bpf_map_update_elem(self, fd: int, key: bytes, value: bytes, flags: int) -> int:
        assert len(value) == self.room
        if self.error:
            return -self.error
        self.elements[bytes(key)] = bytes(value)
        return 0

    def bpf_map_delete_elem(self, fd: int, key: bytes) -> int:
        if self.error:
            return -self.error
        return 0 if self.elements.pop(bytes(key), None) is not None else -errno.ENOENT

    def bpf_map_get_next_key(self, fd: int, previous: Any, following: Any) -> int:
        if self.error:
            return -self.error
        keys = list(self.elements)
        at = 0 if previous == self.ffi.NULL else keys.index(bytes(previous)) + 1
        if at == len(keys):
            return -errno.ENOENT
        self.ffi.buffer(following)[:] = keys[at]
        return 0

    def bpf_map_lookup_batch(
        self, fd: int, position: Any, reached: Any, keys: Any, values: Any, count: Any, opts: Any
    ) -> int:
        self.batches += 1
        if self.batch_error:
            return -self.batch_error
        if count[0] < min(self.bucket, len(self.elements)):
            return -errno.ENOSPC
        start = 0 if position == self.ffi.NULL else int.from_bytes(self.ffi.buffer(position)[:4], "little")
        batch = list(self.elements.items())[start : start + count[0]]
        for index, (key, value) in enumerate(batch):
            self.ffi.buffer(keys)[index * self.key_size : (index + 1) * self.key_size] = key
            self.ffi.buffer(values)[index * self.room : (index + 1) * self.room] = value
        self.ffi.buffer(reached)[:4] = (start + len(batch)).to_bytes(4, "little")
        count[0] = len(batch)
        return 0 if start + len(batch) < len(self.elements) else -errno.ENOENT


def table(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Map:
    monkeypatch.setattr(maps, "libbpf", lambda: kernel)
    return Map(kernel, None)  # type: ignore[arg-type]


def key(number: int) -> bytes:
    return struct.pack("<I", number)


@pytest.mark.parametrize("kind", [PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH])
@pytest.mark.parametrize("size", [1, 4, 8, 12])
def test_per_cpu_values_are_lists(monkeypatch: pytest.MonkeyPatch, kind: int, size: int) -> None:
    kernel = Kernel(kind, value_size=size, cpus=3)
    found = table(kernel, monkeypatch)
    values = [bytes([cpu + 1]) * size for cpu in range(3)]
    found[key(1)] = values
    assert found[key(1)] == values
    assert list(found.items()) == [(key(1), values)]
    raw = found.raw(key(1))
    assert raw is not None
    assert len(raw) == 3 * ((size + 7) & ~7)
    for wrong in ([], values[:2], [*values, values[0]]):
        with pytest.raises(UsageError, match="map table takes a list of 3 values, one per CPU"):
            found[key(1)] = wrong


@pytest.mark.parametrize("entries", [1, 3, 256, 257, 700])
def test_first_fields_are_read_in_batches_if_many_are_wanted(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    kernel = Kernel(PERCPU_ARRAY, value_size=20, entries=entries, cpus=3)
    found = table(kernel, monkeypatch)
    for number in range(entries):
        found[key(number)] = [struct.pack("<QQI", number, 1, 1), bytes(20), struct.pack("<QQI", 5, 1, 1)]
    assert found.firsts(entries) == [number + 5 for number in range(entries)]
    assert found.firsts(0) is None
    kernel.batch_error = ENOTSUPP
    assert (found.firsts(entries) is None) == (entries > 1)


def test_plain_maps_are_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = table(Kernel(ARRAY, value_size=12), monkeypatch)
    found[key(0)] = bytes(range(12))
    assert found[key(0)] == bytes(range(12))


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
@pytest.mark.parametrize("batch_error", [0, errno.EINVAL, errno.EOPNOTSUPP, ENOTSUPP])
def test_items_come_all_and_once(monkeypatch: pytest.MonkeyPatch, count: int, batch_error: int) -> None:
    kernel = Kernel(HASH)
    kernel.batch_error = batch_error
    kernel.elements = {key(number): struct.pack("<Q", number * number) for number in range(count)}
    found = dict(table(kernel, monkeypatch).items())
    assert found == kernel.elements
    assert kernel.batches == (1 if batch_error else max(1, -(-count // 256)))


@pytest.mark.parametrize("bucket", [256, 257, 600, 1000])
def test_a_bucket_that_is_larger_than_a_batch_gets_more_room(monkeypatch: pytest.MonkeyPatch, bucket: int) -> None:
    kernel = Kernel(PERCPU_HASH, cpus=2, value_size=4)
    kernel.bucket = bucket
    kernel.elements = {key(number): struct.pack("<QQ", number, number + 1) for number in range(1000)}
    found = table(kernel, monkeypatch)
    assert dict(found.items()) == {
        key(number): [struct.pack("<I", number), struct.pack("<I", number + 1)] for number in range(1000)
    }


def test_a_map_is_never_asked_for_more_than_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(HASH, entries=3)
    kernel.elements = {key(number): bytes(8) for number in range(3)}
    assert len(list(table(kernel, monkeypatch).items())) == 3
    kernel.bucket = 1 << 20
    kernel.elements[key(4)] = bytes(8)
    with pytest.raises(LibbpfError, match="map table cannot be read"):
        list(table(kernel, monkeypatch).items())


def test_elements_that_vanish_while_walking_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(HASH)
    kernel.batch_error = errno.EINVAL
    kernel.elements = {key(number): bytes(8) for number in range(3)}
    found = table(kernel, monkeypatch)
    real = kernel.bpf_map_lookup_elem
    monkeypatch.setattr(
        kernel,
        "bpf_map_lookup_elem",
        lambda fd, wanted, value: -errno.ENOENT if wanted == key(1) else real(fd, wanted, value),
    )
    assert [number for number, _ in found.items()] == [key(0), key(2)]


def test_batches_that_end_midway_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(HASH)
    kernel.elements = {key(number): bytes(8) for number in range(300)}
    walk = table(kernel, monkeypatch).items()
    next(walk)
    kernel.batch_error = errno.EINVAL
    with pytest.raises(WptraceError, match="map table cannot be read to its end"):
        list(walk)


def test_refusals_are_errors_with_the_name_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(HASH)
    found = table(kernel, monkeypatch)
    kernel.error = errno.EPERM
    uses: dict[str, Any] = {
        "cannot be read": lambda: found[key(1)],
        "cannot be written": lambda: found.__setitem__(key(1), bytes(8)),
        "cannot be deleted": lambda: found.__delitem__(key(1)),
        "cannot be walked": lambda: list(found),
        "cannot be made 5 entries large": lambda: setattr(found, "max_entries", 5),
        "cannot be left out": found.disable,
    }
    for what, use in uses.items():
        with pytest.raises(NotPermittedError, match=rf"map table {what}: Operation not permitted"):
            use()
    kernel.error = errno.ENOMEM
    with pytest.raises(LibbpfError, match="map table cannot be written: Cannot allocate memory") as caught:
        found[key(1)] = bytes(8)
    assert caught.value.errno == errno.ENOMEM


def test_a_map_does_not_exist_before_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(HASH)
    found = table(kernel, monkeypatch)
    kernel.fd = -22
    with pytest.raises(WptraceError, match="map table does not exist before its object is loaded"):
        found[key(1)]
    found.max_entries = 12
    assert kernel.entries == found.max_entries == 12
    found.disable()
    assert not kernel.autocreate


@given(content=st.binary(max_size=64), offset=st.integers(0, 64), size=st.integers(0, 64))
def test_raw_is_the_bytes_themselves(content: bytes, offset: int, size: int) -> None:
    codec = Raw(size)
    unpacked = codec.unpack(memoryview(content), offset)
    assert unpacked == content[offset : offset + size]
    if len(content) == size:
        assert codec.pack(content) == content
    else:
        with pytest.raises(UsageError, match=f"{len(content)} bytes were given where {size} are needed"):
            codec.pack(content)


class Inner(NamedTuple):
    hits: int
    slots: tuple[int, ...]


class Counters(NamedTuple):
    total: int
    inner: Inner
    pairs: tuple[Inner, ...]


def counters(start: int) -> Counters:
    return Counters(start, Inner(start + 1, (start, 0)), (Inner(1, ()), Inner(start, ())))


def test_values_of_all_cpus_are_added_up_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    assert maps._add([3, 4, 5]) == 12
    assert maps._add([(1, 2), (10, 20)]) == (11, 22)
    assert maps._add([counters(1), counters(10)]) == Counters(11, Inner(13, (11, 0)), (Inner(2, ()), Inner(11, ())))
    assert maps._add([counters(5)]) == counters(5)

    class Numbers(Raw):
        def unpack(self, buffer: Any, offset: int = 0) -> Any:
            return struct.unpack_from("<Q", buffer, offset)[0]

    kernel = Kernel(PERCPU_ARRAY, cpus=3)
    kernel.elements[key(0)] = struct.pack("<QQQ", 1, 20, 300)
    found = table(kernel, monkeypatch)
    found.value_codec = Numbers(8)
    assert found.summed(key(0)) == 321
    kernel = Kernel(ARRAY)
    kernel.elements[key(0)] = struct.pack("<Q", 5)
    found = table(kernel, monkeypatch)
    found.value_codec = Numbers(8)
    assert found.summed(key(0)) == 5
