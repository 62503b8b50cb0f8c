# SPDX-License-Identifier: Apache-2.0
"""`wptrace cpu`: how long tasks wait for a CPU, run on it and stay off it, and who ran instead."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from wptrace.bpf.layout import text
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Reader, Record, Ring
from wptrace.correlation.periods import Run, longest
from wptrace.engine import filters, gone_cgroups
from wptrace.engine.cells import Cells
from wptrace.engine.filters import Filter
from wptrace.engine.filters.cgroup import IN_CGROUP
from wptrace.engine.filters.task import COMM, PID, TID
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import START, STATE_OF_TASK, Hook, probe
from wptrace.engine.resolver import load
from wptrace.kernel import cpus
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.tasks import name_of
from wptrace.model import kind
from wptrace.model.book import (
    INCONSISTENT,
    RECURSION,
    RING_FULL,
    STATE_FULL,
    UNMATCHED_END,
    UNMATCHED_START,
    Book,
    Cause,
)
from wptrace.model.kind import REQUESTS, TASK_FIELDS, TOTAL, EventField, Kind, Label, Metric, Noun, Point, Stage, Task
from wptrace.model.report import Event, InFlight, Snapshot, Source, Start

CPU, PROCESS, THREAD, CGROUP = "cpu", "process", "thread", "cgroup"
BY = (CPU, PROCESS, THREAD, CGROUP)

_W = Point("W", "wants a CPU")
_R = Point("R", "runs")
_L = Point("L", "left its CPU")

_ALL = ("wait", "run", "off")
# Rows by process, thread or cgroup that found no room.
OTHERS = "others"
# Tasks that are followed at a time, and rows: bounds of the memory in the kernel, 3.4 MiB and about so many bytes.
_TASKS = 32768
_ROWS = 1024
_ROW_BYTES = 64 << 20

_INCOMPLETE = Cause("incomplete", "a turn ended whose way to a CPU was not seen: counted, and in no stage")
_OFF_UNKNOWN = Cause("off_unknown", "the table of tasks had no room: a time off the CPU is in no stage")
_NO_ROW = Cause("no_row", f"there was no row left: a turn counts in the row {OTHERS}")
_CAUSES = {
    cause.name: cause
    for cause in (STATE_FULL, UNMATCHED_START, UNMATCHED_END, _INCOMPLETE, _OFF_UNKNOWN, _NO_ROW, RING_FULL)
}
# Causes that cost a turn; the others are noted.
_LOST = (STATE_FULL, UNMATCHED_START)


class Options(NamedTuple):
    by: str = CPU
    wanted: Filter = Filter()
    slow_ns: int | None = None
    """Waits of at least this long are shown one by one."""
    ring_bytes: int = 1 << 18
    tasks: int = _TASKS
    rows: int = 0
    """0: as many as the memory for them allows."""


_STAGES = (
    Stage(
        "wait",
        _W,
        _R,
        "a task that could run waits in a run queue",
        "more tasks want CPUs than there are, priorities or quotas hold it back, or it may run on few CPUs only",
    ),
    Stage(
        "run",
        _R,
        _L,
        "the task has a CPU, interrupts on it included",
        "the time goes into work: a profiler (perf top) shows which",
    ),
)
_OFF = Metric(
    "off",
    "from leaving the CPU to the next time it runs: sleep, if there was one, and wait",
    "the task sleeps: it waits for I/O, a lock, a timer or a request, not for a CPU",
    part=False,
    start=_L,
    end=_R,
)


def _kinds(label: Label) -> tuple[Kind, Kind]:
    """Turns, and waits that are shown one by one."""
    fields = (*TASK_FIELDS, EventField("cpu"), EventField("sleep_ns"))
    turn = Kind("request", Noun("turn"), (label,), _STAGES, (_OFF,), constants={"op": "turn"}, fields=fields)
    return turn, Kind("wait", Noun("wait"), (label,), _STAGES[:1], constants={"op": "turn"}, fields=fields)


KINDS = {
    CPU: _kinds(Label("cpu", kind.CPU, "dev")),
    PROCESS: _kinds(Label("task", kind.TASK, "dev")),
    THREAD: _kinds(Label("task", kind.TASK, "dev")),
    CGROUP: _kinds(Label("cgroup", kind.CGROUP, "dev")),
}
"""Kinds by the subject of their rows."""


class CpuFlow(Flow):
    name = "cpu"
    object = "cpu"
    view = "turns"
    kinds = KINDS[CPU][:1]
    hooks: tuple[Hook, ...] = (
        # The hook sees ends, but starts as well: a task that is preempted wants the CPU again.
        probe("switch", "switch of tasks (R, L)", "switch", _ALL, "nothing can be seen"),
        probe("wakeup", "wakeup of a task (W)", "wakeup", _ALL, "nobody is seen to wait", START),
        probe(
            "first_wakeup",
            "first wakeup of a task (W)",
            "first_wakeup",
            ("wait", "run"),
            "the first turn of a new task is not seen",
            START,
            required=False,
        ),
        gone_cgroups.HOOK,
    )
    filters = (
        PID._replace(words="only tasks of this process"),
        TID._replace(words="only this thread"),
        COMM._replace(words="only threads with this name, its first 15 bytes"),
        IN_CGROUP._replace(words="only tasks of this cgroup and those below it"),
    )
    fields = (STATE_OF_TASK,)

    def __init__(self, options: Options) -> None:
        self._options = options
        self._events: list[Event] = []
        self._turn, self._wait = KINDS[options.by]
        self.kinds = self.verdict_kinds = (self._turn,)
        self._known: set[tuple[int, bytes]] = set()
        self._cgroups = CgroupNames() if options.by == CGROUP else None
        if self._cgroups is None:
            self.hooks = tuple(hook for hook in CpuFlow.hooks if hook is not gone_cgroups.HOOK)

    def start(self, reader: Reader) -> Start:
        self._loaded = loaded = load(self.object, self.hooks, self._prepare)
        obj = loaded.obj
        if self._cgroups is not None:
            gone_cgroups.watch(obj, self._cgroups)
        self._causes = [_CAUSES[name] for name in obj.enum("cpu_cause")]
        stages = obj.enum("cpu_stage")
        if self._options.by == CPU:
            self._cells = Cells(obj.maps["cpus"], [self._turn.group(cpu) for cpu in range(cpus.numbers())], stages)
        else:
            self._cells = Cells(obj.maps["rows"], [], stages)
        self._others = Cells(obj.maps["others"], [self._turn.group(OTHERS)], stages)
        if self._options.slow_ns is not None:
            layout = obj.struct("cpu_record")
            self._fields = layout.fields
            self._ring = Ring.of(obj.maps["records"], layout.struct)
            reader.add(self._ring, self._take)
        self._watch_wanted(reader, self._options.wanted)
        chosen = filters.describe(self._options.wanted, self.filters)
        return self._started(
            {"by": self._options.by, **chosen},
            [Source(stage.name, loaded.serving(stage.name)) for stage in self._turn.measured],
            [*loaded.attempts.notes(), *filters.notes(self._options.wanted, self.filters)],
        )

    def _prepare(self, obj: BpfObject) -> None:
        options = self._options
        obj.rodata.by = obj.enum("cpu_by").index(options.by)
        obj.maps["tasks"].max_entries = options.tasks
        if self._cgroups is not None:
            gone_cgroups.prepare(obj)
        if options.by == CPU:
            obj.maps["cpus"].max_entries = cpus.numbers()
        else:
            row = obj.maps["rows"].value_codec.size * libbpf().cpus
            obj.maps["rows"].max_entries = options.rows or min(_ROWS, max(_ROW_BYTES // row, 16))
        if options.slow_ns is not None:
            obj.rodata.emits_records = True
            obj.maps["histories"].max_entries = cpus.numbers()
            obj.data.slow_ns = options.slow_ns
            obj.maps["records"].max_entries = options.ring_bytes
        filters.apply(obj.bss, options.wanted, self.filters)

    def _follow_new(self) -> None:
        """Rows come into being in the kernel; their names are in their keys."""
        for key in self._obj.maps["rows"].keys():  # noqa: SIM118 - a Map is no mapping in the eyes of the rule
            known = (key.id, key.comm)
            if known not in self._known:
                self._known.add(known)
                self._cells.follow(key, self._turn.group(self._label(*known)))

    def _label(self, number: int, comm: bytes) -> Task | str:
        """A process, a thread, or the path of a cgroup."""
        if self._cgroups is not None:
            return self._cgroups.of(number)
        return Task(text(comm), number >> 32, number & 0xFFFFFFFF)

    def _take(self, records: list[Record]) -> None:
        offset = wall_offset_ns()
        waits = [dict(zip(self._fields, record)) for record in records]
        histories: dict[int, list[Run]] = {}
        for cpu in {wait["cpu"] for wait in waits}:
            histories[cpu] = self._history(cpu, min(wait["woken_ns"] for wait in waits if wait["cpu"] == cpu))
        for wait in waits:
            cpu, woken, ran = wait["cpu"], wait["woken_ns"], wait["ran_ns"]
            fields: dict[str, Any] = {**_task(wait, "task"), "cpu": cpu, "sleep_ns": wait["sleep_ns"]}
            most = longest(histories[cpu], woken, ran)
            if most is not None:
                fields["instead"] = {**most.task.plain, "run_ns": most.time_ns}
            row = cpu if self._options.by == CPU else self._label(wait["row.id"], wait["row.comm"])
            # Clocks of two CPUs may differ by some cycles.
            took = max(ran - woken, 0)
            self._events.append(Event(self._wait.group(row), ran + offset, took, {"wait": took}, fields))

    def _history(self, cpu: int, since_ns: int) -> list[Run]:
        """Return what ran on a CPU since then. A run that is just being written is too late for any wait."""
        histories = self._obj.maps["histories"]
        memory = histories.raw(cpu)
        if memory is None:
            return []
        layout = self._obj.struct("run")
        start, end = layout.fields.index("start_ns"), layout.fields.index("end_ns")
        found = []
        for values in layout.struct.iter_unpack(memory[: histories.value_codec.member("runs").size]):
            if values[end] > since_ns:
                run = dict(zip(layout.fields, values))
                found.append(Run(values[start], values[end], Task(**_task(run, "task"))))
        return found

    def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        """Tasks that want a CPU or have one for so long."""
        now = time.monotonic_ns()
        found = []
        for _, times in self._obj.maps["tasks"].items():
            # A turn may have begun since the look at the clock.
            age = max(now - times.woken_ns, 0)
            if times.woken_ns and age >= at_least_ns:
                stage = "run" if times.ran_ns else "wait"
                fields = {"pid": times.tgid, "tid": times.tid, "comm": name_of(times.tid)}
                found.append(InFlight(self._turn.group(kind.ALL), age, stage, fields))
        return sorted(found, key=lambda one: -one.age_ns)

    def snapshot(self) -> Snapshot:
        obj = self._obj
        if self._options.by != CPU:
            self._follow_new()
        self._cells.read()
        self._others.read()
        ran = [program.statistics() for program in self._running.programs]
        book = obj.maps["books"].summed(0)
        causes = dict(zip(self._causes, obj.bss.loss))
        causes[RECURSION] = sum(found.recursion_misses for found in ran)
        lost = {cause: causes[cause] for cause in _LOST}
        noted = {cause: count for cause, count in causes.items() if cause not in lost}
        noted[INCONSISTENT] = self._cells.shrunk + self._others.shrunk
        found = {**self._cells.copy(), **self._others.copy()}
        # Turns end between the reads of rows and book: finished are those of the rows, and in flight those of the book.
        finished = sum(stages[TOTAL].count for stages in found.values()) + causes[_INCOMPLETE]
        started = finished + book.started - book.finished
        return self._snapshot({REQUESTS: Book.read(started, finished, lost, noted)}, found, {}, ran)


def _task(values: dict[str, Any], member: str) -> dict[str, Any]:
    return {
        "comm": text(values[f"{member}.comm"]),
        "pid": values[f"{member}.tgid"],
        "tid": values[f"{member}.tid"],
    }
