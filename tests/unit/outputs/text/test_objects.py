# SPDX-License-Identifier: Apache-2.0
"""Flows by definition as text."""

from __future__ import annotations

import io
import json

from tests.unit.outputs.samples import distribution
from wptrace.model.book import Book
from wptrace.model.kind import TOTAL, Kind, Label, Noun, Point, Stage
from wptrace.model.report import BYTES, Event, InFlight, Overhead, Report, arranged
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.objects import VIEW
from wptrace.outputs.text.output import TextOutput

D, C = Point("D", "issued"), Point("C", "done")
STAGE = Stage("device", D, C, "it is worked on", "it is slow", advice="the disk")
LABELS = (Label("disk", "text"), Label("op", "text"))
KIND = Kind("object", Noun("request"), LABELS, (STAGE,), sized=True, nested=True)
PLAIN = Kind("object", Noun("request"), (), (STAGE,), nested=True)


def report(kind: Kind, *labels: tuple[str, ...]) -> Report:
    found = distribution([1_000_000])
    cells = {kind.group(*each): {"device": found, TOTAL: found} for each in labels}
    counters = {group: {BYTES: 4096, "merged": 3} for group in cells}
    books = {"requests": Book.read(1, 1, {}, {})}
    return Report("summary", 0, 10**9, books, arranged(cells, [kind]), counters, Overhead(0, 0, 0, 0, 0, 0))


def test_a_table_for_each_row_of_labels() -> None:
    view = VIEW(Wanted(per_device=True))
    view.kinds = (KIND,)
    lines = list(view.report(report(KIND, ("sda", "read"), ("sdb", "read")), 80))
    assert [line for line in lines if "1 request," in line and "/s" in line] == [
        "sda read: 1 request, 1 /s, 4 KiB/s; merged 3",
        "sdb read: 1 request, 1 /s, 4 KiB/s; merged 3",
    ]


def test_without_labels() -> None:
    view = VIEW(Wanted(per_device=True))
    view.kinds = (PLAIN,)
    lines = list(view.report(report(PLAIN, ()), 80))
    assert "1 request, 1 /s; merged 3" in lines
    event = Event(PLAIN.group(), 0, 5_000_000, {"device": 5_000_000}, {"key": "0x1", "comm": "dd\n"})
    (line,) = view.event(event, 80, False)
    assert line.endswith("5.00 ms  key 0x1, comm dd\\n")


def test_what_is_in_flight() -> None:
    view = VIEW(Wanted())
    many = [InFlight(KIND.group("sda", "read"), 10**9, "device", {"key": "0x1", "pid": 7})] * 3
    title, *lines, rest = view.in_flight(many, 0, 80, 2)
    assert title.endswith("3, the oldest for 1.00 s")
    assert lines == ["    1.00 s  device       sda read  key 0x1 pid 7"] * 2
    assert rest == "  and 1 more"
    assert max(map(len, view.in_flight(many, 0, 30, 2)[1:])) <= 30


def test_which_of_several_it_is() -> None:
    """Each report has the name of its flow, and so has each line in between."""
    stream = io.StringIO()
    view = VIEW(Wanted(per_device=True, title="netrx"))
    view.kinds = (PLAIN,)
    output = TextOutput(stream, view)
    output.event(Event(PLAIN.group(), 0, 5_000_000, {"device": 5_000_000}, {"key": "0x1"}))
    output.in_flight([InFlight(PLAIN.group(), 10**9, "device", {"key": "0x1"})], 0)
    output.interval(report(PLAIN, ()))
    output.summary(report(PLAIN, ()))
    lines = stream.getvalue().splitlines()
    one, title, waiting = list(filter(None, lines))[:3]
    assert one.startswith("netrx: ")
    assert title.startswith("netrx: in flight at ")
    assert not waiting.startswith("netrx")
    assert [line for line in lines if line in ("netrx", "Summary of netrx")] == ["netrx", "Summary of netrx"]


def test_which_of_several_a_line_of_json_is() -> None:
    stream = io.StringIO()
    output = NdjsonOutput(stream, Wanted(title="netrx"))
    output.event(Event(PLAIN.group(), 0, 5_000_000, {"device": 5_000_000}, {"key": "0x1"}))
    output.in_flight([], 0)
    output.interval(report(PLAIN, ()))
    output.summary(report(PLAIN, ()))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["object", "in_flight", "summary", "summary"]
    assert {line["flow"] for line in lines} == {"netrx"}
