# SPDX-License-Identifier: Apache-2.0
"""Cells of a flow: counters and a `struct hist` per stage for each group, added up over CPUs and time.

Group number n is element n of the map; in a map with other keys, `follow` names the elements. All fields but `stages`
are counters. The buckets of `struct hist` have 32 bits and wrap, so differences are added up.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator
from itertools import compress
from operator import ne
from typing import Any, Callable, NamedTuple, Optional, Protocol

from wptrace.errors import WptraceError
from wptrace.kernel import cpus
from wptrace.model.distribution import SLOTS, Distribution, merge_stages
from wptrace.model.kind import Group

# Whether stores of a CPU are seen in order by the others. BPF programs have no barriers before 6.15.
_ORDERED = os.uname().machine == "x86_64"
_HIST = ("sum", "low", "max", "squares", "squares_high")
_FIELDS, _BUCKET_BYTES = struct.Struct("<5Q"), 4
_HIST_BYTES = _FIELDS.size + SLOTS * _BUCKET_BYTES
# Buckets are compared by pieces, of which most are the same.
_PIECE = range(40)
_PIECE_STRUCT = struct.Struct(f"<{len(_PIECE)}I")
_ALL_BITS = (1 << 64) - 1
_BUCKETS = 1 << 32
# The member with counters of events of requests (`struct event_counts` of bpf_src/lib/block.h).
_EVENTS = "events."


class Elements(Protocol):
    """A per-CPU map, or part of its values."""

    @property
    def value_codec(self) -> Any: ...

    def raw(self, key: Any) -> memoryview | None: ...
    def clear(self, key: Any) -> None: ...


class _Idle(NamedTuple):
    """The bytes of one CPU's element that did not change lately."""

    hash: int
    packed: bytes


Firsts = Callable[[int], Optional[list[int]]]
"""Returns the first field of each element, added up over CPUs; None if it had better be asked for so many elements."""


