# SPDX-License-Identifier: Apache-2.0
"""Owners that had a device while others waited for it, exactly: by when each request was queued, issued and completed.

The time that an owner had a device during another's waits is an integral over the number of its requests under way
times the number of the other's that wait. So one sweep over all begins and ends in time order is enough, and only
owners that have or want the device at a moment count. The sweep looks ahead as far as it has room: requests arrive at
their ends, and a long one arrives after many that began later.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from wptrace.analysis.neighbours import COUNT, HAD, MEANWHILE, NS, WAITED, WHOLE, Owner
from wptrace.model.kind import OTHERS, Group
from wptrace.model.report import BYTES

WAIT_NS = 10_000
"""Shorter waits are in no figure (NEIGHBOUR_WAIT_NS of bpf_src/block/path/neighbours.h)."""
HELD = 1 << 20
"""The most begins and ends that wait for earlier ones: those of 350,000 requests or more."""
_MOST_OWNERS = 1 << 16
_MOST_PAIRS = 1 << 18

# A moment is a number: the time, whose it is, and what happens then.
_BITS = 20
_PLACE = (1 << _BITS) - 1
_SHIFT = _BITS + 2
# Events of the sweep: a request begins or stops waiting, and gets or leaves the device.
_WAITS, _WAITED, _HAS, _HAD = range(4)


class Span(NamedTuple):
    """A request: whose it is, and its Q, D and C."""

    dev: str
    op: str
    owner: Owner
    bytes: int
    queued_ns: int
    issued_ns: int
    completed_ns: int


class _Device:
    """Owners that wait for a device or have it: how many requests each, and since when."""

    __slots__ = ("having", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: dict[int, list[int]] = {}
        self.having: dict[int, list[int]] = {}


class _Row:
    """The device time of an owner by requests of a kind, and their waits."""

    __slots__ = ("bytes", "count", "ns", "place", "waited", "waits", "whole")

    def __init__(self, place: int) -> None:
        self.place = place
        self.count = self.ns = self.bytes = self.whole = self.waits = self.waited = 0


class Overlap:
    def __init__(self, held: int = HELD) -> None:
        self._held = held
        self._moments: list[int] = []
        self._swept = 0
        self._places: dict[tuple[str, Owner], int] = {}
        self._at: list[tuple[_Device, Owner]] = []
        self._devices: dict[str, _Device] = {}
        self._rows: dict[tuple[str, str, Owner], _Row] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self.count = 0
        self.late = 0
        """Spans behind so many others that a part of them could not be compared."""

    def add(self, one: Span, inside: bool = True, asked: bool = True) -> None:
        """Figures are of what is `inside` the time that is wanted, waits of those that are `asked` for."""
        dev, op, owner, size, queued, issued, completed = one
        row = self._rows.get((dev, op, owner))
        if row is None:
            row = self._row(dev, op, owner)
        self.count += 1
        if inside:
            row.count += 1
            row.ns += completed - issued
            row.bytes += size
            row.whole += completed - queued
        place = row.place << 2
        waits = inside and asked and issued - queued >= WAIT_NS
        if waits:
            row.waits += 1
            row.waited += issued - queued
        swept = self._swept
        if (queued if waits else issued) < swept:
            self.late += 1
            queued, issued, completed = max(queued, swept), max(issued, swept), max(completed, swept)
        if waits:
            self._moments += (
                queued << _SHIFT | place | _WAITS,
                issued << _SHIFT | place | _WAITED,
                issued << _SHIFT | place | _HAS,
                completed << _SHIFT | place | _HAD,
            )
        else:
            self._moments += (issued << _SHIFT | place | _HAS, completed << _SHIFT | place | _HAD)
        if len(self._moments) >= 2 * self._held:
            self._sweep(self._held)

    def counters(self) -> dict[Group, Counter[str]]:
        """Return counters like the kernel's; nothing may be added any more."""
        self._sweep(len(self._moments))
        found: dict[Group, Counter[str]] = {}
        for (dev, op, _), row in self._rows.items():
            owner = self._at[row.place][1]
            for group, counts in (
                (HAD.group(dev, op, owner), {COUNT: row.count, NS: row.ns, BYTES: row.bytes, WHOLE: row.whole}),
                (WAITED.group(dev, owner), {COUNT: row.waits, NS: row.waited}),
            ):
                if counts[COUNT]:
                    found.setdefault(group, Counter()).update(counts)
        for (waiter, holder), ns in self._pairs.items():
            device, owner = self._at[waiter]
            pairs = MEANWHILE.group(device.name, owner, self._at[holder][1])
            found.setdefault(pairs, Counter())[NS] += ns
        return found

    def _row(self, dev: str, op: str, owner: Owner) -> _Row:
        place = self._places.get((dev, owner))
        if place is None:
            place = self._place(dev, owner)
        owner = self._at[place][1]
        row = self._rows.get((dev, op, owner))
        if row is None:
            row = self._rows[dev, op, owner] = _Row(place)
        return row

    def _place(self, dev: str, owner: Owner) -> int:
        """A number for it; with too many of them that of all others."""
        if len(self._at) >= _MOST_OWNERS:
            owner = Owner(OTHERS)
            if (dev, owner) in self._places:
                return self._places[dev, owner]
        device = self._devices.get(dev)
        if device is None:
            device = self._devices[dev] = _Device(dev)
        place = self._places[dev, owner] = len(self._at)
        if place > _PLACE:
            raise ValueError("there are too many devices")
        self._at.append((device, owner))
        return place

    def _sweep(self, many: int) -> None:
        """The first so many of them; the others wait."""
        self._moments.sort()
        moments, self._moments = self._moments[:many], self._moments[many:]
        at, pairs = self._at, self._pairs
        for moment in moments:
            now, place = moment >> _SHIFT, moment >> 2 & _PLACE
            what = moment & 3
            device = at[place][0]
            own, others = (device.waiting, device.having) if what < _HAS else (device.having, device.waiting)
            mine = own.get(place)
            if mine is None:
                mine = own[place] = [0, now]
            number, since = mine
            if number:
                for other, (times, other_since) in others.items():
                    ns = number * times * (now - (since if since > other_since else other_since))
                    if ns:
                        pair = (place, other) if what < _HAS else (other, place)
                        if pair in pairs:
                            pairs[pair] += ns
                        else:
                            self._add_pair(pair, ns)
            number += -1 if what & 1 else 1
            if number:
                mine[0], mine[1] = number, now
            else:
                del own[place]
        if moments:
            self._swept = moments[-1] >> _SHIFT

    def _add_pair(self, pair: tuple[int, int], ns: int) -> None:
        """Add a pair that is not known yet, within the limit."""
        if len(self._pairs) >= _MOST_PAIRS:
            dev, others = self._at[pair[0]][0].name, Owner(OTHERS)
            pair = (pair[0], self._places[dev, others] if (dev, others) in self._places else self._place(dev, others))
        self._pairs[pair] = self._pairs.get(pair, 0) + ns
