# SPDX-License-Identifier: Apache-2.0
"""Joins a guest's operations with its host's requests, while both are traced or from two recordings.

Live, events of either side wait for the other side, for a limited time and in a limited number. Of recordings
everything is there before anything is joined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wptrace.analysis.verdict import Case, judge
from wptrace.correlation import anchors, guests
from wptrace.correlation.clocks import Bound, Offset
from wptrace.correlation.guests import WHOLE, Asked, Disk, Served
from wptrace.correlation.kicks import Kick, Kicks, Signal, Work
from wptrace.engine import resource
from wptrace.errors import WptraceError
from wptrace.flows.io.guests.joined import (
    JOINED,
    JUMPED,
    UNASKED,
    OtherGuests,
    Sums,
    anchor_notes,
    as_asked,
    as_served,
    clocks,
    disk_of,
    image_of,
    joined,
    known,
    whose,
    work,
)
from wptrace.model.anchor import Anchor
from wptrace.model.book import Cause
from wptrace.model.report import Event, Report, Start

WINDOW_S = 30
"""Requests of the host wait for the guest's records at most this long."""
MOST = 1 << 14
"""The most that wait on either side, for each disk."""
MOST_OF_ALL = 4 * MOST
"""The most of the guest's that wait, of all of its disks: it names as many as it likes."""

_SECOND = 1_000_000_000
_WINDOW_NS = WINDOW_S * _SECOND
# The number of matching requests that are enough to set the clocks. With several images, a disk is the image with this
# many matching places, if no other image has half as many.
_ALIKE = 8
_MOST_DISKS = 64
# After this many in a row without a match the machine is assumed to have been paused, with its clock.
_PAUSED = 64
# The number of waits of this guest that are processed together.
_LOOKED = 1 << 12
# The number of comparisons in an attempt, which take some 0.3 s.
_TRIED = 1 << 17
# The number of clock bounds to keep; of more, every other one is dropped.
_KEPT = 4096
# Of two recordings.
_MOST_INTERVALS = 600


class _Waiting(NamedTuple):
    """An operation of the guest that waits for its match."""

    asked: Asked
    event: Event


class _Done(NamedTuple):
    """A request of the host that waits for its match."""

    served: Served
    event: Event


class _Side:
    """A disk of the guest."""

    def __init__(self) -> None:
        self.name = ""
        self.image = ""
        self.waiting: deque[_Waiting] = deque()
        self.seasoned = 0
        """The number of operations at the front whose competitors have all arrived."""


class _Image:
    def __init__(self) -> None:
        self.done: deque[_Done] = deque()
        self.shared: set[Served] = set()
        """Requests of the host that match several requests, or parts of one: they stay for the others."""
        self.writes = guests.Writes()


