# SPDX-License-Identifier: Apache-2.0
"""Counters as text for Prometheus: families of metrics by the declarations of kinds.

Names of pids, commands and paths are no labels, whatever the rows are of: each new one would be a series for ever.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Callable, NamedTuple

from wptrace import __version__
from wptrace.analysis import owners
from wptrace.analysis.leading import Leading
from wptrace.analysis.load import BUSY_MS, LOAD, STAMPED
from wptrace.model.distribution import Distribution
from wptrace.model.kind import (
    CALL,
    CGROUP,
    COMM,
    CPU,
    DEVICE,
    FILE,
    OPERATION,
    PASID,
    STACK,
    STATEMENT,
    TASK,
    TOTAL,
    Bounded,
    Group,
    Kind,
    Label,
    Measured,
)
from wptrace.model.report import BYTES, Event, Snapshot, merged
from wptrace.model.tally import Tally

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Those of which there may be any number.
_NO_LABELS = {TASK, COMM, FILE, CGROUP, STACK, PASID, CALL, STATEMENT}
_NAMES = {DEVICE: "device", OPERATION: "operation", CPU: "cpu"}
# Powers of two: 1 us to 69 s, and of anything else from 512 to 32 Mi.
_EDGES_NS = [1 << at for at in range(10, 37)]
_EDGES = [1 << at for at in range(9, 26)]
_UNITS = {"ns": ("seconds", 1e-9), "ms": ("seconds", 1e-3), "bytes": ("bytes", 1)}
# Of one flow: more groups than these many distributions are one, `others`.
_MOST = 20_000
_LONGEST = 128
# Of an event, for an exemplar; all together may have 128 characters there.
_EXEMPLAR = {"comm": 32, "pid": 10, "sector": 20}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Source(NamedTuple):
    """A flow that is traced."""

    name: str
    level: str
    kinds: Sequence[Kind]
    missing: Mapping[str, str]
    """Hooks that nothing can observe here, and why."""


class Owners(NamedTuple):
    """By whom there are series."""

    labels: tuple[str, ...]
    of: Callable[[Any], tuple[str, ...]]
    """Values for these labels, of an owner in rows."""
    top: int
    """So many have series of their own."""
    volumes: Callable[[], Sequence[tuple[str, ...]]] = tuple
    """Device and name of each, and values for as many of these labels as a volume has."""


class Fired(NamedTuple):
    """A trigger of the agent."""

    name: str
    fired: int
    suppressed: int
    holds: bool


class Process(NamedTuple):
    """The process that traces, so far."""

    cpu_s: float
    memory_bytes: int
    started_s: float
    """Since the epoch."""
    bpf_is_timed: bool
    """The kernel counts the run times of programs all the time."""
    triggers: Sequence[Fired] = ()


class _Family:
    def __init__(self, name: str, type: str, help: str) -> None:  # noqa: A002 - as the format calls them
        self.name, self.type, self.help = name, type, help
        self.lines: list[str] = []

    def add(self, labels: str, value: float, suffix: str = "") -> None:
        self.lines.append(f"{self.name}{suffix}{{{labels}}} {value}" if labels else f"{self.name}{suffix} {value}")


class Metrics:
    """Of some flows. Whatever the world does there is an end to the number of series."""

    def __init__(self, sources: Sequence[Source], stage_histograms: bool = False) -> None:
        self._sources = sources
        self.stage_histograms = stage_histograms
        self._with_exemplars = False
        """Whether the text being made has exemplars."""
        self._bounded = [Bounded(_MOST) for _ in sources]
        self._owners: Owners | None = None
        self._leading: list[Leading | None] = [None for _ in sources]
        self._families: dict[str, _Family] = {}
        self._labels: dict[Group, str] = {}
        """Of groups that are bounded."""
        self._exemplars: dict[Group, dict[int, str]] = {}
        """The last event that was told in each bucket of the whole."""

    def own(self, owners: Owners | None) -> None:
        """From now on series of these owners. By the same labels totals go on."""
        before, self._owners = self._owners, owners
        same = before is not None and owners is not None and before.labels == owners.labels
        for number, source in enumerate(self._sources):
            kinds = frozenset(kind for kind in source.kinds if of_cgroups(kind))
            leading = self._leading[number]
            if owners is None or not kinds:
                self._leading[number] = None
            elif same and leading is not None:
                leading.keep(owners.top)
            else:
                self._leading[number] = Leading(kinds, owners.top, owners.of)

    def event(self, flow: int, event: Event) -> None:
        """Of the flow with this number."""
        if owners.place(event.group.kind) is not None or event.group.kind.total.unit != "ns":
            return
        group = self._bounded[flow].of(_shortened(event.group))
        labels = ",".join(
            _label(name, str(event.fields[name])[:most]) for name, most in _EXEMPLAR.items() if name in event.fields
        )
        text = f" # {{{labels}}} {event.total_ns / 1e9} {event.end_ns / 1e9:.3f}"
        self._exemplars.setdefault(group, {})[bisect_left(_EDGES_NS, event.total_ns + 1)] = text

    def text(self, snapshots: Sequence[Snapshot], process: Process, openmetrics: bool = False) -> str:
        self._families, self._with_exemplars = {}, openmetrics
        for source, snapshot, bounded, leading in zip(self._sources, snapshots, self._bounded, self._leading):
            self._flow(source, snapshot, bounded)
            if leading is not None and self._owners is not None:
                leading.add(snapshot)
                self._of_owners(f"wptrace_{plain(source.name)}_owner", leading, self._owners)
            self._of_tracing(source, snapshot, process)
        if self._owners is not None:
            self._of_volumes(self._owners)
        self._of_process(process)
        lines: list[str] = []
        for family in self._families.values():
            # OpenMetrics has the suffix in samples alone.
            name = family.name.removesuffix("_total") if openmetrics else family.name
            lines += [f"# HELP {name} {_escaped(family.help)}", f"# TYPE {name} {family.type}", *family.lines]
        lines += ["# EOF", ""] if openmetrics else [""]
        return "\n".join(lines)

    def _family(self, name: str, type: str, help: str) -> _Family:  # noqa: A002 - as the format calls them
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = _Family(name, type, help)
        return found

    # What was followed

    def _flow(self, source: Source, snapshot: Snapshot, bounded: Bounded) -> None:
        prefix = f"wptrace_{plain(source.name)}"
        kinds = [kind for kind in source.kinds if owners.place(kind) is None]
        cells = _of_kinds(snapshot.cells, kinds, bounded)
        for kind in kinds:
            unit, _ = _UNITS.get(kind.total.unit, (plain(kind.total.unit), 1))
            # Without a word more, text of OpenMetrics would have that name of a counter as well.
            whole = "duration_seconds" if unit == "seconds" else f"value_{unit}"
            nouns = ", ".join(dict.fromkeys(one.noun.one for one in kinds if one.total.unit == kind.total.unit))
            total = self._family(f"{prefix}_{whole}", "histogram", f"The whole of each of these kinds: {nouns}.")
            stages = self._family(
                f"{prefix}_stage_{unit}",
                "histogram" if self.stage_histograms else "summary",
                f"Stages that share out the whole, and what else is measured of: {nouns}.",
            )
            for group, found in cells.get(kind, {}).items():
                labels = self._labels_of(group)
                for measured in kind.rows:
                    one = found.get(measured.name)
                    if one is None:
                        continue
                    if measured.name == TOTAL:
                        exemplars = self._exemplars.get(group, {}) if self._with_exemplars else {}
                        _histogram(total, labels, one, measured.unit, exemplars)
                    elif one.sum or (measured in kind.stages and not measured.rare):
                        self._stage(stages, f'{labels},stage="{measured.name}"', one, measured)
        self._counters(prefix, kinds, snapshot, bounded)
        self._books(prefix, source, snapshot)
        self._loads(prefix, kinds, cells, snapshot)

    def _of_owners(self, prefix: str, leading: Leading, owned: Owners) -> None:
        total = self._family(
            f"{prefix}_duration_seconds",
            "histogram" if self.stage_histograms else "summary",
            "The whole of each, by owner; others is all of whom there are no series.",
        )
        for group, found in leading.cells.items():
            labels = _of_owner(group, owned)
            self._stage(total, labels, found[TOTAL], group.kind.total)
            for metric in group.kind.metrics:
                if metric.name in found:
                    family = self._family(
                        f"{prefix}_{plain(metric.name)}_seconds_total", "counter", _sentence(metric.description)
                    )
                    family.add(labels, _scaled(found[metric.name].sum, metric.unit))
        for group, counts in leading.counters.items():
            if BYTES in counts:
                family = self._family(f"{prefix}_bytes_total", "counter", "Bytes that were transferred, by owner.")
                family.add(_of_owner(group, owned), counts[BYTES])

    def _of_volumes(self, owned: Owners) -> None:
        # No label of other metrics: their series would end where a volume is mounted.
        for device, name, *whose in owned.volumes():
            values = (("device", device), ("volume", name), *zip(owned.labels, whose))
            self._family("wptrace_volume_info", "gauge", "Volumes of pods, and their devices.").add(
                ",".join(_label(name, value) for name, value in values), 1
            )

    def _stage(self, family: _Family, labels: str, found: Distribution, measured: Measured) -> None:
        if self.stage_histograms:
            _histogram(family, labels, found, measured.unit)
            return
        family.add(labels, _scaled(found.sum, measured.unit), "_sum")
        family.add(labels, found.count, "_count")

    def _labels_of(self, group: Group) -> str:
        found = self._labels.get(group)
        if found is None:
            found = ",".join([*_labels(group), f'kind="{plain(group.kind.name)}"'])
            self._labels[group] = found
        return found

    def _counters(self, prefix: str, kinds: Sequence[Kind], snapshot: Snapshot, bounded: Bounded) -> None:
        sums: dict[Kind, dict[Group, dict[str, int]]] = {}
        for group, counts in snapshot.counters.items():
            if group.kind in kinds:
                into = sums.setdefault(group.kind, {}).setdefault(bounded.of(_shortened(group)), {})
                for name, count in counts.items():
                    into[name] = into.get(name, 0) + count
        for kind in kinds:
            for field in kind.counters:
                unit, _ = _UNITS.get(field.unit, (plain(field.unit), 1))
                name = plain(field.name)
                ending = f"_{unit}" if unit and unit != name else ""
                # As counters are called, unless nothing has happened yet: `bytes` are there from the start.
                for group, counts in sums.get(kind, {}).items():
                    if counts.get(field.name) or field.unit == "bytes":
                        help = _sentence(field.description)  # noqa: A001
                        family = self._family(f"{prefix}_{name}{ending}_total", "counter", help)
                        family.add(self._labels_of(group), _scaled(counts.get(field.name, 0), field.unit))

    def _books(self, prefix: str, source: Source, snapshot: Snapshot) -> None:
        for name, book in snapshot.books.items():
            labels = f'book="{plain(name)}"'
            for what, count, help in (  # noqa: A001
                ("finished", book.finished, "How many ended."),
                ("failed", book.failed, "How many of those ended with an error."),
                ("lost", book.lost_total, "How many were followed and lost; wptrace_loss_total says why."),
            ):
                self._family(f"{prefix}_{what}_total", "counter", help).add(labels, count)
            self._family(f"{prefix}_in_flight", "gauge", "How many have begun and not ended.").add(
                labels, book.in_flight
            )
            loss = self._family(
                "wptrace_loss_total", "counter", "What was lost or is missing in the figures, by cause."
            )
            for cause, count in (*book.lost.items(), *book.noted.items()):
                loss.add(f'flow="{plain(source.name)}",{labels},cause="{plain(cause.name)}"', count)

    def _loads(
        self, prefix: str, kinds: Sequence[Kind], cells: Mapping[Kind, Mapping[Group, Any]], snapshot: Snapshot
    ) -> None:
        busy = {group: counts for group, counts in snapshot.counters.items() if group.kind is LOAD}
        if not busy:
            return
        of_busy = self._family(f"{prefix}_busy_seconds_total", "counter", "Time in which the device had requests.")
        for group, counts in busy.items():
            if counts.get(STAMPED):
                of_busy.add(_label("device", group.values[0]), _scaled(counts.get(BUSY_MS, 0), "ms"))
        load: dict[Any, int] = {}
        for kind in kinds:
            if kind.name == "request":
                for group, found in cells.get(kind, {}).items():
                    before = found["throttle"].sum if "throttle" in found else 0
                    dev = group.values[0]
                    load[dev] = load.get(dev, 0) + found[TOTAL].sum - before
        of_load = self._family(
            f"{prefix}_load_seconds_total",
            "counter",
            "Time of all requests from G, allocated, to C, completed: its rate is how many were there at a time.",
        )
        for dev, ns in load.items():
            of_load.add(_label("device", dev), _scaled(ns, "ns"))

    # The tracing itself

    def _of_tracing(self, source: Source, snapshot: Snapshot, process: Process) -> None:
        flow, cost = _label("flow", source.name), snapshot.overhead
        self._family("wptrace_flow_info", "gauge", "What is traced.").add(f"{flow},{_label('level', source.level)}", 1)
        degraded = self._family("wptrace_degraded", "gauge", "Whether hooks of the flow are missing on this kernel.")
        degraded.add(flow, int(bool(source.missing)))
        for hook, why in source.missing.items():
            self._family("wptrace_hook_missing", "gauge", "Hooks that nothing can observe here, and why.").add(
                f"{flow},{_label('hook', hook)},{_label('why', why)}", 1
            )
        self._family("wptrace_map_bytes", "gauge", "Memory that the kernel has for the flow's maps.").add(
            flow, cost.map_bytes
        )
        self._family("wptrace_records_total", "counter", "Records that came by the flow's ring.").add(
            flow, cost.records
        )
        if process.bpf_is_timed:
            self._family("wptrace_bpf_runs_total", "counter", "Runs of BPF programs.").add(flow, cost.bpf_runs)
            self._family("wptrace_bpf_run_seconds_total", "counter", "Run time of BPF programs.").add(
                flow, _scaled(cost.bpf_ns, "ns")
            )

    def _of_process(self, process: Process) -> None:
        for name, type, help, value in (  # noqa: A001
            ("reader_cpu_seconds_total", "counter", "CPU time of the process that traces.", process.cpu_s),
            ("memory_bytes", "gauge", "The most memory that it has had.", process.memory_bytes),
            ("start_time_seconds", "gauge", "When it started.", process.started_s),
        ):
            self._family(f"wptrace_{name}", type, help).add("", value)
        for one in process.triggers:
            trigger = _label("trigger", one.name)
            for name, type, help, value in (  # noqa: A001
                ("fired_total", "counter", "How often the trigger has fired.", one.fired),
                ("suppressed_total", "counter", "How often it was held back by its limits.", one.suppressed),
                ("holds", "gauge", "Whether its condition holds now.", int(one.holds)),
            ):
                self._family(f"wptrace_trigger_{name}", type, help).add(trigger, value)
        self._family("wptrace_build_info", "gauge", "The version of wptrace.").add(_label("version", __version__), 1)


def of_cgroups(kind: Kind) -> bool:
    """Its rows are by owner, and that is a cgroup."""
    at = owners.place(kind)
    return at is not None and kind.labels[at].type == CGROUP and kind.total.unit == "ns"


def _of_owner(group: Group, owned: Owners) -> str:
    at = owners.place(group.kind)
    who = group.values[-1 if at is None else at]
    named = (who,) * len(owned.labels) if isinstance(who, str) else who
    own = [_label(name, value) for name, value in zip(owned.labels, named)]  # type: ignore[call-overload]
    rest = [
        _label(_NAMES.get(label.type, plain(label.name)), _shown(label, value))
        for place, (label, value) in enumerate(zip(group.kind.labels, group.values))
        if place != at
    ]
    # As the one of which it is a part.
    kind = plain(group.kind.name.removeprefix("owned_"))
    return ",".join([*rest, f'kind="{kind}"', *own])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _of_kinds(cells: Mapping[Group, Any], kinds: Sequence[Kind], bounded: Bounded) -> dict[Kind, dict[Group, Any]]:
    wanted = {group: found for group, found in cells.items() if group.kind in kinds}
    found: dict[Kind, dict[Group, Any]] = {}
    for group, metrics in merged(wanted, lambda group: bounded.of(_shortened(group))).items():
        found.setdefault(group.kind, {})[group] = metrics
    return found


def _shortened(group: Group) -> Group:
    """Without labels that may have any number of values."""
    dropped = [label.name for label in group.kind.labels if label.type in _NO_LABELS]
    return group.all_of(*dropped) if dropped else group


def _labels(group: Group) -> Iterator[str]:
    for label, value in zip(group.kind.labels, group.values):
        if label.type not in _NO_LABELS:
            yield _label(_NAMES.get(label.type, plain(label.name)), _shown(label, value))


def _shown(label: Label, value: Any) -> str:
    return str(value) if label.type == CPU else label.shown(value)


def _label(name: str, value: object) -> str:
    text = str(value)[:_LONGEST].translate(_ESCAPES)
    return f'{name}="{text}"'


def plain(name: str) -> str:
    """As names of metrics are."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _scaled(value: int, unit: str) -> float:
    if unit not in ("ns", "ms"):
        return value
    return value / (1_000_000_000 if unit == "ns" else 1_000)


