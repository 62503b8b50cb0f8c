# SPDX-License-Identifier: Apache-2.0
"""`wptrace join`: read the events of a guest and of its host, and show what was joined.

Captures may be anybody's: nothing is trusted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Callable

from wptrace.capture.reader import Capture, Head, Records
from wptrace.capture.spec import LATEST_NS
from wptrace.capture.writer import CaptureOutput
from wptrace.errors import WptraceError
from wptrace.flows.io.guests.join import Recorded, Recordings
from wptrace.flows.io.kinds import HIT, OPERATION, REQUEST
from wptrace.flows.io.parts import kicks
from wptrace.flows.io.records import RECORDS
from wptrace.model.report import Event, Output
from wptrace.tools.singles import NONSENSE, NonsenseError, Singles

_MOST = 1 << 18
"""The most events of each side: they are held in memory, some 6 kB for each joined one."""
_MOST_HEARD = 1 << 21
_BEYOND = 1 << 64
_SHOWN = (OPERATION, HIT, REQUEST)
_NUMBERS = ("pid", "tid", "inode", "length", "sector", "bytes", "requests", "readahead")
# Fields of the host that are shown, or needed to join.
_OF_HOST = ("pid", "tid", "comm", "image", "clock", "length", "sector", "bytes")
_COMMANDS = {
    "io": "in the guest: wptrace io --each --capture GUEST",
    "host": "on its host: wptrace host --pid PID --each --capture HOST",
}


def read(guest: Path, host: Path, named: Mapping[str, str], others: Sequence[Path] = ()) -> Recordings:
    """`named` are images of disks that the user knows, `others` captures of the host for other guests."""
    gc.freeze()
    ours, theirs = _read(guest, "io", of_disk), _read(host, "host", of_image)
    try:
        return Recordings(ours, theirs, named, [_read(path, "host", of_image) for path in others])
    except NONSENSE:
        raise NonsenseError(guest) from None


def show(found: Recordings, output: Output, recorder: CaptureOutput | None, slow_ns: int | None) -> None:
    """The recorder gets all events, the output those of at least `slow_ns`; none if that is None."""
    with ExitStack() as cleanup:
        every: list[Output] = [output] if recorder is None else [recorder, output]
        for one in every:
            cleanup.callback(one.close)
        try:
            start, summary = found.start(), found.summary()
            for one in every:
                one.start(start)
            for events, report in found.intervals():
                for event in events:
                    if recorder is not None:
                        recorder.event(event)
                        recorder.flush()
                    if slow_ns is not None and event.total_ns >= slow_ns:
                        output.event(event)
                output.flush()
                for one in every:
                    one.interval(report)
            for one in every:
                one.summary(summary)
        except NONSENSE:
            raise NonsenseError(found.guest.path) from None


def _read(path: Path, flow: str, wanted: Callable[[Event], Event | None]) -> Recorded:
    with closing(Capture(path)) as capture:
        head = capture.head
        require(head, path, flow)
        events: list[Event] = []
        heard: kicks.Heard = []
        try:
            for event in _events(capture, path, heard):
                found = wanted(event)
                if found is not None:
                    events.append(found)
                if len(events) > _MOST:
                    raise WptraceError(f"{path} has more than {_MOST:,} operations: join a shorter time")
        except NONSENSE:
            raise NonsenseError(path) from None
        if capture.damaged:
            raise WptraceError(f"{path} is damaged: missing records would count as lost")
        start = head.start
        return Recorded(path, start.kernel, start.filters, events, head.whole, head.anchors, head.boot, heard)


def require(head: Head, path: Path, flow: str) -> None:
    if head.start.flow != flow or head.start.level != "path" or not head.has_events:
        raise WptraceError(f"{path} has no events of wptrace {flow}", hint=_COMMANDS[flow])
    if head.traces > 1:
        raise WptraceError(f"{path} has {head.traces} traces: a join takes one")


def _events(capture: Capture, path: Path, heard: kicks.Heard) -> Iterator[Event]:
    """Events of records: other items of such a capture are no operations."""
    singles = Singles(capture, capture.head)
    for item in capture.items(intervals=False):
        if not isinstance(item, Records):
            continue
        layout = capture.layouts[item.number]
        if layout.record == RECORDS.record:
            yield from checked(singles.of(item), path)
        elif layout.record == kicks.RECORDS.record:
            heard += kicks.of(layout, memoryview(item.rows))
            if len(heard) > _MOST_HEARD:
                raise WptraceError(f"{path} has more than {_MOST_HEARD:,} uses of eventfds: join a shorter time")


def checked(events: Iterable[Event], path: Path) -> Iterator[Event]:
    """Keep those that a program reported."""
    for event in events:
        if "clock" not in event.fields:
            raise WptraceError(f"{path} was written by a version that did not keep the times that a join needs")
        if not _makes_sense(event):
            raise NonsenseError(path)
        yield event


def _makes_sense(event: Event) -> bool:
    fields = event.fields
    numbers = [event.total_ns, *event.stages.values(), *fields["clock"].values()]
    numbers += [fields[name] for name in _NUMBERS if name in fields]
    return (
        event.group.kind in _SHOWN
        and 0 <= event.end_ns < LATEST_NS
        and all(map(_is_plain, fields.values()))
        and all(type(one) is int and 0 <= one < _BEYOND for one in numbers)
        and sum(event.stages.values()) == event.total_ns
    )


def _is_plain(value: Any) -> bool:
    """Whether the value is one that programs write: a forged layout may declare an array."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


def of_disk(event: Event) -> Event | None:
    """Return the event unless it is a hit, which asked no disk."""
    return event if "maj_min" in event.fields else None


def of_image(event: Event) -> Event:
    kept: dict[str, Any] = {name: event.fields[name] for name in _OF_HOST if name in event.fields}
    return event._replace(fields=kept, children=())
