# SPDX-License-Identifier: Apache-2.0
"""Cells of the path flow, read while programs count in them: figures only grow, at any moment."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from tests.thorough import cases
from wptrace.bpf.maps import Map
from wptrace.engine.cells import Cells
from wptrace.flows.io.kinds import OPERATION, REQUEST_STAGES, SPARSE
from wptrace.flows.io.parts.counts import Counts
from wptrace.flows.io.parts.part import Distributions
from wptrace.model.distribution import SLOTS, Distribution, index
from wptrace.model.kind import TOTAL

_HIST = ("sum", "low", "max", "squares", "squares_high")
_ALL_BITS = (1 << 64) - 1
GROUP = OPERATION.group("sda", "write")


class CellMap:
    """A cell of one CPU, written word by word in the order of the programs."""

    def __init__(self, counters: tuple[str, ...], stages: tuple[str, ...]) -> None:
        self.stages = stages
        self.counters = counters
        spans = [(name, 0) for name in counters]
        for number in range(len(stages)):
            spans += [*((f"stages[{number}].{name}", 0) for name in _HIST), (f"stages[{number}].slots", SLOTS)]
        self.cell = [0] * (len(counters) + (len(_HIST) + SLOTS) * len(stages))
        layout = struct.Struct("<" + f"{len(counters)}Q" + f"{len(_HIST)}Q{SLOTS}I" * len(stages))

        head = struct.Struct(f"<{len(counters)}Q")
        self.value_codec = SimpleNamespace(
            struct=layout,
            size=layout.size,
            spans=lambda: iter(spans),
            before=lambda _: SimpleNamespace(struct=head, size=head.size),
        )

    def raw(self, key: int) -> memoryview | None:
        return memoryview(self.value_codec.struct.pack(*self.cell)) if key == 0 else None

    def count(self, **times: int) -> Iterator[None]:
        """Count an operation: stages first and then counters, as count_alone() and count_with_request() do."""
        for number, stage in enumerate(self.stages):
            value = times.get(stage, 0)
            if not value:
                continue
            at = len(self.counters) + number * (len(_HIST) + SLOTS)
            self.cell[at + 1] = max(self.cell[at + 1], value ^ _ALL_BITS)
            self.cell[at + 2] = max(self.cell[at + 2], value)
            yield
            self.cell[at] += value
            yield
            self.cell[at + len(_HIST) + index(value)] += 1
            yield
        self.cell[self.counters.index("finished")] += 1
        yield


OP_STAGES = (
    "submit",
    "fs",
    "journal",
    "dirty_limit",
    "layers",
    *REQUEST_STAGES,
    "wakeup",
    "return",
    "unattributed",
    "total",
)
ONLY_STAGES = ("submit", "fs", *REQUEST_STAGES, "wakeup", "return", "total", "request")


class Path:
    """The cells of operations, and of operations with their only request."""

    def __init__(self) -> None:
        self.op = CellMap(("finished", "failed", "bytes", "requests"), OP_STAGES)
        self.only = CellMap(("finished", "failed", "bytes", "request_bytes", "request_failed"), ONLY_STAGES)
        self.counts = Counts()
        absent = [name for name in SPARSE if name not in ONLY_STAGES]
        self.counts.cells = {
            "op": Cells(cast("Map", self.op), [GROUP], list(OP_STAGES), True),
            "only": Cells(cast("Map", self.only), [GROUP], list(ONLY_STAGES), True, absent),
        }

    def read_cells(self) -> dict[str, Distribution]:
        for cells in self.counts.cells.values():
            cells.read()
        found: Distributions = {}
        self.counts.add_distributions(found)
        return found[GROUP] if TOTAL in found.get(GROUP, {}) else {}


def grew(now: dict[str, Distribution], before: dict[str, Distribution]) -> None:
    for name, found in now.items():
        if name in before:
            assert found.delta(before[name]).shrunk == 0, name
            assert all(new >= old for new, old in zip(found.buckets, before[name].buckets)), name


@pytest.mark.parametrize("seed", range(cases(20, 6)))
def test_what_is_reported_only_grows_whenever_it_is_read(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    path = Path()
    running: list[Iterator[None]] = []
    made = {"op": 0, "only": 0}
    last: dict[str, Distribution] = {}
    # At most one of each kind, because no program interrupts itself.
    for _ in range(60):
        times = {name: chance.choice((0, 5, 300)) for name in ("submit", "fs", "queue", "device")}
        if chance.random() < 0.5:
            made["op"] += 1
            sparse = {name: chance.choice((0, 0, 900)) for name in ("journal", "layers", "unattributed")}
            running.append(path.op.count(**times, **sparse, total=2000))
        else:
            made["only"] += 1
            running.append(path.only.count(**times, total=2000, request=1000))
        while running and chance.random() < 0.97:
            one = chance.choice(running)
            if next(one, "over") == "over":
                running.remove(one)
            if chance.random() < 0.2:
                now = path.read_cells()
                grew(now, last)
                last = now
        # The rest of one kind ends before the next one begins.
        for one in running:
            for _ in one:
                pass
        running.clear()
    now = path.read_cells()
    grew(now, last)
    assert {name: found.count for name, found in now.items()} == dict.fromkeys(OP_STAGES, sum(made.values()))
    assert sum(cells.shrunk for cells in path.counts.cells.values()) == 0


def test_a_stage_that_others_cannot_have_is_seen_before_the_operation_ends() -> None:
    """A trace once failed on this: the wait for a journal was there before its operation."""
    path = Path()
    for _ in path.only.count(fs=5, device=300, total=305, request=300):
        pass
    before = path.read_cells()
    assert before["journal"].buckets[0] == before["journal"].count == 1
    operation = path.op.count(fs=5, journal=900, total=905)
    for _ in range(6):
        next(operation)
    meanwhile = path.read_cells()
    grew(meanwhile, before)
    for _ in operation:
        pass
    after = path.read_cells()
    grew(after, meanwhile)
    assert (after["journal"].count, after["journal"].buckets[0], after["journal"].sum) == (2, 1, 900)
