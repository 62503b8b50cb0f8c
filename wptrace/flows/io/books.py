# SPDX-License-Identifier: Apache-2.0
"""The books of operations and requests, and requests that programs did not see in full: some kernels skip programs
(docs/decisions/recursion.md).

StaleRequests: a request whose end no program saw would be in flight for ever. So would one that ended together with its
operation, if the operation did not wait for it and left it uncounted. The kernel knows how many requests are with the
driver (`inflight` in sysfs). Requests that are in the table both before and after a read of that were there during the
read, so those in excess are over. Which ones is a guess, but a good one: first those whose operation is over, then the
oldest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import Statistics
from wptrace.engine.devices import Devices
from wptrace.engine.hooks import END
from wptrace.engine.resolver import Loaded
from wptrace.engine.unseen import Unseen
from wptrace.flows.io.causes import BIO_FULL, CAUSES, NOTED, OP_FULL, OP_UNENDED, SHED, STALE, UNSEEN
from wptrace.flows.io.hooks import ENDING
from wptrace.flows.io.options import Options
from wptrace.flows.io.parts.counts import Counts
from wptrace.flows.io.state import LAST_MOMENT_S, entries, give_time, in_use, started, unplaced, waiting
from wptrace.kernel import blockdev
from wptrace.model.book import RECURSION, UNMATCHED_START, Book, Cause
from wptrace.model.kind import OPERATIONS, REQUESTS
from wptrace.model.report import InFlight

if TYPE_CHECKING:
    from wptrace.flows.io.parts.shed import PathShedder

# The time that the kernel may take from the end of a request to the program that sees it.
GRACE_NS = 1_000_000_000
# The time within which a bio that was queued before the trace gets its request.
_SETTLES_NS = 1_000_000_000


class _Head(NamedTuple):
    """The bio of a request; equal as long as the request is the same."""

    place: int
    bio: int
    started: int


class StaleRequests:
    """Finds entries in the table of requests that are no longer in flight, scan by scan."""

    def __init__(self, obj: BpfObject, sys: Path = blockdev.SYS) -> None:
        self._obj = obj
        self._sys = sys
        self._delivered = obj.constants["DELIVERED"]
        self._head, self._flush = obj.enum("bio_kind").index("head"), obj.enum("block_op").index("flush")
        # The offsets of the key, and of the request that is counted with an operation.
        ops = obj.struct("op_state")
        self._only = next(place.offset for place in ops.places if place.name == "only") // 4
        self._stride = ops.size // 4
        self._since: dict[_Head, int] = {}
        self._left: dict[_Head, int] = {}
        self._excess = 0
        self.count = 0
        """The number of stale requests found."""

    def sweep(self, grace_ns: int = GRACE_NS) -> None:
        """Free the entries of requests that are over, once they are that old."""
        now = time.monotonic_ns()
        found = self._heads()
        self._since = {head: self._since.get(head, now) for heads in found.values() for head in heads}
        for dev, heads in found.items():
            old = [head for head in heads if now - self._since[head] >= grace_ns]
            if not old:
                continue
            with_driver = self._with_driver(dev)
            if with_driver is None:
                continue
            still = self._heads().get(dev, {})
            over = len(heads.keys() & still.keys()) - with_driver
            old = sorted((head for head in old if head in still), key=lambda head: (still[head], self._since[head]))
            for head in old[: max(0, over)]:
                self._free(head)
                del self._since[head]
        left = self._left_over()
        self._left = {head: self._left.get(head, now) for head in left}
        for head, since in list(self._left.items()):
            if now - since >= grace_ns:
                self._free(head)
                self._forget(head, left[head])
                del self._left[head]

    def note(self, started: int, held: int, ended: int, at_rest: bool) -> None:
        """Find requests that started and have no entry any more. The figures are read in this order, so that a request
        that ends meanwhile is not among them. A request may be withdrawn when it is merged into another one, so unless
        all is at rest, only those count that are missing in two reads."""
        excess = started - held - ended
        self.count = max(self.count, excess if at_rest else min(excess, self._excess))
        self._excess = excess

    def held(self) -> int:
        """The number of entries of requests that have begun."""
        found = entries(self._obj, "bios", "bio", "kind", "empty")
        return sum(not empty and (bio == self._delivered or kind == self._head) for _, bio, kind, empty in found)

    def _heads(self) -> dict[int, dict[_Head, bool]]:
        """Requests with the driver, by the number of their disk, and whether the operation of each still exists."""
        names = ("bio", "begun", "kind", "op_kind", "empty", "done.events.requeues", "done.dev", "task", "op")
        # The fields of an operation that are read: its task, how many began in that place, and when this one did.
        words, stride = self._obj.view("ops").cast("Q"), self._obj.struct("op_state").size // 8
        found: dict[int, dict[_Head, bool]] = defaultdict(dict)
        for place, bio, begun, kind, op_kind, empty, requeues, dev, task, op, queued in entries(
            self._obj, "bios", *names, "done.times.queued"
        ):
            # The kernel does not count flushes, and a request that was handed back is no longer with the driver.
            if kind != self._head or bio == self._delivered or empty or requeues or op_kind == self._flush:
                continue
            at = op * stride
            has_operation = bool(task) and words[at] == task and words[at + 2] <= queued
            found[dev][_Head(place, bio, begun)] = has_operation
        return found

    def _with_driver(self, dev: int) -> int | None:
        """The number of requests with the driver; None if the kernel does not count them."""
        folder = self._sys / "dev" / "block" / blockdev.maj_min(dev)
        try:
            if (folder / "queue" / "iostats").read_text().strip() != "1":
                return None
            return sum(map(int, (folder / "inflight").read_text().split()))
        except (OSError, ValueError):
            return None

    def _free(self, head: _Head) -> None:
        at = head.place * self._obj.struct("bio_state").size
        memory = self._obj.view("bios")
        if memory[at : at + 8] == head.bio.to_bytes(8, "little"):
            memory[at : at + 8] = bytes(8)

    def _left_over(self) -> dict[_Head, int]:
        """Requests that completed and were left to an operation that is over or has another one, with their place."""
        memory = self._obj.view("ops")
        keys, words = memory.cast("Q"), memory.cast("I")
        return {
            _Head(place, bio, begun): op
            for place, bio, begun, op in entries(self._obj, "bios", "bio", "begun", "op")
            if bio == self._delivered
            and (not keys[op * self._stride // 2] or words[op * self._stride + self._only] != place + 1)
        }

    def _forget(self, head: _Head, op: int) -> None:
        words = self._obj.view("ops").cast("I")
        if words[op * self._stride + self._only] == head.place + 1:
            words[op * self._stride + self._only] = 0


class Starts(NamedTuple):
    """Starts, read before the ends: an object that starts and ends in between must not seem to be in flight."""

    requests: int
    held: int
    operations: int


class Books:
    """The books, made of what the programs count, after the cells are read."""

    def __init__(self, loaded: Loaded, options: Options, devices: Devices, counts: Counts) -> None:
        self._loaded, self._obj, self._counts = loaded, loaded.obj, counts
        self._options, self._devices = options, devices
        # Unless all are traced, operations are counted once their device is known to be traced.
        self._everything = devices.everything
        self._causes = [CAUSES[name] for name in self._obj.enum("path_cause")]
        self.stale = StaleRequests(self._obj)
        self._unseen = Unseen(())
        self._closed = False

    def open(self) -> None:
        """The programs count from now on."""
        bss = self._obj.bss
        bss.since_ns = time.monotonic_ns()
        bss.settled_ns = bss.since_ns + _SETTLES_NS
        bss.tracing = bss.operating = True
        self.retarget(self._options)

    def retarget(self, options: Options) -> None:
        self._options = options
        self._unseen = Unseen(self._whole())

    def compare_disks(self) -> None:
        """Compare with the disks that have rows now."""
        self._unseen.compare(self._whole())

    def _whole(self) -> list[blockdev.Extent]:
        """Extents with a row for each request."""
        return [] if self._options.filter or self._options.guest is not None else self._devices.with_rows

    def close(self) -> None:
        """Stop new operations, and give those in flight a moment to end."""
        self._unseen.read_disks()
        self._obj.bss.tracing = self._obj.bss.operating = False
        self.stale.sweep()
        give_time(lambda: next(in_use(self._obj), None) is not None)
        self.stale.sweep(int(LAST_MOMENT_S / 2 * 1e9))
        self._closed = True

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        self.stale.sweep()
        names, everything = self._devices.names, self._devices.everything
        return waiting(self._obj, names, time.monotonic_ns(), at_least_ns, anywhere=everything)

    def starts(self) -> Starts:
        obj = self._obj
        if not self._closed:
            self.stale.sweep()
            self._unseen.read_disks()
        requests, operations = started(obj, "bios"), started(obj, "ops")
        elsewhere = 0 if self._everything else unplaced(obj)
        held = self.stale.held()
        return Starts(requests, held, operations - elsewhere - sum(cpu.discarded for cpu in obj.maps["op_counters"][0]))

    def read(
        self, starts: Starts, ran: Mapping[str, Statistics], noted: Mapping[Cause, int], shedder: PathShedder | None
    ) -> dict[str, Book]:
        """`shedder` gave up operations and requests; None if there is no budget."""
        causes = dict(zip(self._causes, self._obj.bss.loss))
        ends_missed = self._loaded.misses(ran, END, ENDING)
        # A request whose end was skipped stays in flight until its memory is reused.
        skipped = sum(found.recursion_misses for found in ran.values()) - ends_missed
        noted = {**{cause: causes[cause] for cause in NOTED}, RECURSION: skipped, **noted}
        requests_ended, requests_failed = self._counts.requests_ended
        operations_ended, operations_failed = self._counts.operations_ended
        shed_operations, shed_requests = (shedder.given_up, shedder.given_up_requests) if shedder else (0, 0)
        given_up = causes[UNMATCHED_START] + shed_requests
        self.stale.note(starts.requests, starts.held, requests_ended + given_up, self._closed)
        if shedder is None:
            # Read again: a flush that has begun since then may have ended before its row was read.
            bios = started(self._obj, "bios")
            self._unseen.note(self._counts.requests(), bios + self._obj.bss.elsewhere + causes[BIO_FULL])
        requests = Book.read(
            starts.requests + causes[BIO_FULL] + self._unseen.count,
            requests_ended,
            {
                BIO_FULL: causes[BIO_FULL],
                UNMATCHED_START: causes[UNMATCHED_START],
                STALE: self.stale.count,
                UNSEEN: self._unseen.count,
                SHED: shed_requests,
            },
            noted,
            requests_failed,
        )
        operations = Book.read(
            starts.operations + causes[OP_FULL],
            operations_ended,
            {
                OP_FULL: causes[OP_FULL],
                OP_UNENDED: causes[OP_UNENDED],
                RECURSION: ends_missed,
                SHED: shed_operations,
            },
            {},
            operations_failed,
        )
        return {REQUESTS: requests, OPERATIONS: operations}
