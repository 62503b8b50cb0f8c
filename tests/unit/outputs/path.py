# SPDX-License-Identifier: Apache-2.0
"""Results of a flow that follows whole operations, from the system call to the device and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.unit.outputs.samples import LABELS, NOON, OVERHEAD, SECOND, distribution, sized
from wptrace.model.book import RECURSION, RING_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS, REQUESTS, Group, Kind, Metric, Noun, Point, Stage
from wptrace.model.report import (
    Beginning,
    Child,
    Event,
    Incident,
    InFlight,
    Report,
    Segment,
    Source,
    Start,
    UnderWay,
    Verdict,
    arranged,
)

US = 1_000
NAMES = ("fs", "throttle", "queue", "driver", "device", "complete", "wakeup", "return")
BLOCK = NAMES[1:6]
INTERFERENCES = ("preempted", "hardirq", "softirq", "irq_delay")
_POINTS = [Point(letter, letter) for letter in "EQGDHSCWX"]
_STAGES = [
    Stage(name, _POINTS[at], _POINTS[at + 1], f"{name} happens", f"{name} is slow") for at, name in enumerate(NAMES)
]
OPERATION = Kind(
    "operation",
    Noun("operation"),
    LABELS,
    _STAGES,
    [Metric(name, f"{name} happens", f"{name} is busy", interference=True) for name in INTERFERENCES],
    book=OPERATIONS,
    sized=True,
)
HIT = Kind("hit", Noun("page-cache hit"), LABELS, book=OPERATIONS, sized=True)
REQUEST = Kind("request", Noun("block request"), LABELS, _STAGES[1:6], sized=True)
WRITEBACK = Kind(
    "writeback",
    Noun("writeback bio"),
    LABELS,
    [
        Stage("dirty", _POINTS[0], _POINTS[1], "it lies there", "nobody writes it"),
        Stage("writeback", _POINTS[1], _POINTS[6], "it is written", "that is slow"),
    ],
    book="",
    sized=True,
)
KINDS = (OPERATION, HIT, REQUEST, WRITEBACK)
# Nanoseconds of a usual operation.
USUAL = {
    "fs": 9 * US,
    "throttle": 0,
    "queue": 410 * US,
    "driver": 4 * US,
    "device": 3200 * US,
    "complete": 7 * US,
    "wakeup": 60 * US,
    "return": 2 * US,
}


def spread(middle: int, count: int) -> list[int]:
    """Make values around the middle, with a few far above it."""
    return [middle * (50 + step % 101) // 100 + (middle * 8 if step % 97 == 96 else 0) for step in range(count)]


def cell(names: Iterable[str], count: int, scale: float = 1.0, extra: Iterable[str] = ()) -> dict[str, Distribution]:
    """Make distributions of similar operations in these stages, which add up to the total."""
    values = {name: spread(int(USUAL[name] * scale), count) for name in names}
    found = {name: distribution(ones) for name, ones in values.items()}
    for name in extra:
        found[name] = distribution(spread(int(120 * US * scale), count))
    return {**found, "total": distribution(map(sum, zip(*values.values())))}


def operations(count: int = 500, scale: float = 1.0, extra: Iterable[str] = ()) -> dict[str, Distribution]:
    return cell(NAMES, count, scale, extra)


def requests(count: int = 500, scale: float = 1.0) -> dict[str, Distribution]:
    return cell(BLOCK, count, scale)


def hits(count: int = 4000) -> dict[str, Distribution]:
    return {"total": distribution(spread(2 * US, count))}


def cells(dev: str = "nvme0n1", interference: bool = False) -> dict[Group, dict[str, Distribution]]:
    """Make some cells of each kind."""
    extra = INTERFERENCES if interference else ()
    return {
        OPERATION.group(dev, "read"): operations(500, extra=extra),
        OPERATION.group(dev, "write"): operations(120, 0.5, extra),
        HIT.group(dev, "read"): hits(),
        HIT.group(dev, "write"): hits(900),
        REQUEST.group(dev, "read"): requests(520),
        REQUEST.group(dev, "write"): requests(150, 0.5),
        REQUEST.group(dev, "flush"): requests(30, 0.2),
    }


def books(lost: int = 0) -> dict[str, Book]:
    wrong = {RECURSION: lost}
    noted = {RING_FULL: 2} if lost else {}
    return {
        REQUESTS: Book.read(704 + lost, 700, wrong, noted, 1),
        OPERATIONS: Book.read(5523 + lost, 5520, wrong, {}, 3),
    }


def report(
    found: Mapping[Group, Mapping[str, Distribution]] | None = None,
    kind: str = "interval",
    lost: int = 0,
    ts_ns: int = NOON,
    verdict: Verdict | None = None,
) -> Report:
    found = cells() if found is None else found
    sizes = {group: 4096 * stages["total"].count for group, stages in found.items()}
    return Report(kind, ts_ns, SECOND, books(lost), arranged(found, KINDS), sized(sizes), OVERHEAD, verdict)


def start() -> Start:
    sources = [Source(name, "tp_btf/x") for name in (*NAMES, *INTERFERENCES)]
    return Start("io", "path", "6.12.9", {"dev": ["nvme0n1"]}, sources, KINDS, ["complete is part of device on nvme"])


def interference(
    kind: str, ns: int, name: str = "hog", pid: int | None = 812, cpu: int | None = 0, count: int = 1
) -> dict[str, Any]:
    return {"kind": kind, "name": name, "pid": pid, "cpu": cpu, "ns": ns, "count": count}


def operation(kind: Kind = OPERATION, dev: str = "nvme0n1", **changes: Any) -> Event:
    fields: dict[str, Any] = {
        "pid": 4711,
        "tid": 4715,
        "comm": "postgres",
        "cgroup": "/system.slice/postgresql.service",
        "path": "/var/lib/postgresql/15/main/base/16384/2619",
        "deleted": False,
        "inode": 131,
        "offset": 1048576,
        "length": 8192,
        "result": 8192,
        "error": 0,
        "requests": 1,
        "readahead": 0,
        "sector": 123456,
        "bytes": 8192,
        "rwbs": "R",
        "maj_min": "259:0",
        "clock": {"end_ns": 5, "handed_ns": 2, "seen_ns": 4},
        "cpus": {"submit": 0, "issue": 0, "irq": 1, "complete": 1, "wake": 0},
        "interference": [],
        **changes,
    }
    if not fields["requests"]:
        for name in ("sector", "bytes", "rwbs", "maj_min"):
            del fields[name]
    return Event(kind.group(dev, "read"), NOON + 123456 * US, sum(USUAL.values()), USUAL, fields)


def in_time(**changes: Any) -> Event:
    """Make an operation with two waits, for a request each, and its segments and requests (`--segments`)."""
    event = operation(requests=2, **changes)
    halves = [(name, ns // 2) for _ in range(2) for name, ns in USUAL.items() if ns]
    found, at = [], 0
    for name, ns in halves:
        found.append(Segment(name, at, at + ns))
        at += ns
    children = [child(one.from_ns, one.to_ns) for one in found if one.stage == "device"]
    return event._replace(segments=found, children=children)


def child(handed_ns: int, seen_ns: int) -> Child:
    begin = handed_ns - (USUAL["queue"] + USUAL["driver"]) // 2
    times = (begin, begin, handed_ns - USUAL["driver"] // 2, handed_ns, seen_ns, seen_ns + USUAL["complete"] // 2)
    names = ("queued", "got", "issued", "handed", "seen", "completed")
    fields = {"maj_min": "259:0", "sector": 8, "bytes": 4096, "rwbs": "R", "readahead": False, "error": 0}
    return Child(dict(zip(names, times)), fields)


def request(**changes: Any) -> Event:
    """Make a block request without an operation."""
    names = ("pid", "tid", "comm", "cgroup", "sector", "bytes", "rwbs", "maj_min", "clock", "cpus", "error")
    fields = {name: operation().fields[name] for name in names}
    stages = {name: USUAL[name] for name in BLOCK}
    fields = {**fields, "comm": "kworker/u8:1", "pid": 71, "tid": 71, "cgroup": "/", "rwbs": "W", **changes}
    return Event(REQUEST.group("nvme0n1", "write"), NOON, sum(stages.values()), stages, fields)


def waiting(age_ns: int = 12 * SECOND, kind: Kind = OPERATION, **changes: Any) -> InFlight:
    found = (operation() if kind is OPERATION else request()).fields
    return InFlight(kind.group("nvme0n1", "read"), age_ns, "device", {**found, **changes})


def incident(event: Event, **changes: Any) -> Incident:
    """Make an incident: the operation was queued behind a backup, which had slowed others down before."""
    queued_ns = event.start_ns + USUAL["fs"]
    under_way = [
        UnderWay("backup[812]", "write", 30, 30 << 20, 12, 4, 4 << 20),
        UnderWay("kworker/u8:1[71]", "write", 0, 0, 0, 1, 4096),
    ]
    beginning = Beginning(
        queued_ns - 400 * 1_000_000, "write", "backup[812]", 2100 * US, 43, 2210, 7, queued_ns + 300 * 1_000_000
    )
    return Incident(
        event, "nvme0n1", "device", USUAL["device"], 90 * US, queued_ns, under_way, None, beginning
    )._replace(**changes)
