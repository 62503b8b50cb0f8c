# SPDX-License-Identifier: Apache-2.0
"""Rules of the verdict of `wptrace io` in addition to those of every flow (docs/verdict.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from wptrace.analysis import neighbours, verdict, waits
from wptrace.analysis.neighbours import HAD, NS, WAITED, WHOLE
from wptrace.analysis.verdict import Case, Rule, Rules
from wptrace.engine.devices import Devices
from wptrace.engine.filters.task import PID
from wptrace.flows.io.causes import NEIGHBOUR_UNKNOWN
from wptrace.flows.io.kinds import (
    HIT,
    LAYER,
    OPERATION,
    OWNED_HIT,
    OWNED_OPERATION,
    OWNED_REQUEST,
    REQUEST,
    SLEEP,
    UNDER_WAY,
    WRITEBACK,
)
from wptrace.flows.io.options import Options
from wptrace.flows.io.wait_reasons import BY_NAME, WORK_BY_NAME
from wptrace.kernel import tasks
from wptrace.model.kind import (
    ALL,
    CALL,
    NOBODY,
    OTHERS,
    REQUESTS,
    STATEMENT,
    TOTAL,
    UNIT,
    CounterField,
    Group,
    Kind,
    Label,
    Noun,
    Task,
)
from wptrace.model.report import BYTES, Event, Finding, Report

BLAME_SHARE = 0.1
"""A task that delayed operations for this share of their time is named."""

_ADVICE = {
    **verdict.TIMED.advice,
    "idle": "whether the filters let through what you look for, and whether it does I/O at all",
    "neighbour": "the limits of the other one: io.max, io.weight or io.cost of its cgroup; its queue depth, and when "
    "it runs",
    "statement": "EXPLAIN (ANALYZE, BUFFERS) of it; --by file for its tables and indexes; --waits for what it waited "
    "for",
    "unit": "what it does with files: --by file names them; --waits for what it waited for",
    "cached": "the program itself: no device was waited for; to see one, read what is not in memory, or use direct I/O",
}

NEIGHBOUR_SHARE, NEIGHBOUR_HAD, NEIGHBOUR_WAITS = 0.1, 0.5, 5
"""An owner is reported if its requests wait for this share of their time, at least this often, while others have this
share of the device."""
_HOLDERS = 3
"""At most this many owners that had the device together are named."""
_ALIKE = 0.8
"""Owners with this fraction of the largest share are considered equal. Of those that wait, the one that waited longest
is named; of those that had the device, each next one is named if it equals the one before it."""
STATEMENT_SHARE = 0.1
"""A statement is reported if its operations take this share of the time of all."""
LARGE = 1 << 20
"""Operations of this mean size take notable time to prepare."""
MOST_OF_STAGE = 0.4
"""The share of a stage from which on a wait supplies the advice."""
_MIXED = 0.05
"""A second system call with this share of the operations makes them a mixture."""

# Flushes of the block layer are part of a request.
_FLUSH = "flush"
# At most this many children are named.
_NAMED = 3
_FS_OF_LARGE = (
    "their size: the memory of such large operations is pinned, and their requests are made, before the device has all"
    " of them; smaller ones overlap with the device"
)
_ON_CPU = "the CPU time of the file system: perf top, or perf record -g of the task"
_CPU_OF_WAITER = "the run queue of the waiter's CPU: wptrace cpu --by process says who has it"
_IN_FLIGHT = "what does not end: wptrace io --stuck 5s lists it, with the stage that it is in"
_NOBODY_NAMED = "the run queue of the waiter's CPU; --slow DURATION shows of each slow one who ran there meanwhile"


def cached(case: Case) -> Finding | None:
    found = case.heaviest(HIT)
    if found is None or case.main is not None:
        return None
    group, stages = found
    total, left = stages[TOTAL], verdict.in_flight(case.report)
    figures = {"count": total.count, "mean_ns": total.mean, "p99_ns": total.percentile(99), **left}
    # A hit may be in flight as well, but it has no request.
    return Finding("cached", figures, group, advice=_IN_FLIGHT if left.get(f"{REQUESTS}_in_flight") else "")


def idle(case: Case) -> Finding | None:
    found = verdict.idle(case)
    return found._replace(advice=_IN_FLIGHT) if found is not None and found.figures["in_flight"] else found


def largest(case: Case) -> Finding | None:
    """The stage that took the most time, with the stacked device that caused it."""
    found = verdict.largest(case)
    if found is None or found.group is None:
        return found
    if found.stage == "layers":
        return found._replace(who=_layer(case))
    found = _with_waits(case, found)
    group = found.group.everywhere  # type: ignore[union-attr]
    counters = case.report.counters.items()
    moved = sum(counts.get(BYTES, 0) for of, counts in counters if of.everywhere == group)
    count = case.cells[group][TOTAL].count if group in case.cells else 0
    if found.stage == "fs" and not found.parts and count and moved >= LARGE * count:
        return found._replace(figures={**found.figures, "bytes": moved / count}, advice=_FS_OF_LARGE)
    return found


def _with_waits(case: Case, found: Finding) -> Finding:
    """Add the waits of the stage, and the advice for the largest of them."""
    group = found.group
    if group is None:
        return found
    everywhere = group.values[0] is ALL
    report = case.report.everywhere() if everywhere else case.report
    made = next((one for one in waits.of(report).get(group.values, ()) if one.stage == found.stage), None)
    if made is None:
        return found
    figures, dirtied_by = dict(found.figures), ""
    if found.stage == "dirty_limit":
        figures |= waits.limits(report, *group.values)
        written = report.counter(REQUEST.group(*group.values), BYTES)
        figures["disk_bytes"] = written * 1e9 / report.duration_ns if report.duration_ns else 0
        dirtied_by = _dirtied_by(report, group)
    parts = made.parts
    who = waits.whose(report, (*group.values, found.stage, made.reasons[0].reason)) if made.reasons else ""
    advice = found.advice
    if parts and parts[0][1] >= MOST_OF_STAGE:
        reason = BY_NAME.get(parts[0][0])
        if parts[0][0] == waits.RUNNING:
            what, share = made.work[0] if made.work else ("", 0)
            reason, advice = WORK_BY_NAME.get(what), _ON_CPU
            parts[0] = (f"{waits.RUNNING}, most of it {what}", parts[0][1]) if share >= MOST_OF_STAGE else parts[0]
        advice = reason.advice if reason is not None else advice
    return found._replace(figures=figures, parts=parts, advice=advice, who=who, dirtied_by=dirtied_by)


def _dirtied_by(report: Report, written: Group) -> str:
    """The owner of most of the data that the kernel writes back to a device, if that is known (--writeback, --by)."""
    if not any(group.kind.name == WRITEBACK.name for group in report.cells):
        return ""
    moved = Counter[str]()
    for group, counts in report.counters.items():
        if group.kind.name == OWNED_REQUEST and group.values[:2] == written.values[:2] and counts.get(BYTES):
            moved[group.kind.labels[-1].shown(group.values[-1])] += counts[BYTES]
    return waits.owner_of_most(moved)


def _layer(case: Case) -> str:
    """The stacked device with the most time of its own."""
    times: Counter[str] = Counter()
    for group, found in case.report.cells.items():
        if group.kind is LAYER and "layers" in found and group.values[0] is not ALL:
            times[str(group.values[0])] += found["layers"].sum
    return max(times, key=times.__getitem__, default="")


def tail(case: Case) -> Finding | None:
    """The tail of a single system call: fdatasync and sync_file_range do not share a distribution."""
    found = verdict.tail(case)
    if found is None or found.group is None:
        return found
    op, calls = found.group.label("op"), Counter[str]()
    for group, cell in case.report.cells.items():
        if group.kind.labels[-1].type == CALL and group.label("op") == op:
            calls[str(group.values[-1])] += cell[TOTAL].count
    return found if sum(count >= _MIXED * sum(calls.values()) for count in calls.values()) < 2 else None


_BEHIND, _RAN, _IRQ_OFF = "behind", "ran", "irq_off"
_STAGES = {_BEHIND: "journal", _RAN: "wakeup", _IRQ_OFF: "complete"}
"""Rules that name a task, and their stage."""
IN_THE_WAY = Kind(
    "in_the_way",
    Noun("task"),
    (Label("rule", "text"), Label("task", "text")),
    book="",
    counters=(CounterField(NS, "for how long it was in the way of operations that were shown one by one", "ns"),),
)
"""The counters of a task that others waited for."""


class InTheWay:
    """Tasks that delayed single operations, of which a limited number is kept."""

    _MOST = 4096

    def __init__(self) -> None:
        self._times: Counter[Group] = Counter()

    def add(self, event: Event) -> None:
        fields = event.fields
        if "commit" in fields or fields.get("interference"):
            # Events of a capture may have any fields.
            with suppress(LookupError, TypeError, AttributeError):
                self._add_of(event)

    def _add_of(self, event: Event) -> None:
        # If most of the commit was the task's own work, it waited for itself.
        most = event.fields.get("commit", {}).get("most")
        if most and most["pid"] != event.fields["pid"]:
            self._add(_BEHIND, most["comm"], most["pid"], event.stages.get("journal", 0))
        for other in event.fields.get("interference", ()):
            if other["pid"]:
                rule = _IRQ_OFF if other["kind"] == "irq_off" else _RAN
                self._add(rule, other["name"], other["pid"], other["ns"])

    def _add(self, rule: str, name: str, pid: int, ns: int) -> None:
        task = IN_THE_WAY.group(rule, str(Task(name, pid)))
        if task in self._times or len(self._times) < self._MOST:
            self._times[task] += ns

    def counters(self) -> dict[Group, Counter[str]]:
        return {task: Counter({NS: ns}) for task, ns in self._times.items()}


def _named(rule: str) -> Rule:
    def found(case: Case) -> Finding | None:
        tasks = {
            str(group.label("task")): counts[NS]
            for group, counts in case.report.counters.items()
            if group.kind is IN_THE_WAY and group.label("rule") == rule
        }
        if not tasks:
            return None
        whole = sum(stages[TOTAL].sum for stages in case.of_kind(OPERATION).values())
        who = max(tasks, key=tasks.__getitem__)
        if not whole or tasks[who] < BLAME_SHARE * whole:
            return None
        figures = {"share": min(tasks[who] / whole, 1.0), "sum_ns": tasks[who]}
        return Finding(rule, figures, stage=_STAGES[rule], who=who)

    found.__name__ = rule
    return found


def woken(case: Case) -> Finding | None:
    """Find tasks that did not run once their requests were complete, at levels that follow no operations."""
    found = case.heaviest(SLEEP)
    if found is None:
        return None
    group, stages = found
    late, whole = stages["wakeup"], stages[TOTAL]
    if not whole.sum or late.sum < verdict.INSIDE_SHARE * whole.sum:
        return None
    figures = {"share": verdict.share_of(late.sum, whole.sum), "mean_ns": late.mean, "p99_ns": late.percentile(99)}
    return Finding("woken", figures, group, "wakeup", advice=_CPU_OF_WAITER)


def owner(case: Case) -> Finding | None:
    """Find the owner that had most of the device's time (with --by)."""
    # Requests that a filter leaves out used the device as well, if they are followed.
    times: Counter[str] = Counter()
    for group, counts in case.report.counters.items():
        if group.kind is HAD and group.label("op") != _FLUSH:
            times[str(group.label("owner"))] += counts[NS]
    for group, stages in case.cells.items() if not times else ():
        if UNDER_WAY in stages and group.label("op") != _FLUSH:
            label = group.kind.labels[-1]
            times[label.shown(group.values[-1])] += stages[UNDER_WAY].sum
    # An owner may have nothing but requests that are not over, or whose times are not known.
    times = +times
    named = {who: time for who, time in times.items() if who not in (NOBODY, OTHERS)}
    who = max(named, key=named.__getitem__, default="")
    if not who:
        return None
    figures = {"share": named[who] / sum(times.values()), "owners": len(times)}
    if times[NOBODY]:
        figures["unknown"] = times[NOBODY] / sum(times.values())
    if times[OTHERS]:
        # Too many to have rows of their own.
        figures["more"] = 1
    if any(book.noted.get(NEIGHBOUR_UNKNOWN) for book in case.report.books.values()):
        figures["partial"] = 1
    return Finding("owner", figures, who=who)


