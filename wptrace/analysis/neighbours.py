# SPDX-License-Identifier: Apache-2.0
"""Owners that had a device while others waited for it, from the counters of an interval (docs/owners.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from wptrace.model import cgroup, units
from wptrace.model.kind import BYTES_FIELD, DEVICE, NOBODY, OPERATION, OTHERS, CounterField, Group, Kind, Label, Noun
from wptrace.model.report import BYTES, Counters

NS, COUNT = "ns", "count"
WHOLE = "whole"
# Paths up to here are shown whole.
LONG = 24


class Owner(str):
    """The name of an owner, and that of one of its tasks, which does not count in comparisons."""

    seen = ""


_DEV, _WHO = Label("dev", DEVICE), Label("owner", "owner")
HAD = Kind(
    "neighbour_had",
    Noun("owner"),
    (_DEV, Label("op", OPERATION), _WHO),
    book="",
    counters=(
        CounterField(COUNT, "requests"),
        CounterField(NS, "the time that the device had them, from D to C", "ns"),
        CounterField(WHOLE, "their time from Q to C, where it is known", "ns"),
        BYTES_FIELD,
    ),
)
"""The share of an owner in the device."""
WAITED = Kind(
    "neighbour_waited",
    Noun("owner"),
    (_DEV, _WHO),
    book="",
    counters=(CounterField(COUNT, "requests that waited"), CounterField(NS, "for how long, from Q to D", "ns")),
)
"""The waits of an owner's requests."""
MEANWHILE = Kind(
    "neighbour_met",
    Noun("owner"),
    (_DEV, _WHO, Label("holder", "owner")),
    book="",
    counters=(CounterField(NS, "the device time of the holder while the owner's requests waited", "ns"),),
)
"""The device time of another owner (or itself) during these waits."""
KINDS = (HAD, WAITED, MEANWHILE)
# By kind, which of the labels are owners.
_OWNERS = {HAD: (2,), WAITED: (1,), MEANWHILE: (1, 2)}
# By kind, which of these labels is the owner in whose line the group is shown.
_WAITERS = {HAD: (2,), WAITED: (1,), MEANWHILE: (1,)}


class Neighbour(NamedTuple):
    """An owner on a device."""

    dev: Any
    owner: Owner
    device_ns: int
    requests: int
    bytes: int
    op: str
    """The most frequent operation of its requests."""
    op_bytes: int
    """The mean size of these requests."""
    waits: int
    waited_ns: int
    meanwhile: Mapping[Owner, int]
    """The device time of each during its waits, the longest first."""

    @property
    def meanwhile_ns(self) -> int:
        return sum(self.meanwhile.values())

    @property
    def named(self) -> str:
        return described(self.owner, self.op, self.op_bytes)


def described(owner: Owner, op: str, size: int) -> str:
    """Describe an owner: /batch (backup, 64 KiB reads)."""
    does = f"{units.size(size)} {op}{'' if op.endswith('s') else 's'}" if op and size else ""
    about = ", ".join(filter(None, (owner.seen, does)))
    return f"{short_name(owner)} ({about})" if about else short_name(owner)


def short_name(owner: Owner) -> str:
    """Return the usual short name of a pod's cgroup."""
    return str(owner) if len(owner) <= LONG or not owner.startswith("/") else cgroup.short(owner)


def of(counters: Counters) -> list[Neighbour]:
    """Return the neighbours of each device, those with most of it first."""
    had: dict[tuple[Any, Owner], dict[str, Counter[str]]] = {}
    waited: dict[tuple[Any, Owner], Mapping[str, int]] = {}
    meanwhile: dict[tuple[Any, Owner], Counter[Owner]] = {}
    for group, counts in counters.items():
        values: Any = group.values
        if group.kind is HAD:
            dev, op, owner = values
            had.setdefault((dev, owner), {}).setdefault(op, Counter()).update(counts)
        elif group.kind is WAITED:
            waited[values] = counts
        elif group.kind is MEANWHILE:
            dev, owner, holder = values
            meanwhile.setdefault((dev, owner), Counter())[holder] += counts[NS]
    found = []
    for dev, owner in dict.fromkeys([*had, *waited, *meanwhile]):
        ops = had.get((dev, owner), {})
        most = max(ops, key=lambda op: ops[op][NS], default="")
        waits = waited.get((dev, owner), {})
        found.append(
            Neighbour(
                dev,
                owner,
                sum(one[NS] for one in ops.values()),
                sum(one[COUNT] for one in ops.values()),
                sum(one[BYTES] for one in ops.values()),
                most,
                ops[most][BYTES] // max(ops[most][COUNT], 1) if ops else 0,
                waits.get(COUNT, 0),
                waits.get(NS, 0),
                dict(sorted(meanwhile.get((dev, owner), {}).items(), key=lambda one: (-one[1], one[0]))),
            )
        )
    return sorted(found, key=lambda one: (str(one.dev), -one.device_ns, -one.waited_ns, one.owner))


def folded(counters: Counters, top: int) -> Counters:
    """Fold counters into this many owners, those that had or waited most first, and the others; 0: keep all."""
    times: Counter[Any] = Counter()
    for group, counts in counters.items():
        if group.kind in (HAD, WAITED):
            times[group.values[-1]] += counts.get(NS, 0)
    named = sorted((one for one in times if one not in (OTHERS, NOBODY)), key=lambda one: (-times[one], one))
    kept = {*(named[:top] if top else named), OTHERS, NOBODY}
    return _merged(counters, _OWNERS, lambda group, at: group.values[at] in kept)


def only(counters: Counters, named: Callable[[str], bool]) -> Counters:
    """The others than those with such a device, name or task are added up; who had the device meanwhile stays."""

    def stays(group: Group, at: int) -> bool:
        owner: Any = group.values[at]
        return owner == OTHERS or named(f"{_DEV.shown(group.values[0])} {owner} {owner.seen} neighbours")

    return _merged(counters, _WAITERS, stays)


def _merged(
    counters: Counters, places: Mapping[Kind, Sequence[int]], stays: Callable[[Group, int], bool]
) -> dict[Group, Counter[str]]:
    found: dict[Group, Counter[str]] = {}
    for group, counts in counters.items():
        gone = [at for at in places.get(group.kind, ()) if not stays(group, at)]
        values = (Owner(OTHERS) if at in gone else one for at, one in enumerate(group.values))
        found.setdefault(Group(group.kind, tuple(values)) if gone else group, Counter()).update(counts)
    return found


def as_json(counters: Counters) -> list[dict[str, Any]]:
    return [
        {
            "dev": _DEV.shown(one.dev),
            "owner": str(one.owner),
            "seen": one.owner.seen,
            "device_ns": one.device_ns,
            "requests": one.requests,
            BYTES: one.bytes,
            "op": one.op,
            "op_bytes": one.op_bytes,
            "waits": one.waits,
            "waited_ns": one.waited_ns,
            "meanwhile": [{"owner": str(holder), "ns": ns} for holder, ns in one.meanwhile.items()],
        }
        for one in of(counters)
    ]
