# SPDX-License-Identifier: Apache-2.0
"""The join of two recordings: what captures of a guest and of its host have besides events, and intervals of both."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wptrace.correlation.kicks import Kicks, Signal
from wptrace.engine import resource
from wptrace.errors import WptraceError
from wptrace.flows.io.join.following import Following
from wptrace.flows.io.join.joined import JOINED, Sums, whose, work
from wptrace.model.anchor import Anchor
from wptrace.model.report import Event, Report, Start

_SECOND = 1_000_000_000
_MOST_INTERVALS = 600


class Recorded(NamedTuple):
    """All events of a trace."""

    path: Path
    kernel: str
    filters: Mapping[str, Any]
    events: list[Event]
    whole: bool
    """The trace is complete."""
    anchors: Sequence[Anchor] = ()
    boot: str = ""
    """The boot of its machine, if known."""
    signals: Sequence[Signal] = ()
    """Uses of eventfds."""


class Recordings:
    def __init__(
        self, guest: Recorded, host: Recorded, named: Mapping[str, str], others: Sequence[Recorded] = ()
    ) -> None:
        """`named` are images of disks that the user gave; the others are found by their requests.

        `others` are the host's requests for other guests.
        """
        self.guest, self._host = guest, host
        self._both = Following(guest.path, named, live=False)
        for event in host.events:
            self._both.serve(event)
        if not self._both.images:
            raise WptraceError(
                f"{host.path} has no requests to a raw image: {'; '.join(_formats(host)) or 'wptrace host writes it'}",
                hint="wptrace host --pid PID --each --capture HOST",
            )
        ours = [event for event in guest.events if self._both.ask(event)]
        if not ours:
            raise WptraceError(
                f"{guest.path} has no request of a disk",
                hint="wptrace io -d vda --each --capture GUEST writes it, in the guest",
            )
        self.began_ns = min(event.start_ns for event in ours)
        """The time of day in the guest."""
        self._ended_ns = max(event.end_ns for event in ours)
        self._require_known(named)
        self._both.anchor(guest.anchors, host.anchors)
        kicks = Kicks(host.signals, map(work, host.events)) if host.signals else None
        self._both.kicks = {} if kicks is None else kicks.of_alone()
        self._tallies = () if kicks is None else kicks.tallies(self._both.kicks)
        for recorded in others:
            if recorded.boot and host.boot and recorded.boot != host.boot:
                raise WptraceError(f"{recorded.path} is not of the same machine and boot as {host.path}")
            for event in recorded.events:
                self._both.others.other(whose(event), event)
        self._events = self._both.settle(last=True)
        if not self._both.known:
            raise WptraceError(
                f"no request of {guest.path} is found in {host.path}: they are of different guests or different times"
            )

    def _require_known(self, named: Mapping[str, str]) -> None:
        disks, images = sorted({name for name, _ in self._both.disks}), sorted(self._both.images)
        for name, image in named.items():
            if name not in disks:
                raise WptraceError(f"the guest has no disk {name}: it has {', '.join(disks)}")
            if image not in images:
                raise WptraceError(f"the host has no image {image}: it has {', '.join(images)}")

    def intervals(self) -> Iterable[tuple[list[Event], Report]]:
        """Return what ended in each second, or in equal parts of a longer time."""
        begin, end = self.began_ns, self._ended_ns
        length = max(_SECOND, -(-(end - begin) // _MOST_INTERVALS))
        events = deque(self._events)
        missed = deque(sorted(self._both.missed, key=lambda one: one[0]))
        while begin < end:
            until = min(begin + length, end)
            sums, some = Sums(), []
            while events and events[0].end_ns <= until:
                some.append(events.popleft())
                sums.add(some[-1])
            while missed and missed[0][0] <= until:
                sums.miss(missed.popleft()[1])
            yield some, sums.report("interval", until, until - begin)
            begin = until

    def start(self) -> Start:
        guest, host = self.guest, self._host
        filters = {"dev": list(guest.filters["dev"])} if _are_words(guest.filters.get("dev")) else {}
        return Start(
            "join",
            "",
            f"{guest.kernel} on {host.kernel}",
            filters,
            [],
            (JOINED,),
            list(self._notes()),
            f"{guest.path} and {host.path}",
            resource.here(),
        )

    def _notes(self) -> Iterable[str]:
        for recorded in (self.guest, self._host):
            if not recorded.whole:
                yield f"{recorded.path} has no end: its trace was cut off"
        for name, image in self._both.disks:
            if not image:
                yield f"{name} has no image in {self._host.path}"
        yield from self._both.notes()
        yield from _formats(self._host)
        for one in self._tallies:
            yield (
                f"{one.image}: thread {one.tid} read {one.kicks:,} kicks; of what was done alone {one.alone:,} begin"
                f" with a kick, and {one.given_back:,} end with the eventfd that gives them back"
            )

    def summary(self) -> Report:
        report = self._both.summary(self._ended_ns, self._ended_ns - self.began_ns)
        kicks = [one._asdict() for one in self._tallies]
        return report._replace(lists={**report.lists, "kicks": kicks}) if kicks else report


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _formats(host: Recorded) -> Iterable[str]:
    images = host.filters.get("images")
    for image in images if isinstance(images, list) else ():
        if isinstance(image, dict) and image.get("format") != "raw":
            recorded = f"{image.get('path')} is of format {image.get('format')}"
            yield f"{recorded}: its offsets are not those of the guest's disk"
