# SPDX-License-Identifier: Apache-2.0
"""Cells of sizes are added up over CPUs and reads, even if their counts wrap."""

from __future__ import annotations

import struct
from typing import cast

from wptrace.bpf.maps import Map
from wptrace.flows.size import REQUEST, Sizes
from wptrace.model.distribution import Distribution
from wptrace.model.tally import Tally

PLACES = 4
READ, FLUSH = REQUEST.group("sda", "read"), REQUEST.group("sda", "flush")


class Layout:
    # The order is not that of the C source: fields are found by name.
    fields = (
        "unplaced_bytes",
        "unplaced",
        *(f"places[{place}].{name}" for place in range(PLACES) for name in ("sequential", "key", "random")),
    )
    struct = struct.Struct(f"<QQ{3 * PLACES}I")
    size = struct.size


class FakeMap:
    """Two CPUs. A place has the sequential count, the size plus 1, and the random count."""

    value_codec = Layout()

    def __init__(self) -> None:
        empty = (0, 0, *((0,) * 3 * PLACES))
        self.cells = {key: [empty, empty] for key in range(2)}

    def raw(self, key: int) -> memoryview:
        return memoryview(b"".join(Layout.struct.pack(*cell) for cell in self.cells[key]))

    def put(self, key: int, cpu: int, *places: tuple[int, int, int], unplaced: tuple[int, int] = (0, 0)) -> None:
        numbers = [number for place in places for number in place]
        self.cells[key][cpu] = (*unplaced[::-1], *numbers, *((0,) * (3 * PLACES - len(numbers))))


def found(made: FakeMap) -> Sizes:
    return Sizes(cast("Map", made), ["sda"], ["read", "flush"])


def counts(distribution: Distribution) -> dict[int, int]:
    assert isinstance(distribution, Tally)
    return distribution.counts


def test_cpus_are_added_up() -> None:
    made = FakeMap()
    made.put(0, 0, (3, 4097, 1), (0, 8193, 2))
    made.put(0, 1, (1, 4097, 5), unplaced=(2, 1000))
    sizes = found(made)
    sizes.read()
    stages = sizes.copy()[READ]
    assert counts(stages["sequential"]) == {4096: 4}
    assert counts(stages["random"]) == {4096: 6, 8192: 2}
    assert counts(stages["total"]) == {4096: 10, 8192: 2}
    assert sizes.count == 14
    assert sizes.bytes == {READ: 10 * 4096 + 2 * 8192 + 1000}
    assert set(sizes.copy()) == {READ}


def test_counts_may_wrap_between_two_looks() -> None:
    made = FakeMap()
    sizes = found(made)
    made.put(0, 0, (0, 513, (1 << 32) - 1))
    sizes.read()
    before = sizes.copy()
    made.put(0, 0, (0, 513, 4), (7, 1025, 0))
    sizes.read()
    sizes.read()
    assert counts(sizes.copy()[READ]["total"]) == {512: (1 << 32) + 4, 1024: 7}
    assert counts(before[READ]["total"]) == {512: (1 << 32) - 1}


def test_a_flush_is_in_no_order() -> None:
    made = FakeMap()
    made.put(1, 0, (2, 1, 3))
    sizes = found(made)
    sizes.read()
    assert {name: counts(one) for name, one in sizes.copy()[FLUSH].items()} == {"total": {0: 5}}
