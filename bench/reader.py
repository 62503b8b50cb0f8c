# SPDX-License-Identifier: Apache-2.0
"""Records a second that the reader decodes and joins on one core, from rings that were recorded on a loop device.

What is timed is what `wptrace io --each` does before it writes: the headers of the ring, the fields of each record, and
the request with its names made of them.
"""

from __future__ import annotations

import cProfile
import mmap
import pstats
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union

from tests.kernel.disks import Disk, fio, loop_device
from wptrace.bpf.ring import Pages, Reader, Record, Ring
from wptrace.engine.run import collect_seldom
from wptrace.flows.io import block as io_block
from wptrace.flows.io import options as io_options
from wptrace.flows.io import path as io_path

Found = dict[str, Any]
Flow = Union[io_path.PathFlow, io_block.BlockFlow]
_RING = 64 << 20
# The ring of the default size is read when a quarter of it is full.
_BATCH = 1 << 20
_RECORDS = 50_000


class Image(NamedTuple):
    """The content of the ring; the flow that knows how to read it is detached."""

    flow: Flow
    take: Callable[[list[Record]], None]
    layout: struct.Struct
    data: bytes
    produced: int


class _Consumer(Reader):
    """A reader that keeps who takes the records."""

    take: Callable[[list[Record]], None]

    def add(
        self, ring: Ring, handle: Callable[[list[Record]], None], rare: bool = False, rate: float | None = None
    ) -> None:
        super().add(ring, handle, rare, rate)
        self.take = handle


def _record(flow: Flow, disk: Disk, direct: int) -> Image:
    reader = _Consumer()
    flow.start(reader)
    ring = flow._ring
    assert ring is not None
    fio(disk.path, number_ios=_RECORDS, io_size=_RECORDS * 4096, direct=direct, invalidate=0)
    flow.stop()
    produced = int(ring._producer[0])
    return Image(flow, reader.take, ring._entries.record, bytes(ring._data[:produced]), produced)


def _replayed(image: Image) -> tuple[Ring, memoryview]:
    """A ring of the same bytes, in memory of our own, and its producer's position."""
    producer = memoryview(bytearray(mmap.PAGESIZE))
    data = bytearray(2 * _RING)
    data[: image.produced] = image.data
    pages = Pages(memoryview(bytearray(mmap.PAGESIZE)), producer, memoryview(data))
    return Ring(pages, image.layout), producer[:8].cast("Q")


def _once(image: Image) -> tuple[int, float, float]:
    """Records, and seconds to decode and to join them."""
    ring, producer = _replayed(image)
    stride = (8 + image.layout.size + 7) & ~7
    step = _BATCH // stride * stride
    count, decode, join = 0, 0.0, 0.0
    for position in range(step, image.produced + step, step):
        producer[0] = min(position, image.produced)
        begin = time.process_time()
        records = ring.read()
        middle = time.process_time()
        image.take(records)
        made = image.flow.events()
        end = time.process_time()
        decode, join, count = decode + middle - begin, join + end - middle, count + len(made)
    assert count == ring.records
    return count, decode, join


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
                runs = [_once(image) for _ in range(repeats)]
                count = runs[0][0]
                decode, join = (statistics.median(run[place] for run in runs) for place in (1, 2))
                one = {
                    "name": name,
                    "records": count,
                    "record_bytes": image.produced // max(count, 1),
                    "decode_per_s": count / decode,
                    "joined_per_s": count / (decode + join),
                }
                found.append(one)
                print(
                    f"{name}: {one['joined_per_s']:,.0f} records/s decoded and joined"
                    f" ({one['decode_per_s']:,.0f}/s decoded alone; {count} records of {one['record_bytes']} bytes)",
                    flush=True,
                )
                if profile:
                    watch = cProfile.Profile()
                    watch.runcall(_once, image)
                    pstats.Stats(watch).sort_stats("tottime").print_stats(12)
            finally:
                flow.close()
    return found
