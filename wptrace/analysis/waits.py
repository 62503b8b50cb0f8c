# SPDX-License-Identifier: Apache-2.0
"""Waits of operations in a stage by reason, from the cells of an interval (docs/waits.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

from wptrace.model.kind import DEVICE, NOBODY, OPERATION, OTHERS, TOTAL, CounterField, Group, Kind, Label, Noun
from wptrace.model.report import Report, Row

LABELS = (Label("dev", DEVICE), Label("op", OPERATION), Label("in_stage", "text"), Label("reason", "text"))
WAIT = Kind("wait", Noun("wait"), LABELS, book="")
"""Operations that waited in a stage for one reason, and for how long."""
OWNED_WAIT = "owned_wait"
"""The name of the kind of the same by owner."""
WORK = Kind("work", Noun("sample"), LABELS, book="")
"""Work of operations on a CPU in a stage, sampled by ticks: how many samples, and the ticks' time."""
PARTS_OF_STAGES = (WAIT, WORK)
"""They stand below the stages that are made of them."""
SLEEP = "sleep"
"""The name of the kind of tasks that slept, where no operations are followed."""
WAITING = (OPERATION, SLEEP)
"""The names of kinds with stages that are made of waits."""
ASLEEP_ALONE = "asleep"
"""A stage in which nothing runs."""
NS, COUNT = "ns", "count"
LIMIT, RATE, MACHINE = "limit_bytes", "rate_bytes", "machine_bytes"
WAITS = Kind(
    "waits",
    Noun("wait"),
    LABELS,
    book="",
    counters=(
        CounterField(COUNT, "how often operations waited"),
        CounterField(LIMIT, "of the dirty limit, summed over the waits: how much may be dirty", "bytes"),
        CounterField(RATE, "the same: how much the task may make dirty in a second", "bytes"),
        CounterField(MACHINE, "the same: how much may be dirty on the machine", "bytes"),
    ),
)
"""Counters of waits: how often tasks waited, and limits."""
ASLEEP = Kind(
    "asleep",
    Noun("operation"),
    LABELS[:3],
    book="",
    counters=(CounterField(NS, "for how long tasks slept in a stage in which they can run", "ns"),),
)
"""Sleeps for whatever reason: counters alone."""
RUNNING, SHORTER = "on the CPU", "shorter waits"
"""The rest of a stage in which tasks can run: no wait, or none that has a reason."""
RUNNABLE = ("fs", "journal")
"""Stages in which a task may run, and of which it is known for how long it slept."""
# An owner with this share of the time is named.
_MOST = 0.5


class Share(NamedTuple):
    reason: str
    ns: int
    share: float
    """The share of the stage."""
    operations: int
    waits: int


class Waits(NamedTuple):
    """The waits that a stage is made of."""

    stage: str
    reasons: tuple[Share, ...]
    """The longest first."""
    shorter_ns: int | None
    """Asleep without a reason; None where it is not known how long tasks slept."""
    running_ns: int | None
    """Time on a CPU or ready for one."""
    whole_ns: int
    work: tuple[tuple[str, float], ...] = ()
    """Parts of the time on a CPU, the largest first, where it was sampled."""

    @property
    def parts(self) -> list[tuple[str, float]]:
        """All of it, the largest first."""
        found = [(one.reason, one.ns) for one in self.reasons]
        found += [(RUNNING, self.running_ns or 0), (SHORTER, self.shorter_ns or 0)]
        whole = self.whole_ns or 1
        return sorted(((name, ns / whole) for name, ns in found if ns), key=lambda one: -one[1])


ByGroup = dict[tuple[Hashable, ...], list[Waits]]
"""Waits by device and operation."""


