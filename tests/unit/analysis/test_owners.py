# SPDX-License-Identifier: Apache-2.0
"""The rows of the largest owners, and one for all others."""

from __future__ import annotations

from collections import Counter

from tests.unit.outputs.samples import distribution
from wptrace.analysis.owners import folded
from wptrace.flows.io.kinds import OPERATION
from wptrace.flows.io.options import CGROUP, COMM, PROCESS
from wptrace.flows.io.parts.owners import KINDS
from wptrace.model.kind import NOBODY, OTHERS, TOTAL, Comm, Group, Task
from wptrace.model.report import BYTES, arranged

OPERATIONS, _, REQUESTS = KINDS[PROCESS]


def dd(pid: int, op: str = "read", dev: str = "sda") -> Group:
    return OPERATIONS.group(dev, op, Task("dd", pid))


def test_the_smaller_ones_share_a_row_for_each_device_and_operation() -> None:
    cells = {dd(pid, op): {TOTAL: distribution([pid * 10, pid])} for pid in (1, 2, 3, 4) for op in ("read", "write")}
    cells[dd(1, dev="sdb")] = {TOTAL: distribution([7])}
    counters = {group: {BYTES: 4096} for group in cells}
    found, sums = folded(cells, counters, 2)
    others = [OPERATIONS.group(*labels, OTHERS) for labels in (("sda", "read"), ("sda", "write"), ("sdb", "read"))]
    assert set(found) == {dd(pid, op) for pid in (3, 4) for op in ("read", "write")} | set(others)
    assert (found[others[0]][TOTAL].count, found[others[0]][TOTAL].sum) == (4, 33)
    assert sums[others[0]] == {BYTES: 8192}
    assert sum(one[TOTAL].sum for one in found.values()) == sum(one[TOTAL].sum for one in cells.values())
    assert sum(one[TOTAL].count for one in found.values()) == 17
    # The input is unchanged.
    assert cells[dd(1)][TOTAL].count == 2


def test_an_owner_counts_with_all_that_is_of_it() -> None:
    """Each of its rows is smaller than the other owner's."""
    cells = {dd(1, op): {TOTAL: distribution([60])} for op in ("read", "write")}
    cells[dd(2)] = {TOTAL: distribution([100])}
    found, _ = folded(cells, {}, 1)
    assert set(found) == {dd(1), dd(1, "write"), OPERATIONS.group("sda", "read", OTHERS)}


def test_what_found_no_row_in_the_kernel_is_with_the_others() -> None:
    others, nobody = (OPERATIONS.group("sda", "read", who) for who in (OTHERS, NOBODY))
    cells = {others: {TOTAL: distribution([900])}, nobody: {TOTAL: distribution([1])}}
    cells.update({dd(pid): {TOTAL: distribution([pid])} for pid in (5, 6)})
    found, _ = folded(cells, {}, 1)
    assert set(found) == {dd(6), others, nobody}
    assert found[others][TOTAL].sum == 905


def test_rows_without_owners_stay_and_0_keeps_all() -> None:
    plain = OPERATION.group("sda", "read")
    cells = {plain: {TOTAL: distribution([1])}, dd(1): {TOTAL: distribution([1])}, dd(2): {TOTAL: distribution([1])}}
    assert set(folded(cells, {}, 0)[0]) == set(cells)
    assert plain in folded(cells, {}, 1)[0]
    # Rows with the most time come first, and the others' last.
    rows = arranged(cells, (OPERATION, OPERATIONS))
    assert [group.kind for group in rows] == [OPERATION, OPERATIONS, OPERATIONS]


def test_counters_of_what_has_no_cell_are_kept() -> None:
    _, sums = folded({}, {dd(1): {BYTES: 5}, dd(2): {BYTES: 6}}, 1)
    assert sum(map(Counter, sums.values()), Counter()) == {BYTES: 11}


def test_labels_in_json() -> None:
    def fields(by: str, owner: object) -> dict[str, object]:
        found = KINDS[by][0].group("sda", "read", owner).fields
        return {name: value for name, value in found.items() if name not in ("dev", "op")}

    assert fields(PROCESS, Task("dd", 7, again=2)) == {
        "owner": "dd[7]#2",
        "task": {"comm": "dd", "pid": 7, "tid": 0, "again": 2},
    }
    assert fields(PROCESS, Task("dd", 7)) == {"owner": "dd[7]", "task": {"comm": "dd", "pid": 7, "tid": 0}}
    assert fields(PROCESS, OTHERS) == {"owner": "others", "task": None}
    # A task may be named anything.
    assert fields(COMM, Comm("others")) == {"owner": "others", "comm": "others"}
    assert fields(COMM, OTHERS) == {"owner": "others", "comm": None}
    assert fields(CGROUP, "/app") == {"owner": "/app", "cgroup": "/app"}
    assert fields(CGROUP, NOBODY) == {"owner": "nobody", "cgroup": None}
