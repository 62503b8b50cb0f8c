# SPDX-License-Identifier: Apache-2.0
"""`wptrace irqoff`: periods in which a CPU runs with interrupts off, each with its length, task and stack."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from wptrace.analysis.offenders import Offenders
from wptrace.bpf import perf
from wptrace.bpf.layout import text
from wptrace.bpf.object import BpfObject
from wptrace.bpf.paced import Paced, run_on_cycles
from wptrace.bpf.ring import Reader, Record, Ring
from wptrace.correlation.periods import Episodes
from wptrace.engine import filters
from wptrace.engine.cells import distribution
from wptrace.engine.filters import Filter, Predicate
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import Field, Hook, Way, probe
from wptrace.engine.resolver import Loaded, load
from wptrace.errors import LibbpfError, UnsupportedError, UsageError, WptraceError
from wptrace.kernel import cpus, privileges, symbols
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.symbols import KernelSymbols, interrupted
from wptrace.model.book import FOREIGN, RECURSION, RING_FULL, Book, Cause
from wptrace.model.diagnosis import MISSING, OK, Check
from wptrace.model.distribution import Distribution
from wptrace.model.kind import CPU, REQUESTS, TASK_FIELDS, TOTAL, EventField, Group, Kind, Label, Noun, Point, Stage
from wptrace.model.report import Event, InFlight, Snapshot, Source, Start

_O = Point("O", "interrupts off")
_N = Point("N", "interrupts on again")

AUTO, CYCLES, NONE = "auto", "cycles", "none"
SHORTEST_NS = 1_000_000

# A tick costs a microsecond or two; four in the shortest period that is looked for are enough to see its end.
_SHORTEST_TICK_NS = 250_000
_LONGEST_TICK_NS = 1_000_000
# What a hypervisor took is counted by the next tick of the scheduler, up to 10 ms later; on an idle CPU there may be
# none for a while.
_SETTLE_NS = 20_000_000
_IDLE_SETTLE_NS = 1_000_000_000
_TRIAL_S = 0.2
_WORST = 10
_CARE_S = 0.5
_SAMPLE_BYTES = 1 << 16

_NMI_RING_FULL = Cause("nmi_ring_full", "the ring of the NMI path had no room: a stack is from the end of its period")
_STOLEN = Cause("stolen", "a CPU did not tick because the hypervisor did not run it: no period")
_SUSPENDED = Cause("suspended", "a CPU did not tick because the machine was suspended: no period")
_HOTPLUG = Cause("hotplug", "a CPU did not tick because it went or came: no period")
_CAUSES = {cause.name: cause for cause in (RING_FULL, _NMI_RING_FULL, _STOLEN, _SUSPENDED, _HOTPLUG)}

_LOOKS, _TICKS = "look", "tick"
_LOOK = "look_perf_event"


class Options(NamedTuple):
    min_ns: int = 10_000_000
    """Periods at least that long."""
    counter: str = AUTO
    """CYCLES: stacks from inside a period or not at all, NONE: from its end, AUTO: the former where that works."""
    wanted: Filter = Filter()
    ring_bytes: int = 1 << 20


_LABELS = (Label("cpu", CPU, "dev"),)
_STAGES = (
    Stage(
        "irqoff",
        _O,
        _N,
        "a CPU runs with interrupts off",
        "who is on the stack holds a spinlock with interrupts off, or works too long in a handler",
    ),
)
_NOUN = Noun("period with interrupts off", "periods with interrupts off")
_FIELDS = (*TASK_FIELDS, *map(EventField, ("cpu", "start_ns", "stolen_ns", "error_ns")), EventField("sampled", str))
PERIOD = Kind("request", _NOUN, _LABELS, _STAGES, constants={"op": "irqoff"}, fields=_FIELDS)
EVENT = Kind("irqoff", _NOUN, _LABELS, _STAGES, constants={"op": "irqoff"}, fields=_FIELDS)
"""A period that is shown by itself."""


def _cpus(text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(cpus.ranges(text)))
    except ValueError:
        found = ()
    if not found:
        raise UsageError(f"{text!r} is not a list of CPUs such as 0-3,8")
    return found


class IrqoffFlow(Flow):
    name = "irqoff"
    object = "irqoff"
    view = "periods"
    kinds = (PERIOD,)
    hooks = (
        Hook(
            "move",
            "coming and going of a CPU",
            ("move_raw_tp",),
            ("irqoff",),
            "a CPU that went reads as a period",
            required=False,
        ),
        Hook(
            _LOOKS,
            "look by a cycle counter",
            (_LOOK,),
            ("irqoff",),
            "stacks are those at the end of a period, not inside it",
            required=False,
        ),
        probe(_TICKS, "tick of a timer (N)", "expire", ("irqoff",), "no period can be seen"),
    )
    # The filter decides which CPUs get a tick at all.
    filters = (
        Predicate(
            "cpu",
            "only these CPUs, such as 0-3,8 (default: all)",
            _cpus,
            metavar="LIST",
            describe=lambda chosen: {"cpus": list(chosen)},
        ),
    )
    fields = (Field(("rq.prev_steal_time",), "time that a hypervisor takes reads as a period"),)

    @staticmethod
    def configure(obj: BpfObject) -> None:
        run_on_cycles(obj.progs[_LOOK], _LONGEST_TICK_NS, cpus.online())

    @staticmethod
    def checks(chosen: Mapping[str, Way]) -> list[Check]:
        ticks = perf.Ticks(_LONGEST_TICK_NS)
        try:
            ticks.start(cpus.online()[0])
        except WptraceError as error:
            return [
                Check(
                    "tick", MISSING, error.message, "a policy (seccomp, an LSM) keeps perf_event_open from this process"
                )
            ]
        finally:
            ticks.close()
        return [Check("tick", OK, f"a clock event of perf, {perf.most_a_second():,} times a second at most")]

    def __init__(self, options: Options) -> None:
        if options.min_ns < SHORTEST_NS:
            raise UsageError("periods shorter than 1ms cannot be distinguished from late ticks")
        absent = set(options.wanted.get("cpu", ())) - set(cpus.online())
        if absent:
            raise UsageError(f"there is no CPU {min(absent)} online")
        self._options = options
        self._tick_ns = tick_ns(options.min_ns, perf.most_a_second())
        self._ticks = perf.Ticks(self._tick_ns)
        self._possible = cpus.possible()
        self._since: dict[int, int] = {}
        """By CPU: since when it ticks."""
        self._sampler: Paced | None = None
        self._rings: list[Ring] = []
        self._episodes = Episodes()
        self._symbols: KernelSymbols | None = None
        self._cared_at = 0.0
        self._offenders = Offenders()
        self._open: int | None = None
        """How many periods had not ended when the trace did."""

    # --- Start and end ------------------------------------------------------------------------------------------------

    def start(self, reader: Reader) -> Start:
        self._loaded = loaded = load(self.object, self._hooks(), self._prepare)
        obj = loaded.obj
        for cpu in self._wanted():
            self._watch(obj, cpu)
        notes = [self._try_counter(loaded), *loaded.attempts.notes(_LOOKS)]
        # Periods before samples: once the end of a period is read, its sample is in the other ring.
        for name, record, handle in (
            ("records", "irqoff_record", self._episodes.end),
            ("samples", "irqoff_sample", self._episodes.see),
        ):
            layout = obj.struct(record)
            ring = Ring.of(obj.maps[name], layout.struct)
            self._rings.append(ring)
            reader.add(ring, _each(layout.fields, handle))
        if not symbols.shown():
            notes.append(f"stacks have no names: /proc/kallsyms shows no addresses ({privileges.hidden_addresses()})")
        if cpus.hypervisor() and not cpus.stolen():
            notes.append("this machine is virtual, and its hypervisor does not report the time that it takes")
        how = f"{loaded.sections(_TICKS)} with ticks of cpu-clock"
        how += f", {loaded.sections(_LOOKS)}" if self._sampler is not None else ""
        chosen = {"min_ns": self._options.min_ns, **filters.describe(self._options.wanted, self.filters)}
        return self._started(chosen, [Source("irqoff", how)], notes)

    def _hooks(self) -> tuple[Hook, ...]:
        if self._options.counter == NONE:
            return tuple(hook for hook in self.hooks if hook.id != _LOOKS)
        must = self._options.counter == CYCLES
        return tuple(hook._replace(required=hook.required or must) for hook in self.hooks)

    def _wanted(self) -> list[int]:
        return list(self._options.wanted.get("cpu", ())) or cpus.online()

    def _watch(self, obj: BpfObject, cpu: int) -> None:
        self._ticks.start(cpu)
        self._since[cpu] = time.monotonic_ns()
        obj.maps["watched"][cpu] = self._since[cpu]

    def _prepare(self, obj: BpfObject) -> None:
        run_on_cycles(obj.progs[_LOOK], self._tick_ns, self._wanted())
        obj.rodata.min_ns = self._options.min_ns
        obj.rodata.period_ns = self._tick_ns
        obj.rodata.settle_ns = _SETTLE_NS
        obj.rodata.idle_settle_ns = _IDLE_SETTLE_NS
        for name in ("watched", "moves"):
            obj.maps[name].max_entries = cpus.numbers()
        obj.maps["records"].max_entries = self._options.ring_bytes
        obj.maps["samples"].max_entries = _SAMPLE_BYTES

    def _try_counter(self, loaded: Loaded) -> str:
        """Try the counter: it has to run, and with NMIs, which no table shows."""
        ticks = f"a tick every {self._tick_ns // 1000} us"
        late = f"software: {ticks}, stacks from the end of a period"
        if self._options.counter == NONE:
            return late
        if not loaded.sections(_LOOKS):
            return f"no cycle counter works here ({loaded.attempts.reason(_LOOKS)}); {late}"
        samples, nmis = self._trial()
        if not nmis:
            why = f"the cycle counter {'does not interrupt by NMI' if samples else 'does not count'} here"
            if self._options.counter == AUTO:
                loaded.drop(_LOOKS)
                return f"{why}; {late}"
            if not samples:
                raise UnsupportedError(why, hint="--counter auto does without")
            late = f"{why}: it sees a period when that is over; {late}"
        self._sampler = Paced(loaded.obj.progs[_LOOK], self._tick_ns, self._since)
        return late if not nmis else f"hardware: {ticks}, stacks from inside a period by NMIs of a cycle counter"

    def _trial(self) -> tuple[int, int]:
        """Return how often the counter ran the program, and how often in an NMI."""
        end = time.monotonic() + _TRIAL_S
        samples = nmis = 0
        # This loop makes cycles pass.
        while not samples and time.monotonic() < end:
            cells = self._cells().values()
            samples, nmis = sum(cell.looks for cell in cells), sum(cell.nmis for cell in cells)
        return samples, nmis

    def forget_events(self) -> None:
        for ring in self._rings:
            ring.read()

    def stop(self) -> None:
        if self._loaded is None:
            return
        # A period that ended a moment ago waits until it is known what of it was stolen.
        end = time.monotonic() + (_IDLE_SETTLE_NS + _SETTLE_NS) / 1e9
        held = self._loaded.obj.maps["pending"]
        while any(one.due_ns for one in held[0]) and time.monotonic() < end:
            time.sleep(0.01)
        self._open = len(self._late())
        self._loaded.detach()
        self._ticks.close()

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        self._rings.clear()
        self._ticks.close()
        super().close()

    # --- Periods ------------------------------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        self._care()
        offset = wall_offset_ns()
        found = [self._period(record, sample, offset) for record, sample in self._episodes.take()]
        for one in found:
            self._offenders.add(offender(one.fields), one.total_ns)
        return found

    def _period(self, record: Any, sample: Any, offset: int) -> Event:
        end, length = record["end_ns"] + offset, record["length_ns"]
        fields = {
            "start_ns": end - length,
            "stolen_ns": record["stolen_ns"],
            "error_ns": self._tick_ns // 2,
            "sampled": "inside" if sample else "end",
            **self._culprit(sample or record),
        }
        return Event(EVENT.group(record["cpu"]), end, length, {self.name: length}, fields)

    def _culprit(self, seen: Any) -> dict[str, Any]:
        # Read when first needed: they are many.
        if self._symbols is None:
            self._symbols = KernelSymbols()
        self._symbols.refresh()
        stack = [self._symbols.resolve(seen[f"stack[{place}]"]) for place in range(seen["frames"])]
        return {
            "cpu": seen["cpu"],
            "comm": text(seen["comm"]),
            "pid": seen["pid"],
            "tid": seen["tid"],
            "stack": interrupted(stack),
        }

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        """CPUs that have not ticked for so long; by NMI it is known what they do."""
        found = []
        for cpu, age, ticked in self._late():
            if age >= at_least_ns:
                sample = self._episodes.seen(cpu, ticked)
                fields = {"cpu": cpu} if sample is None else self._culprit(sample)
                found.append(InFlight(PERIOD.group(cpu), age, self.name, fields))
        return sorted(found, key=lambda one: -one.age_ns)

    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """Return the tasks that kept interrupts off, the longest in total first."""
        return {"offenders": [one.as_dict("comm", "function") for one in self._offenders.worst(_WORST)]}

    # --- Figures ------------------------------------------------------------------------------------------------------

    def _cells(self) -> dict[int, Any]:
        """The cells by CPU."""
        return dict(zip(self._possible, self._obj.maps["cells"][0]))

    def _late(self) -> list[tuple[int, int, int]]:
        """CPUs that do not tick: for how long, and when they did last."""
        # The clock first: a tick that comes in between makes a CPU younger, never late.
        now = time.monotonic_ns()
        ticked = {cpu: cell.ticked_ns for cpu, cell in self._cells().items() if cpu in self._since}
        ages = [(cpu, now - last - self._tick_ns // 2, last) for cpu, last in ticked.items() if last]
        late = [one for one in ages if one[1] >= self._options.min_ns]
        present = set(cpus.online()) if late else set()
        return [one for one in late if one[0] in present]

    def snapshot(self) -> Snapshot:
        cells = self._cells()
        found: dict[Group, dict[str, Distribution]] = {}
        noted: dict[Cause, int] = {}
        for cpu, cell in cells.items():
            for name, count in zip(self._obj.enum("irqoff_cause"), cell.causes):
                noted[_CAUSES[name]] = noted.get(_CAUSES[name], 0) + count
            whole = distribution(cell.irqoff)
            if whole.count:
                found[PERIOD.group(cpu)] = {self.name: whole, TOTAL: whole}
        ran = [program.statistics() for program in self._running.programs]
        noted[RECURSION] = sum(one.recursion_misses for one in ran)
        noted[FOREIGN] = sum(ring.foreign for ring in self._rings)
        finished = sum(cell.finished for cell in cells.values())
        late = len(self._late()) if self._open is None else self._open
        return self._snapshot(
            {REQUESTS: Book.read(finished + late, finished, {}, noted)},
            found,
            {},
            ran,
            sum(ring.records for ring in self._rings),
        )

    # --- Care for what changes while it runs --------------------------------------------------------------------------

    def _care(self) -> None:
        now = time.monotonic()
        if self._open is not None or now - self._cared_at < _CARE_S:
            return
        self._cared_at = now
        self._follow_cpus()
        if self._sampler is not None:
            self._sampler.follow({cpu: cell.spacing_ns for cpu, cell in self._cells().items()})

    def _follow_cpus(self) -> None:
        """The kernel takes its events from a CPU that goes, and gives none to one that comes."""
        present = set(cpus.online())
        for cpu, moved in self._obj.maps["moves"].items():
            if cpu in self._options.wanted.get("cpu", [cpu]) and moved > self._since.get(cpu, 0) and cpu in present:
                try:
                    if self._sampler is not None:
                        self._sampler.attach(cpu)
                    self._watch(self._obj, cpu)
                except LibbpfError as error:
                    # The CPU is on its way up, or down again: the next look decides.
                    if error.errno != errno.ENODEV:
                        raise


# Functions that turn interrupts on again for others are on top of the stack at a period's end; their caller is named.
_HELPERS = ("_raw_", "__raw_", "raw_", "__pv_", "pv_", "native_", "__local_", "local_", "ktime_get", "read_tsc")
NOBODY = "(user space)"


def offender(fields: Mapping[str, Any]) -> tuple[str, str]:
    """The task, and the function that is to be named of its stack."""
    names = [frame.partition("+")[0] for frame in fields["stack"]]
    found = next((name for name in names if not name.startswith(_HELPERS)), names[0] if names else NOBODY)
    return fields["comm"], found


def tick_ns(min_ns: int, most_a_second: int) -> int:
    """The time between two ticks. One that the kernel holds back would come late for no other reason."""
    wanted = min(max(min_ns // 4, _SHORTEST_TICK_NS), _LONGEST_TICK_NS)
    possible = max(wanted, 2_000_000_000 // most_a_second)
    if possible > max(min_ns // 4, _LONGEST_TICK_NS):
        raise UnsupportedError(
            f"the kernel permits no more than {most_a_second} overflows of an event a second, too few for --min",
            hint=f"sysctl kernel.perf_event_max_sample_rate={2_000_000_000 // wanted}, or a longer --min",
        )
    return possible


def _each(names: tuple[str, ...], handle: Callable[[dict[str, Any]], None]) -> Callable[[list[Record]], None]:
    def take(records: list[Record]) -> None:
        for record in records:
            handle(dict(zip(names, record)))

    return take
