# SPDX-License-Identifier: Apache-2.0
"""A part of `wptrace io`: what one option adds to the path flow (wptrace/flows/io/parts/)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Reader, Ring
from wptrace.engine.cells import Cells
from wptrace.engine.devices import DeviceCells, Slots
from wptrace.engine.filters import Filter
from wptrace.engine.hooks import Hook
from wptrace.engine.resolver import Loaded
from wptrace.model.book import Cause
from wptrace.model.distribution import Distribution, merge_stages
from wptrace.model.kind import EventField, Group, Kind
from wptrace.model.report import Counters, Event

if TYPE_CHECKING:
    from wptrace.capture.writer import CaptureOutput
    from wptrace.engine.recorder import Recorder

Distributions = dict[Group, dict[str, Distribution]]


class Tracing(NamedTuple):
    """A trace with its programs attached."""

    loaded: Loaded
    slots: Slots
    reader: Reader
    recorder: CaptureOutput | None
    code: Mapping[str, tuple[int, int]]
    """Where the functions of `Part.functions` begin, and their lengths; those that exist and are shown."""

    @property
    def obj(self) -> BpfObject:
        return self.loaded.obj

    @property
    def names(self) -> Sequence[str]:
        """Names of devices by slot; changed in place."""
        return self.slots.names

    def set_code(self, table: str, functions: Sequence[str]) -> None:
        """Fill the tables `TABLE_begin` and `TABLE_bytes` of the programs with where these functions lie."""
        found = [self.code.get(name, (0, 0)) for name in functions]
        found += [(0, 0)] * (self.obj.length(f"{table}_begin") - len(found))
        setattr(self.obj.bss, f"{table}_begin", [begin for begin, _ in found])
        setattr(self.obj.bss, f"{table}_bytes", [length for _, length in found])


class Part:
    """A part. The flow calls each method of all of its parts, in this order."""

    kinds: tuple[Kind, ...] = ()
    """Kinds with rows of their own."""
    fields: tuple[EventField, ...] = ()
    """Fields that it adds to events."""
    stages: Collection[str] = ()
    """Stages whose hooks are attached only for this part."""
    hooks: tuple[Hook, ...] = ()
    """Hooks that serve no stage."""
    needs_options = False
    """Whether it needs what the object without options lacks."""
    needs_rows = False
    """The same of rows whose owners the programs name, and of neighbours."""

    ring: Ring | None = None
    """The ring of its records, if it supplies the flow's."""
    recorder: Recorder | None = None
    """The same of the flight recorder."""

    def __init__(self) -> None:
        self.cells: dict[str, Cells] = {}
        """The cells that programs count for this part, by name of the table; filled at the start."""

    # --- The start ------------------------------------------------------------------------------------------------

    def prepare(self, obj: BpfObject) -> None:
        """Set constants of the programs and sizes of maps before the load."""

    def make_room(self, obj: BpfObject, devices: int) -> None:
        """Set the sizes of maps that have rows for each device."""

    def functions(self, loaded: Loaded) -> Mapping[str, str]:
        """Functions whose code the programs know, with their modules."""
        return {}

    def start(self, tracing: Tracing) -> None:
        """Make the readers of the programs' maps."""

    @property
    def chosen(self) -> dict[str, Any]:
        """Settings that the user chose, for the first line of a trace."""
        return {}

    def notes(self, loaded: Loaded) -> list[str]:
        return []

    def begin(self, obj: BpfObject) -> None:
        """Begin: the programs count from now on."""

    # --- Reading --------------------------------------------------------------------------------------------------

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        """Called before the cells are read."""

    def rename(self, slot: int, name: str) -> None:
        """Give a slot to another device; nothing is counted in it meanwhile."""
        for cells in self.cells.values():
            if isinstance(cells, DeviceCells):
                cells.rename(slot, name)

    def untimed(self) -> Counter[Group]:
        """The number of objects of each group that were counted but not timed."""
        found = Counter[Group]()
        for cells in self.cells.values():
            if cells.counts("untimed"):
                for group, counts in cells.counters.items():
                    if counts["untimed"]:
                        found[group] += counts["untimed"]
        return found

    def add_distributions(self, found: Distributions) -> None:
        for cells in self.cells.values():
            for group, stages in cells.distributions.items():
                merge_stages(found, group, stages)

    def add_copies(self, found: Distributions) -> None:
        """Add rows that are derived from complete ones."""

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        for cells in self.cells.values():
            for group, counts in cells.counted().items():
                found.setdefault(group, Counter()).update(counts)

    def noted(self, obj: BpfObject) -> dict[Cause, int]:
        """Losses that cost neither an operation nor a request."""
        return {}

    @property
    def folded(self) -> dict[Group, int]:
        """How often each group was added to the group of the others."""
        return {}

    def fold(self, cells: Distributions, counters: Counters) -> tuple[Distributions, Counters]:
        """Make the rows of a report."""
        return cells, counters

    def events(self, found: Sequence[Event]) -> Sequence[Event]:
        """Return the events since the last call, after those of earlier parts."""
        return found

    # --- The end --------------------------------------------------------------------------------------------------

    def retarget(self, obj: BpfObject, wanted: Filter) -> None:
        """Change the filter."""

    def emit(self, slow_ns: int | None, sample: int, limit: int) -> None:
        """Emit records of objects that take this long, and of one in `sample`; at most `limit` a second."""

    def save(self, one_in: int) -> None:
        """Emit a record of at most one in so many; 0 for as many as are wanted."""

    @property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """Return further parts of the summary."""
        return {}

    def close(self) -> None:
        pass
