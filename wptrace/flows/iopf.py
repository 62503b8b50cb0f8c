# SPDX-License-Identifier: Apache-2.0
"""`wptrace iopf`: how long devices wait when they meet a page of a process that is not there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from wptrace.bpf.layout import text
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Reader
from wptrace.engine import filters
from wptrace.engine.cells import Cells
from wptrace.engine.filters import Filter, Predicate
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import Hook, Way
from wptrace.engine.resolver import Loaded, load
from wptrace.errors import UnsupportedError, UsageError
from wptrace.model.book import (
    INCONSISTENT,
    RECURSION,
    STATE_FULL,
    UNMATCHED_END,
    UNMATCHED_START,
    Book,
    Cause,
)
from wptrace.model.kind import DEVICE, PASID, REQUESTS, Group, Kind, Label, Noun, Point, Stage, names
from wptrace.model.report import BYTES, InFlight, Snapshot, Source, Start

_R = Point("R", "first page reported")
_L = Point("L", "last page reported")
_H = Point("H", "handled")
_A = Point("A", "answered")

_SYS = Path("/sys")
# Kernel memory for rows is this at most, but for the fewest rows.
_CELLS_BYTES = 32 << 20
_FEWEST, _MOST = 32, 256

_REFUSED = Cause("refused", "the kernel did not take a fault: nobody handles the address space that it is in")
_NO_ROW = Cause("no_row", "a device and PASID found no row of their own: counted under other")
_CAUSES = {cause.name: cause for cause in (_NO_ROW, UNMATCHED_END)}

_FAULT, _HANDLING = "fault", "handling"
# The ways that are tracepoints alone.
_SMMU, _INTEL = "smmu", "intel"
_OTHER = "other"
_NOTHING = (
    "this kernel shows no I/O page faults: it has neither the SMMU's tracepoints, nor iommu_report_device_fault to"
    " probe, nor the tracepoints of Intel's IOMMU"
)


FAULT = Kind(
    "request",
    Noun("fault"),
    (Label("dev", DEVICE), Label("pasid", PASID)),
    (
        Stage(
            "gather",
            _R,
            _L,
            "the device reports the other pages of a group",
            "the device asks for many pages at once, or the IOMMU hands them over slowly",
        ),
        Stage(
            "queue",
            _L,
            _H,
            "the fault waits for somebody to handle it",
            "the workers that handle faults are too few, or wait for a CPU",
        ),
        Stage(
            "handle",
            _H,
            _A,
            "the pages are brought in and the device gets its answer",
            "memory is reclaimed, swapped in or migrated, or others hold mmap_lock: pin or touch the memory first",
        ),
    ),
    sized=True,
    constants={"op": "fault"},
)


def device_named(name: str, sys: Path = _SYS) -> str:
    """The name, if it is that of a device: another one would be waited for in vain."""
    # "" and ".." are folders as well.
    known = name not in ("", ".", "..") and "/" not in name
    if known and ((sys / "devices" / name).is_dir() or any(sys.glob(f"bus/*/devices/{_literal(name)}"))):
        return name
    raise UsageError(f"there is no device {name or repr(name)}", hint="ls /sys/bus/*/devices lists the devices")


def _literal(name: str) -> str:
    """Return a pattern that matches only this name."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _pasid(text: str) -> int:
    # A PASID has 20 bits.
    if not text.isascii() or not text.isdecimal() or len(text) > 7 or int(text) >= 1 << 20:
        raise UsageError(f"{text!r} is not a PASID: it is a number below {1 << 20}")
    return int(text)


