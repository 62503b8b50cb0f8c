# SPDX-License-Identifier: Apache-2.0
"""Rows by owner of a capture that has each operation: `wptrace replay --by`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wptrace.analysis.waits import OWNED_WAIT
from wptrace.capture import sums
from wptrace.capture.reader import Head
from wptrace.capture.selection import Selection
from wptrace.flows.io import kinds
from wptrace.flows.io.kinds import text_label
from wptrace.flows.io.options import CGROUP, COMM, DEVICE, DIR, FILE, OWNED, PROCESS, THREAD
from wptrace.flows.io.parts import owners
from wptrace.model.kind import NOBODY, OTHERS, TEXTS, Comm, Kind, Task
from wptrace.model.report import Event, Report

_BY = (PROCESS, THREAD, COMM, CGROUP, FILE, DIR, DEVICE)
NOTE = "rows by {} are computed from the single operations and requests of the capture"
_PLAIN = {owned.name: kind.name for kind, owned in zip((kinds.OPERATION, kinds.HIT, kinds.REQUEST), owners.KINDS[FILE])}
"""Names of kinds without owners by those of kinds with them."""
NAMES = {*(kind.name for kind in owners.KINDS[FILE]), OWNED_WAIT}
# The largest number of processes whose names are remembered.
_MOST = 1 << 16


def answers(head: Head, by: str) -> bool:
    """Whether the capture has each operation, and that says whose it is."""
    is_known = by in _BY or has_texts(head, by)
    return head.start.flow == "io" and head.start.level in OWNED and head.each and is_known


def answered(head: Head) -> list[str]:
    """The owners that `answers` is true of."""
    return [by for by in (*_BY, *TEXTS) if answers(head, by)]


def answering(found: Sequence[Kind], selection: Selection) -> dict[Kind, Kind]:
    """The kinds of rows by owner that answer a selection in the place of those without owners."""
    by_name = {kind.name: kind for kind in found}
    plain = {kind: by_name.get(_PLAIN.get(kind.name, "")) for kind in found if not selection.unanswered(kind)}
    return {kind: other for kind, other in plain.items() if other is not None and selection.unanswered(other)}


def have_rows(head: Head, selection: Selection) -> bool:
    """Whether a selection is answered by rows of the capture itself: if one kind does not, all are made of events."""
    return not any(map(selection.unanswered, head.start.kinds))


def has_texts(head: Head, by: str) -> bool:
    """Whether its events have a statement, or a unit."""
    label = text_label(head.start.fields)
    return label is not None and label.name == by


def without(report: Report) -> Report:
    """Its rows by other owners are left out."""
    counters = {group: counts for group, counts in report.counters.items() if group.kind.name not in NAMES}
    return report.only(group for group in report.cells if group.kind.name not in NAMES)._replace(counters=counters)


class Owned:
    def __init__(self, by: str) -> None:
        self._by = by
        self._kinds: dict[Kind, Kind] = dict(zip((kinds.OPERATION, kinds.HIT, kinds.REQUEST), owners.KINDS[by]))
        self._singles = sums.Singles(owners.KINDS[by])
        self._names: dict[int, str] = {}

    def add(self, event: Event, requests: Iterable[Event]) -> None:
        """An operation with the requests that are its own, or a request that nobody waits for."""
        owner = self._owner(event)
        for one in (event, *requests):
            kind = self._kinds.get(one.group.kind)
            if kind is None:
                continue
            under_way = sum(one.stages.get(name, 0) for name in ("driver", "device", "complete"))
            stages = {kinds.UNDER_WAY: under_way} if one.group.kind is kinds.REQUEST else {}
            self._singles.add(one._replace(group=kind.group(*one.group.values, owner), stages=stages))

    def instead(self, found: Iterable[Kind]) -> tuple[Kind, ...]:
        """These kinds in the place of those by other owners."""
        found = tuple(found)
        made = (mine for of, mine in self._kinds.items() if of in found)
        return (*(one for one in found if one.name not in NAMES), *made)

    def added(self, report: Report) -> Report:
        """Return the report with these rows."""
        report = without(report)
        found = self._singles.report(report.ts_ns, report.duration_ns, {})
        cells, counters = {**report.cells, **found.cells}, {**report.counters, **found.counters}
        return report._replace(cells=cells, counters=counters)

    def _owner(self, event: Event) -> Any:
        fields = event.fields
        if self._by in TEXTS:
            owner = str(fields["owner"])
            return owner if fields[self._by] is not None or owner in (NOBODY, OTHERS) else Comm(owner)
        if self._by == DEVICE:
            return event.group.values[0]
        if self._by in (FILE, DIR):
            path = str(fields.get("path") or "")
            return (path if self._by == FILE else posixpath.dirname(path)) or NOBODY
        if not fields.get("pid"):
            return NOBODY
        if self._by == CGROUP:
            return str(fields["cgroup"])
        return Comm(str(fields["comm"])) if self._by == COMM else self._task(fields)

    def _task(self, fields: Mapping[str, Any]) -> Task:
        comm, pid, tid = str(fields["comm"]), int(fields["pid"]), int(fields["tid"])
        if self._by == THREAD:
            return Task(comm, pid, tid)
        # A process has the name of its first thread, or of the one that was seen first.
        if len(self._names) >= _MOST:
            self._names.clear()
        if tid == pid:
            self._names[pid] = comm
        return Task(self._names.setdefault(pid, comm), pid)
