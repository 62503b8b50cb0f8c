# SPDX-License-Identifier: Apache-2.0
"""When requests were queued, issued and completed, and their owners, from records.

A record has a single request: the only one of an operation, or one that nobody waits for. For an operation with several
requests it only has sums of stages, from which the times cannot be recovered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Callable

from wptrace.analysis.neighbours import Owner
from wptrace.analysis.overlap import Span
from wptrace.flows.io.kinds import UNREAD, Events
from wptrace.flows.io.options import CGROUP, COMM, PROCESS, THREAD
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.tasks import comm
from wptrace.model.kind import NOBODY, TEXTS, Task

if TYPE_CHECKING:
    from wptrace.capture.layout import Described
    from wptrace.flows.io.records import Record

BY = (CGROUP, PROCESS, THREAD, COMM)
"""Owners that are in all records; a trace by statement or unit has those as well."""

# Merged requests end together, and are reported within this time of each other.
_MERGED = 1 << 12
# The size of the cache.
_MOST_OWNERS = 1 << 16
# Several stages may lie between Q and D; these come after D.
_FIRST, _ISSUED, _LAST = "throttle", "driver", ("device", "complete")


class Spans:
    def __init__(self, layout: Described, fields: Sequence[str], by: str) -> None:
        """`fields` are those of the records, in order."""
        self.cgroups = CgroupNames(known={})
        self.text_of: Callable[[int], Any] = lambda of: UNREAD
        self._at = {name: place for place, name in enumerate(fields)}
        self._names = layout.names
        self._ops = layout.enum("block_op")
        self._request = layout.enum("record_kind").index("request")
        self._operation = layout.enum("record_kind").index("operation")
        stages = layout.enum("op_stage")
        self._stages = [f"stages[{stages.index(name)}]" for name in (_FIRST, _ISSUED, *_LAST)]
        member = layout.struct(layout.record).member("events")
        self._events, self._quiet = Events(member), bytes(member.size)
        # The member of records that has a statement or a unit.
        self._among = "statement" if by in TEXTS else CGROUP
        self._owners = OwnerNames(by, comm, lambda of: self._group(of))
        self._reported: dict[tuple[int, int], None] = {}

    def of(self, records: Sequence[Record]) -> Iterator[Span | None]:
        """Yield the span of each record, or None if it has no single request."""
        at = self._at.__getitem__
        kind, slot, op, dev, size, requests, readahead, start, end, events = map(
            at, ("kind", "slot", "request_op", "dev", "bytes", "requests", "readahead", "start_ns", "end_ns", "events")
        )
        first, driver, device, complete = map(at, self._stages)
        # Missing in captures of earlier versions.
        handed, seen = self._at.get("handed_ns"), self._at.get("seen_ns")
        names, ops, owners = self._names, self._ops, self._owners
        task_of = itemgetter(*map(at, ("comm", "tgid", "tid", self._among)))
        quiet, request, alone = self._quiet, self._request, self._operation
        for record in records:
            if record[kind] == request:
                queued, completed = record[start], record[end]
                issued = queued + sum(record[first:driver])
            elif (
                record[kind] == alone
                and handed is not None
                and seen is not None
                and record[dev]
                and record[requests] - record[readahead] == 1
                # Otherwise it waited for the request of an earlier operation as well.
                and record[seen] - record[handed] == record[device]
            ):
                issued = record[handed] - record[driver]
                queued = issued - sum(record[first:driver])
                completed = record[seen] + record[complete]
                if record[events] != quiet and self._is_reported(record[events], record[slot], record[seen]):
                    yield None
                    continue
            else:
                yield None
                continue
            owner = owners.of(task_of(record))
            yield Span(names[record[slot]], ops[record[op]], owner, record[size], queued, issued, completed)

    def _group(self, number: int) -> Any:
        """Return the cgroup of a task, or the label of its statement or unit."""
        return self.cgroups.of(number) if self._among == CGROUP else self.text_of(number)

    def _is_reported(self, events: bytes, slot: int, seen_ns: int) -> bool:
        """Whether a merged request was reported already: each operation with a bio in it reports it."""
        if not self._events.fields(events).get("events", {}).get("merged"):
            return False
        if (slot, seen_ns) in self._reported:
            return True
        self._reported[slot, seen_ns] = None
        if len(self._reported) > _MERGED:
            del self._reported[next(iter(self._reported))]
        return False


class OwnerNames:
    """Owners of one kind, made from the name, process, thread and cgroup (or text) in a record."""

    def __init__(self, by: str, name: Callable[[Any], str], group: Callable[[Any], Any]) -> None:
        """`group` is the name of a cgroup, or the label of a text, None for a program by its name."""
        self.by, self._name, self._group = by, name, group
        self._owners: dict[tuple[Any, ...], Owner] = {}
        self._leaders: dict[int, Any] = {}
        self._tasks: dict[tuple[Any, ...], Owner] = {}

    def of(self, task: tuple[Any, ...]) -> Owner:
        return self._tasks.get(task) or self._new(*task)

    def _new(self, name: Any, pid: int, tid: int, group: Any) -> Owner:
        """The owner of a task that is not in the cache."""
        if len(self._tasks) >= _MOST_OWNERS:
            self._tasks.clear()
            self._owners.clear()
            self._leaders.clear()
        if not pid:
            # A flush of the block layer has only the thread of a worker.
            key: tuple[Any, ...] = ()
        elif self.by == CGROUP:
            key = (group,)
        elif self.by in TEXTS:
            label = self._group(group)
            key = (self._name(name) if label is None else str(label),)
        elif self.by == COMM:
            key = (name,)
        elif self.by == THREAD:
            key = (name, pid, tid)
        else:
            # A process has the name of its first thread.
            if tid == pid:
                self._leaders[pid] = name
            key = (self._leaders.setdefault(pid, name), pid)
        found = self._owners.get(key)
        if found is None:
            found = self._owners[key] = self._named(key)
        if self.by == CGROUP and key:
            found.seen = self._name(name)
        self._tasks[name, pid, tid, group] = found
        return found

    def _named(self, key: tuple[Any, ...]) -> Owner:
        if not key:
            return Owner(NOBODY)
        if self.by == CGROUP:
            return Owner(self._group(key[0]))
        if self.by in TEXTS:
            return Owner(key[0])
        return Owner(self._name(key[0]) if self.by == COMM else Task(self._name(key[0]), *key[1:]))
