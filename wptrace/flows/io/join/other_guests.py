# SPDX-License-Identifier: Apache-2.0
"""Other guests that had the host's device while requests of this one waited for it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wptrace.analysis.neighbours import WAITED
from wptrace.analysis.verdict import TIMED, Case, Rule, Rules, grew, inside, lost, tail
from wptrace.flows.io.kinds import HIT, STAGES
from wptrace.flows.io.rules import NEIGHBOUR_HAD, NEIGHBOUR_SHARE
from wptrace.model.report import Event, Finding

MOST = 1 << 18
"""The number of stays to keep of each guest."""

_ADVICE = (
    "what the other guest may: io.max or io.weight of its hypervisor's cgroup, limits of its disks in the hypervisor,"
    " and when it runs"
)
_NAMES = tuple(STAGES)
_BEGIN, _END = _NAMES.index("driver"), _NAMES.index("device") + 1
_BEFORE, _THERE, _AFTER = _NAMES[_NAMES.index("throttle") : _BEGIN], _NAMES[_BEGIN:_END], _NAMES[_END:]


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

    def __init__(self, most: int = MOST) -> None:
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
        return Rules(TIMED.first, (grew, tail, inside, self._rule, lost), {**TIMED.advice, "neighbour": _ADVICE})

    @property
    def _rule(self) -> Rule:
        def neighbour(case: Case) -> Finding | None:
            """The guest that had most of the host's device while this one's requests waited for it."""
            worst: tuple[float, Finding] | None = None
            for key, had in self._had.items():
                others = {who: ns for who, ns in had.items() if who}
                who = max(others, key=others.__getitem__, default="")
                whole, waited = self._whole[key[0]], self._waited[key]
                if not who or not whole or not case.cells:
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
