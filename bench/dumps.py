# SPDX-License-Identifier: Apache-2.0
"""The cost of a dump of the flight recorder: the copy of a full recorder, sorting it, the file, and reading it.

The records are real ones, of reads and writes of a loop device, put into the recorder's own memory again and again
until it is full; nothing is attached meanwhile.
"""

from __future__ import annotations

import mmap
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kernel.disks import fio, loop_device
from wptrace import collect_seldom
from wptrace.bpf.ring import Reader
from wptrace.capture.reader import Capture
from wptrace.capture.selection import Selection
from wptrace.engine import recorder as parts
from wptrace.engine.recorder_size import LONGEST_NS, RECORD_BYTES, RecorderSize
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.outputs import export
from wptrace.outputs.registry import Wanted as Shown
from wptrace.tools.replay import Wanted, replay

_REAL = 40_000
_HEAD_WORDS = 8


def _fill(part: parts.Recorder) -> int:
    """Fill the areas with copies of their records, each later than the one before; return the number of real ones."""
    table, size = part._obj.maps["recorded"], part._record.size
    whole = mmap.mmap(table.fd, -(-table.max_entries * size // mmap.PAGESIZE) * mmap.PAGESIZE)
    heads = part._obj.view("recorder_heads").cast("Q")
    real = 0
    with whole, memoryview(whole) as memory:
        for cpu, area in enumerate(part._areas):
            count = min(heads[cpu * _HEAD_WORDS], area.room)
            real += count
            if area.room <= 1024 or not count:
                continue
            begin = area.first * size
            rows = bytes(memory[begin : begin + count * size])
            ends = memoryview(rows).cast("Q")[:: size // 8]
            span = ends[-1] - ends[0] + 1000
            for number in range(area.room):
                at, lap = number % count, number // count
                row = bytearray(rows[at * size : (at + 1) * size])
                words = memoryview(row).cast("I")
                end = ends[at] + lap * span
                memoryview(row).cast("Q")[0] = end
                for place in range(2, 10):
                    words[place] = (words[place] + lap * span) & 0xFFFFFFFF
                words[-1] = number + 1
                memory[begin + number * size : begin + (number + 1) * size] = row
            heads[cpu * _HEAD_WORDS] = area.room
    return real


@contextmanager
def _timed(took: dict[str, list[float]], name: str) -> Iterator[None]:
    begin = time.process_time()
    yield
    took.setdefault(name, []).append(time.process_time() - begin)


def measure(repeats: int, records: int) -> dict[str, Any]:
    collect_seldom()
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, loop_device(Path(folder, "disk.img")) as disk:
        size = RecorderSize(LONGEST_NS, records * RECORD_BYTES)
        flow = PathFlow(Options(devices=(disk.name,), recorder=size))
        try:
            start = flow.start(Reader())
            flow.begin()
            fio(
                disk.path,
                rw="randrw",
                number_ios=_REAL // 2,
                io_size="4G",
                numjobs=2,
                group_reporting=1,
                bsrange="4k-16k",
                invalidate=0,
            )
            flow.stop()
            part = flow.flight_recorder
            assert isinstance(part, parts.Recorder)
            real = _fill(part)
            part._start_ns = 0
            for number in range(repeats):
                with _timed(took, "copy"):
                    part._copy()
                dump = Path(folder, f"{number}.wpt")
                with _timed(took, "dump"):
                    made = part.copied(start, flow.view)(dump)
            with _timed(took, "summary"):
                _replay(dump, folder, "json")
            with _timed(took, "page"):
                _replay(dump, folder, "html")
            found = {
                "records": made.records,
                "real": real,
                "file_bytes_each": dump.stat().st_size / made.records,
                **{f"{name}_s": statistics.median(values) for name, values in took.items()},
            }
        finally:
            flow.close()
    return found


def _replay(dump: Path, folder: str, form: str) -> None:
    capture = Capture(dump)
    output = export.make(form, Path(folder, f"page.{form}"), capture.head.view, Shown())
    try:
        replay(capture, output, Wanted(Selection({}), singles=form == "html"))
    finally:
        output.close()
        capture.close()


def words(found: dict[str, Any]) -> Iterator[str]:
    each = f"{found['file_bytes_each']:.1f} bytes each in the file"
    yield f"{found['records']:,} records, copies of {found['real']:,} real ones: {each}"
    for name in ("copy", "dump", "summary", "page"):
        yield f"  {name:8} {found[f'{name}_s']:.3f} s of CPU"
