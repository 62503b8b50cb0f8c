# SPDX-License-Identifier: Apache-2.0
"""A guest's requests, joined with what the host did for them: by place, direction and order, and by time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable, NamedTuple

from wptrace.correlation.clocks import Bound, Offset, agreed, elected
from wptrace.correlation.kicks import Kick
from wptrace.model.book import Cause

OUTSIDE = Cause("outside", "a request of the guest was under way while the host was not traced")
UNSERVED = Cause("unserved", "the host was not seen to do anything for a request of the guest")
PARTLY = Cause("partly", "the host was seen to do only a part of a request of the guest")
UNFORWARDED = Cause(
    "unforwarded", "the hypervisor did not pass on a flush, since nothing had been written (or by cache=unsafe)"
)

WHOLE, MERGED, SPLIT = "whole", "merged", "split"
"""How the host served a request: alone, merged with others, or in several parts."""

FLUSH = "flush"
"""An operation without an offset."""

# The same place may be read again and again: so many times so many are tried.
_TRIED = 64
# Fewer places that were read or written once say nothing of the offset.
_ENOUGH = 16
# The largest number of requests for one place at once.
_AT_ONCE = 1 << 10
# Each time more of them are known to belong together.
_ROUNDS = 4


class Tries:
    """A limit on comparisons, because whoever wrote a capture chooses how much is alike."""

    def __init__(self, most: int = 1 << 25) -> None:
        self._left = most

    def take(self, count: int) -> bool:
        self._left -= count
        return self._left >= 0


class Asked(NamedTuple):
    """A request of a guest to a disk of its: H and S, by the guest's clock."""

    op: str
    offset: int
    length: int
    handed: int
    seen: int
    sent: bool = True
    """False: an operation that waits for a flush, which the kernel sends as a request of its own."""


class Served(NamedTuple):
    """Work of the host on the image of a disk, from begin to end, by the host's clock."""

    op: str
    offset: int
    length: int
    begin: int
    end: int


Place = tuple[str, int, int]
"""The operation, offset and length of what is read or written."""


