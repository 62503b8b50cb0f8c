# SPDX-License-Identifier: Apache-2.0
"""A guest's operations joined with the host's requests: stages of both sides, rows, the accuracy of the clocks, and the
other guests' share of the host's devices."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from wptrace.analysis.neighbours import WAITED
from wptrace.analysis.verdict import TIMED, Case, Rule, Rules, grew, inside, lost, outlier, tail
from wptrace.correlation import guests
from wptrace.correlation.clocks import Bound, Offset
from wptrace.correlation.guests import (
    BACK,
    DEVICE,
    FLUSH,
    GIVE_BACK,
    HOST,
    MERGED,
    PARTS,
    PICKUP,
    PREPARE,
    SPLIT,
    TO_HOST,
    WHOLE,
    Asked,
    Served,
    Share,
)
from wptrace.correlation.kicks import Kick, Work
from wptrace.engine.devices import LABELS
from wptrace.errors import WptraceError
from wptrace.flows.io.kinds import FIELDS, HIT, REQUEST, STAGES
from wptrace.flows.io.rules import NEIGHBOUR_HAD, NEIGHBOUR_SHARE, NEIGHBOUR_WAITS
from wptrace.model import units
from wptrace.model.book import Book, Cause
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL, UNATTRIBUTED, Bounded, Group, Kind, Noun, Point, Stage
from wptrace.model.report import BYTES, Event, Finding, Overhead, Report, Segment, arranged

_H, _S = STAGES["device"].start, STAGES["device"].end
_BEGIN, _END = Point("h", "the host begins"), Point("e", "the host is done")
_KICK, _PICKED = Point("k", "the guest kicks"), Point("p", "the hypervisor has read the kick")
_GIVEN = Point("g", "the hypervisor gives it back")
_UNKNOWN = Stage(
    UNATTRIBUTED, _BEGIN, _END, "time that no stage covers", "a hook is missing there: see wptrace doctor", rare=True
)


def _host(stage: Stage) -> Stage:
    return stage._replace(
        name=HOST + stage.name,
        description=f"on the host: {stage.description}",
        meaning=f"on the host: {stage.meaning}",
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
        advice="whether the hypervisor itself limits the disk (QEMU: virsh blkdeviotune DOMAIN DISK); on the"
        " host, whether its threads wait for CPUs (wptrace cpu -p PID --by thread), and how many of them serve the"
        " guest's disks (iothread)",
    ),
    Stage(
        HOST + PICKUP,
        _KICK,
        _PICKED,
        "on the host: from the kick through an eventfd until a thread of the hypervisor has read that",
        "the hypervisor's thread has other things to do, or no CPU",
        advice="on the host, wptrace cpu -p PID --by thread, and how many threads serve the guest's disks (iothread)",
        rare=True,
    ),
    Stage(
        HOST + PREPARE,
        _PICKED,
        _BEGIN,
        "on the host: from there to the first step of what the hypervisor does for it",
        "the hypervisor takes long over the request itself, or to wake a thread that does it",
        rare=True,
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
        HOST + GIVE_BACK,
        _END,
        _GIVEN,
        "on the host: from the end of its work until the hypervisor writes the eventfd that tells the guest",
        "the hypervisor's thread has other things to do, or no CPU",
        rare=True,
    ),
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
    fields=FIELDS,
)
"""An operation of a guest, or a request that nobody waits for, with the host's requests for it."""

_MERGED = Cause("merged", "the host did it together with another one")
_SPLIT = Cause("split", "the host did it in several parts")
_CACHED = Cause("cached", "the host's page cache served it")
_SEVERAL = Cause("several", "an operation of the guest made more requests than the one that is joined")
UNASKED = Cause("unasked", "the host did something with an image for which no request of the guest is known")
JUMPED = Cause("jumped", "the offset of the two clocks jumped, and was determined again")
CAUSES = (
    guests.OUTSIDE,
    guests.UNSERVED,
    guests.PARTLY,
    guests.UNFORWARDED,
    _MERGED,
    _SPLIT,
    _CACHED,
    _SEVERAL,
    UNASKED,
    JUMPED,
)

_SECTOR = 512
_LETTERS = {"R": "read", "W": "write"}
_SENT = "FF"
"""A flush that the block layer sends to the device on behalf of others."""


# The number of distributions, enough for some 300 disks and operations of a guest.
_MOST = 1 << 13
_ALL = (*(stage.name for stage in JOINED.stages), UNATTRIBUTED)


