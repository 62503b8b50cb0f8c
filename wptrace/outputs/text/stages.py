# SPDX-License-Identifier: Apache-2.0
"""A table of stages for each row: what any flow looks like, and `wptrace io` with its stories of slow operations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Callable

from wptrace.analysis import load
from wptrace.analysis.load import LOAD
from wptrace.analysis.waits import OWNED_WAIT, PARTS_OF_STAGES
from wptrace.kernel import tasks
from wptrace.model import units
from wptrace.model.kind import ALL, OPERATIONS, Kind, Task
from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.outputs.text import (
    budget,
    described,
    histogram,
    incident,
    inflight,
    neighbours,
    owners,
    story,
    tables,
    verdict,
    words,
)
from wptrace.outputs.text.header import header, law, losses
from wptrace.outputs.text.tables import Style, Table, compact, stages, whole, wide
from wptrace.outputs.text.view import Forms, View
from wptrace.outputs.text.words import columns, ends, head, padded, printable

# The titles of a live screen's sections.
_SECTIONS = {
    "operation": "operations",
    "hit": "page-cache hits",
    "layer": "layers",
    "writeback": "writeback",
    "sleep": "waits of tasks",
}
_REQUESTS = "block requests"
_COMMANDS = 1024
# The values of --by.
_DEVICE = "device"
_OWNERS = {
    "owned_operation": "owners of operations",
    "owned_hit": "owners of hits",
    "owned_request": "owners of requests",
    OWNED_WAIT: "owners of waits",
}


class StagesView(View):
    folds = arranges = True
    _by = ""
    _command: Callable[[Task], str] | None = None
    """Command lines of current tasks, by the ids of this pid namespace."""

    def begin(self, start: Start) -> Iterator[str]:
        self._by = start.filters.get("by", "")
        if self.wanted.live and not start.file and not tasks.namespace():
            self._command = lru_cache(maxsize=_COMMANDS)(lambda task: tasks.command_line(task.pid))
        yield from super().begin(start)

    def event(self, event: Event, width: int, whole: bool) -> Iterator[str]:
        if story.is_one(event):
            yield from story.full(event, width, self.wanted.dates, whole, self.wanted.verbose)
        elif "rwbs" in event.fields:
            yield from words.request(event, width, self.wanted.dates)
        else:
            yield from super().event(event, width, whole)

    def in_flight(self, found: list[InFlight], at_ns: int, width: int, most: int) -> list[str]:
        return inflight.lines(found, at_ns, width, self.wanted.dates, most)

    def _as_wanted(self, report: Report) -> Report:
        return report if self.wanted.per_device else report.everywhere()

    def report(self, report: Report, width: int) -> Iterator[str]:
        every, report, style = report, self._as_wanted(report), self.style(width)
        yield from header(report, style, self.kinds)
        for kind in self.kinds:
            if kind in PARTS_OF_STAGES:
                continue  # they are below the stages
            if owners.is_owned(kind):
                yield from _apart(owners.lines(report, kind, style, self._by))
            else:
                yield from _apart((stages if kind.stages or not wide(report) else compact)(report, kind, style))
        yield from _apart(neighbours.lines(report, style), self._loads(every, report, style))
        if wide(report):
            yield from ["", *law(report, self.kinds)]

    def closing(self, report: Report, width: int) -> Iterator[str]:
        yield from _apart(described.lines(report, self.style(width)), eventfds(report))
        if self.wanted.verbose:
            yield from wait_stacks(report, width)
        report = self._as_wanted(report)
        for row in report.rows:
            if row.metric == self.wanted.hist and row.distribution.count:
                yield ""
                yield f"{tables.name(row.group, report)} {row.metric}:"
                yield from histogram.rows(row.distribution, width)
        if report.verdict is not None:
            yield from ["", *verdict.lines(report.verdict, self.wanted.dates)]
        if report.incident is not None:
            yield from ["", *incident.lines(report.incident, self.wanted.dates)]

    def sections(
        self, report: Report | None, recent: Sequence[Event], width: int, terse: bool = False, of: Report | None = None
    ) -> Mapping[str, Forms]:
        """Each in its full form and in shorter ones; `of` has the rows, where they are not those of the report."""
        style, found = self.style(width)._replace(terse=terse), {}
        if report is not None:
            sort, of = of is None, self._as_wanted(report) if of is None else of
            found = self._of_report(of, style, sort)
            if there := _shorter(self._loads(report, of, style)):
                found["devices"] = there
            found["time"] = [list(header(report, style, self.kinds))]
            busy = list(busiest(report, width))
            if busy:
                found["load"] = [busy, busy[:1], []]
            if report.verdict is not None:
                lines = list(verdict.short_lines(report.verdict, self.wanted.dates))
                found["verdict"] = [lines, lines[:1]]
        if recent:
            found["slow ones"] = [*(self._slow(recent[-count:], width) for count in (len(recent), 2, 1)), []]
        return found

    def _of_report(self, report: Report, style: Style, sort: bool) -> dict[str, Forms]:
        found: dict[str, Forms] = {"losses": [list(losses(report, self.kinds)), []]}
        if report.budget is not None:
            found["budget"] = [list(budget.lines(report)), list(budget.lines(report))[:1]]
        if wide(report):
            found["accounting"] = [list(law(report, self.kinds)), []]
        for kind in self.kinds:
            there = tables.tables(report, kind) if kind not in PARTS_OF_STAGES else []
            if there and owners.is_owned(kind):
                found[_OWNERS[kind.name]] = _shorter(owners.lines(report, kind, style, self._by, self._command, sort))
            elif there:
                name = _SECTIONS.get(kind.name, _REQUESTS)
                forms = _forms(report, kind, there, style) if kind.stages else [compact(report, kind, style)]
                found[name] = forms if name == "operations" else [*forms, []]
        if waiters := _shorter(neighbours.lines(report, style)):
            found["neighbours"] = waiters
        return found

    def _loads(self, every: Report, shown: Report, style: Style) -> list[str]:
        """Return lines of the shown devices, if devices are kept apart."""
        devices = {group.label("dev") for group in shown.counters if group.kind is LOAD}
        if self._by == _DEVICE:
            return list(loads(every, style))
        return [] if ALL in devices else list(loads(every, style, devices))

    def _slow(self, events: Sequence[Event], width: int) -> list[str]:
        operations = any(event.group.kind.book == OPERATIONS for event in events)
        lines = ["slow operations:" if operations else "slow requests:"]
        for event in events:
            lines += story.short(event, width) if story.is_one(event) else self.event(event, width, False)
        return lines


def _apart(*parts: Iterable[str]) -> Iterator[str]:
    """Those of these parts that have lines, each below an empty line."""
    for lines in map(list, parts):
        if lines:
            yield from ["", *lines]


def _shorter(lines: Iterable[str]) -> list[list[str]]:
    """All lines of a section, and less and less of them; nothing where there are none."""
    every = list(lines)
    return [every, every[:6], every[:3], []] if every else []


def _forms(report: Report, kind: Kind, found: Sequence[Table], style: Style) -> list[list[str]]:
    """All of them; the one that took the most time and a line for each other; that one alone; a line for each."""
    first = max(found, key=lambda table: whole(table[1]).sum)
    others = [table for table in found if table is not first]
    largest = stages(report, kind, style, [first])
    return [
        stages(report, kind, style),
        [*largest, *(["", *compact(report, kind, style, others)] if others else [])],
        largest,
        compact(report, kind, style),
    ]


VIEW = StagesView


# The column of devices.
_TITLE = "devices"
_NARROWEST, _WIDEST = 12, 32


def busiest(report: Report, width: int) -> Iterator[str]:
    """Generate how busy devices are and how many requests they have at a time, the busiest first."""
    found = sorted(load.busy(report), key=lambda one: (-(one.utilisation or 0.0), -one.queue_depth, one.dev))
    if found:
        first, *rest = (f"{printable(one.dev)} {_utilisation(one)} busy, {_depth(one)} deep" for one in found)
        yield from words.wrapped([f"devices: {first}", *rest], width, "", "; ")


def _utilisation(one: load.Load) -> str:
    return "-" if one.utilisation is None else f"{one.utilisation:.1%}"


def _depth(one: load.Load) -> str:
    return f"{one.queue_depth:.2f}" if one.queue_depth < 100 else f"{one.queue_depth:,.0f}"


def loads(report: Report, style: Style, names: Collection[str] | None = None) -> Iterator[str]:
    """The load of these devices, or of all of them: a line for each."""
    found = load.busy(report, names)
    if not found:
        return
    room = min(max(_NARROWEST, *(columns(printable(one.dev)) for one in found)), _WIDEST)
    yield f"{padded(_TITLE, room)} {'util':>6} {'depth':>8} merged"
    for one in found:
        merged = ", ".join(f"{op} {count:,}".strip() for op, count in sorted(one.merged.items())) or "-"
        name = padded(ends(printable(one.dev), room), room)
        yield head(f"{name} {_utilisation(one):>6} {_depth(one):>8} {merged}", style.width)


def wait_stacks(report: Report, width: int) -> Iterator[str]:
    """Generate stacks of sleeping operations, those with the most time first."""
    for one in report.lists.get("wait_stacks", ()):
        what = (
            f"{printable(one['dev'])} {printable(one['op'])} {printable(one['in_stage'])}: {printable(one['reason'])}"
        )
        whose = f" of {printable(one['owner'])}" if one.get("owner") else ""
        times = "once" if one["waits"] == 1 else f"{one['waits']:,} times"
        yield ""
        yield f"{what}, {times}, {units.duration(one['sum_ns'])}{whose}"
        yield from words.wrapped(map(printable, one["stack"]), width, "    ", " <- ")


def eventfds(report: Report) -> Iterator[str]:
    """Generate the threads that write and read each eventfd (`wptrace host --kicks`)."""
    found = report.lists.get("eventfds")
    if not found:
        return
    yield f"  {'eventfd':>7} {'':<7} {'times':>9}  thread"
    for one in found:
        yield f"  {one['fd']:>7} {one['way']:<7} {one['count']:>9,}  {printable(one['comm'])} {one['tid']}"
