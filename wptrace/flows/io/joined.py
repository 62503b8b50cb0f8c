# SPDX-License-Identifier: Apache-2.0
"""A guest's operations with what the host did for them: stages of both sides, rows, and how sure the clocks are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wptrace.analysis.verdict import TIMED, Case, judge
from wptrace.correlation import guests
from wptrace.correlation.clocks import Bound, Offset
from wptrace.correlation.guests import (
    BACK,
    DEVICE,
    FLUSH,
    HOST,
    MERGED,
    PARTS,
    SPLIT,
    TO_HOST,
    Asked,
    Disk,
    Pair,
    Served,
)
from wptrace.engine.devices import LABELS
from wptrace.errors import WptraceError
from wptrace.flows.io.kinds import HIT, REQUEST, STAGES
from wptrace.model import units
from wptrace.model.book import Book, Cause
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL, UNATTRIBUTED, Group, Kind, Noun, Point, Stage
from wptrace.model.report import BYTES, Event, Overhead, Report, Start, rows_of

_H, _S = STAGES["device"].start, STAGES["device"].end
_BEGIN, _END = Point("h", "the host begins"), Point("e", "the host is done")
_UNKNOWN = Stage(
    UNATTRIBUTED, _BEGIN, _END, "time that no stage covers", "a hook is missing there: see wptrace doctor", rare=True
)


def _host(stage: Stage) -> Stage:
    return Stage(
        HOST + stage.name,
        stage.start,
        stage.end,
        f"on the host: {stage.description}",
        f"on the host: {stage.meaning}",
        advice=f"on the host: {stage.advice}" if stage.advice else "",
        rare=True,
    )


_BETWEEN = (
    Stage(
        TO_HOST,
        _H,
        _BEGIN,
        "from the guest's H to the host's first step: the kick, and the hypervisor's thread that takes it",
        "the hypervisor is late to take what the guest hands over",
        advice="on the host, whether the hypervisor's threads wait for CPUs (wptrace cpu -p PID --by thread), and how"
        " many of them serve the guest's disks (iothread)",
    ),
    Stage(
        HOST + PARTS,
        _BEGIN,
        _END,
        "the hypervisor has it done in parts, and others than the last one are under way",
        "it is larger than what the hypervisor asks for at once",
        rare=True,
    ),
    *(_host(STAGES[name]) for name in STAGES),
    _host(_UNKNOWN),
    Stage(
        BACK,
        _END,
        _S,
        "from the end of the host's work to the guest's S: the hypervisor's thread, the interrupt, the guest's CPU",
        "the hypervisor is late to signal that it is done, or the guest's CPU does not run",
        advice="on the host, whether the guest's CPUs wait for CPUs (wptrace cpu -p PID --by thread); in the guest,"
        " its time of steal",
    ),
    Stage(
        DEVICE,
        _H,
        _S,
        "other requests of the same operation, of which it is not known what the host did",
        "the operation made several requests, of which the last one is joined",
        rare=True,
    ),
)
_NAMES = tuple(STAGES)
_AT = _NAMES.index(DEVICE)
JOINED = Kind(
    "joined",
    Noun("request"),
    LABELS,
    (
        *(STAGES[name] for name in _NAMES[:_AT]),
        *_BETWEEN,
        *(STAGES[name] for name in _NAMES[_AT + 1 :]),
    ),
    sized=True,
)
"""An operation of a guest, or a request that nobody waits for, with what the host did for it."""

_MERGED = Cause("merged", "the host did it together with another one")
_SPLIT = Cause("split", "the host did it in several parts")
_CACHED = Cause("cached", "the host's page cache served it")
_SEVERAL = Cause("several", "an operation of the guest made more requests than the one that is joined")
_UNASKED = Cause("unasked", "the host did something with an image for which no request of the guest is known")
CAUSES = (guests.OUTSIDE, guests.UNSERVED, guests.PARTLY, _MERGED, _SPLIT, _CACHED, _SEVERAL, _UNASKED)

_SECTOR = 512
_LETTERS = {"R": "read", "W": "write"}


class Told(NamedTuple):
    """All events of a trace."""

    path: Path
    kernel: str
    filters: Mapping[str, Any]
    events: list[Event]
    whole: bool
    """It has its end."""


class _Disk(NamedTuple):
    """A disk of the guest and its image."""

    name: str
    image: str
    ours: Sequence[Event]
    theirs: Sequence[Event]
    both: Disk


class Join:
    def __init__(self, guest: Told, host: Told, named: Mapping[str, str]) -> None:
        """`named` are images of disks that the user knows; the others are found by their requests."""
        self.guest, self._host = guest, host
        self._images = _images(host)
        if not self._images:
            raise WptraceError(
                f"{host.path} has nothing of any raw image: {'; '.join(_formats(host)) or 'wptrace host writes it'}",
                hint="wptrace host --pid PID --each --capture HOST",
            )
        self._disks = [self._disk(*one) for one in _matched(_asked(guest), self._images, named)]
        offset = guests.alignment([disk.both for disk in self._disks])
        if offset is None:
            raise WptraceError(
                f"no request of {guest.path} is found in {host.path}: they are not of one guest, or of other times"
            )
        self.offset: Offset = offset
        self._lost: Counter[Cause] = Counter()
        self._noted: Counter[Cause] = Counter()
        self.events = sorted(
            (event for disk in self._disks for event in self._of(disk)), key=lambda event: event.end_ns
        )

    def _disk(self, name: str, image: str, ours: Sequence[Event]) -> _Disk:
        theirs = self._images.get(image, [])
        return _Disk(
            name, image, ours, theirs, Disk([_as_asked(one) for one in ours], [_as_served(one) for one in theirs])
        )

    def _of(self, disk: _Disk) -> Iterable[Event]:
        if not disk.image:
            self._lost[guests.UNSERVED] += len(disk.ours)
            return
        matches = guests.match(disk.both, self.offset)
        self._lost.update(matches.causes.values())
        self._noted[_UNASKED] += matches.unasked
        for pair in matches.pairs:
            yield self._joined(disk, pair)

    def _joined(self, disk: _Disk, pair: Pair) -> Event:
        ours, asked = disk.ours[pair.asked], disk.both.asked[pair.asked]
        served = [disk.both.served[number] for number in pair.served]
        last = max(pair.served, key=lambda number: disk.both.served[number].end)
        theirs = disk.theirs[last]
        bound = self.offset.at(asked.handed)
        device = guests.charged(guests.shares(asked, served, theirs.stages, bound), ours.stages.get(DEVICE, 0))
        stages = {name: ns for name, ns in ours.stages.items() if name != DEVICE}
        for cause, there in (
            (_MERGED, pair.how == MERGED),
            (_SPLIT, pair.how == SPLIT),
            (_CACHED, theirs.group.kind is HIT),
            (_SEVERAL, ours.fields.get("requests", 1) - ours.fields.get("readahead", 0) > 1),
        ):
            self._noted[cause] += there
        fields = {
            **ours.fields,
            "host": _told(theirs, pair.how),
            "clocks": {"least_ns": bound.least, "most_ns": bound.most},
        }
        return Event(JOINED.group(*ours.group.values), ours.end_ns, ours.total_ns, {**stages, **device}, fields)

    @property
    def began_ns(self) -> int:
        """Time of day in the guest."""
        return min(event.start_ns for disk in self._disks for event in disk.ours)

    # --- What is shown of all -----------------------------------------------------------------------------------------

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
        )

    def _notes(self) -> Iterable[str]:
        for told in (self.guest, self._host):
            if not told.whole:
                yield f"{told.path} has no end: its trace was cut off"
        for disk in self._disks:
            yield f"{disk.name} is {disk.image}" if disk.image else f"{disk.name} has no image in {self._host.path}"
        widths = self.offset.widths
        middle, most = (units.duration(ns) for ns in (widths[len(widths) // 2], widths[-1]))
        yield (
            f"the host's clock is ahead by {self.offset.first.middle / 1e9:.6f} s, known to {middle} in the median and"
            f" {most} at most, by {len(widths):,} requests: to_host and back are as uncertain, their sum is not"
        )
        yield from _formats(self._host)

    def summary(self) -> Report:
        cells: dict[Group, dict[str, Distribution]] = {}
        counters: dict[Group, Counter[str]] = defaultdict(Counter)
        for event in self.events:
            found = cells.setdefault(event.group, {name: Distribution() for name in (*_ALL, TOTAL)})
            for name in _ALL:
                found[name].add(event.stages.get(name, 0))
            found[TOTAL].add(event.total_ns)
            counters[event.group][BYTES] += event.fields.get("bytes", 0)
        failed = sum(1 for event in self.events if event.fields["error"])
        book = Book.read(len(self.events) + sum(self._lost.values()), len(self.events), self._lost, self._noted, failed)
        every = [event for disk in self._disks for event in disk.ours]
        end = max(event.end_ns for event in every)
        report = Report(
            "summary",
            end,
            end - self.began_ns,
            {REQUESTS: book},
            rows_of(cells, (JOINED,)),
            counters,
            Overhead(0, 0, 0, 0, 0, 0),
            lists={
                "clocks": [self._clocks()],
                "disks": [{"dev": disk.name, "image": disk.image} for disk in self._disks],
            },
        )
        return report._replace(verdict=judge(Case(report, (JOINED,)), TIMED))

    def _clocks(self) -> dict[str, Any]:
        """The host's minus the guest's, at the first and at the last request."""
        first, last, drift = self.offset.first, self.offset.last, self.offset.drift_ppm
        return {
            "bounds": len(self.offset),
            "first": _bounds(first),
            "last": _bounds(last),
            "widest_ns": self.offset.widths[-1],
            "drift_ppm": None if drift is None else [round(part, 3) for part in drift],
        }


_ALL = (*(stage.name for stage in JOINED.stages), UNATTRIBUTED)


def _bounds(bound: Bound) -> dict[str, int]:
    return {"at_ns": bound.at, "least_ns": bound.least, "most_ns": bound.most}


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _formats(host: Told) -> Iterable[str]:
    images = host.filters.get("images")
    for image in images if isinstance(images, list) else ():
        if isinstance(image, dict) and image.get("format") != "raw":
            told = f"{image.get('path')} is of format {image.get('format')}"
            yield f"{told}: its offsets are not those of the guest's disk"


def _images(host: Told) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in host.events:
        image = event.fields.get("image")
        # In other formats a place is none of the guest's disk.
        if image is None or image["format"] != "raw":
            continue
        if image["offset"] is not None or event.group.label("op") in ("sync", FLUSH):
            found[image["path"]].append(event)
    return found


def _asked(guest: Told) -> dict[str, tuple[str, list[Event]]]:
    """By the number of the disk: its name, which is the shortest one, and what was asked of it."""
    found: dict[str, tuple[str, list[Event]]] = {}
    for event in guest.events:
        fields = event.fields
        if not fields.get("maj_min") or not fields["clock"]["handed_ns"] or _direction(fields) is None:
            continue
        if fields["clock"]["seen_ns"] < fields["clock"]["handed_ns"]:
            raise WptraceError(f"{guest.path} is damaged: a request was seen before it was handed over")
        name, events = found.get(fields["maj_min"], (event.group.label("dev"), []))
        events.append(event)
        found[fields["maj_min"]] = min(name, event.group.label("dev"), key=len), events
    if not found:
        raise WptraceError(
            f"{guest.path} has no request of a disk",
            hint="wptrace io -d vda --each --capture GUEST writes it, in the guest",
        )
    return found


def _direction(fields: Mapping[str, Any]) -> str | None:
    """By the letters of blktrace: a flush may come first, and what is discarded is no read or write."""
    letters = fields.get("rwbs", "")
    if not fields.get("bytes"):
        return FLUSH if "F" in letters else None
    return _LETTERS.get(letters.removeprefix("F")[:1])


def _as_asked(event: Event) -> Asked:
    fields = event.fields
    op = _direction(fields) or FLUSH
    offset, length = (0, 0) if op == FLUSH else (fields["sector"] * _SECTOR, fields["bytes"])
    return Asked(op, offset, length, fields["clock"]["handed_ns"], fields["clock"]["seen_ns"])


def _as_served(event: Event) -> Served:
    fields = event.fields
    end = fields["clock"]["end_ns"]
    op = event.group.label("op")
    if op in ("sync", FLUSH):
        return Served(FLUSH, 0, 0, end - event.total_ns, end)
    length = fields["bytes"] if event.group.kind is REQUEST else fields["length"]
    return Served(op, fields["image"]["offset"], length, end - event.total_ns, end)


def _matched(
    asked: Mapping[str, tuple[str, list[Event]]], images: Mapping[str, Sequence[Event]], named: Mapping[str, str]
) -> Iterable[tuple[str, str, list[Event]]]:
    """Each disk with the image that had most of the same requests, and is no other disk's."""
    found: dict[str, str] = {}
    names = {name for name, _ in asked.values()}
    for name, image in named.items():
        if name not in names:
            raise WptraceError(f"the guest has no disk {name}: it has {', '.join(sorted(names))}")
        if image not in images:
            raise WptraceError(f"the host has no image {image}: it has {', '.join(sorted(images))}")
        found[name] = image
    served = {image: [_as_served(one) for one in events] for image, events in images.items()}
    alike = sorted(
        (
            (guests.likeness(map(_as_asked, events), served[image]), name, image)
            for name, events in asked.values()
            for image in images
        ),
        reverse=True,
    )
    for count, name, image in alike:
        if count and name not in found and image not in found.values():
            found[name] = image
    return [(name, found.get(name, ""), events) for name, events in asked.values()]


def _told(event: Event, how: str) -> dict[str, Any]:
    """Of the host."""
    fields = event.fields
    return {
        "guest": fields["image"]["guest"],
        "pid": fields["pid"],
        "tid": fields["tid"],
        "comm": fields["comm"],
        "image": fields["image"]["path"],
        "offset": fields["image"]["offset"],
        "how": how,
        "cached": event.group.kind is HIT,
        "dev": event.group.label("dev"),
        "total_ns": event.total_ns,
        "end_ns": fields["clock"]["end_ns"],
        **({"sector": fields["sector"]} if "sector" in fields else {}),
    }