class Following:
    def __init__(self, source: object, named: Mapping[str, str], live: bool = True) -> None:
        """`source` is where the guest's events come from, `named` the images of disks that the user knows.

        Unless it is `live`, all events of both sides are there before the first and only call of `settle`.
        """
        self._source, self._named, self._live = source, named, live
        self._disks: dict[str, _Side] = {}
        self._images: dict[str, _Image] = {}
        self._bounds: list[Bound] = []
        self._count = 0
        self._moments: set[int] = set()
        """When the operations were issued that set the bounds of the clocks at the last check."""
        self._missed = 0
        """Operations in a row without a match."""
        self._latest = self._agree = self._contradict = 0
        self._offset: Offset | None = None
        self._sums = [Sums(), Sums()] if live else [Sums()]
        """Sums of everything, and of what came since the last interval."""
        self.others = OtherGuests(MOST) if live else OtherGuests()
        self.kicks: Mapping[Work, Kick] = {}
        """Kicks for one request of the host alone."""
        self.missed: list[tuple[int, Cause]] = []
        """In recordings: when requests of the guest without an event ended, and the cause."""
        self._anchors: Sequence[Bound] = ()
        self._tries: guests.Tries | None = None
        self.guest_since_ns = 0
        """The guest is traced since then, by its monotonic clock."""
        self.host_since_ns = 0
        """The host is traced since then, by its monotonic clock."""
        self.full = False
        """The queues are almost full."""

    # --- What both sides say ------------------------------------------------------------------------------------------

    def ask(self, event: Event) -> bool:
        """Take an operation of the guest; False if it cannot be found on the host."""
        number = disk_of(event, self._source)
        if not number:
            return False
        if self._live and number not in self._disks and len(self._disks) >= _MOST_DISKS:
            self._lose(guests.UNSERVED, [event])
            return True
        disk = self._disks.setdefault(number, _Side())
        disk.name = min(disk.name or event.group.label("dev"), event.group.label("dev"), key=len)
        asked = as_asked(event)
        self._latest = max(self._latest, asked.seen)
        disk.waiting.append(_Waiting(asked, event))
        waiting = sum(len(one.waiting) for one in self._disks.values())
        self.full |= self._live and (len(disk.waiting) >= MOST or waiting >= MOST_OF_ALL)
        return True

    def serve(self, event: Event) -> None:
        image = image_of(event)
        if not image:
            return
        found = self._images.setdefault(image, _Image())
        served = as_served(event)
        found.done.append(_Done(served, event))
        found.writes.add(served)
        if self._live and len(found.done) > MOST:
            self._forget(found)

    def anchor(self, guest: Sequence[Anchor], host: Sequence[Anchor]) -> None:
        """Add readings of both machines' clocks."""
        self._anchors = anchors.bounds(guest, host)

    @property
    def known(self) -> bool:
        """Whether the clocks and the images of disks are known."""
        return self._offset is not None

    @property
    def disks(self) -> list[tuple[str, str]]:
        """The disks of the guest, each with its image, or empty."""
        return [(disk.name, disk.image) for disk in self._disks.values()]

    @property
    def images(self) -> Iterable[str]:
        return self._images

    # --- Joining ------------------------------------------------------------------------------------------------------

    def settle(self, last: bool = False) -> list[Event]:
        """Return operations whose competitors have arrived, or all of them at the `last` call."""
        force = last or self.full
        self._tries = guests.Tries(_TRIED) if self._live else None
        self._find_images(force)
        if self._missed >= _PAUSED:
            self._offset, self._bounds, self._missed = None, [], 0
            self._note(JUMPED)
        self._align(force)
        found: list[Event] = []
        for disk in self._disks.values():
            if disk.image and self._offset is not None:
                found += self._joined(disk, self._offset, len(disk.waiting) if force else disk.seasoned)
            elif force:
                self._lose(guests.UNSERVED, [one.event for one in disk.waiting])
                disk.waiting.clear()
            disk.seasoned = len(disk.waiting)
        self.full = False
        if last or self.others.waiting >= _LOOKED:
            self.others.add_up()
        self._expire(last)
        return sorted(found, key=lambda event: event.end_ns)

    def _joined(self, disk: _Side, offset: Offset, ready: int) -> Iterator[Event]:
        """Join the first `ready` ones; the others compete with them for the host's requests."""
        if not ready:
            return
        image = self._images.setdefault(disk.image, _Image())
        since = min(one.asked.handed for one in disk.waiting)
        least = since + offset.at(since).least
        done = [one for one in image.done if one.served.end >= least or not self._live]
        both = Disk([one.asked for one in disk.waiting], [one.served for one in done])
        matches = guests.match(both, offset, self._tries, image.writes)
        gone: set[int] = set()
        missed = 0
        for pair in matches.pairs:
            if pair.asked >= ready:
                continue
            theirs = [done[number] for number in pair.served]
            their_events = [one.event for one in theirs]
            kick = self.kicks.get(work(their_events[0])) if self.kicks else None
            event = joined(disk.waiting[pair.asked].event, their_events, pair.how, offset, kick)
            for sums in self._sums:
                sums.add(event)
            self.others.wait(disk.name, event.total_ns, their_events)
            if pair.how == WHOLE:
                gone.update(map(id, theirs))
            else:
                image.shared.update(one.served for one in theirs)
            yield event
        for number, cause in matches.causes.items():
            if number < ready:
                missed += cause is not guests.UNFORWARDED
                if cause is guests.OUTSIDE and not self._is_outside(both.asked[number], offset):
                    cause = guests.UNSERVED
                self._lose(cause, [disk.waiting[number].event])
        if not self._live:
            self._note(UNASKED, matches.unasked)
        self._missed = self._missed + missed if missed == ready else 0
        image.done = deque(one for one in image.done if id(one) not in gone)
        for _ in range(ready):
            disk.waiting.popleft()

    def _is_outside(self, asked: Asked, offset: Offset) -> bool:
        # Live, the host's earlier requests may be forgotten: only its start shows that they were not traced.
        return not self._live or asked.handed + offset.at(asked.handed).most < self.host_since_ns

    def _lose(self, cause: Cause, events: Sequence[Event]) -> None:
        for sums in self._sums:
            sums.miss(cause, len(events))
        if not self._live:
            self.missed += [(event.end_ns, cause) for event in events]

    def _note(self, cause: Cause, count: int = 1) -> None:
        for sums in self._sums:
            sums.noted[cause] += count

    def _forget(self, image: _Image) -> None:
        one = image.done.popleft().served
        if one in image.shared:
            image.shared.discard(one)
            return
        # Before the start of its trace the guest reported nothing.
        if self._offset is not None and one.begin < self.guest_since_ns + self._offset.at(self.guest_since_ns).most:
            return
        self._note(UNASKED)

    def _expire(self, last: bool) -> None:
        """Give up requests of the host whose operation would have come by now."""
        if self._offset is None or not self._live:
            return
        sent = self._latest + self._offset.at(self._latest).least
        until = sent if last else sent - _WINDOW_NS
        for image in self._images.values():
            while image.done and image.done[0].served.end < until:
                self._forget(image)

    # --- What belongs together ----------------------------------------------------------------------------------------

    def _find_images(self, force: bool) -> None:
        lacking = [disk for disk in self._disks.values() if not disk.image and disk.waiting]
        for disk in lacking:
            disk.image = self._named.get(disk.name, "")
        taken = {disk.image for disk in self._disks.values()} | set(self._named.values())
        ours = [(disk, guests.places(one.asked for one in disk.waiting)) for disk in lacking if not disk.image]
        theirs = [
            (name, guests.places(one.served for one in image.done))
            for name, image in (self._images.items() if ours else ())
            if name not in taken
        ]
        alike = [(len(mine & there), disk, name) for disk, mine in ours for name, there in theirs]
        alone = len(self._disks) == 1 and len(self._images) == 1
        for mine, disk, name in sorted(alike, key=lambda one: (one[0], one[1].name, one[2]), reverse=True):
            if not mine or disk.image or name in taken:
                continue
            others = (n for n, d, i in alike if (d is disk) != (i == name) and not d.image and i not in taken)
            if alone or force or (mine >= _ALIKE and all(2 * n < mine for n in others)):
                disk.image = name
                taken.add(name)

    def _align(self, force: bool) -> None:
        disks = [
            Disk([one.asked for one in disk.waiting], [one.served for one in self._images[disk.image].done])
            for disk in self._disks.values()
            if disk.waiting and disk.image in self._images
        ]
        if self._offset is None:
            found = guests.alignment(disks, self._tries)
            # A few may match by chance.
            new = [] if found is None or (len(found) < _ALIKE and not force) else list(found.bounds)
        else:
            new = guests.refined(disks, self._offset, self._tries)
        if not new:
            return
        before = set(self._bounds)
        # Operations that wait give the same bounds again, narrowed by the others.
        moments = {bound.at for bound in new}
        self._count += len(moments - self._moments)
        self._moments = moments
        self._offset, self._agree, self._contradict = anchors.narrowed(Offset(before | set(new)), self._anchors)
        self._bounds = list(self._offset.bounds)
        if len(self._bounds) > _KEPT:
            self._bounds = [self._bounds[0], *self._bounds[1::2]]

    # --- Reports ---------------------------------------------------------------------------------------------------

    def notes(self) -> Iterable[str]:
        for name, image in self.disks:
            if image:
                yield f"{name} is {image}"
        if self._offset is not None:
            yield known(self._offset, self._count)
            yield from anchor_notes(self._agree, self._contradict)

    def interval(self, ts_ns: int, duration_ns: int) -> Report:
        recent, self._sums[-1] = self._sums[-1], Sums()
        return recent.report("interval", ts_ns, duration_ns)

    def summary(self, ts_ns: int, duration_ns: int) -> Report:
        report = self._sums[0].report("summary", ts_ns, duration_ns)
        clock = [] if self._offset is None else [clocks(self._offset, self._count)]
        images = [{"dev": name, "image": image} for name, image in self.disks]
        report = report._replace(lists={"clocks": clock, "disks": images})
        return report._replace(verdict=judge(Case(report, (JOINED,)), self.others.rules))


# --- Two recordings ---------------------------------------------------------------------------------------------------


class Recorded(NamedTuple):
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
        filters = {"dev": guest.filters["dev"]} if "dev" in guest.filters else {}
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


def _formats(host: Recorded) -> Iterable[str]:
    images = host.filters.get("images")
    for image in images if isinstance(images, list) else ():
        if isinstance(image, dict) and image.get("format") != "raw":
            recorded = f"{image.get('path')} is of format {image.get('format')}"
            yield f"{recorded}: its offsets are not those of the guest's disk"