def _histogram(
    family: _Family, labels: str, found: Distribution, unit: str, exemplars: Mapping[int, str] | None = None
) -> None:
    edges = _EDGES_NS if unit == "ns" else _EDGES
    texts = _TEXTS_NS if unit == "ns" else _TEXTS
    counts = [0] * (len(edges) + 1)
    for highest, count in _highest(found):
        counts[bisect_left(edges, highest)] += count
    prefix = f'{family.name}_bucket{{{labels},le="'
    lines = [f'{prefix}{edge}"}} {count}' for edge, count in zip(texts, accumulate(counts))]
    lines.append(f'{prefix}+Inf"}} {found.count}')
    for at, text in (exemplars or {}).items():
        lines[at] += text
    family.lines += lines
    family.add(labels, _scaled(found.sum, unit), "_sum")
    family.add(labels, found.count, "_count")


def _highest(found: Distribution) -> Iterable[tuple[int, int]]:
    """The highest value of each bucket, and how many are there; where each value is known, that one."""
    if isinstance(found, Tally):
        return found.counts.items()
    return ((high - 1, count) for _, high, count in found.filled())


_TEXTS_NS = [repr(edge / 1e9) for edge in _EDGES_NS]
_TEXTS = [f"{edge}.0" for edge in _EDGES]
