# SPDX-License-Identifier: Apache-2.0
"""The reader of the ring buffer, on memory laid out as the kernel does."""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wptrace.bpf.ring import BUSY, DISCARD, HEADER, Pages, Reader, ReaderPace, Record, Ring
from wptrace.errors import WptraceError

COMMIT = 0
WORD = struct.Struct("<I")
POSITION = struct.Struct("<Q")
# A wait that nothing ends; an early end is one long before it.
LONG = 60.0
EARLY = 30.0


class Producer:
    """The kernel's side: reserves room, then commits or discards it."""

    def __init__(self, size: int, start: int = 0, stale: int = 0) -> None:
        """`stale` is the length in headers of old records, which fill the ring."""
        self.size = size
        self.consumer = bytearray(4096)
        self.producer = bytearray(4096)
        # Old contents must never be taken for a record.
        self.data = bytearray(WORD.pack(stale) * (2 * size // WORD.size))
        self.position = start
        POSITION.pack_into(self.consumer, 0, start)
        POSITION.pack_into(self.producer, 0, start)

    @property
    def pages(self) -> Pages:
        return Pages(*(memoryview(part) for part in (self.consumer, self.producer, self.data)))

    @property
    def consumed(self) -> int:
        return int(POSITION.unpack_from(self.consumer)[0])

    def _write(self, position: int, content: bytes) -> None:
        for index, value in enumerate(content):
            place = (position + index) % self.size
            self.data[place] = self.data[self.size + place] = value

    def reserve(self, payload: bytes) -> int | None:
        """Return the place of the record, which is still busy; None if the ring is full."""
        room = (HEADER + len(payload) + 7) & ~7
        if self.position + room - self.consumed > self.size - 1:
            return None
        place = self.position
        # The second word belongs to the kernel; a reader must not look at it.
        self._write(place, WORD.pack(len(payload) | BUSY) + b"\xee" * 4 + payload)
        self.position += room
        POSITION.pack_into(self.producer, 0, self.position)
        return place

    def finish(self, place: int, length: int, flag: int = COMMIT) -> None:
        self._write(place, WORD.pack(length | flag))

    def put(self, payload: bytes, flag: int = COMMIT) -> None:
        place = self.reserve(payload)
        assert place is not None, "the test itself put more into the ring than there is room"
        self.finish(place, len(payload), flag)


def layout(length: int) -> struct.Struct:
    """A number, and bytes that fill the rest of `length`."""
    return struct.Struct(f"<Q{length - 8}s")


def record(number: int, length: int) -> Record:
    return (number, bytes((number * 7 + index) & 0xFF for index in range(length - 8)))


def payload(number: int, length: int) -> bytes:
    return layout(length).pack(*record(number, length))


class Entry(NamedTuple):
    number: int
    place: int
    length: int
    state: str
    """busy, committed or discarded"""


class RingMachine(RuleBasedStateMachine):
    """Each committed record arrives once, in order, and none after a busy one."""

    @initialize(
        length=st.integers(8, 200),
        power=st.integers(9, 12),
        start=st.one_of(
            st.integers(0, 600).map(lambda units: units * 8),
            st.integers(-600, 600).map(lambda units: (1 << 32) + units * 8),
        ),
    )
    def open(self, length: int, power: int, start: int) -> None:
        self.length = length
        self.kernel = Producer(1 << power, start, length)
        self.ring = Ring(self.kernel.pages, layout(length))
        self.waiting: list[Entry] = []
        self.number = 0
        self.delivered = 0
        self.discarded = 0
        self.foreign = 0
        self.peak = 0.0

    def _reserve(self, length: int) -> None:
        content = payload(self.number, length) if length == self.length else b"\xff" * length
        place = self.kernel.reserve(content)
        if place is not None:
            self.waiting.append(Entry(self.number, place, length, "busy"))
            self.number += 1

    def _finish(self, index: int, state: str) -> None:
        entry = self.waiting[index]
        self.kernel.finish(entry.place, entry.length, DISCARD if state == "discarded" else COMMIT)
        self.waiting[index] = entry._replace(state=state)

    @rule(count=st.integers(1, 40), discards=st.sets(st.integers(0, 39)))
    def put(self, count: int, discards: set[int]) -> None:
        for index in range(count):
            before = len(self.waiting)
            self._reserve(self.length)
            if len(self.waiting) == before:
                return
            self._finish(before, "discarded" if index in discards else "committed")

    @rule()
    def reserve(self) -> None:
        self._reserve(self.length)

    @rule(length=st.integers(0, 300))
    def reserve_foreign(self, length: int) -> None:
        self._reserve(length)

    @precondition(lambda self: any(entry.state == "busy" for entry in self.waiting))
    @rule(data=st.data(), state=st.sampled_from(["committed", "committed", "discarded"]))
    def finish(self, data: st.DataObject, state: str) -> None:
        busy = [index for index, entry in enumerate(self.waiting) if entry.state == "busy"]
        self._finish(data.draw(st.sampled_from(busy)), state)

    @rule()
    def read(self) -> None:
        fill = (self.kernel.position - self.kernel.consumed) / self.kernel.size
        self.peak = max(self.peak, fill)
        expected = []
        while self.waiting and self.waiting[0].state != "busy":
            entry = self.waiting.pop(0)
            if entry.state == "discarded":
                self.discarded += 1
            elif entry.length != self.length:
                self.foreign += 1
            else:
                expected.append(record(entry.number, entry.length))
        assert self.ring.read() == expected
        self.delivered += len(expected)
        assert self.ring.fill == fill

    @invariant()
    def counts_hold(self) -> None:
        if not hasattr(self, "ring"):
            return
        assert self.ring.records == self.delivered
        assert self.ring.discarded == self.discarded
        assert self.ring.foreign == self.foreign
        assert self.ring.peak == self.peak

    @invariant()
    def room_is_given_back_up_to_the_first_record_that_waits(self) -> None:
        if not hasattr(self, "ring"):
            return
        # Records since the last read wait as well, so the position is at or before the first busy one.
        first = self.waiting[0].place if self.waiting else self.kernel.position
        assert self.kernel.consumed == first


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=25)


def test_nothing_after_a_busy_record_is_delivered_until_it_commits() -> None:
    kernel = Producer(4096)
    ring = Ring(kernel.pages, layout(24))
    kernel.put(payload(0, 24))
    busy = kernel.reserve(payload(1, 24))
    assert busy == 32
    kernel.put(payload(2, 24))
    assert ring.read() == [record(0, 24)]
    assert kernel.consumed == busy
    assert ring.read() == []
    kernel.finish(busy, 24)
    assert ring.read() == [record(1, 24), record(2, 24)]
    assert kernel.consumed == kernel.position


def test_a_reader_goes_on_where_the_last_one_ended() -> None:
    kernel = Producer(4096)
    kernel.put(payload(0, 24))
    Ring(kernel.pages, layout(24)).read()
    kernel.put(payload(1, 24))
    assert Ring(kernel.pages, layout(24)).read() == [record(1, 24)]


@pytest.mark.parametrize("form", ["<QIb", ">QIb", "=QIb", "@QIb", "QIb", "IQ", "@IQ", "!IQ"])
def test_every_byte_order_is_kept(form: str) -> None:
    fields = struct.Struct(form)
    values = (7, 1 << 30, -3)[: len(fields.unpack(bytes(fields.size)))]
    kernel = Producer(4096)
    ring = Ring(kernel.pages, fields)
    kernel.put(fields.pack(*values))
    kernel.put(fields.pack(*values))
    assert ring.read() == [values, values]


def test_a_size_that_is_no_power_of_two_is_refused() -> None:
    pages = Pages(memoryview(bytearray(4096)), memoryview(bytearray(4096)), memoryview(bytearray(2 * 4096 * 3)))
    with pytest.raises(WptraceError, match="12288 bytes is not a power of two"):
        Ring(pages, layout(24))


def test_a_ring_of_a_map_is_mapped_and_unmapped() -> None:
    size, page = 8192, mmap.PAGESIZE
    fd = os.memfd_create("ring")
    try:
        os.truncate(fd, 2 * page + 2 * size)
        image = Producer(size)
        image.put(payload(1, 24))
        os.pwrite(fd, image.producer, page)
        os.pwrite(fd, image.data, 2 * page)
        ring = Ring.of(SimpleNamespace(fd=fd, max_entries=size), layout(24))  # type: ignore[arg-type]
        assert ring.fd == fd
        assert ring.read() == [record(1, 24)]
        assert POSITION.unpack(os.pread(fd, 8, 0)) == (32,)
        ring.close()
        ring.close()
        assert "memfd:ring" not in Path("/proc/self/maps").read_text()
    finally:
        os.close(fd)


# --- Pace ---------------------------------------------------------------------------------------------------


def test_pace_slows_down_to_its_bound_while_nothing_comes() -> None:
    pace = ReaderPace()
    waits = [pace.after(0.0) for _ in range(30)]
    assert waits == sorted(waits)
    assert waits[-1] == ReaderPace.LONGEST


def test_pace_speeds_up_to_its_bound_while_the_ring_is_full() -> None:
    pace = ReaderPace()
    waits = [pace.after(1.0) for _ in range(10)]
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == ReaderPace.SHORTEST


def test_pace_leaves_well_alone() -> None:
    pace = ReaderPace()
    before = pace.wait
    assert {pace.after(fill) for fill in (0.1, 0.2, 0.25)} == {before}


def test_pace_hurries_more_the_fuller_the_ring_is() -> None:
    half, whole = ReaderPace(), ReaderPace()
    assert whole.after(0.6) < half.after(0.3) < ReaderPace().wait


@given(fills=st.lists(st.floats(0, 1), max_size=60))
def test_pace_stays_within_its_bounds(fills: list[float]) -> None:
    pace = ReaderPace()
    assert all(ReaderPace.SHORTEST <= pace.after(fill) <= ReaderPace.LONGEST for fill in fills)


@given(filled_per_second=st.floats(0, 250), wait=st.floats(ReaderPace.SHORTEST, ReaderPace.LONGEST))
def test_pace_settles_for_every_rate_that_it_can_serve(filled_per_second: float, wait: float) -> None:
    pace = ReaderPace()
    pace.wait = wait
    fill = 0.0
    settled = []
    for _ in range(60):
        fill = min(filled_per_second * pace.after(fill), 1.0)
        settled.append((fill, pace.wait))
    assert len(set(settled[-10:])) == 1, "it swings"
    assert fill <= 0.25
    assert fill >= 0.1 or pace.wait == ReaderPace.LONGEST


def test_no_wait_is_longer_than_half_the_ring_takes_to_fill() -> None:
    """This holds from the first record on, because a burst does not wait until the pace has been measured."""
    reader = Reader()
    ring = make_ring(Producer(4096))
    reader.add(ring, lambda records: None, rate=10_000)
    for _ in range(30):
        reader._pace.after(0.0)
    assert reader._pace.wait == pytest.approx(4096 // 32 / 2 / 10_000)
    reader.add(make_ring(Producer(8192)), lambda records: None, rate=1)
    assert reader._pace.longest == pytest.approx(4096 // 32 / 2 / 10_000)


# --- Reader -------------------------------------------------------------------------------------------------


class Signal:
    """A descriptor that polls as readable once it is set."""

    def __init__(self) -> None:
        self.read, self.write = socket.socketpair()
        self.read.setblocking(False)
        self.fd = self.read.fileno()

    def send(self) -> None:
        self.write.send(b"\0")

    def close(self) -> None:
        self.read.close()
        self.write.close()


@pytest.fixture
def signal() -> Iterator[Signal]:
    made = Signal()
    yield made
    made.close()


class Polled:
    """A selector that keeps the requested timeouts, and polls without waiting."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.timeouts: list[float] = []

    def register(self, fd: int, events: int) -> None:
        self._real.register(fd, events)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        found: list[tuple[int, int]] = self._real.poll(0)
        return found


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Polled:
    made = Polled(select.poll())
    monkeypatch.setattr("wptrace.bpf.ring.select.poll", lambda: made)
    return made


def make_ring(kernel: Producer, fd: int = -1) -> Ring:
    ring = Ring(kernel.pages, layout(24))
    ring.fd = fd
    return ring


def test_reader_drains_all_its_rings() -> None:
    kernels = [Producer(4096), Producer(4096), Producer(4096)]
    got: list[tuple[int, list[Record]]] = []
    reader = Reader()
    for index, kernel in enumerate(kernels):
        reader.add(make_ring(kernel), lambda records, index=index: got.append((index, records)))  # type: ignore[misc]
    assert reader.drain() == 0
    assert got == []
    kernels[0].put(payload(0, 24))
    kernels[2].put(payload(1, 24))
    kernels[2].put(payload(2, 24))
    assert reader.drain() == 3
    assert got == [(0, [record(0, 24)]), (2, [record(1, 24), record(2, 24)])]


def test_so_many_at_a_time() -> None:
    kernel = Producer(4096)
    got: list[Record] = []
    reader, ring = Reader(), make_ring(kernel)
    reader.add(ring, got.extend)
    for number in range(5):
        kernel.put(payload(number, 24))
    place = kernel.reserve(payload(5, 24))
    kernel.put(payload(6, 24))
    assert place is not None
    # The pace depends on what was in the ring at first.
    for count, behind, there in ((2, True, 7), (2, True, 7), (1, False, 7), (0, False, 2)):
        assert (reader.drain(2), reader.behind) == (count, behind)
        assert ring.fill == there * 32 / 4096
    kernel.finish(place, 24)
    assert (reader.drain(2), reader.behind) == (2, False)
    assert got == [record(number, 24) for number in range(7)]


def test_reader_is_woken_by_its_wake_descriptor(signal: Signal) -> None:
    reader = Reader(signal.fd)
    signal.send()
    before = time.monotonic()
    reader.wait(LONG)
    assert time.monotonic() - before < EARLY
    assert not reader.hung_up


def test_a_wakeup_wakes_once(signal: Signal, polled: Polled) -> None:
    """A signal without a request to end must not shorten later waits."""
    reader = Reader(signal.fd)
    signal.send()
    reader.wait(LONG)
    with pytest.raises(BlockingIOError):
        signal.read.recv(1)


def test_reader_is_woken_by_a_rare_ring(signal: Signal) -> None:
    reader = Reader()
    reader.add(make_ring(Producer(4096), signal.fd), lambda records: None, rare=True)
    reader._pace.wait = LONG
    reader._pace.LONGEST = LONG
    signal.send()
    before = time.monotonic()
    reader.wait(LONG)
    assert time.monotonic() - before < EARLY
    assert not reader.hung_up


def test_reader_is_not_woken_by_other_rings(signal: Signal, polled: Polled) -> None:
    reader = Reader()
    reader.add(make_ring(Producer(4096), signal.fd), lambda records: None)
    signal.send()
    assert polled.poll(0) == []


def test_reader_waits_no_longer_than_it_may(polled: Polled) -> None:
    reader = Reader()
    for at_most in (0.5, 0.0, -1.0):
        reader.wait(at_most)
    assert polled.timeouts == [500, 0, 0]


def test_reader_survives_a_wait_of_years(polled: Polled) -> None:
    Reader().wait(1e9)
    assert 0 < polled.timeouts[0] < 1 << 31, "poll(2) takes milliseconds in an int"


def test_reader_follows_the_pace_of_its_fullest_ring(polled: Polled) -> None:
    kernels = [Producer(4096), Producer(4096)]
    reader = Reader()
    for kernel in kernels:
        reader.add(make_ring(kernel), lambda records: None)
    for number in range(100):
        kernels[0].put(payload(number, 24))
    reader.drain()
    reader.wait(LONG)
    reader.drain()
    reader.wait(LONG)
    assert polled.timeouts[0] == ReaderPace().after(100 * 32 / 4096) * 1000
    assert polled.timeouts[1] > polled.timeouts[0]
    reader.wait(0.0)
    assert polled.timeouts[2] == 0


@pytest.mark.parametrize("make", [os.pipe, lambda: [one.detach() for one in socket.socketpair()]])
def test_a_hang_up_of_a_pipe_or_socket_is_noticed(make: Callable[[], Sequence[int]]) -> None:
    read, write = make()
    try:
        reader = Reader()
        reader.watch_hangup(write)
        reader.wait(0)
        assert not reader.hung_up
        os.close(read)
        reader.wait(LONG)
        assert reader.hung_up
    finally:
        os.close(write)


def test_other_files_are_not_watched(tmp_path: Path) -> None:
    reader = Reader()
    with (tmp_path / "file").open("w") as file:
        for fd in (file.fileno(), -1):
            reader.watch_hangup(fd)
            assert reader._watched == -1


def test_a_full_pipe_is_no_hang_up() -> None:
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        with suppress(BlockingIOError):
            while True:
                os.write(write, bytes(65536))
        reader = Reader()
        reader.watch_hangup(write)
        reader.wait(0)
        assert not reader.hung_up
    finally:
        os.close(read)
        os.close(write)
