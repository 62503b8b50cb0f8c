# SPDX-License-Identifier: Apache-2.0
"""Operations, page-cache hits and requests, as every trace of the path flow counts them; without operations also the
tasks that sleep for requests of their own (bpf_src/block/path/sleep.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import DeviceCells
from wptrace.engine.resolver import Loaded
from wptrace.flows.io import hooks
from wptrace.flows.io.kinds import HIT, OPERATION, REQUEST, REQUEST_STAGES, SLEEP, SPARSE
from wptrace.flows.io.operations import CALLS, calls
from wptrace.flows.io.parts.part import Distributions, Part, Tracing
from wptrace.kernel import blockdev
from wptrace.model.distribution import merge_stages
from wptrace.model.kind import TOTAL, Group, Kind
from wptrace.model.report import BYTES

# The total of the request of an operation with a single one (ONLY_STAGE_REQUEST of bpf_src/block/path/account.h).
_REQUEST = "request"
# Reads and writes (PLAIN_KINDS of bpf_src/block/path/shared.h).
_PLAIN_KINDS = 2


class Counts(Part):
    """Counts an operation with its only request in one cell, `only`, and all others in separate cells."""

    def __init__(self, operations: bool = True, everything: bool = True) -> None:
        """Without operations, count requests and sleeps only; `everything`: of all devices."""
        super().__init__()
        self._operations, self._everything = operations, everything

    def make_room(self, obj: BpfObject, devices: int) -> None:
        kinds, ops = len(obj.enum("op_kind")), len(obj.enum("block_op"))
        obj.maps["request_cells"].max_entries = devices * ops
        if self._operations:
            obj.maps["op_cells"].max_entries = obj.maps["hit_cells"].max_entries = devices * kinds
            obj.maps["only_cells"].max_entries = devices * _PLAIN_KINDS
        else:
            obj.maps["sleep_cells"].max_entries = devices * ops

    def start(self, tracing: Tracing) -> None:
        obj, way = tracing.obj, tracing.loaded.way
        obj.bss.seen_by_handler = way(hooks.SEEN_BY_OTHERS).name == hooks.HANDLER
        obj.bss.calls = calls(
            len(obj.view("calls")),
            obj.enum("call_kind"),
            plain=way(hooks.OPERATION).name == CALLS,
            syncs=way(hooks.SYNC).name == CALLS,
            events=not self._operations,
        )
        kinds, ops, only = obj.enum("op_kind"), obj.enum("block_op"), obj.enum("only_stage")

        def cells(name: str, kind: Kind, of: list[str], stages: list[str], absent: Sequence[str] = ()) -> DeviceCells:
            return DeviceCells(obj.maps[f"{name}_cells"], tracing.names, kind, of, stages, True, absent)

        self.cells = {"request": cells("request", REQUEST, ops, obj.enum("request_stage"))}
        if not self._operations:
            self.cells["sleep"] = cells("sleep", SLEEP, ops, obj.enum("sleep_stage"))
            return
        absent = [name for name in SPARSE if name not in only]
        self.cells |= {
            "op": cells("op", OPERATION, kinds, obj.enum("op_stage")),
            "only": cells("only", OPERATION, kinds[:_PLAIN_KINDS], only, absent),
            "hit": cells("hit", HIT, kinds, [TOTAL]),
        }

    def notes(self, loaded: Loaded) -> list[str]:
        memory = blockdev.swaps_without_requests() if self._everything else []
        return [f"swap-ins from {', '.join(memory)} are in no row: they make no requests"] if memory else []

    def add_distributions(self, found: Distributions) -> None:
        for cells in self.cells.values():
            for group, stages in cells.distributions.items():
                merge_stages(found, group, {name: stage for name, stage in stages.items() if name != _REQUEST})
                if _REQUEST in stages:
                    shared = {name: stages[name] for name in REQUEST_STAGES}
                    merge_stages(found, Group(REQUEST, group.values), {**shared, TOTAL: stages[_REQUEST]})

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        super().add_counters(found)
        for group, counters in self.cells["only"].counters.items() if self._operations else ():
            found.setdefault(Group(REQUEST, group.values), Counter())[BYTES] += counters["request_bytes"]

    # --- The books ------------------------------------------------------------------------------------------------

    def requests(self) -> Iterator[tuple[Group, Mapping[str, int]]]:
        for name in ("request", "only"):
            if name in self.cells:
                yield from self.cells[name].counters.items()

    @property
    def requests_ended(self) -> tuple[int, int]:
        """How many requests ended, and how many of them failed."""
        request = self.cells["request"]
        if not self._operations:
            return request.total("finished"), request.total("failed")
        only = self.cells["only"]
        finished = request.total("finished") + only.total("finished")
        return finished, request.total("failed") + only.total("request_failed")

    @property
    def operations_ended(self) -> tuple[int, int]:
        cells = [self.cells[name] for name in ("op", "only", "hit") if name in self.cells]
        return sum(one.total("finished") for one in cells), sum(one.total("failed") for one in cells)