class IopfFlow(Flow):
    name = "iopf"
    object = "iopf"
    view = "faults"
    kinds = (FAULT,)
    hooks = (
        Hook(
            _FAULT,
            "report (R) and answer (A) of a fault",
            (
                Way(("exit_raw_tp",), ("entry_raw_tp",), _SMMU),
                Way(("respond_fentry", "refuse_fexit"), ("report_fentry",)),
                Way(("reply_fentry", "refuse_fexit"), ("report_fentry",)),
                Way(("respond_kprobe", "refuse_kretprobe"), ("report_kprobe",)),
                Way(("reply_kprobe", "refuse_kretprobe"), ("report_kprobe",)),
                Way(("submit_raw_tp",), ("request_raw_tp",), _INTEL),
            ),
            ("gather", "handle"),
            "no fault can be seen",
        ),
        Hook(
            _HANDLING,
            "handling of a fault (H)",
            ("handle_fentry", "serve_fentry", "handle_kprobe", "serve_kprobe"),
            ("queue",),
            "queue is in handle",
            required=False,
        ),
    )
    # Asked of rows, which are few: the programs follow all.
    filters = (
        Predicate(
            "dev",
            "a device by its name in sysfs, such as 0000:75:00.0; repeatable (default: all)",
            device_named,
            short="d",
            metavar="DEVICE",
            repeatable=True,
        ),
        Predicate("pasid", "an address space by its number; repeatable", _pasid, metavar="PASID", repeatable=True),
    )

    @staticmethod
    def configure(obj: BpfObject) -> None:
        """A size that fits the machine."""
        obj.maps["cells"].max_entries = rows(obj.maps["blank"].value_codec.size, libbpf().cpus)

    def __init__(self, wanted: Filter) -> None:
        self._filter = wanted
        self._groups: set[Group] = set()

    def start(self, reader: Reader) -> Start:
        try:
            self._loaded = loaded = load(self.object, self.hooks, self.configure)
        except UnsupportedError as error:
            raise UnsupportedError(_NOTHING, hint="wptrace doctor -v says what was tried") from error
        obj = loaded.obj
        if loaded.way(_FAULT).name in (_SMMU, _INTEL):
            # Tracepoints alone have other keys than the kernel's queue, so H would never find its fault.
            loaded.drop(_HANDLING)
        # The row of what finds none.
        obj.maps["cells"][{}] = [{}] * libbpf().cpus
        self._cells = Cells(obj.maps["cells"], [], obj.enum("iopf_stage"))
        self._causes = [_CAUSES[name] for name in obj.enum("iopf_cause")]
        whole, part = loaded.sections(_FAULT), loaded.sections(_HANDLING)
        hows = {"gather": whole, "queue": part, "handle": whole}
        chosen = filters.describe(self._filter, self.filters)
        sources = [Source(name, hows[name]) for name in names(self.kinds)]
        return self._started(chosen, sources, _notes(loaded))

    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """Faults without an answer."""
        return {"unanswered": [one.plain for one in self.in_flight(0)]}

    def _wanted(self, row: Any) -> bool:
        if self._filter and not text(row.dev):
            # That of all who found none.
            return False
        devices, pasids = self._filter.get("dev"), self._filter.get("pasid")
        # The programs keep only this much of a name.
        kept = self._obj.struct("iopf_row").member("dev").size - 1
        return not (devices and text(row.dev) not in [name[:kept] for name in devices]) and not (
            pasids and row.pasid not in pasids
        )

    def _group(self, row: Any) -> Group:
        """The device and its address space."""
        if not text(row.dev):
            return FAULT.group(_OTHER, _OTHER)
        return FAULT.group(text(row.dev), None if row.pasid == self._obj.constants["NO_PASID"] else row.pasid)

    def _follow(self) -> None:
        """Rows come with the first fault of a device and address space."""
        for row in self._obj.maps["cells"]:
            group = self._group(row)
            if group not in self._groups and self._wanted(row):
                self._groups.add(group)
                self._cells.follow(row, group)

    def snapshot(self) -> Snapshot:
        self._follow()
        self._cells.read()
        total, page = self._cells.total, os.sysconf("SC_PAGE_SIZE")
        causes = dict(zip(self._causes, self._obj.bss.loss))
        ran = [program.statistics() for program in self._running.programs]
        lost = {_REFUSED: total("refused"), UNMATCHED_START: total("replaced"), STATE_FULL: total("unfollowed")}
        noted = {**causes, RECURSION: sum(one.recursion_misses for one in ran), INCONSISTENT: self._cells.shrunk}
        return self._snapshot(
            {REQUESTS: Book.read(total("started"), total("finished"), lost, noted, total("failed"))},
            self._cells.copy(),
            {group: {BYTES: page * count["faults"]} for group, count in self._cells.counters.items()},
            ran,
        )

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        """Faults without an answer, oldest first."""
        now = time.monotonic_ns()
        # The same holds in the figures: without H, the wait for it is part of handle.
        waiting = "queue" if self._running.sections(_HANDLING) else "handle"
        found = []
        for key, state in self._obj.maps["pending"].items():
            # A fault may have been reported since the look at the clock.
            age = max(now - state.first_ns, 0)
            if age < at_least_ns or not self._wanted(state):
                continue
            stage = "handle" if state.handled_ns else waiting if state.last_ns else "gather"
            fields = {"group": key.group, "address": state.address, "faults": state.faults}
            found.append(InFlight(self._group(state), age, stage, fields))
        return sorted(found, key=lambda one: -one.age_ns)


def rows(cell_bytes: int, cpus: int) -> int:
    """How many devices and PASIDs have a row: each has a cell for every CPU."""
    return min(max(_CELLS_BYTES // (cell_bytes * cpus), _FEWEST), _MOST)


def _notes(loaded: Loaded) -> list[str]:
    source = loaded.way(_FAULT).name
    if source == _SMMU:
        return ["the tracepoints of the SMMU know neither groups nor handling: all of a fault is in handle"]
    if source == _INTEL:
        return ["the tracepoints of Intel's IOMMU know no handling: queue is in handle"]
    if not loaded.sections(_HANDLING):
        return [f"this kernel shows no handling of a fault: queue is in handle ({loaded.attempts.reason(_HANDLING)})"]
    return ["who handles faults by other means than the kernel's shared virtual addressing has queue in handle"]
