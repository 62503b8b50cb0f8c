# SPDX-License-Identifier: Apache-2.0
"""Events of a capture, decoded as the command that wrote it would show them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Callable, Union

from wptrace.analysis.overlap import Span
from wptrace.capture.layout import Described
from wptrace.capture.reader import Arriving, Capture, Head, Records
from wptrace.capture.records import Names
from wptrace.engine.definition import records as objects
from wptrace.errors import WptraceError
from wptrace.flows.io import block, recorded, records
from wptrace.flows.io.kinds import REQUEST, REQUEST_STAGES, UNREAD, text_label
from wptrace.flows.io.options import PROCESS
from wptrace.flows.io.parts import images, kicks
from wptrace.flows.io.spans import OwnerNames, Spans
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.model.kind import TEXTS, Group
from wptrace.model.report import BYTES, Event
from wptrace.model.rows import Rows

NONSENSE = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError)
"""Errors raised by names and numbers that no program writes."""

# The number of rows that are decoded together.
_AT_ONCE = 2048

_Decoder = Callable[[Records], Iterator[Sequence[Event]]]
_From = Union[Capture, Arriving]


class NonsenseError(WptraceError):
    def __init__(self, file: object) -> None:
        super().__init__(f"{file} is damaged: what it has makes no sense")


class Singles:
    def __init__(self, capture: _From, head: Head, whole: bool = True) -> None:
        """Unless they are wanted as a `whole`, they have what figures are made of and filters ask for."""
        self._capture, self._whole = capture, whole
        start = head.start
        self._is_io = start.flow == "io"
        self._images = images.of_filters(start.filters) if whole and start.flow == "host" else None
        self._decoders: dict[int, _Decoder] = {}
        self._spans: dict[int, tuple[Spans, struct.Struct]] = {}
        self._blocks: dict[int, tuple[block.Requests, struct.Struct]] = {}
        self._recorded: tuple[recorded.Recorded, OwnerNames] | None = None

    def with_requests(self, found: Records) -> Iterator[tuple[Event, Span | None]]:
        """Generate events, those of `wptrace io` with the request of an operation that made only one."""
        spans = self.spans(found, PROCESS) if self._is_io else ()
        return zip(self.of(found), chain(spans, repeat(None)))

    def spans(self, found: Records, by: str) -> Iterator[Span | None]:
        """Generate the request of each record, with its owner; None if there is none, or if there are several."""
        layout = self._capture.layouts[found.number]
        if layout.record == recorded.RECORDED.record:
            yield from self._recorded_spans(found, layout, by)
            return
        if layout.record == block.RECORDS.record:
            if found.number not in self._blocks:
                requests = block.Requests(layout, layout.names)
                self._blocks[found.number] = requests, layout.rows(requests.layout)
            requests, plain = self._blocks[found.number]
            for rows in _pieces(found, layout, plain):
                yield from requests.spans(rows)
            return
        if layout.record != records.RECORDS.record:
            return
        if found.number not in self._spans:
            self._spans[found.number] = _spans(layout, by)
        spans, plain = self._spans[found.number]
        spans.cgroups = CgroupNames(known=self._capture.cgroups)
        spans.text_of = _text_of(self._capture)
        for rows in _pieces(found, layout, plain):
            yield from spans.of(rows)

    def _recorded_spans(self, found: Records, layout: Described, by: str) -> Iterator[Span | None]:
        if self._recorded is None:
            of: Callable[[Any], Any] = _text_of(self._capture) if by in TEXTS else str
            self._recorded = recorded.Recorded(layout), OwnerNames(by, str, of)
        made, owners = self._recorded
        made.names = Names(self._capture.tasks, self._capture.files)
        for rows in _pieces(found, layout, layout.rows(made.rows)):
            yield from made.spans(rows, owners)

    def of(self, found: Records) -> Iterator[Event]:
        return chain.from_iterable(self.batches(found))

    def batches(self, found: Records) -> Iterator[Sequence[Event]]:
        """Generate the events as rows, if they are not looked at before."""
        made = self._decoders.get(found.number)
        if made is None:
            layout = self._capture.layouts[found.number]
            if layout.record not in _DECODERS:
                raise WptraceError(f"the capture has records of a {layout.record}, which this version does not know")
            made = self._decoders[found.number] = _DECODERS[layout.record](self._capture, layout, self._whole)
        return made(found) if self._images is None else map(self._images.events, made(found))


def request(event: Event, span: Span) -> Event:
    """Return the request that an operation made, as an event of its own."""
    times, total = event.stages, span.completed_ns - span.queued_ns
    stages = {name: times.get(name, 0) for name in REQUEST_STAGES}
    group = Group(REQUEST, (span.dev, span.op))
    return Event(group, event.end_ns, total, stages, {BYTES: span.bytes})


def _pieces(found: Records, layout: Described, plain: struct.Struct) -> Iterator[list[tuple[Any, ...]]]:
    """Unpack so many rows at a time."""
    rows, size = memoryview(found.rows), _AT_ONCE * layout.stride
    for first in range(0, len(rows), size):
        yield list(plain.iter_unpack(rows[first : first + size]))


def _text_of(capture: _From) -> Callable[[int], Any]:
    return lambda of: capture.statements.get(of, UNREAD)


def _texts(capture: _From, layout: Described) -> records.OwnersOfRecords | None:
    """The owners of its records that are texts, if they have any."""
    label = None if capture.head is None else text_label(capture.head.start.fields)
    if label is None or "statement" not in layout.struct(layout.record).names:
        return None
    return records.OwnersOfRecords(label, _text_of(capture))


def _stories(capture: _From, layout: Described, whole: bool) -> _Decoder:
    texts = _texts(capture, layout)
    stories = records.Stories(layout, layout.names, CgroupNames(known=capture.cgroups), texts=texts)
    stories.stack_of = lambda of: capture.stacks.get(of, records.NO_STACK)
    plain = layout.rows(stories.layout)

    def decode(found: Records) -> Iterator[Sequence[Event]]:
        stories.cgroups = CgroupNames(known=capture.cgroups)
        stories.wall_offset_ns = found.wall_offset_ns
        for rows in _pieces(found, layout, plain):
            yield Rows(rows, stories) if whole else list(stories.decode_short(rows))

    return decode


def _spans(layout: Described, by: str) -> tuple[Spans, struct.Struct]:
    plain, fields = layout.struct(layout.record).packed(*records.WHOLE)
    return Spans(layout, fields, by), layout.rows(plain)


def _requests(capture: _From, layout: Described, whole: bool) -> _Decoder:
    requests = block.Requests(layout, layout.names)
    plain = layout.rows(requests.layout)

    def decode(found: Records) -> Iterator[Sequence[Event]]:
        requests.wall_offset_ns = found.wall_offset_ns
        for rows in _pieces(found, layout, plain):
            yield Rows(rows, requests)

    return decode


def _recorded_events(capture: _From, layout: Described, whole: bool) -> _Decoder:
    made = recorded.Recorded(layout, _texts(capture, layout))
    plain = layout.rows(made.rows)

    def decode(found: Records) -> Iterator[Sequence[Event]]:
        made.names = Names(capture.tasks, capture.files)
        for rows in _pieces(found, layout, plain):
            yield list(made.decode(rows, found.wall_offset_ns))

    return decode


def _recorded_objects(capture: _From, layout: Described, whole: bool) -> _Decoder:
    head = capture.head
    if head is None:
        raise ValueError("the capture has no start")
    made = objects.Recorded(layout, head.start.kinds[0])
    plain = layout.rows(made.layout)

    def decode(found: Records) -> Iterator[Sequence[Event]]:
        for rows in _pieces(found, layout, plain):
            yield list(made.decode(rows, capture.rows, found.wall_offset_ns))

    return decode


_DECODERS: dict[str, Callable[[_From, Described, bool], _Decoder]] = {
    records.RECORDS.record: _stories,
    recorded.RECORDED.record: _recorded_events,
    block.RECORDS.record: _requests,
    objects.RECORDED.record: _recorded_objects,
    # Only a join uses such records.
    kicks.RECORDS.record: lambda *_: lambda found: iter(()),
}