def statement(case: Case) -> Finding | None:
    """Find the statement whose operations took the most time (with --by statement)."""
    return _busiest(case, STATEMENT)


def unit(case: Case) -> Finding | None:
    """Find the unit whose operations took the most time (with --by unit)."""
    return _busiest(case, UNIT)


def _busiest(case: Case, by: str) -> Finding | None:
    rows = {group: stages for group, stages in case.report.cells.items() if group.kind.labels[-1].type == by}
    times: Counter[Group] = Counter()
    for group, stages in rows.items():
        if group.kind.name == OWNED_OPERATION:
            times[group] += stages[TOTAL].sum
    by_text: Counter[str] = Counter()
    for group, ns in times.items():
        if group.fields[by] is not None:
            by_text[str(group.values[-1])] += ns
    who = max(by_text, key=by_text.__getitem__, default="")
    whole = sum(times.values())
    if not who or by_text[who] < STATEMENT_SHARE * whole:
        return None
    on, by_op = Counter[object](), Counter[str]()
    for group, ns in times.items():
        if group.values[-1] == who:
            on[group.label("dev")] += ns
            by_op[str(group.label("op"))] += ns
    (dev, most), (op, _) = on.most_common(1)[0], by_op.most_common(1)[0]
    mine = {group: stages for group, stages in rows.items() if group.values[-1] == who}
    of_op = [group for group in mine if group.kind.name == OWNED_OPERATION and group.label("op") == op]
    figures = {
        "share": by_text[who] / whole,
        "sum_ns": by_text[who],
        "count": sum(mine[group][TOTAL].count for group in of_op),
        "bytes": sum(case.report.counter(group, BYTES) for group in of_op),
        "hits": sum(stages[TOTAL].count for group, stages in mine.items() if group.kind.name == OWNED_HIT),
        "device_ns": sum(stages[UNDER_WAY].sum for stages in mine.values() if UNDER_WAY in stages),
    }
    place = dev if most >= verdict.PLACE_SHARE * by_text[who] else ALL
    return Finding(by, figures, OPERATION.group(place, op), who=who)