class Sums:
    """Counts operations that were joined, and the others by reason."""

    def __init__(self) -> None:
        self._bounded = Bounded(_MOST)
        self._cells: dict[Group, dict[str, Distribution]] = {}
        self._counters: dict[Group, Counter[str]] = defaultdict(Counter)
        self._count = self._failed = 0
        self.lost: Counter[Cause] = Counter()
        self.noted: Counter[Cause] = Counter()

    def add(self, event: Event) -> None:
        group = self._bounded.of(event.group)
        if group not in self._cells:
            self._cells[group] = {name: Distribution() for name in (*_ALL, TOTAL)}
        found = self._cells[group]
        for name in _ALL:
            found[name].add(event.stages.get(name, 0))
        found[TOTAL].add(event.total_ns)
        self._counters[group][BYTES] += event.fields.get("bytes", 0)
        self._count += 1
        self._failed += bool(event.fields["error"])
        for cause, there in (
            (_MERGED, event.fields["host"]["how"] == MERGED),
            (_SPLIT, event.fields["host"]["how"] == SPLIT),
            (_CACHED, event.fields["host"]["cached"]),
            (_SEVERAL, event.fields.get("requests", 1) - event.fields.get("readahead", 0) > 1),
        ):
            self.noted[cause] += there

    def miss(self, cause: Cause, count: int = 1) -> None:
        """Count a loss; a flush that the host need not see is not one."""
        (self.noted if cause is guests.UNFORWARDED else self.lost)[cause] += count

    def report(self, kind: str, ts_ns: int, duration_ns: int) -> Report:
        book = Book.read(self._count + sum(self.lost.values()), self._count, self.lost, self.noted, self._failed)
        rows = arranged(self._cells, (JOINED,))
        return Report(kind, ts_ns, duration_ns, {REQUESTS: book}, rows, self._counters, Overhead(0, 0, 0, 0, 0, 0))


def joined(ours: Event, theirs: Sequence[Event], how: str, offset: Offset, kick: Kick | None = None) -> Event:
    """Join a guest's request with the host's requests for it: several only if it was split.

    `kick` is given if it was for this request alone.
    """
    asked, served = as_asked(ours), [as_served(one) for one in theirs]
    last = max(zip(served, theirs), key=lambda both: both[0].end)[1]
    bound = offset.at(asked.handed)
    if how != WHOLE or (kick and not guests.allows(asked, served[0].begin, served[0].end, bound, kick)):
        kick = None
    shares = guests.shares(asked, served, _stretches(last), bound, kick)
    device = guests.charged(shares, ours.stages.get(DEVICE, 0))
    stages = {name: ns for name, ns in ours.stages.items() if name != DEVICE}
    for share in device:
        stages[share.stage] = stages.get(share.stage, 0) + share.ns
    fields = {
        **ours.fields,
        "host": {**_host_fields(last, how), **({} if kick is None else {"kick": _kick_fields(kick)})},
        "clocks": {"least_ns": bound.least, "most_ns": bound.most},
    }
    group = JOINED.group(*ours.group.values)
    return Event(group, ours.end_ns, ours.total_ns, stages, fields, _segments(ours, device), children=ours.children)


def _stretches(event: Event) -> Iterable[tuple[str, int]]:
    """The segments of an event, or the sums of its stages."""
    if event.segments and not event.more:
        return ((one.stage, one.to_ns - one.from_ns) for one in event.segments)
    return event.stages.items()


def _segments(ours: Event, device: Sequence[Share]) -> list[Segment]:
    """The guest's own segments if it has them; the shares of the host replace `device`, aligned to its end."""
    found: list[Segment] = []
    left = list(device)
    for one in () if ours.more else reversed(ours.segments):
        if one.stage != DEVICE:
            found.append(one)
            continue
        end = one.to_ns
        while end > one.from_ns:
            share = left.pop()
            begin = max(end - share.ns, one.from_ns)
            found.append(Segment(share.stage, begin, end))
            if share.ns > end - begin:
                left.append(share._replace(ns=share.ns - (end - begin)))
            end = begin
    return found[::-1]


def work(event: Event) -> Work:
    end = event.fields["clock"]["end_ns"]
    return Work(event.fields["image"]["path"], end - event.total_ns, end, event.fields["tid"])


def _kick_fields(kick: Kick) -> dict[str, Any]:
    """The fields of a kick, by the host's clock."""
    return {"tid": kick.tid, "kicked_ns": kick.kicked or None, "picked_ns": kick.picked, "given_ns": kick.given or None}