def of(report: Report) -> ByGroup:
    """Return the stages in which anything waited, by device and operation."""
    reasons: dict[Group, list[Group]] = {}
    for group in report.cells:
        if group.kind is WAIT:
            reasons.setdefault(ASLEEP.group(*group.values[:3]), []).append(group)
    work: dict[Group, Counter[str]] = {}
    for group, stages in report.cells.items():
        if group.kind is WORK:
            key, what = ASLEEP.group(*group.values[:3]), str(group.values[-1])
            work.setdefault(key, Counter())[what] += stages[TOTAL].sum
    asleep = {group: counts.get(NS, 0) for group, counts in report.counters.items() if group.kind is ASLEEP}
    found: ByGroup = {}
    for group, stages in report.cells.items():
        if group.kind.name not in WAITING:
            continue
        for stage, took in stages.items():
            key = ASLEEP.group(*group.values, stage)
            if took.sum and (key in reasons or key in work or asleep.get(key)):
                # Where there is no figure, nobody slept.
                slept = took.sum if stage == ASLEEP_ALONE else asleep.get(key, 0 if stage in RUNNABLE else None)
                made = _made(report, stage, took.sum, reasons.get(key, []), slept)
                busy = work.get(key, Counter[str]())
                # Samples of a forged capture may have taken no time.
                sampled_ns = sum(busy.values()) or 1
                shares = tuple((what, ns / sampled_ns) for what, ns in busy.most_common())
                found.setdefault(group.values, []).append(made._replace(work=shares))
    return found


def _made(report: Report, stage: str, whole_ns: int, groups: list[Group], asleep_ns: int | None) -> Waits:
    known = sum(report.cells[group][TOTAL].sum for group in groups)
    # Waits and sleeps that are read while they are counted may be newer than their stage.
    whole_ns = max(whole_ns, known, asleep_ns or 0)
    shares = []
    for group in groups:
        took = report.cells[group][TOTAL]
        waits = report.counter(WAITS.group(*group.values), COUNT)
        shares.append(Share(str(group.values[-1]), took.sum, took.sum / whole_ns, took.count, waits))
    shares.sort(key=lambda one: (-one.ns, one.reason))
    if asleep_ns is None:
        return Waits(stage, tuple(shares), None, None, whole_ns)
    return Waits(stage, tuple(shares), max(asleep_ns - known, 0), max(whole_ns - max(asleep_ns, known), 0), whole_ns)


def of_row(report: Report, row: Row) -> dict[str, float]:
    """Further fields of a row in JSON: of a stage, for how long tasks slept in it; of a wait, how often."""
    group = row.group
    if group.kind.name == OPERATION:
        slept = report.counter(ASLEEP.group(*group.values, row.metric), NS)
        return {"asleep_ns": slept} if slept else {}
    if group.kind is WORK:
        alike = (stages[TOTAL].sum for of, stages in report.cells.items() if _is_of_same_stage(of, group))
        return {"share": round(row.distribution.sum / (sum(alike) or 1), 4)}
    if group.kind is not WAIT:
        return {}
    counts = report.counters.get(WAITS.group(*group.values), {})
    waits = counts.get(COUNT, 0)
    # They stand first, and there is a row of each wait.
    kind = next((of.kind for of in report.cells if of.kind.name in WAITING), None)
    took = None if kind is None else report.cells.get(kind.group(*group.values[:2]), {}).get(group.label("in_stage"))
    whole = 0 if took is None else max(took.sum, row.distribution.sum)
    limits = {name: counts[name] // waits for name in (LIMIT, RATE, MACHINE) if waits and counts.get(name)}
    return {"waits": waits, **limits, "share": round(row.distribution.sum / whole, 4) if whole else 0.0}


def _is_of_same_stage(one: Group, other: Group) -> bool:
    """Whether both groups are of the same stage."""
    return one.kind is other.kind and one.values[:3] == other.values[:3]


def whose(report: Report, values: tuple[Hashable, ...]) -> str:
    """Return the owner that waited most in a device, operation, stage and reason; empty if there is none."""
    times: Counter[str] = Counter()
    for group, stages in report.cells.items():
        if group.kind.name == OWNED_WAIT and group.values[:-1] == values:
            times[group.kind.labels[-1].shown(group.values[-1])] += stages[TOTAL].sum
    return owner_of_most(times)


def owner_of_most(shares: Counter[str]) -> str:
    """Empty where nobody has at least half, or somebody who has no name."""
    who = max(shares, key=shares.__getitem__, default="")
    return who if who not in (NOBODY, OTHERS) and shares[who] >= _MOST * sum(shares.values()) else ""


def limits(report: Report, dev: Hashable, op: Hashable) -> Counter[str]:
    """Return the dirty limit's bytes and rate, in the mean of all waits."""
    found = Counter[str]()
    for group, counts in report.counters.items():
        if group.kind is WAITS and group.values[:2] == (dev, op) and counts.get(LIMIT):
            found.update(counts)
    count = found.pop(COUNT, 0)
    return Counter({name: total // count for name, total in found.items()}) if count else Counter()
