# SPDX-License-Identifier: Apache-2.0
"""Kinds of the path flow: operations and hits, bios of stacked devices, requests, and pages that are written back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wptrace.analysis import waits
from wptrace.engine.devices import LABELS
from wptrace.model.kind import (
    OPERATIONS,
    OWNER,
    STATEMENT,
    TASK_FIELDS,
    UNATTRIBUTED,
    UNIT,
    UNTIMED_FIELD,
    Comm,
    CounterField,
    EventField,
    Kind,
    Label,
    Metric,
    Noun,
    Point,
    Stage,
)

_U = Point("U", "operation submitted")
_E = Point("E", "operation entered the file")
_L = Point("L", "bio queued to a stacked device")
_Q = Point("Q", "bio queued")
_G = Point("G", "request allocated")
_D = Point("D", "issued to the driver")
_H = Point("H", "handed to the device")
_S = Point("S", "completion seen by the CPU")
_C = Point("C", "completed")
_W = Point("W", "task runs again")
_X = Point("X", "operation leaves the file")
_B = Point("B", "page became dirty")
_Z = Point("Z", "task sleeps")


# A counter of an owner's requests.
UNDER_WAY = "under_way"

STAGES = {
    one.name: one
    for one in (
        Stage(
            "submit",
            _U,
            _E,
            "an asynchronous operation waits for a worker of io_uring, or for one that it is linked to",
            "io_uring's workers are busy, or their operations cannot be done without waiting: see io-wq",
            rare=True,
        ),
        Stage(
            "fs",
            _E,
            _Q,
            "page cache, block mapping, allocation, locks, or the wait for I/O that another task began",
            "the file system holds the operation up: locks, allocation, or somebody else's read",
            advice="what the file system waits for: --waits 100us names shorter waits, --slow shows where they slept",
        ),
        Stage(
            "journal",
            _E,
            _Q,
            "the wait for a commit of the file system's journal or log",
            "commits are large, or the disk is slow to write them: --slow shows who contributed most to one",
            advice="who changes the file system meanwhile: --slow shows of each commit how large it was and who"
            " contributed most to it; how often it is synced, and the disk or file that the journal is on",
            rare=True,
        ),
        Stage(
            "dirty_limit",
            _E,
            _Q,
            "a write sleeps because more pages are dirty than the limit allows",
            "pages become dirty faster than the disk takes them: see vm.dirty_bytes and the cgroup's memory.high",
            advice="vm.dirty_bytes and vm.dirty_ratio, memory.high and memory.max of the cgroup, and how fast the disk"
            " writes what others made dirty",
            rare=True,
        ),
        Stage(
            "layers",
            _L,
            _Q,
            "stacked devices (dm, md) have the bio, before and after the requests that they make of it",
            "encryption, parity, a delay or the work queue of such a device takes the time: see its own rows",
            rare=True,
        ),
        Stage(
            "throttle",
            _Q,
            _G,
            "the bio waits for a request: limits of a cgroup, writeback throttling, free tags",
            "a limit or too few tags hold requests back: look at io.max, io.cost, wbt_lat_usec and nr_requests",
            advice="what holds requests back: io.max and io.cost of the cgroup, writeback throttling"
            " (queue/wbt_lat_usec), the number of tags (queue/nr_requests)",
        ),
        Stage(
            "queue",
            _G,
            _D,
            "the request waits in the plug and the I/O scheduler",
            "the scheduler holds requests back, or the device takes no more: look at the queue depth",
            advice="the I/O scheduler (queue/scheduler) and the queue depth: the device is sent more than it accepts",
        ),
        Stage(
            "driver",
            _D,
            _H,
            "the driver prepares the command: DMA mapping, tables of memory",
            "the CPU or the IOMMU is slow to prepare commands",
            advice="the CPU time of the driver: DMA mapping (an IOMMU in strict mode), software encryption or"
            " checksums",
        ),
        Stage(
            "device",
            _H,
            _S,
            "the device works on it",
            "the disk, the fabric or the hypervisor is slow",
            advice="the disk itself: its vendor's figures at this queue depth, its health (smartctl), who else"
            " uses it; in a guest, the host's disk",
        ),
        Stage(
            "complete",
            _S,
            _C,
            "the completion is handled: interrupt, softirq or another CPU",
            "interrupts or softirqs of the completing CPU are late: see --interference",
            advice="CPUs with interrupts off or busy with softirqs, and where the device's interrupts go"
            " (/proc/interrupts); --interference names who",
        ),
        Stage(
            "wakeup",
            _C,
            _W,
            "the end of the I/O is handled and the task waits for a CPU",
            "the waiter's CPU is busy, or the end of the I/O is handled by a worker: see --interference",
            advice="the run queue of the waiter's CPU: who runs there, and with what priority; --interference"
            " names who",
        ),
        Stage(
            "return",
            _W,
            _X,
            "data is copied to the caller, page cache work",
            "large copies, or the page cache is busy",
            advice="what happens after the wakeup: the copy to user space, page cache work, more system time of"
            " the caller",
        ),
    )
}


def _meanwhile(name: str, description: str, meaning: str, start: Point = _E, end: Point = _X) -> Metric:
    return Metric(name, description, meaning, interference=True, start=start, end=end)


def _held(name: str, description: str, meaning: str) -> Metric:
    return _meanwhile(name, description, meaning, _Q, _G)


_INTERFERENCES = (
    _meanwhile(
        "preempted",
        "another task took the CPU while the operation could have run",
        "the CPUs are overcommitted",
    ),
    _meanwhile(
        "hardirq",
        "interrupt handlers ran on the operation's CPU meanwhile",
        "interrupts hit the CPUs that do I/O",
    ),
    _meanwhile(
        "softirq",
        "softirqs ran on the operation's CPU meanwhile",
        "network or timers hit the CPUs that do I/O",
    ),
    _meanwhile(
        "irq_delay",
        "the completing CPU took no interrupts when that of the request may have been due",
        "something keeps interrupts off on the completing CPU",
        _H,
        _S,
    ),
)
_CONTROLLERS = (
    _held(
        "io_max",
        "the limit of a cgroup in io.max held it",
        "the cgroup is at its limit: see io.max of it and of those above it",
    ),
    _held(
        "io_cost",
        "the cgroup had used up its share by io.cost",
        "other cgroups are entitled to the device: look at io.weight, io.cost.model and io.cost.qos",
    ),
    _held(
        "io_latency",
        "it was held for the latency that another cgroup was promised in io.latency",
        "another cgroup is protected: look at io.latency of its neighbours",
    ),
    _held(
        "wbt",
        "writeback throttling held a write so that reads are quick",
        "there are more writes than the device completes in time: look at queue/wbt_lat_usec",
    ),
    _held(
        "tag",
        "no tag was free, so there was no request for it",
        "the device is sent more than it accepts: look at queue/nr_requests and the queue depth",
    ),
    _held(
        "zone",
        "another write to the same zone had to be done first",
        "a zoned device takes one write to a zone at a time: how many zones are written at once",
    ),
    _held(
        "unknown",
        "something held it, and this kernel does not say what",
        "a limit or too few tags hold requests back: look at io.cost, io.latency, wbt_lat_usec and nr_requests",
    ),
)

INTERFERENCES = tuple(metric.name for metric in _INTERFERENCES)
CONTROLLERS = tuple(metric.name for metric in _CONTROLLERS)
_NAMES = tuple(STAGES)
REQUEST_STAGES = _NAMES[_NAMES.index("throttle") : _NAMES.index("complete") + 1]
"""The stages from Q to C."""
SPARSE = (*(stage.name for stage in STAGES.values() if stage.rare), UNATTRIBUTED)
"""Stages that few operations have: shown only if they took time."""

FIELDS = (
    *TASK_FIELDS,
    EventField("cgroup", str),
    EventField("path", str),
    EventField("offset"),
    EventField("length"),
    EventField("result"),
    EventField("sector"),
    EventField("bytes"),
    EventField("rwbs", str),
    EventField("error"),
)
"""Fields of all events of `wptrace io`; an event without one leaves it empty."""

TEXT_LABELS = {STATEMENT: Label("statement", STATEMENT, OWNER), UNIT: Label("unit", UNIT, OWNER)}
TEXT_FIELDS = {by: (EventField(label.alias, str), EventField(label.name, str)) for by, label in TEXT_LABELS.items()}
"""Further fields of events with `--by statement` or `--by unit`: the label of their owner."""
UNREAD = Comm("unread")
"""The owner whose text could not be read, or is none."""
NO_UNIT = Comm("no unit")
"""The owner of what a program does outside of its units."""


def text_label(fields: Iterable[EventField]) -> Label | None:
    """The label of owners that these fields of events have; None where they have no text."""
    named = {field.name for field in fields}
    return next((label for label in TEXT_LABELS.values() if label.name in named), None)


WITHIN = {
    "submit": "fs",
    "journal": "fs",
    "dirty_limit": "fs",
    "queue": "device",
    "driver": "device",
    "complete": "device",
}
"""The stage that contains the time of another one where that is not observed."""

REQUEST_EVENTS = (
    CounterField("merged", "another bio went with it: both were one request"),
    CounterField(
        "split",
        "a bio was cut in two, as it was larger than what a request may have; not with the level `block`; in records",
    ),
    CounterField("requeues", "the driver could not take it, or gave it back, and it was issued again"),
    CounterField("parts", "a part of it was done, and the rest went on"),
    CounterField("timeouts", "its time ran out before the device answered"),
    CounterField(
        "asked",
        "in a row of `flush`: this many bios requested one without data; several may share one. The kernel"
        " (`/sys/block/*/stat`, iostat) counts each as a write",
    ),
)
"""Other events on the way of a request (`struct event_counts` of bpf_src/lib/block.h)."""
# Of `struct events`: what links stacked devices, and notes of the path level for itself.
_NO_EVENTS = ("below", "inline_")


class Events:
    """Decodes the events of single requests, which records pack into a few bytes (`struct events`)."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._nothing = bytes(codec.size)

    def fields(self, data: bytes) -> dict[str, Any]:
        """Return the fields for the events of a request; empty if there were none."""
        if data == self._nothing:
            return {}
        found = dict(zip(self._codec.fields, self._codec.struct.unpack(data)))
        events = {name: count for name, count in found.items() if count and name not in _NO_EVENTS}
        return {"events": events} if events else {}