def whose(event: Event) -> str:
    """The guest of a request of the host."""
    return f"{event.fields['image']['guest']} {event.fields['pid']}"


def known(offset: Offset, count: int) -> str:
    widths = offset.widths
    middle, most = (units.duration(ns) for ns in (widths[len(widths) // 2], widths[-1]))
    return (
        f"the host's clock is ahead by {offset.first.middle / 1e9:.6f} s, known to within {middle} in the median and"
        f" {most} at most, from {count:,} requests: to_host and back are as uncertain, their sum is exact"
    )


def anchor_notes(agree: int, contradict: int) -> Iterable[str]:
    if agree:
        yield f"{agree} readings of the clocks of both machines agree with the requests, and are used as well"
    if contradict:
        yield (
            f"{contradict} readings of the clocks of both machines contradict the requests, which tell more: they are"
            " not used"
        )


def clocks(offset: Offset, count: int) -> dict[str, Any]:
    """The host's clock minus the guest's, at the first and at the last request."""
    drift = offset.drift_ppm
    return {
        "bounds": count,
        "first": _bounds(offset.first),
        "last": _bounds(offset.last),
        "widest_ns": offset.widths[-1],
        "drift_ppm": None if drift is None else [round(part, 3) for part in drift],
    }


def _bounds(bound: Bound) -> dict[str, int]:
    return {"at_ns": bound.at, "least_ns": bound.least, "most_ns": bound.most}


def image_of(event: Event) -> str:
    """The image of a request whose place is the same on the guest's disk; empty for others."""
    image = event.fields.get("image")
    # In other formats, places differ from those of the guest's disk.
    if image is None or image["format"] != "raw":
        return ""
    return image["path"] if image["offset"] is not None or event.group.label("op") in ("sync", FLUSH) else ""


def disk_of(event: Event, source: object) -> str:
    """The number of the disk of a guest's request; empty if it cannot be found on the host."""
    fields = event.fields
    if not fields.get("maj_min") or not fields["clock"]["handed_ns"] or direction(fields) is None:
        return ""
    if fields["clock"]["seen_ns"] < fields["clock"]["handed_ns"]:
        raise WptraceError(f"{source} is damaged: a request was seen before it was handed over")
    return str(fields["maj_min"])


def direction(fields: Mapping[str, Any]) -> str | None:
    """The direction by the letters of blktrace: a flush may come first, and a discard is neither read nor write."""
    letters = fields.get("rwbs", "")
    if not fields.get("bytes"):
        return FLUSH if "F" in letters else None
    return _LETTERS.get(letters.removeprefix("F")[:1])


def as_asked(event: Event) -> Asked:
    fields = event.fields
    op = direction(fields) or FLUSH
    offset, length = (0, 0) if op == FLUSH else (fields["sector"] * _SECTOR, fields["bytes"])
    sent = op != FLUSH or fields.get("rwbs", "") == _SENT
    return Asked(op, offset, length, fields["clock"]["handed_ns"], fields["clock"]["seen_ns"], sent)


def as_served(event: Event) -> Served:
    fields = event.fields
    end = fields["clock"]["end_ns"]
    op = event.group.label("op")
    if op in ("sync", FLUSH):
        return Served(FLUSH, 0, 0, end - event.total_ns, end)
    length = fields["bytes"] if event.group.kind is REQUEST else fields["length"]
    return Served(op, fields["image"]["offset"], length, end - event.total_ns, end)


def _host_fields(event: Event, how: str) -> dict[str, Any]:
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


# --- Other guests -----------------------------------------------------------------------------------------------------

MOST_STAYS = 1 << 18
"""The number of stays to keep of each other guest."""

_ADVICE = (
    "what the other guest may: io.max or io.weight of its hypervisor's cgroup, limits of its disks in the hypervisor,"
    " and when it runs"
)
# Stages of a request before it is at the device, there, and after that.
_DRIVER = _NAMES.index("driver")
_BEFORE, _THERE, _AFTER = _NAMES[_NAMES.index("throttle") : _DRIVER], _NAMES[_DRIVER : _AT + 1], _NAMES[_AT + 1 :]


class Stay(NamedTuple):
    """A request at a device of the host, by the host's monotonic clock."""

    dev: str
    waits: int
    """When it began to wait."""
    begin: int
    """When it was passed to the device."""
    end: int

    @property
    def waited(self) -> int:
        return self.end - self.waits


def stay(event: Event) -> Stay | None:
    """The stay of a hypervisor's request; None if no device was involved."""
    there = sum(event.stages.get(name, 0) for name in _THERE)
    if event.group.kind is HIT or not there:
        return None
    end = int(event.fields["clock"]["end_ns"]) - sum(event.stages.get(name, 0) for name in _AFTER)
    begin = end - there
    return Stay(str(event.group.label("dev")), begin - sum(event.stages.get(name, 0) for name in _BEFORE), begin, end)


class _Busy:
    """How long another guest had a device up to a moment; concurrent requests add up."""

    def __init__(self, stays: Sequence[Stay]) -> None:
        self._begins, self._begin_sums = _summed(one.begin for one in stays)
        self._ends, self._ended = _summed(one.end for one in stays)

    def between(self, begin: int, end: int) -> int:
        return self._until(end) - self._until(begin)

    def _until(self, at: int) -> int:
        begun, ended = bisect_left(self._begins, at), bisect_left(self._ends, at)
        return begun * at - self._begin_sums[begun] - (ended * at - self._ended[ended])


def _summed(times: Iterable[int]) -> tuple[list[int], list[int]]:
    """The times in order, with their running sums."""
    ordered = sorted(times)
    sums = [0]
    for one in ordered:
        sums.append(sums[-1] + one)
    return ordered, sums


class OtherGuests:
    """The shares of this guest and of the others in the host's devices."""

    def __init__(self, most: int = MOST_STAYS) -> None:
        self._most = most
        self._others: dict[str, deque[Stay]] = {}
        self._waits: dict[tuple[str, str], list[Stay]] = defaultdict(list)
        self._waited: Counter[tuple[str, str]] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._had: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._whole: Counter[str] = Counter()

    def other(self, who: str, event: Event) -> None:
        found = stay(event)
        if found is not None:
            self._others.setdefault(who, deque(maxlen=self._most)).append(found)

    def wait(self, disk: str, total_ns: int, theirs: Sequence[Event]) -> None:
        """Add a request of this guest, and its hypervisor's requests for it."""
        self._whole[disk] += total_ns
        for found in map(stay, theirs):
            if found is not None:
                self._waits[disk, found.dev].append(found)

    @property
    def waiting(self) -> int:
        """How many waits are not added up yet."""
        return sum(map(len, self._waits.values()))

    def add_up(self) -> None:
        """Add the other guests' time during the waits since the last call."""
        if self._others and self._waits:
            every = {
                who: {dev: _Busy([one for one in stays if one.dev == dev]) for dev in {one.dev for one in stays}}
                for who, stays in self._others.items()
            }
            own = {key: _Busy(stays) for key, stays in self._waits.items()}
            for key, stays in self._waits.items():
                had = self._had[key]
                for one in stays:
                    self._waited[key] += one.waited
                    self._counts[key] += 1
                    had[""] += sum(busy.between(one.waits, one.end) for (_, dev), busy in own.items() if dev == one.dev)
                    for who, devices in every.items():
                        if one.dev in devices:
                            had[who] += devices[one.dev].between(one.waits, one.end)
        self._waits.clear()

    @property
    def rules(self) -> Rules:
        return Rules(
            TIMED.first, (grew, tail, outlier, inside, self._rule, lost), {**TIMED.advice, "neighbour": _ADVICE}
        )

    @property
    def _rule(self) -> Rule:
        def neighbour(case: Case) -> Finding | None:
            """The guest that had most of the host's device while this one's requests waited for it."""
            worst: tuple[float, Finding] | None = None
            for key, had in self._had.items():
                others = {who: ns for who, ns in had.items() if who}
                who = max(others, key=others.__getitem__, default="")
                whole, waited = self._whole[key[0]], self._waited[key]
                if not who or not whole or not case.cells or self._counts[key] < NEIGHBOUR_WAITS:
                    continue
                share, part = min(waited / whole, 1.0), others[who] / max(sum(had.values()), 1)
                if share < NEIGHBOUR_SHARE or part < NEIGHBOUR_HAD:
                    continue
                figures = {"share": share, "had": part, "waited_ns": waited, "waits": self._counts[key]}
                if worst is None or waited * part > worst[0]:
                    worst = (
                        waited * part,
                        Finding("neighbour", figures, WAITED.group(key[1], f"{key[0]} of the guest"), who=who),
                    )
            return None if worst is None else worst[1]

        return neighbour