def _owner_of(filtered: bool, partial: bool) -> Rule:
    """The rule for traces in which filters or partitions leave out other requests."""

    def found(case: Case) -> Finding | None:
        finding = owner(case)
        if finding is None:
            return None
        figures = dict(finding.figures)
        if filtered and not any(group.kind is HAD for group in case.report.counters):
            if figures["owners"] == 1:
                # That it is the only one that passes the filter means nothing.
                return None
            figures["filtered"] = 1
        if partial:
            figures["partial"] = 1
        return finding._replace(figures=figures)

    found.__name__ = owner.__name__
    return found


def neighbour(case: Case) -> Finding | None:
    """Find the owner whose requests waited most, and who had the device meanwhile (with --neighbours).

    An owner that has most of the device itself waits for itself.
    """
    times = _times_by_owner(case.report)
    every = neighbours.of(case.report.counters)
    named = {(one.dev, one.owner): one.named for one in every}
    waiting: list[tuple[float, neighbours.Neighbour]] = []
    for one in every:
        whole = times[one.dev, one.owner]
        if one.owner in (NOBODY, OTHERS) or not whole or not one.meanwhile_ns or one.waits < NEIGHBOUR_WAITS:
            continue
        share, others = min(one.waited_ns / whole, 1.0), 1 - one.meanwhile.get(one.owner, 0) / one.meanwhile_ns
        if share >= NEIGHBOUR_SHARE and others >= NEIGHBOUR_HAD:
            waiting.append((share * others, one))
    if not waiting:
        return None
    worst = max(share for share, _ in waiting)
    one = max((one for share, one in waiting if share >= _ALIKE * worst), key=lambda one: one.waited_ns)
    figures = {"share": min(one.waited_ns / times[one.dev, one.owner], 1.0), "waited_ns": one.waited_ns}
    unknown = sum(ns for who, ns in one.meanwhile.items() if who in (NOBODY, OTHERS)) / one.meanwhile_ns
    holders = [who for who in one.meanwhile if who not in (one.owner, NOBODY, OTHERS)][:_HOLDERS]
    had = 0.0
    for count, holder in enumerate(holders, 1):
        had += one.meanwhile[holder] / one.meanwhile_ns
        alike = count < len(holders) and one.meanwhile[holders[count]] >= _ALIKE * one.meanwhile[holder]
        if had >= NEIGHBOUR_HAD and not alike:
            who = [named.get((one.dev, holder), neighbours.described(holder, "", 0)) for holder in holders[:count]]
            words = who[0] if count == 1 else f"{', '.join(who[:-1])} and {who[-1]}"
            break
    else:
        had, words = 1 - one.meanwhile.get(one.owner, 0) / one.meanwhile_ns, "others"
        # A single one needs a majority to be named. These are many, unless nobody is known who had most of it.
        if one.meanwhile.get(neighbours.Owner(NOBODY), 0) < NEIGHBOUR_HAD * one.meanwhile_ns:
            words, figures["many"] = "many others", 1
    figures = {**figures, "had": had, "waits": one.waits, "unknown": unknown}
    return Finding("neighbour", figures, WAITED.group(one.dev, one.owner), who=words)


