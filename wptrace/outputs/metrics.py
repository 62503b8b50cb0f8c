# SPDX-License-Identifier: Apache-2.0
"""Counters as families of metrics, by the declarations of kinds: names, units and labels for every protocol.

Pids, commands and paths are no labels, whatever the rows are of: each new one would be a series for ever.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Union

from wptrace import __version__
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
    OTHERS,
    PASID,
    STACK,
    TASK,
    TEXTS,
    TOTAL,
    Bounded,
    Group,
    Kind,
    Label,
)
from wptrace.model.report import BYTES, Snapshot, merged
from wptrace.outputs.json_line import sound

# Kinds of values of which there may be any number.
_NO_LABELS = {TASK, COMM, FILE, CGROUP, STACK, PASID, CALL, *TEXTS}
_NAMES = {DEVICE: "device", OPERATION: "operation", CPU: "cpu"}
_OWN_LABELS = ("kind", "stage", "le")
"""Labels of series besides those of their kind."""
_OF_BOOKS = {"finished", "failed", "lost", "in_flight"}
"""Counts of books, besides which a definition may have outcomes of the same names."""
_BASE_UNITS = {"ns": "seconds", "ms": "seconds"}
# The limit of one flow: groups beyond this many distributions are one, `others`.
_MOST = 20_000
_LONGEST = 128

Labels = tuple[tuple[str, str], ...]
Value = Union[int, float, Distribution]


class Source(NamedTuple):
    """A flow that is traced."""

    name: str
    level: str
    kinds: Sequence[Kind]
    missing: Mapping[str, str]
    """Hooks that nothing can observe here, and why."""


class Owners(NamedTuple):
    """The owners that have series."""

    labels: tuple[str, ...]
    of: Callable[[Any], tuple[str, ...]]
    """Values for these labels, of an owner in rows."""
    top: int
    """How many owners have series of their own."""
    volumes: Callable[[], Sequence[tuple[str, ...]]] = tuple
    """Device and name of each, and values for as many of these labels as a volume has."""

    def who(self, owner: Any) -> tuple[str, ...] | str:
        """Return whose series it is: an owner may be called like that of all others, and is one of them."""
        found = self.of(owner)
        return OTHERS if found == (OTHERS,) * len(self.labels) else found


class Fired(NamedTuple):
    """A trigger of the agent."""

    name: str
    fired: int
    suppressed: int
    holds: bool


class Loaded(NamedTuple):
    """A command that triggers of the agent load."""

    command: str
    is_loaded: bool
    runs: int
    cpu_s: float
    """CPU time of the runs that have ended, loading included."""
    left_out: Mapping[str, int]
    """Times that it was not loaded, or not traced, by cause."""


class Delivery(NamedTuple):
    """Counts of the metrics or spans that were sent, lost, or still wait."""

    signal: str
    sent: int
    """Data points, or spans."""
    lost: Mapping[str, int]
    """Losses by cause."""
    queue_bytes: int


class Process(NamedTuple):
    """The process that traces, so far."""

    cpu_s: float
    memory_bytes: int
    started_s: float
    """Since the epoch."""
    bpf_is_timed: bool
    """The kernel counts the run times of programs all the time."""
    triggers: Sequence[Fired] = ()
    deliveries: Sequence[Delivery] = ()
    on_trigger: Sequence[Loaded] = ()
    waits: Mapping[str, float] = {}
    """How long files have waited for their disk so far, in seconds, by what they are."""


class Point(NamedTuple):
    labels: Labels
    value: Value
    """The value in the unit of the family, except the values of a distribution."""
    unit: str = ""
    """The declared unit of the values of a distribution."""
    group: Group | None = None
    """The group whose total it is."""
    restarts: bool = False
    """The series may end and begin anew, with nothing."""


class Family:
    """A metric with all its series. `name` has neither unit nor type, which each protocol says in its own way."""

    def __init__(self, name: tuple[str, ...], type: str, unit: str, help: str) -> None:  # noqa: A002
        """The type is a counter, a gauge, a histogram, or a summary, which has no buckets."""
        self.name, self.type, self.unit, self.help = name, type, unit, help
        self.points: list[Point] = []

    def add(self, labels: Labels, value: Value, restarts: bool = False) -> None:
        self.points.append(Point(labels, value, restarts=restarts))


class Derived:
    """The metrics of some flows, with a bounded number of series."""

    def __init__(self, sources: Sequence[Source], stage_histograms: bool = False) -> None:
        self._sources = sources
        self.stage_histograms = stage_histograms
        self._bounded = [Bounded(_MOST) for _ in sources]
        self._owners: Owners | None = None
        self._leading: list[Leading | None] = [None for _ in sources]
        self._families: dict[tuple[tuple[str, ...], str], Family] = {}
        self._labels: dict[Group, Labels] = {}
        """Labels of bounded groups."""

    def own(self, owners: Owners | None) -> None:
        """Have series of these owners from now on. With the same labels, totals continue."""
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
                self._leading[number] = Leading(kinds, owners.top, owners.who)

    def group(self, flow: int, group: Group) -> Group:
        """The group that has the series of another one, in the flow with this number."""
        return self._bounded[flow].of(_shortened(group))

    def families(self, snapshots: Sequence[Snapshot], process: Process) -> list[Family]:
        self._families = {}
        for number, (source, snapshot, leading) in enumerate(zip(self._sources, snapshots, self._leading)):
            self._flow(number, source, snapshot)
            if leading is not None and self._owners is not None:
                leading.add(snapshot)
                self._of_owners((plain(source.name), "owner"), leading, self._owners)
            self._of_tracing(source, snapshot, process)
        if self._owners is not None:
            self._of_volumes(self._owners)
        self._of_process(process)
        found, self._families = list(self._families.values()), {}
        return found

    def _family(self, name: tuple[str, ...], type: str, unit: str, help: str) -> Family:  # noqa: A002
        found = self._families.get((name, unit))
        if found is None:
            found = self._families[name, unit] = Family(name, type, unit, help)
        return found

    # --- What was followed --------------------------------------------------------------------------------------------

    def _flow(self, number: int, source: Source, snapshot: Snapshot) -> None:
        prefix = plain(source.name)
        kinds = [kind for kind in source.kinds if kind.owner_place is None]
        cells = self._of_kinds(number, snapshot.cells, kinds)
        for kind in kinds:
            unit = _base(kind.total.unit)
            # Without a word more, text of OpenMetrics would have that name of a counter as well.
            whole = "duration" if unit == "seconds" else "value"
            nouns = ", ".join(dict.fromkeys(one.noun.one for one in kinds if one.total.unit == kind.total.unit))
            total = self._family((prefix, whole), "histogram", unit, f"The whole of each of these kinds: {nouns}.")
            stages = self._family(
                (prefix, "stage"),
                self._of_stages,
                unit,
                f"Stages that share out the whole, and what else is measured of: {nouns}.",
            )
            for group, found in cells.get(kind, {}).items():
                labels = self._labels_of(group)
                for measured in kind.rows:
                    one = found.get(measured.name)
                    if one is None:
                        continue
                    if measured.name == TOTAL:
                        total.points.append(Point(labels, one, measured.unit, group))
                    elif one.sum or (measured in kind.stages and not measured.rare):
                        stages.points.append(Point((*labels, ("stage", measured.name)), one, measured.unit))
        self._counters(number, prefix, kinds, snapshot)
        self._books(prefix, source, snapshot)
        self._loads(prefix, kinds, cells, snapshot)

    @property
    def _of_stages(self) -> str:
        return "histogram" if self.stage_histograms else "summary"

    def _of_kinds(self, number: int, cells: Mapping[Group, Any], kinds: Sequence[Kind]) -> dict[Kind, dict[Group, Any]]:
        wanted = {group: found for group, found in cells.items() if group.kind in kinds}
        found: dict[Kind, dict[Group, Any]] = {}
        for group, metrics in merged(wanted, lambda group: self.group(number, group)).items():
            found.setdefault(group.kind, {})[group] = metrics
        return found

    def _of_owners(self, prefix: tuple[str, ...], leading: Leading, owned: Owners) -> None:
        total = self._family(
            (*prefix, "duration"),
            self._of_stages,
            "seconds",
            "The whole of each, by owner; others has all owners without series of their own.",
        )
        for group, found in leading.cells.items():
            labels, restarts = _of_owner(group, owned)
            total.points.append(Point(labels, found[TOTAL], group.kind.total.unit, restarts=restarts))
            for metric in group.kind.metrics:
                if metric.name in found:
                    family = self._family(
                        (*prefix, plain(metric.name)), "counter", "seconds", _sentence(metric.description)
                    )
                    value = scaled(found[metric.name].sum, metric.unit)
                    family.add(labels, value, restarts)
        for group, counts in leading.counters.items():
            if BYTES in counts:
                family = self._family((*prefix, "bytes"), "counter", "bytes", "Bytes that were transferred, by owner.")
                labels, restarts = _of_owner(group, owned)
                family.add(labels, counts[BYTES], restarts)

    def _of_volumes(self, owned: Owners) -> None:
        # A volume is not a label of other metrics: their series would end when it is mounted.
        for device, name, *whose in owned.volumes():
            values = (("device", device), ("volume", name), *zip(owned.labels, whose))
            self._family(("volume", "info"), "gauge", "", "Volumes of pods, and their devices.").add(
                tuple(label(name, value) for name, value in values), 1
            )

    def _labels_of(self, group: Group) -> Labels:
        found = self._labels.get(group)
        if found is None:
            found = self._labels[group] = (*_labels(group), ("kind", plain(group.kind.name)))
        return found

    def _counters(self, number: int, prefix: str, kinds: Sequence[Kind], snapshot: Snapshot) -> None:
        sums: dict[Kind, dict[Group, Counter[str]]] = {}
        for group, counts in snapshot.counters.items():
            if group.kind in kinds:
                sums.setdefault(group.kind, {}).setdefault(self.group(number, group), Counter()).update(counts)
        for kind in kinds:
            for field in kind.counters:
                # A family is named like its counter, and is there once something has happened; `bytes` from the start.
                name = plain(field.name)
                whole = ("outcome", name) if name in _OF_BOOKS else (name,)
                for group, counts in sums.get(kind, {}).items():
                    if counts[field.name] or field.unit == "bytes":
                        family = self._family(
                            (prefix, *whole), "counter", _base(field.unit), _sentence(field.description)
                        )
                        family.add(self._labels_of(group), scaled(counts[field.name], field.unit))

    def _books(self, prefix: str, source: Source, snapshot: Snapshot) -> None:
        for name, book in snapshot.books.items():
            of_book = ("book", plain(name))
            for what, count, help in (  # noqa: A001
                ("finished", book.finished, "How many ended."),
                ("failed", book.failed, "How many of those ended with an error."),
                ("lost", book.lost_total, "How many were followed and lost; wptrace_loss_total says why."),
            ):
                self._family((prefix, what), "counter", "", help).add((of_book,), count)
            self._family((prefix, "in_flight"), "gauge", "", "How many have begun and not ended.").add(
                (of_book,), book.in_flight
            )
            loss = self._family(("loss",), "counter", "", "What was lost or is missing in the figures, by cause.")
            for cause, count in (*book.lost.items(), *book.noted.items()):
                loss.add((("flow", plain(source.name)), of_book, ("cause", plain(cause.name))), count)

    def _loads(
        self, prefix: str, kinds: Sequence[Kind], cells: Mapping[Kind, Mapping[Group, Any]], snapshot: Snapshot
    ) -> None:
        busy = {group: counts for group, counts in snapshot.counters.items() if group.kind is LOAD}
        if not busy:
            return
        of_busy = self._family((prefix, "busy"), "counter", "seconds", "Time in which the device had requests.")
        for group, counts in busy.items():
            if counts.get(STAMPED):
                of_busy.add((label("device", group.values[0]),), scaled(counts.get(BUSY_MS, 0), "ms"))
        load: Counter[Any] = Counter()
        for kind in kinds:
            if kind.name == "request":
                for group, found in cells.get(kind, {}).items():
                    before = found["throttle"].sum if "throttle" in found else 0
                    load[group.values[0]] += found[TOTAL].sum - before
        of_load = self._family(
            (prefix, "load"),
            "counter",
            "seconds",
            "Time of all requests from G, allocated, to C, completed: its rate is how many were there at a time.",
        )
        for dev, ns in load.items():
            of_load.add((label("device", dev),), scaled(ns, "ns"))

    # --- The tracing itself -------------------------------------------------------------------------------------------

    def _of_tracing(self, source: Source, snapshot: Snapshot, process: Process) -> None:
        flow, cost = label("flow", source.name), snapshot.overhead
        info = self._family(("flow", "info"), "gauge", "", "What is traced.")
        info.add((flow, label("level", source.level)), 1)
        degraded = self._family(("degraded",), "gauge", "", "Whether hooks of the flow are missing on this kernel.")
        degraded.add((flow,), int(bool(source.missing)))
        for hook, why in source.missing.items():
            self._family(("hook", "missing"), "gauge", "", "Hooks that nothing can observe here, and why.").add(
                (flow, label("hook", hook), label("why", why)), 1
            )
        self._family(("map",), "gauge", "bytes", "Kernel memory of the flow's maps.").add((flow,), cost.map_bytes)
        self._family(("records",), "counter", "", "Records read from the flow's ring.").add((flow,), cost.records)
        if process.bpf_is_timed:
            self._family(("bpf", "runs"), "counter", "", "Runs of BPF programs.").add((flow,), cost.bpf_runs)
            self._family(("bpf", "run"), "counter", "seconds", "Run time of BPF programs.").add(
                (flow,), scaled(cost.bpf_ns, "ns")
            )

    def _of_process(self, process: Process) -> None:
        for name, type, unit, help, value in (  # noqa: A001
            (("reader", "cpu"), "counter", "seconds", "CPU time of the process that traces.", process.cpu_s),
            (("memory",), "gauge", "bytes", "Peak memory of the process that traces.", process.memory_bytes),
            (("start", "time"), "gauge", "seconds", "When it started.", process.started_s),
        ):
            self._family(name, type, unit, help).add((), value)
        for one in process.triggers:
            trigger = label("trigger", one.name)
            for what, type, help, value in (  # noqa: A001
                ("fired", "counter", "How often the trigger has fired.", one.fired),
                ("suppressed", "counter", "How often it was held back by its limits.", one.suppressed),
                ("holds", "gauge", "Whether its condition holds now.", int(one.holds)),
            ):
                # The next reload may remove it, and another one add it anew.
                self._family(("trigger", what), type, "", help).add((trigger,), value, restarts=True)
        for what, seconds in process.waits.items():
            self._family(("disk", "wait"), "gauge", "seconds", "How long files have waited for their disk so far.").add(
                (label("files", what),), seconds
            )
        for loads in process.on_trigger:
            self._of_loaded(loads)
        for sent in process.deliveries:
            signal = label("signal", sent.signal)
            self._family(("otlp", "sent"), "counter", "", "Data points and spans that the collector has accepted.").add(
                (signal,), sent.sent
            )
            lost = self._family(
                ("otlp", "lost"), "counter", "", "Data points and spans that did not reach it, by cause."
            )
            for cause, count in sent.lost.items():
                lost.add((signal, label("cause", cause)), count)
            self._family(("otlp", "queue"), "gauge", "bytes", "What waits to be sent.").add((signal,), sent.queue_bytes)
        self._family(("build", "info"), "gauge", "", "The version of wptrace.").add((label("version", __version__),), 1)

    def _of_loaded(self, one: Loaded) -> None:
        command = label("command", one.command)
        for what, type, unit, help, value in (  # noqa: A001
            ("loaded", "gauge", "", "Whether a trigger has loaded the command.", int(one.is_loaded)),
            ("runs", "counter", "", "How often a trigger has begun to load it.", one.runs),
            ("cpu", "counter", "seconds", "CPU time of its runs that have ended.", one.cpu_s),
        ):
            self._family(("on", "trigger", what), type, unit, help).add((command,), value, restarts=True)
        left_out = self._family(("on", "trigger", "left", "out"), "counter", "", "Runs without a trace, by cause.")
        for cause, count in one.left_out.items():
            left_out.add((command, label("cause", cause)), count, restarts=True)


def of_cgroups(kind: Kind) -> bool:
    """Its rows are by owner, and that is a cgroup."""
    at = kind.owner_place
    return at is not None and kind.labels[at].type == CGROUP and kind.total.unit == "ns"


def _of_owner(group: Group, owned: Owners) -> tuple[Labels, bool]:
    """Its labels, and whether its series ends when others have more: that of all others never does."""
    at = group.kind.owner_place
    who = group.values[-1 if at is None else at]
    named = (who,) * len(owned.labels) if isinstance(who, str) else who
    own = [label(name, value) for name, value in zip(owned.labels, named)]  # type: ignore[call-overload]
    rest = [
        label(_NAMES.get(one.type, plain(one.name)), _shown(one, value))
        for place, (one, value) in enumerate(zip(group.kind.labels, group.values))
        if place != at
    ]
    # A part has the name of the whole that it belongs to.
    kind = plain(group.kind.name.removeprefix("owned_"))
    return (*rest, ("kind", kind), *own), not isinstance(who, str)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _shortened(group: Group) -> Group:
    """Without labels that may have any number of values."""
    dropped = [label.name for label in group.kind.labels if label.type in _NO_LABELS]
    return group.all_of(*dropped) if dropped else group


def _labels(group: Group) -> Iterator[tuple[str, str]]:
    """A flow by definition may name its labels as it likes, but no series has two labels of a name."""
    taken = set(_OWN_LABELS)
    for one, value in zip(group.kind.labels, group.values):
        if one.type not in _NO_LABELS:
            name = _NAMES.get(one.type, plain(one.name))
            # Prometheus drops what begins with two underscores.
            while name in taken or not name[0].isalpha():
                name = f"label_{name}"
            taken.add(name)
            yield label(name, _shown(one, value))


def _shown(label: Label, value: Any) -> str:
    return str(value) if label.type == CPU else label.shown(value)


def label(name: str, value: object) -> tuple[str, str]:
    """Two values are two series, also where they are long and begin alike, or are no UTF-8."""
    text = str(sound(str(value)))
    if len(text) > _LONGEST:
        mark = f"~{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        text = text[: _LONGEST - len(mark)] + mark
    return name, text


def plain(name: str) -> str:
    """Return a name as metrics allow it."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _base(unit: str) -> str:
    return _BASE_UNITS.get(unit, plain(unit))


def scaled(value: float, unit: str) -> float:
    """A value in the base unit."""
    if unit not in ("ns", "ms"):
        return value
    return value / (1_000_000_000 if unit == "ns" else 1_000)