class Changes:
    """The elements of a map on each CPU, as of the last read."""

    def __init__(self, cells: Elements, firsts: Firsts | None = None) -> None:
        """With `firsts`, idle elements take little time and memory, and some time when they change.

        Then the first field of an element must be counted last, and at each change.
        """
        self._map = cells
        self._firsts = firsts
        self._before: dict[int, dict[int, bytes | _Idle]] = {}
        self._nothing = bytes(cells.value_codec.size)
        self._counts: dict[int, int] = {}
        """By number: the first field before the element was read for the last time."""
        self._lately: set[int] = set()
        """Elements whose first field changed between the last two reads."""

    def read(self, keys: Collection[tuple[int, Any]]) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield changed elements: the caller's number for each, its bytes, and those before."""
        counts = None if self._firsts is None else self._firsts(len(keys))
        if counts is None:
            self._counts.clear()
        else:
            # One read more after a change: without barriers (arm64), what was counted before may be seen after it.
            changed = {number: counts[key] for number, key in keys if counts[key] != self._counts.get(number, 0)}
            again = changed.keys() | self._lately
            self._counts.update(changed)
            self._lately = set(changed)
            keys = [one for one in keys if one[0] in again]
        yield from self._compared(keys)

    def _compared(self, keys: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, bytes, bytes]]:
        size = len(self._nothing)
        for number, key in keys:
            memory = self._map.raw(key)
            if memory is None:
                continue
            found = self._before.get(number, {})
            for cpu in range(len(memory) // size):
                now = bytes(memory[cpu * size : (cpu + 1) * size])
                before = found.get(cpu, self._nothing)
                if isinstance(before, _Idle):
                    # The hash is of 64 bits, with a key of this process.
                    if before.hash == hash(now):
                        continue
                    before = zlib.decompress(before.packed)
                if now != before:
                    self._before.setdefault(number, found)[cpu] = now
                    yield number, now, before
                elif self._firsts is not None and before is not self._nothing:
                    found[cpu] = _Idle(hash(now), zlib.compress(now, 1))

    def finish(self, number: int, key: Any) -> Iterator[tuple[bytes, bytes]]:
        """Read an element for the last time: no program uses it, and it is zero afterwards."""
        for _, now, was in self._compared([(number, key)]):
            yield now, was
        self._counts.pop(number, None)
        self._lately.discard(number)
        if self._before.pop(number, None):
            self._map.clear(key)


class Cells:
    """Sums of a map's cells: `counters` and `distributions` by group, as of the last `read`; idle groups are left out.

    In `sparse` cells the programs do not count a stage that took no time, so its distribution lacks some of the timed
    objects in `finished`. `finished` is the first field of a cell and is counted last, so that a read in between does
    not complete a stage with zeros too early. `absent` stages cannot occur in these cells: they are all zeros.

    Sums never decrease, whatever the kernel writes during a read: a figure that is smaller than before adds nothing,
    and is counted in `shrunk`.
    """

    def __init__(
        self,
        cells: Elements,
        groups: list[Group],
        stages: list[str],
        sparse: bool = False,
        absent: Iterable[str] = (),
        firsts: Firsts | None = None,
    ) -> None:
        self._map = cells
        self._sparse = sparse
        self._absent = tuple(absent)
        self._followed: dict[int, tuple[Any, Group]] = dict(enumerate(enumerate(groups)))
        self._next = len(self._followed)
        self._keys: list[tuple[int, Any]] | None = None
        """The numbers and keys of what is traced, made when they are needed."""
        self.changed: set[int] = set()
        """Numbers of elements that changed in the last read."""
        self._fresh: set[Group] = set()
        """Groups that changed since they were copied."""
        self._copies: dict[Group, dict[str, Distribution]] = {}
        self.copied: set[Group] = set()
        """Groups that changed before the last call of `shared`."""
        self._idle: set[Group] = set()
        """Groups that share their object with the copy."""
        self._changes = Changes(cells, firsts)
        layout = cells.value_codec
        spans = list(itertools.takewhile(lambda span: not span[0].startswith("stages[1]"), layout.spans()))
        counters, stage = spans[: -len(_HIST) - 1], spans[-len(_HIST) - 1 :]
        self._head = layout.before("stages")
        first = self._head.size
        expected = [*((f"stages[0].{field}", 0) for field in _HIST), ("stages[0].slots", SLOTS)]
        if stage != expected or layout.size < first + len(stages) * _HIST_BYTES:
            raise WptraceError("the BPF object and the Python package are of different versions", "reinstall wptrace")
        self._counters: dict[str, int] = {}
        for name, length in counters:
            end = len(self._counters)
            self._counters.update({f"{name}[{at}]": end + at for at in range(length)} if length else {name: end})
        self._hists = {name: first + number * _HIST_BYTES for number, name in enumerate(stages)}
        self._firsts = firsts
        self.counters: dict[Group, dict[str, int]] = {}
        self.distributions: dict[Group, dict[str, Distribution]] = {}
        self.shrunk = 0

    def counts(self, counter: str) -> bool:
        """Whether the elements have a counter of this name."""
        return counter in self._counters

    def follow(self, key: Any, group: Group) -> int:
        """Read one more element from now on, and return its number."""
        number, self._next = self._next, self._next + 1
        self._followed[number] = key, group
        self._keys = None
        return number

    def regroup(self, number: int, group: Group) -> None:
        """Assign an element to another group, which begins at zero."""
        key, before = self._followed[number]
        if group != before:
            self._finish(number)
            self._followed[number] = key, group

    def leave(self, number: int) -> Group:
        """Read an element for the last time, before its key is reused, and return its group."""
        self._finish(number)
        self._keys = None
        return self._followed.pop(number)[1]

    def _finish(self, number: int) -> None:
        key, group = self._followed[number]
        for now, was in self._changes.finish(number, key):
            self._add(group, now, was)

    def fold(self, group: Group, into: Group) -> None:
        """Add a group's figures to another group, and forget it."""
        counts = self.counters.pop(group, None)
        if counts is None:
            return
        sums = self.counters.setdefault(into, dict.fromkeys(self._counters, 0))
        for name, count in counts.items():
            sums[name] += count
        self._part(into)
        merged = {into: self.distributions.pop(into, {})}
        merge_stages(merged, into, self.distributions.pop(group))
        self.distributions.update(merged)
        self._copies.pop(group, None)
        self._idle.discard(group)
        self._fresh.discard(group)
        self._fresh.add(into)

    def read(self) -> None:
        # Events that are not counted yet in the first read cannot lack a stage in the second.
        timed = None if _ORDERED or not self._sparse else self._timed_now()
        self.changed.clear()
        if self._keys is None:
            self._keys = [(number, key) for number, (key, _) in self._followed.items()]
        for number, now, was in self._changes.read(self._keys):
            self.changed.add(number)
            self._add(self._followed[number][1], now, was)
        if self._sparse:
            self._add_zeros(timed)

    def _add(self, group: Group, now: bytes, was: bytes) -> None:
        self._fresh.add(group)
        self._part(group)
        if group not in self.counters:
            self.counters[group] = dict.fromkeys(self._counters, 0)
            self.distributions[group] = {name: Distribution() for name in (*self._hists, *self._absent)}
        counters, distributions = self.counters[group], self.distributions[group]
        head = self._head.struct
        for name, count, before in zip(self._counters, head.unpack_from(now), head.unpack_from(was)):
            counters[name] += self._grown(count - before)
        for name, first in self._hists.items():
            slots = slice(first + _FIELDS.size, first + _HIST_BYTES)
            grown = self._buckets(now[slots], was[slots])
            if not grown:
                continue
            total, low, high, squares, squares_high = _FIELDS.unpack_from(now, first)
            old_total, old_low, old_high, old_squares, old_squares_high = _FIELDS.unpack_from(was, first)
            distributions[name].add_slots(
                grown,
                self._grown(total - old_total),
                low ^ _ALL_BITS,
                high,
                _squares(squares_high - old_squares_high, squares - old_squares, total - old_total),
                (low != old_low, high != old_high),
            )

    def _buckets(self, now: bytes, was: bytes) -> dict[int, int]:
        """The growth of each bucket that has changed, which are few of many."""
        found: dict[int, int] = {}
        if now == was:
            return found
        for first in range(0, SLOTS, len(_PIECE)):
            place = first * _BUCKET_BYTES
            new, old = now[place : place + _PIECE_STRUCT.size], was[place : place + _PIECE_STRUCT.size]
            if new == old:
                continue
            counts, before = _PIECE_STRUCT.unpack(new), _PIECE_STRUCT.unpack(old)
            for slot in compress(_PIECE, map(ne, counts, before)):
                grown = (counts[slot] - before[slot]) % _BUCKETS
                found[first + slot] = grown if grown < _BUCKETS // 2 else self._grown(grown - _BUCKETS)
        return found

    def _part(self, group: Group) -> None:
        """Give a group that was idle an object apart from its copy."""
        if group in self._idle:
            self._idle.remove(group)
            self.distributions[group] = {name: found.copy() for name, found in self.distributions[group].items()}

    def _grown(self, by: int) -> int:
        if by >= 0:
            return by
        self.shrunk += 1
        return 0

    def _timed_now(self) -> dict[Group, int]:
        """Count what is finished and timed; on return, everything counted before is visible."""
        finished, untimed = self._counters["finished"], self._counters.get("untimed")
        size = self._map.value_codec.size
        found: dict[Group, int] = {}
        for key, group in self._followed.values():
            memory = self._map.raw(key)
            for cpu in range(0 if memory is None else len(memory) // size):
                cell = self._head.struct.unpack_from(memory, cpu * size)
                found[group] = found.get(group, 0) + cell[finished] - (cell[untimed] if untimed is not None else 0)
        cpus.barrier()
        return found

    def _add_zeros(self, limits: dict[Group, int] | None) -> None:
        # Untouched groups have nothing to add, unless it was held back.
        for group in self._fresh if limits is None else self.distributions:
            stages, counters = self.distributions[group], self.counters[group]
            timed = counters["finished"] - counters.get("untimed", 0)
            if limits is not None:
                timed = min(timed, limits.get(group, 0))
            if all(timed <= stage.count for stage in stages.values()):
                continue
            self._part(group)
            for stage in self.distributions[group].values():
                stage.add_zeros(timed - stage.count)
            if limits is not None:
                self._fresh.add(group)

    def total(self, counter: str) -> int:
        return sum(counters[counter] for counters in self.counters.values())

    def counted(self, groups: Iterable[Group] | None = None) -> dict[Group, dict[str, int]]:
        """The counters of rows, else of each row, that its kind declares, if these cells have them."""
        found: dict[Group, dict[str, int]] = {}
        for group in self.counters if groups is None else groups:
            counts = self.counters[group]
            row = found[group] = {}
            for name in (field.name for field in group.kind.counters):
                place = name if name in counts else _EVENTS + name
                if place in counts:
                    row[name] = counts[place]
        return found

    def copy(self) -> dict[Group, dict[str, Distribution]]:
        return {
            group: {name: found.copy() for name, found in stages.items()}
            for group, stages in self.distributions.items()
        }

    def shared(self) -> dict[Group, dict[str, Distribution]]:
        """The cells, not to be changed by the caller: idle groups are the objects of the last call."""
        for group in self._fresh:
            self._copies[group] = {name: found.copy() for name, found in self.distributions[group].items()}
        idle = (self.copied - self._fresh) & self._copies.keys() if self._firsts else ()
        for group in idle:
            self._copies[group] = self.distributions[group]
            for found in self._copies[group].values():
                found.pack()
        self._idle.update(idle)
        self.copied, self._fresh = self._fresh, set()
        return dict(self._copies)


def distribution(hist: Any) -> Distribution:
    """The contents of one `struct hist`."""
    found = Distribution()
    squares = _squares(hist.squares_high, hist.squares, hist.sum)
    found.add_counts(hist.slots, sum(hist.slots), hist.sum, hist.low ^ _ALL_BITS, hist.max, squares)
    return found


def _squares(high: int, low: int, total: int) -> int | None:
    """The sum of squares; None if it is not kept (`hist_add_plain`)."""
    squares = (high << 64) + low
    return squares if squares or not total else None