def _times_by_owner(report: Report) -> Counter[tuple[object, str]]:
    """The device time of requests, by device and owner."""
    found: Counter[tuple[object, str]] = Counter()
    for group, counts in report.counters.items():
        if group.kind is HAD and counts.get(WHOLE):
            found[group.label("dev"), group.label("owner")] += counts[WHOLE]
    if found:
        return found
    for group, cell in report.cells.items():
        if group.kind.name == OWNED_REQUEST:
            found[group.values[0], group.kind.labels[-1].shown(group.values[-1])] += cell[TOTAL].sum
    return found


BLOCK = verdict.TIMED._replace(first=(idle, verdict.unmeasured, verdict.largest), advice=_ADVICE)
"""The rules for requests alone."""


def of_trace(options: Options, devices: Devices) -> Rules:
    pid = options.filter.get(PID.name)
    children = tasks.children(pid) if pid and not options.children else ()
    partial = not devices.everything and any(one.name != one.disk for one in devices.extents)
    return path(children, bool(options.filter), options.interference, partial)


def path(
    children: Sequence[int] = (),
    filtered: bool = False,
    interference: bool = False,
    partial: bool = False,
) -> Rules:
    """The rules for operations, with the tasks that delayed the shown ones.

    `children` are those of a process that was asked for. With `filtered`, a filter leaves out part of the devices'
    work; with `partial`, only partitions are traced.
    """
    advice = dict(_ADVICE)
    if interference:
        advice |= dict.fromkeys(("wakeup", "complete"), _NOBODY_NAMED)
    if children:
        pids = ", ".join(map(str, children[:_NAMED]))
        more = f" and {len(children) - _NAMED:,} more" if len(children) > _NAMED else ""
        started = f"processes that the one of --pid started (pid {pids}{more})"
        advice["idle"] = f"{started}: --children has them as well, --cgroup all of a service"
    named = [_named(rule) for rule in _STAGES]
    return Rules(
        (cached, idle, verdict.unmeasured, largest),
        (
            verdict.grew,
            tail,
            verdict.outlier,
            verdict.inside,
            woken,
            *named,
            statement,
            unit,
            _owner_of(filtered, partial),
            neighbour,
            verdict.lost,
        ),
        advice,
    )
