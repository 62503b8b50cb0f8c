# SPDX-License-Identifier: Apache-2.0
"""The BPF ring buffer, read from its mapped pages: whole batches are decoded in place, with no callback a record.

A ring carries records of one size, so that a batch is one strided look at the headers and one `iter_unpack`. The
memory is: a page with the consumer's position, which we write; a page with the producer's; then the data, mapped
twice in a row, so that a record that wraps is contiguous all the same.
"""

from __future__ import annotations

import mmap
import os
import select
import stat
import struct
from array import array
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from wptrace.errors import WptraceError

if TYPE_CHECKING:
    from wptrace.bpf.maps import Map

HEADER = 8
BUSY = 1 << 31
DISCARD = 1 << 30
_LENGTH = DISCARD - 1
# Records per second that are read without a loss, from a ring of a few megabytes on: in general, where each is a line,
# and where only their bytes are kept.
RATE = 100_000
LINE_RATE = 250_000
RAW_RATE = 400_000
# poll(2) takes milliseconds in an int.
_LONGEST_POLL = 3600.0

Record = tuple[Any, ...]


class Pages(NamedTuple):
    """The three parts of a ring's memory. `data` is twice as long as the ring."""

    consumer: memoryview
    producer: memoryview
    data: memoryview


def map_pages(ring: Map) -> tuple[Pages, list[mmap.mmap]]:
    size = ring.max_entries
    consumer = mmap.mmap(ring.fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    rest = mmap.mmap(ring.fd, mmap.PAGESIZE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=mmap.PAGESIZE)
    view = memoryview(rest)
    pages = Pages(memoryview(consumer), view[: mmap.PAGESIZE], view[mmap.PAGESIZE :])
    return pages, [rest, consumer]


class Entries:
    """The content of a ring: a header and a record, again and again; `record` unpacks the payload of one."""

    def __init__(self, record: struct.Struct) -> None:
        self.record = record
        self.length = record.size
        self.stride = (HEADER + record.size + 7) & ~7
        tail = self.stride - HEADER - record.size
        order, fields = ("@", record.format)
        if record.format[0] in "<>=@!":
            order, fields = record.format[0], record.format[1:]
        self._struct = struct.Struct(f"{order}{HEADER}x{fields}{tail}x")
        self._alike = array("I", [self.length])

    def headers(self, words: memoryview) -> memoryview:
        """The first word of each header, of memory that is looked at as words."""
        return words[:: self.stride >> 2]

    def whole(self, headers: memoryview) -> bool:
        """Whether all headers are those of complete records, which is nearly always so; no header is read by itself."""
        while len(self._alike) < len(headers):
            self._alike *= 2
        return headers == memoryview(self._alike)[: len(headers)]

    def decode(self, data: memoryview, headers: memoryview) -> list[Record]:
        """Without those that a program gave up."""
        found = list(self._struct.iter_unpack(data))
        if self.whole(headers):
            return found
        return [record for record, value in zip(found, headers) if value == self.length]


class Ring:
    """A reader of records of one layout.

    With a `sink` they are not decoded: it is handed the memory in which they lie, with their headers.
    """

    def __init__(self, pages: Pages, record: struct.Struct, sink: Callable[[memoryview], None] | None = None) -> None:
        self._size = len(pages.data) // 2
        if self._size & (self._size - 1):
            raise WptraceError(f"a ring of {self._size} bytes is not a power of two")
        self._entries = Entries(record)
        self._sink = sink
        self.capacity = self._size // self._entries.stride
        self._consumer = pages.consumer[:8].cast("Q")
        self._producer = pages.producer[:8].cast("Q")
        self._data = pages.data
        self._words = pages.data.cast("I")
        self._position = int(self._consumer[0])
        self._fence = Lock()
        self._mapped: list[mmap.mmap] = []
        self.fd = -1
        self.records = 0
        self.discarded = 0
        # Records of a size that this ring should not carry: a fault of the programs, counted as lost.
        self.foreign = 0
        self.behind = False
        """The last read left some."""
        # How full the ring was at the last read, or the first of several, and ever: what the pace of reading follows.
        self.fill = 0.0
        self.peak = 0.0

    @classmethod
    def of(cls, ring: Map, record: struct.Struct, sink: Callable[[memoryview], None] | None = None) -> Ring:
        pages, mapped = map_pages(ring)
        made = cls(pages, record, sink)
        made._mapped = mapped
        made.fd = ring.fd
        return made

    def _order(self) -> None:
        # Loads must not pass each other on arm64. Releasing a lock orders what came before it, taking it what comes
        # after: twice in a row is a full fence. On x86-64 loads are in order anyway.
        with self._fence:
            pass
        with self._fence:
            pass

    def read(self, most: int = 0) -> list[Record]:
        """All records that are ready, or so many that are decoded, oldest first; their room is free for the kernel
        again on return."""
        found: list[Record] = []
        start = self._position
        ready = end = int(self._producer[0])
        fill = (end - start) / self._size
        self.fill = max(self.fill, fill) if self.behind else fill
        self.peak = max(self.peak, self.fill)
        if most and self._sink is None:
            end = min(end, start + most * self._entries.stride)
        blocked = False
        while end > start:
            batch, start, blocked = self._batch(start, end)
            found += batch
            if blocked:
                break
        self.behind = start < ready and not blocked
        if start != self._position:
            self._order()
            self._position = start
            self._consumer[0] = start
        return found

    def _batch(self, start: int, end: int) -> tuple[Sequence[Record], int, bool]:
        """Records from `start` on: what was decoded, where the next one begins, and whether that is still busy."""
        stride, length = self._entries.stride, self._entries.length
        offset = start & (self._size - 1)
        self._order()
        # A last record may be a shorter one, of which only the header is there.
        count = max((end - start) // stride, 1)
        word = offset >> 2
        headers = self._entries.headers(self._words[word : word + count * (stride >> 2)])
        ready = whole = count
        if not self._entries.whole(headers):
            # A header may have changed since: a busy record may be there now.
            lengths = headers.tolist()
            ready = next((at for at, value in enumerate(lengths) if value & BUSY or value & _LENGTH != length), count)
            if ready == 0:
                return (), *self._passed(start, lengths[0])
            whole = lengths[:ready].count(length)
        self._order()
        self.records += whole
        self.discarded += ready - whole
        data = self._data[offset : offset + ready * stride]
        if self._sink is None:
            return self._entries.decode(data, headers[:ready]), start + ready * stride, False
        self._sink(data)
        return (), start + ready * stride, False

    def _passed(self, start: int, header: int) -> tuple[int, bool]:
        """Return where the entry after one that is no record begins, and whether the entry is still busy."""
        if header & BUSY:
            return start, True
        if header & DISCARD:
            self.discarded += 1
        else:
            self.foreign += 1
        return start + ((HEADER + (header & _LENGTH) + 7) & ~7), False

    def close(self) -> None:
        for view in (self._consumer, self._producer, self._words, self._data):
            view.release()
        for mapped in self._mapped:
            try:
                mapped.close()
            except BufferError:
                # Views that the caller still holds keep the pages; they go with the last of them.
                continue
        self._mapped.clear()


class ReaderPace:
    """How long to wait before the next look at a ring, from how full it was: often enough to stay below a quarter,
    seldom enough to cost nothing when little happens."""

    SHORTEST = 0.001
    LONGEST = 0.2

    def __init__(self) -> None:
        self.wait = 0.02
        self.longest = self.LONGEST

    def after(self, fill: float) -> float:
        if fill > 0.5:
            self.wait /= 8
        elif fill > 0.25:
            self.wait /= 2
        elif fill < 0.1:
            self.wait *= 1.5
        self.wait = max(min(self.wait, self.longest), self.SHORTEST)
        return self.wait


class Reader:
    """Drains several rings on one adaptive timer; rings of rare events wake it as well.

    `wake` is a file descriptor that ends a wait at once (the one given to signal.set_wakeup_fd), so that a signal is
    never held up by a timer.
    """

    def __init__(self, wake: int | None = None) -> None:
        self._rings: list[tuple[Ring, Callable[[list[Record]], None]]] = []
        self._poll = select.poll()
        self._pace = ReaderPace()
        self.hung_up = False
        self._wake = wake
        self._watched = -1
        self._listened = -1
        self._hearers: dict[int, Callable[[], None]] = {}
        self.heard = False
        """Somebody has something to say at the descriptor of `listen`."""
        if wake is not None:
            self._poll.register(wake, select.POLLIN)

    def watch_hangup(self, fd: int) -> None:
        """Ends waits and sets `hung_up` when a pipe or socket has no reader any more. Other files never have one."""
        mode = os.fstat(fd).st_mode if fd >= 0 else 0
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return
        self._watched = fd
        self._poll.register(fd, 0)

    def listen(self, fd: int) -> None:
        """Ends waits as well when there is something to read; another one than before, or none where it is negative."""
        if fd == self._listened:
            return
        if self._listened >= 0:
            self._poll.unregister(self._listened)
        self._listened = fd
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)

    def attend(self, fd: int, hear: Callable[[], None], event: int = select.POLLIN) -> None:
        """Calls `hear` in a wait, and ends it, when there is something to read, or POLLPRI says something urgent."""
        self._hearers[fd] = hear
        self._poll.register(fd, event)

    def leave(self, fd: int) -> None:
        """Before it is closed."""
        del self._hearers[fd]
        self._poll.unregister(fd)

    def add(
        self, ring: Ring, handle: Callable[[list[Record]], None], rare: bool = False, rate: float | None = None
    ) -> None:
        """Add a ring. If `rate` records a second may begin at any moment, waits end before half the ring is full."""
        self._rings.append((ring, handle))
        if rate is not None:
            self._pace.longest = min(self._pace.longest, ring.capacity / 2 / rate)
        if rare:
            self._poll.register(ring.fd, select.POLLIN)

    def drain(self, most: int = 0) -> int:
        """Reads every ring once, so many of its records where that is more than 0; returns how many there were."""
        total = 0
        for ring, handle in self._rings:
            records = ring.read(most)
            if records:
                total += len(records)
                handle(records)
        return total

    @property
    def behind(self) -> bool:
        """Some ring has more."""
        return any(ring.behind for ring, _ in self._rings)

    def wait(self, at_most: float) -> None:
        """Waits for the next look: until the pace says so, `at_most` seconds, a rare event or a signal."""
        timeout = at_most
        if self._rings:
            timeout = min(timeout, self._pace.after(max(ring.fill for ring, _ in self._rings)))
        self.heard = False
        for fd, event in self._poll.poll(min(max(timeout, 0), _LONGEST_POLL) * 1000):
            if fd == self._watched:
                # A pipe without a reader polls as an error, a socket as hung up.
                self.hung_up = bool(event & (select.POLLERR | select.POLLHUP))
            elif fd == self._listened:
                self.heard = True
            elif fd in self._hearers:
                self._hearers[fd]()
            elif fd == self._wake:
                # A byte left there would end every wait to come; the signal may be one that asks for no end.
                os.read(fd, 4096)