OPERATION = Kind(
    "operation",
    Noun("operation"),
    LABELS,
    STAGES.values(),
    (*_INTERFERENCES, *_CONTROLLERS),
    book=OPERATIONS,
    sized=True,
    fields=FIELDS,
)
"""A read or write that waited for a device."""
HIT = Kind("hit", Noun("page-cache hit"), LABELS, book=OPERATIONS, sized=True, fields=FIELDS)
"""A read or write that the page cache served."""
LAYER = Kind("layer", Noun("bio"), LABELS, (STAGES["layers"], STAGES["device"]), book="", sized=True)
"""A bio of a stacked device."""
OWNED_OPERATION, OWNED_HIT, OWNED_REQUEST = "owned_operation", "owned_hit", "owned_request"
"""Names of the kinds of rows by owner (wptrace/flows/io/parts/owners.py)."""

REQUEST = Kind(
    "request",
    Noun("block request"),
    LABELS,
    (STAGES[name] for name in REQUEST_STAGES),
    _CONTROLLERS,
    sized=True,
    fields=FIELDS,
    counters=(UNTIMED_FIELD, *REQUEST_EVENTS),
)
"""A request of the block layer."""
WRITEBACK = Kind(
    "writeback",
    Noun("writeback bio"),
    LABELS,
    (
        Stage(
            "dirty",
            _B,
            _Q,
            "the data lies in the page cache until the kernel writes it back, or a sync does",
            "the writers are faster than writeback, or nothing syncs: look at vm.dirty_* and fsync",
        ),
        Stage(
            "writeback",
            _Q,
            _C,
            "the data is on its way to the device and back",
            "the device or what lies before it is slow: see the rows of requests",
        ),
    ),
    book="",
    sized=True,
    counters=(UNTIMED_FIELD,),
)
"""Data of a file that were written from the page cache to a device."""

SLEEP = Kind(
    waits.SLEEP,
    Noun("wait of a task", "waits of tasks"),
    LABELS,
    (
        Stage(
            waits.ASLEEP_ALONE,
            _Z,
            _C,
            "a task sleeps for a request of its own",
            "requests take long: see their rows",
        ),
        STAGES["wakeup"],
    ),
    book="",
)
"""A task that slept for its own request, at levels that follow no operations."""

WRITEBACK_STAGES = tuple(stage.name for stage in WRITEBACK.stages)

KINDS = (OPERATION, HIT, LAYER, REQUEST, WRITEBACK)
REQUEST_KINDS: tuple[Kind, ...] = (LAYER, REQUEST, WRITEBACK, SLEEP)
"""The kinds of the level `request`."""
