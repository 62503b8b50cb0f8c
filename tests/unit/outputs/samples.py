# SPDX-License-Identifier: Apache-2.0
"""Results as a flow returns them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from wptrace.flows.io.kinds import FIELDS
from wptrace.model.book import RING_FULL, STATE_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import DEVICE, OPERATION, REQUESTS, Group, Kind, Label, Noun, Point, Stage
from wptrace.model.report import BYTES, Event, Output, Overhead, Report, Source, Start, arranged
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.view import View

G, D, C = Point("G", "request allocated"), Point("D", "issued"), Point("C", "completed")
LABELS = (Label("dev", DEVICE), Label("op", OPERATION))
KIND = Kind(
    "request",
    Noun("request"),
    LABELS,
    (
        Stage("queue", G, D, "it waits", "the scheduler holds requests back"),
        Stage("device", D, C, "the device works", "the disk is slow"),
    ),
    sized=True,
    fields=FIELDS,
)
OVERHEAD = Overhead(1_400_000, 1000, 250_000_000, 30 << 20, 3 << 20, 17)
PLAIN = Wanted()
MS = 1_000_000
SECOND = 1_000 * MS
# 2023-11-14 22:13:20 UTC.
NOON = 1_700_000_000 * SECOND

# Names that a kernel may report: escape codes, newlines, invalid UTF-8, right-to-left text.
HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "a\nb",
    "a\r\x08b",
    "\udcff\udc80",
    "\u202egnp",
    "\x9b31m",
    "\u2028",
    "[red]x[/]",
]


def distribution(values: Iterable[int]) -> Distribution:
    made = Distribution()
    for value in values:
        made.add(value)
    return made


def cell(queue: Iterable[int], device: Iterable[int]) -> dict[str, Distribution]:
    queue, device = list(queue), list(device)
    return {
        "queue": distribution(queue),
        "device": distribution(device),
        "total": distribution(a + b for a, b in zip(queue, device)),
    }


def group(dev: str, op: str = "read") -> Group:
    return KIND.group(dev, op)


def start(dev: Iterable[str] = (), notes: Iterable[str] = (), kernel: str = "6.12.9") -> Start:
    sources = [Source(stage.name, "tp_btf/block_rq_complete") for stage in KIND.stages]
    return Start("io", "block", kernel, {"dev": list(dev)}, sources, (KIND,), list(notes))


def book(failed: int = 0) -> Book:
    return Book.read(20, 12, {STATE_FULL: 3}, {RING_FULL: 2}, failed)


def sized(sizes: Mapping[Group, int]) -> dict[Group, dict[str, int]]:
    return {group: {BYTES: size} for group, size in sizes.items()}


def report(
    cells: Mapping[Group, Mapping[str, Distribution]],
    sizes: Mapping[Group, int] | None = None,
    kind: str = "interval",
    accounting: Book | None = None,
    duration_ns: int = SECOND,
    failed: int = 0,
) -> Report:
    kinds = dict.fromkeys(group.kind for group in cells)
    books = {REQUESTS: book(failed) if accounting is None else accounting}
    return Report(kind, NOON, duration_ns, books, arranged(cells, kinds), sized(sizes or {}), OVERHEAD)


def request(dev: str = "sda", queue: int = MS, device: int = 3 * MS, error: int = 0) -> Event:
    fields = {"rwbs": "WS", "sector": 123456, "bytes": 4096, "cpu": 1, "error": error}
    return Event(group(dev, "write"), NOON, queue + device, {"queue": queue, "device": device}, fields)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Keys:
    """A keyboard without input."""

    def close(self) -> None:
        pass


def play(output: Output, *results: Any) -> None:
    """Pass the results of a trace to an output."""
    for one in results:
        if isinstance(one, Start):
            output.start(one)
        elif isinstance(one, Event):
            output.event(one)
        elif isinstance(one, Report):
            (output.summary if one.kind == "summary" else output.interval)(one)
        else:
            output.in_flight(one, NOON)
    output.close()


def written(view: View, *results: Any) -> list[str]:
    """Return the lines of text that a view makes of the results."""
    stream = io.StringIO()
    play(TextOutput(stream, view), *results)
    return stream.getvalue().splitlines()


def reported(*results: Any, wanted: Wanted = PLAIN) -> list[dict[str, Any]]:
    """Return the results as JSON lines."""
    stream = io.StringIO()
    play(NdjsonOutput(stream, wanted), *results)
    return [json.loads(line) for line in stream.getvalue().splitlines()]
