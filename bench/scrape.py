# SPDX-License-Identifier: Apache-2.0
"""The agent's time for a scrape, and for messages of OTLP: 20 disks with all kinds of operations.

It runs in a process without BPF.
"""

from __future__ import annotations

import gzip
import random
import statistics
import time
from typing import Any, Callable

from wptrace.flows.io import block, kinds
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, Kind
from wptrace.model.report import BYTES, Overhead, Snapshot
from wptrace.outputs.metrics import Process, Source
from wptrace.outputs.otlp import Otlp
from wptrace.outputs.prometheus import Metrics

_DISKS, _OPERATIONS, _VALUES = 20, ("read", "write", "flush"), 500
_LEVELS = {"block": (block.REQUEST,), "path": kinds.KINDS}


def _snapshot(followed: tuple[Kind, ...]) -> Snapshot:
    rng = random.Random(1)  # noqa: S311
    cells: dict[Any, dict[str, Distribution]] = {}
    for kind in followed:
        for disk in range(_DISKS):
            for operation in _OPERATIONS:
                found = cells[kind.group(f"nvme{disk}n1", operation)] = {}
                for measured in kind.rows:
                    found[measured.name] = made = Distribution()
                    for _ in range(_VALUES):
                        made.add(int(rng.lognormvariate(11, 2)))
    cost = Overhead(1, 1, 1, 1, 1, 1)
    counters = {group: {BYTES: 4096} for group in cells}
    return Snapshot(0, {REQUESTS: Book.read(1, 1, {}, {})}, cells, counters, cost)


def _makers(source: Source, histograms: bool, snapshot: Snapshot) -> dict[str, Callable[[], list[bytes]]]:
    text, otlp = Metrics([source], histograms), Otlp([source], 1)
    otlp.stage_histograms = histograms
    process = Process(1.0, 1, 1.0, bpf_is_timed=True)
    return {
        "text": lambda: [text.text([snapshot], process).encode()],
        "OTLP": lambda: [one.body for one in otlp.metrics([snapshot], process, 2)],
    }


def run(repeats: int) -> list[dict[str, Any]]:
    """Return the CPU time of a text or of messages, and their bytes with and without compression."""
    found = []
    for level, followed in _LEVELS.items():
        snapshot = _snapshot(followed)
        for stages in ("sum", "histogram"):
            for form, make in _makers(Source("io", level, followed, {}), stages == "histogram", snapshot).items():
                times, made = [], [b""]
                for _ in range(repeats):
                    before = time.process_time()
                    made = make()
                    times.append(time.process_time() - before)
                sizes = sum(map(len, made)), sum(len(gzip.compress(one, 1)) for one in made)
                median = statistics.median(times) * 1e3
                found.append({"level": level, "stages": stages, "form": form, "ms": median, "bytes": sizes})
    return found


def lines(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"--level {one['level']}, stages as {one['stages']}, {one['form']}: {one['ms']:.1f} ms, "
        f"{one['bytes'][0] / 1e6:.1f} MB, {one['bytes'][1] / 1e3:.0f} KB compressed"
        for one in found
    ]
