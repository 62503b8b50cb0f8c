# SPDX-License-Identifier: Apache-2.0
"""Records a second that the reader decodes and joins on one core, from rings that were recorded on a loop device.

It times what `wptrace io --each` does: reading the headers of the ring and the fields of each record, and making
requests with names; or, instead, making lines of JSON, --line and --csv, from rows and event by event.
"""

from __future__ import annotations

import cProfile
import mmap
import os
import pstats
import statistics
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union

from tests.kernel.disks import Disk, fio, loop_device
from wptrace import collect_seldom
from wptrace.bpf.ring import Pages, Reader, Record, Ring
from wptrace.flows.io import block as io_block
from wptrace.flows.io import options as io_options
from wptrace.flows.io import path as io_path
from wptrace.model.report import Event, Start
from wptrace.model.rows import offer_rows
from wptrace.outputs.registry import CSV, LINES, NDJSON, Wanted, make

Found = dict[str, Any]
Flow = Union[io_path.PathFlow, io_block.BlockFlow]
_RING = 64 << 20
# A ring of the default size is read when it is a quarter full.
_BATCH = 1 << 20
_RECORDS = 50_000
FORMS = (NDJSON, LINES, CSV)


class Image(NamedTuple):
    """The content of the ring; the flow that knows how to read it is detached."""

    flow: Flow
    take: Callable[[list[Record]], None]
    layout: struct.Struct
    data: bytes
    produced: int


class _Consumer(Reader):
    """A reader that keeps the consumer of the records."""

    take: Callable[[list[Record]], None]

    def add(
        self, ring: Ring, handle: Callable[[list[Record]], None], rare: bool = False, rate: float | None = None
    ) -> None:
        super().add(ring, handle, rare, rate)
        self.take = handle


def _record(flow: Flow, disk: Disk, direct: int) -> Image:
    reader = _Consumer()
    flow.start(reader)
    flow.begin()
    ring = flow._ring
    assert ring is not None
    fio(disk.path, number_ios=_RECORDS, io_size=_RECORDS * 4096, direct=direct, invalidate=0)
    flow.stop()
    produced = int(ring._producer[0])
    return Image(flow, reader.take, ring._entries.record, bytes(ring._data[:produced]), produced)


def _replayed(image: Image) -> tuple[Ring, memoryview]:
    """Return a ring with the same bytes in memory of this process, and its producer position."""
    producer = memoryview(bytearray(mmap.PAGESIZE))
    data = bytearray(2 * _RING)
    data[: image.produced] = image.data
    pages = Pages(memoryview(bytearray(mmap.PAGESIZE)), producer, memoryview(data))
    return Ring(pages, image.layout), producer[:8].cast("Q")


def _once(image: Image, write: Callable[[Sequence[Event]], None]) -> tuple[int, dict[str, float]]:
    """Return the number of records, and the seconds for decoding, for joining, and for writing, as one command does."""
    ring, producer = _replayed(image)
    stride = (8 + image.layout.size + 7) & ~7
    step = _BATCH // stride * stride
    took = defaultdict[str, float](float)
    for position in range(step, image.produced + step, step):
        producer[0] = min(position, image.produced)
        begin = time.process_time()
        records = ring.read()
        took["decode"] += time.process_time() - begin
        begin = time.process_time()
        image.take(records)
        write(image.flow.events())
        took["write"] += time.process_time() - begin
    return ring.records, took


def _written(image: Image, form: str, as_rows: bool) -> dict[str, float]:
    """Return the seconds for lines of this form, of rows or event by event."""
    # Summaries of --line and --csv go to standard error.
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        output = make(form, nowhere, image.flow.view, Wanted())
        output.start(Start("io", "", "", {}, [], image.flow.kinds, []))

        def write_rows(events: Sequence[Event]) -> None:
            assert offer_rows(output, events)

        def write_each(events: Sequence[Event]) -> None:
            for event in events:
                output.event(event)

        return _once(image, write_rows if as_rows else write_each)[1]


def _run(image: Image) -> tuple[int, dict[str, float]]:
    """Return the number of records, and the seconds by what is done with them."""
    made = 0

    def join(events: Sequence[Event]) -> None:
        nonlocal made
        made += len(list(events))

    count, took = _once(image, join)
    assert made == count
    found = {"decode": took["decode"], "join": sum(took.values())}
    for form in FORMS:
        found[form] = sum(_written(image, form, as_rows=True).values())
        found[f"{form}, by events"] = sum(_written(image, form, as_rows=False).values())
    return count, found


def measure(repeats: int, profile: bool = False) -> list[Found]:
    found = []
    collect_seldom()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, loop_device(Path(folder, "disk.img")) as disk:
        block = io_block.Options((disk.name,), slow_ns=0, ring_bytes=_RING, times="own")
        path = io_options.Options(devices=(disk.name,), slow_ns=0, ring_bytes=_RING)
        cases: Sequence[tuple[str, Flow, int]] = (
            ("io --each, operations", io_path.PathFlow(path), 1),
            ("io --each, page-cache hits", io_path.PathFlow(path), 0),
            ("io --level block --each", io_block.BlockFlow(block), 1),
        )
        for name, flow, direct in cases:
            try:
                image = _record(flow, disk, direct)
                runs = [_run(image) for _ in range(repeats)]
                count = runs[0][0]
                took = {step: statistics.median(run[1][step] for run in runs) / count for step in runs[0][1]}
                rates = {how: 1 / took[how] for form in FORMS for how in (form, f"{form}, by events")}
                one = {
                    "name": name,
                    "records": count,
                    "record_bytes": image.produced // max(count, 1),
                    "decode_per_s": 1 / took["decode"],
                    "joined_per_s": 1 / took["join"],
                    "lines_per_s": rates,
                }
                found.append(one)
                print(
                    f"{name}: {one['joined_per_s']:,.0f} records/s decoded and joined"
                    f" ({one['decode_per_s']:,.0f}/s decoded alone; {count} records of {one['record_bytes']} bytes)"
                    + "".join(f"; {how} {rate:,.0f}" for how, rate in rates.items()),
                    flush=True,
                )
                if profile:
                    watch = cProfile.Profile()
                    watch.runcall(_run, image)
                    pstats.Stats(watch).sort_stats("tottime").print_stats(12)
            finally:
                flow.close()
    return found
