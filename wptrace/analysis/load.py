# SPDX-License-Identifier: Apache-2.0
"""The load of devices in an interval, by the figures of iostat: utilisation, queue depth, merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

from wptrace.model.kind import ALL, DEVICE, TOTAL, CounterField, Kind, Label, Noun
from wptrace.model.report import Report

_DEV = Label("dev", DEVICE)
READS, STAMPED, BUSY_MS = "looks", "stamped", "busy_ms"
LOAD = Kind(
    "device_load",
    Noun("device"),
    (_DEV,),
    book="",
    counters=(
        CounterField(READS, "how often the kernel's figures of the device were read"),
        CounterField(STAMPED, "how often there were any"),
        CounterField(BUSY_MS, "for how long it had requests", "ms"),
    ),
)
"""A device as a whole, as the kernel has counted it: counters alone."""

# Kinds of requests and of the bios of stacked devices. Time before G comes before the kernel's own figures.
_KINDS = ("request", "layer")
_BEFORE, _MERGED = "throttle", "merged"


class Load(NamedTuple):
    dev: str
    utilisation: float | None
    """The share of the time in which it had a request; None where the kernel keeps no statistics."""
    queue_depth: float
    """The mean number of followed requests between G and C."""
    merged: dict[str, int]
    """Bios that share a request with another one, by operation."""

    @property
    def plain(self) -> dict[str, float | None]:
        share = None if self.utilisation is None else round(self.utilisation, 4)
        return {"utilisation": share, "queue_depth": round(self.queue_depth, 4)}


def of(report: Report) -> list[Load]:
    """Return the load of each device by name; empty if devices are added up."""
    if not any(group.kind is LOAD for group in report.counters):
        return []
    depth: Counter[Any] = Counter()
    merged: dict[Any, Counter[str]] = {}
    for group, cell in report.cells.items():
        if group.kind.name in _KINDS:
            depth[group.label(_DEV.name)] += cell[TOTAL].sum - (cell[_BEFORE].sum if _BEFORE in cell else 0)
    for group, counts in report.counters.items():
        if group.kind.name in _KINDS and counts.get(_MERGED):
            merged.setdefault(group.label(_DEV.name), Counter())[str(group.label("op"))] += counts[_MERGED]
    found = []
    for group, counts in report.counters.items():
        dev: Any = group.values[0] if group.kind is LOAD else ALL
        if dev is ALL or not report.duration_ns:
            continue
        share = min(counts.get(BUSY_MS, 0) * 1_000_000 / report.duration_ns, 1.0) if counts.get(STAMPED) else None
        found.append(Load(dev, share, depth[dev] / report.duration_ns, dict(merged.get(dev, {}))))
    return sorted(found, key=lambda one: one.dev)


def busy(report: Report, names: Collection[str] | None = None) -> list[Load]:
    """Return the load of these devices, if they had activity."""
    found = [one for one in of(report) if one.utilisation or one.queue_depth or one.merged]
    return [one for one in found if names is None or one.dev in names]


def as_json(report: Report) -> list[dict[str, Any]]:
    return [{"dev": one.dev, **one.plain, "merged": one.merged} for one in busy(report)]