class Writes:
    """When an image was written and flushed, which tells whether a flush had anything to do."""

    # The largest number of writes, and of flushes.
    _MOST = 1 << 15

    def __init__(self, served: Iterable[Served] = ()) -> None:
        self._ends: list[int] = []
        self._flushes: list[int] = []
        for one in served:
            self.add(one)

    def add(self, served: Served) -> None:
        if served.op == "write":
            insort(self._ends, served.end)
        elif served.op == FLUSH:
            insort(self._flushes, served.begin)
        for found in (self._ends, self._flushes):
            if len(found) > self._MOST:
                del found[: self._MOST // 2]

    def pending(self, since: int, until: int) -> bool:
        """Whether a flush in this time had to be passed on by a hypervisor that passes any on."""
        if not self._flushes:
            return False
        flushed = bisect_right(self._flushes, until)
        after = self._flushes[flushed - 1] if flushed else 0
        written = bisect_right(self._ends, since)
        return written > 0 and self._ends[written - 1] > after


class Disk(NamedTuple):
    asked: Sequence[Asked]
    served: Sequence[Served]


class Pair(NamedTuple):
    asked: int
    """Its place among those of the disk."""
    served: tuple[int, ...]
    """The host's requests in order; several only if the request was split."""
    how: str


class Matches(NamedTuple):
    """The matches of a disk."""

    pairs: list[Pair]
    causes: Mapping[int, Cause]
    """Why requests of the guest are in none. A flush for which an operation waited is in neither: the operation is."""
    unasked: int
    """Return the work of the host for which no request is known."""


class _Known(NamedTuple):
    pairs: list[tuple[int, int]]
    sure: list[Bound]
    """Bounds from pairs without an alternative."""


def places(requests: Iterable[Asked] | Iterable[Served]) -> set[Place]:
    """Return the places that were read or written: the more that both sides have, the likelier it is the same disk."""
    return {_place(one) for one in requests}


def alignment(disks: Sequence[Disk], tries: Tries | None = None) -> Offset | None:
    """The host's clock minus the guest's; None if it is not known. The clock is the same for all disks of a guest."""
    tries = tries or Tries()
    first = _first_estimate(disks, tries)
    if first is None:
        return None
    at: Callable[[int], Bound] = first.after
    found = None
    for _ in range(_ROUNDS):
        bounds, _others = agreed(bound for disk in disks for bound in _known(disk, at, tries).sure)
        if not bounds:
            break
        found, before = Offset(bounds), found
        at = found.at
        if before is not None and len(before) == len(found):
            break
    return found


def refined(disks: Sequence[Disk], offset: Offset, tries: Tries | None = None) -> list[Bound]:
    """Return the bounds that these give for an offset that is known so far."""
    tries = tries or Tries()
    return agreed(bound for disk in disks for bound in _known(disk, offset.at, tries).sure)[0]


def match(disk: Disk, offset: Offset, tries: Tries | None = None, writes: Writes | None = None) -> Matches:
    """Each request of the guest with what the host did for it, or why there is nothing.

    `writes` are all of the image, where those of the disk are only some.
    """
    tries = tries or Tries()
    writes = writes or Writes(disk.served)
    sent = _flushes(disk.asked, tries)
    known = _known(disk, offset.at, tries, sent).pairs
    taken = {served for _, served in known}
    pairs = _for_operations([Pair(asked, (served,), WHOLE) for asked, served in known], sent)
    joined = {pair.asked for pair in pairs} | set(sent.values())
    order = sorted(range(len(disk.served)), key=lambda number: disk.served[number].begin)
    begins = [disk.served[number].begin for number in order]
    latest = max((one.end for one in disk.served), default=0)
    causes: dict[int, Cause] = {}
    shared: set[int] = set()
    for number, asked in enumerate(disk.asked):
        if number in joined:
            continue
        bound = offset.at(asked.handed)
        since, until = asked.handed + bound.least, asked.seen + bound.most
        if not order or until < begins[0] or since > latest:
            causes[number] = OUTSIDE
            continue
        first, last = bisect_left(begins, since), bisect_right(begins, until)
        meanwhile = [
            one
            for one in (order[first:last] if tries.take(last - first) else ())
            if disk.served[one].end <= until and disk.served[one].op == asked.op
        ]
        pair = _otherwise(number, asked, disk.served, meanwhile, taken)
        if pair is None and asked.op == FLUSH:
            causes[number] = UNSERVED if writes.pending(since, until) else UNFORWARDED
        elif pair is None:
            parts = (one for one in meanwhile if one not in taken and _overlap(asked, disk.served[one]))
            causes[number] = PARTLY if any(parts) else UNSERVED
        else:
            pairs.append(pair)
            shared.update(pair.served)
    if all(disk.asked[number].op == FLUSH for number, cause in causes.items() if cause is OUTSIDE):
        # No request says that the host was not traced then.
        causes.update((number, UNFORWARDED) for number, cause in causes.items() if cause is OUTSIDE)
    return Matches(sorted(pairs), causes, len(disk.served) - len(taken | shared))


def _place(one: Asked | Served) -> Place:
    return (FLUSH, 0, 0) if one.op == FLUSH else (one.op, one.offset, one.length)


def _bound(asked: Asked, served: Served) -> Bound:
    """The guest handed it over before the host began, and saw it done after the host was."""
    return Bound(asked.handed, served.end - asked.seen, served.begin - asked.handed)


def _by_place(disk: Disk) -> dict[Place, tuple[list[int], list[int]]]:
    """Return the requests of both sides by place, those of the host in order."""
    found: dict[Place, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, asked in enumerate(disk.asked):
        found[_place(asked)][0].append(number)
    for number, served in enumerate(disk.served):
        place = _place(served)
        if place in found:
            found[place][1].append(number)
    for _, theirs in found.values():
        theirs.sort(key=lambda number: disk.served[number].begin)
    return found


def _first_estimate(disks: Sequence[Disk], tries: Tries) -> Bound | None:
    """The offset that most of what may belong together allows, at one moment."""
    once: list[Bound] = []
    often: list[Bound] = []
    for disk in disks:
        for (op, *_), (ours, theirs) in _by_place(disk).items():
            if op == FLUSH or len(ours) * len(theirs) > _TRIED or not tries.take(len(ours) * len(theirs)):
                continue
            found = [_bound(disk.asked[one], disk.served[other]) for one in ours for other in theirs]
            (once if len(found) == 1 else often).extend(bound for bound in found if bound.holds)
    voters = once if len(once) >= _ENOUGH else once + often
    if not voters:
        return None
    moment = sorted(bound.at for bound in voters)[len(voters) // 2]
    return elected([bound.after(moment) for bound in voters])._replace(at=moment)


def _flushes(asked: Sequence[Asked], tries: Tries) -> dict[int, int]:
    """The flush that was sent while an operation waited for one, by the number of the operation.

    Several operations may wait for the same.
    """
    sent = sorted((one.handed, number) for number, one in enumerate(asked) if one.op == FLUSH and one.sent)
    found = {}
    for number, one in enumerate(asked):
        if one.sent:
            continue
        inside = sent[bisect_left(sent, (one.handed, 0)) : bisect_right(sent, (one.seen, 0))]
        if not tries.take(len(inside)):
            break
        last = next((flush for _, flush in reversed(inside) if asked[flush].seen <= one.seen), None)
        if last is not None:
            found[number] = last
    return found


def _for_operations(pairs: Iterable[Pair], sent: Mapping[int, int]) -> list[Pair]:
    """Give the work of the host for a flush to the operations that waited for it."""
    waiting: dict[int, list[int]] = defaultdict(list)
    for operation, flush in sent.items():
        waiting[flush].append(operation)
    found = []
    for pair in pairs:
        operations = waiting.get(pair.asked, [])
        found += [pair._replace(asked=one, how=MERGED) for one in operations]
        if not operations:
            found.append(pair)
        elif len(operations) == 1:
            found[-1] = found[-1]._replace(how=pair.how)
    return found


def _known(disk: Disk, offset_at: Callable[[int], Bound], tries: Tries, sent: Mapping[int, int] = {}) -> _Known:
    """Give work at a place to the request that waited for it, and of several to the one whose wait ended first.

    So as many as possible have one.
    """
    pairs: list[tuple[int, int]] = []
    sure: list[Bound] = []
    for ours, theirs in _by_place(disk).values():
        if not theirs:
            continue
        begins = [disk.served[number].begin for number in theirs]
        choices: dict[int, int] = {}
        waiting: dict[int, list[int]] = {number: [] for number in theirs}
        for one in ours:
            if one in sent:
                # The flush that it waits for asks in its place.
                continue
            asked = disk.asked[one]
            bound = offset_at(asked.handed)
            since, until = asked.handed + bound.least, asked.seen + bound.most
            first = bisect_left(begins, since)
            inside = theirs[first : min(bisect_right(begins, until), first + _AT_ONCE)]
            if not tries.take(len(inside)):
                break
            fitting = [number for number in inside if _fits(asked, disk.served[number], bound)]
            choices[one] = len(fitting)
            for number in fitting:
                waiting[number].append(one)
        free = set(choices)
        for number, who in waiting.items():
            one = min((one for one in who if one in free), key=lambda one: disk.asked[one].seen, default=-1)
            if one < 0:
                continue
            free.discard(one)
            pairs.append((one, number))
            if len(who) == 1 and choices[one] == 1 and disk.asked[one].op != FLUSH:
                sure.append(_bound(disk.asked[one], disk.served[number]))
    return _Known(pairs, sure)


def _fits(asked: Asked, served: Served, bound: Bound) -> bool:
    """There is an offset by which the host did it while the guest waited."""
    return _bound(asked, served).both(bound._replace(at=asked.handed)).holds


def _otherwise(
    number: int, asked: Asked, served: Sequence[Served], meanwhile: Sequence[int], taken: set[int]
) -> Pair | None:
    """Done with others, or in parts, none of which was the whole of another request."""
    if asked.op == FLUSH:
        return None
    for one in meanwhile:
        if one not in taken and _covers(served[one], asked):
            return Pair(number, (one,), MERGED)
    parts = [one for one in meanwhile if one not in taken and _covers(asked, served[one])]
    reached = asked.offset
    for one in sorted(parts, key=lambda part: served[part].offset):
        if served[one].offset > reached:
            return None
        reached = max(reached, served[one].offset + served[one].length)
    if len(parts) < 2 or reached < asked.offset + asked.length:
        return None
    return Pair(number, tuple(parts), SPLIT)


def _covers(one: Asked | Served, other: Asked | Served) -> bool:
    return one.offset <= other.offset and other.offset + other.length <= one.offset + one.length


def _overlap(one: Asked, other: Served) -> bool:
    return one.offset < other.offset + other.length and other.offset < one.offset + one.length


# --- Time -------------------------------------------------------------------------------------------------------------

TO_HOST, BACK, PARTS, DEVICE = "to_host", "back", "parts", "device"
PICKUP, PREPARE, GIVE_BACK = "pickup", "prepare", "give_back"
HOST = "host_"
"""The prefix of the names of the host's stages."""


class Share(NamedTuple):
    stage: str
    ns: int


def shares(
    asked: Asked,
    served: Sequence[Served],
    stretches: Iterable[tuple[str, int]],
    bound: Bound,
    kick: Kick | None = None,
) -> list[Share]:
    """Divide the guest's time from H to S; `stretches` are the stages of the host's last work for it, in order.

    With a kick that the clocks allow, the host's part begins with that, and ends with the eventfd that is written.
    Within what is known of the offset the middle is taken: only `to_host` and `back` depend on it, and not their sum.
    """
    begin, end = min(one.begin for one in served), max(one.end for one in served)
    took = asked.seen - asked.handed
    host = [Share(HOST + name, ns) for name, ns in stretches]
    parts = end - begin - sum(share.ns for share in host)
    before: list[Share] = []
    after: list[Share] = []
    if kick is not None and allows(asked, begin, end, bound, kick):
        before = [Share(HOST + PICKUP, kick.picked - kick.first), Share(HOST + PREPARE, begin - kick.picked)]
        after = [Share(HOST + GIVE_BACK, kick.given - end)] if kick.given else []
        begin, end = kick.first, kick.given or end
    around = took - (end - begin)
    own = Bound(asked.handed, end - asked.seen, begin - asked.handed)
    offset = min(max(bound.middle, own.least), own.most)
    to_host = begin - offset - asked.handed
    found = [
        Share(TO_HOST, to_host), *before, Share(HOST + PARTS, parts), *host, *after, Share(BACK, around - to_host)
    ]  # fmt: skip
    return [share for share in found if share.ns]


def allows(asked: Asked, begin: int, end: int, bound: Bound, kick: Kick) -> bool:
    """Whether the guest handed it over before the kick, and saw it done after it was given back."""
    last = kick.given or end
    own = Bound(asked.handed, last - asked.seen, kick.first - asked.handed)
    in_order = kick.first <= kick.picked <= begin and end <= last
    return in_order and own.both(bound._replace(at=asked.handed)).holds


def charged(found: Sequence[Share], device: int) -> list[Share]:
    """The guest's stage `device` shared out: what it was charged of the request, and of others as `device` itself.

    A request that was on its way before anybody waited for it is charged from then on, so its end is.
    """
    left, shares = device, []
    for share in reversed(found):
        shares.append(share._replace(ns=min(share.ns, left)))
        left -= shares[-1].ns
    shares.append(Share(DEVICE, left))
    return [share for share in reversed(shares) if share.ns]
