# SPDX-License-Identifier: Apache-2.0
"""Reports: differences of snapshots, and their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from wptrace.flows.io.kinds import OPERATION, REQUEST
from wptrace.flows.io.options import COMM
from wptrace.flows.io.parts.owners import KINDS
from wptrace.model.distribution import Distribution
from wptrace.model.kind import ALL, CPU, OTHERS, Comm, Group, Kind, Label, Noun
from wptrace.model.report import BYTES, UNTIMED, Overhead, Report, Snapshot, arranged, everywhere, since

FLUSH = REQUEST.group("sda", "flush")


def snapshot_of(times: int, **counts: int) -> Snapshot:
    total = Distribution()
    for _ in range(times):
        total.add(1000)
    return Snapshot(0, {}, {FLUSH: {"total": total}}, {FLUSH: Counter(counts)}, Overhead(0, 0, 0, 0, 0, 0))


def test_what_happens_to_what_is_not_over_has_a_row() -> None:
    cells, counters = since(snapshot_of(3, asked=5), snapshot_of(3, asked=1))
    assert counters == {FLUSH: {"asked": 4}}
    found = Report("interval", 0, 0, {}, arranged(cells, [REQUEST]), counters, Overhead(0, 0, 0, 0, 0, 0))
    (row,) = found.rows
    assert (row.group, row.metric, row.distribution.count, row.share) == (FLUSH, "total", 0, 0.0)


def test_where_nothing_happened_there_is_no_row() -> None:
    cells, _ = since(snapshot_of(3, asked=5), snapshot_of(3, asked=5))
    assert cells == {}
    # Changes of these counters alone are not worth a row.
    cells, _ = since(snapshot_of(3, **{BYTES: 8, UNTIMED: 1}), snapshot_of(3))
    assert cells == {}


OWNED = KINDS[COMM][2]


def owners(folded: dict[str, int] | None = None, **times: int) -> Snapshot:
    """Make a snapshot with this many objects of each owner."""

    def group(name: str) -> Group:
        return OWNED.group("sda", "read", OTHERS if name == "others" else Comm(name))

    cells = {group(name): snapshot_of(count).cells[FLUSH] for name, count in times.items()}
    counters = {group(name): Counter({BYTES: 512 * count}) for name, count in times.items()}
    gone = {group(name): count for name, count in (folded or {}).items()}
    return Snapshot(0, {}, cells, counters, Overhead(0, 0, 0, 0, 0, 0), gone)


@pytest.mark.parametrize(
    ("earlier", "now", "grown"),
    [
        # The others have got dd's counts, which are not new.
        (owners(dd=100, others=5), owners({"dd": 1}, others=107), {"others": 2}),
        (owners(dd=100), owners({"dd": 1}, others=100), {}),
        # The owner came back, with less or more than it had before.
        (owners(dd=100, others=5), owners({"dd": 1}, dd=3, others=105), {"dd": 3}),
        (owners(dd=100, others=5), owners({"dd": 1}, dd=300, others=105), {"dd": 300}),
        # The owner left and came back again.
        (owners({"dd": 1}, dd=3, others=105), owners({"dd": 2}, dd=4, others=108), {"dd": 4}),
        # The owner came and left in between.
        (owners(others=5), owners({"dd": 1}, others=9), {"others": 4}),
        # A capture does not say who left.
        (owners(dd=100, others=5), owners(others=107), {"others": 2}),
        (owners(dd=100, cp=1), owners(dd=101, cp=1), {"dd": 1}),
    ],
)
def test_owners_that_left_are_among_the_others(earlier: Snapshot, now: Snapshot, grown: dict[str, int]) -> None:
    cells, counters = since(now, earlier)
    assert {str(group.values[-1]): stages["total"].count for group, stages in cells.items()} == grown
    assert {str(group.values[-1]): counts[BYTES] // 512 for group, counts in counters.items()} == grown
    # Both snapshots are unchanged.
    assert all(stages["total"].count for one in (earlier, now) for stages in one.cells.values())


def test_what_two_snapshots_share_did_not_change() -> None:
    first = owners(dd=100, cp=1)
    second = first._replace(cells={**first.cells})
    assert since(second, first) == ({}, {})


def test_who_stays_idle_costs_no_look_into_it_when_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    first = owners(dd=100, cp=1, tar=5)
    gone = OWNED.group("sda", "read", Comm("dd"))

    def left(table: Mapping[Group, Any]) -> dict[Group, Any]:
        return {group.of_others if group == gone else group: found for group, found in table.items()}

    second = first._replace(cells=left(first.cells), counters=left(first.counters), folded={gone: 1})
    looked = []

    def delta(self: Distribution, earlier: Distribution) -> Distribution:
        looked.append(self.count)
        return Distribution()

    monkeypatch.setattr(Distribution, "delta", delta)
    assert since(second, first) == ({}, {})
    # Only that of the others, who have as much as before.
    assert looked == [100]


# --- Rows -------------------------------------------------------------------------------------------------------------

COSTS = Overhead(0, 0, 0, 0, 0, 0)
TASKS = Kind("on_cpu", Noun("task"), [Label("cpu", CPU), Label("who", "text")], ranked=True)


def one_of(ns: int, **stages: int) -> dict[str, Distribution]:
    found = {}
    for name, took in {"total": ns, **stages}.items():
        found[name] = Distribution()
        found[name].add(took)
    return found


def report_of(cells: Mapping[Group, dict[str, Distribution]], **counters: Mapping[Group, Mapping[str, int]]) -> Report:
    return Report(
        "summary", 0, 0, {}, arranged(cells, [REQUEST, OPERATION, TASKS]), counters.get("counters", {}), COSTS
    )


def test_rows_are_by_place_and_kind_and_ranked_ones_by_what_they_took() -> None:
    whole = Kind("machine", Noun("machine"), [])
    order = [
        whole.group(),
        REQUEST.group(ALL, "read"),
        REQUEST.group("sda", "read"),
        REQUEST.group("sda", "write"),
        OPERATION.group("sda", "read"),
        REQUEST.group("sdb", "flush"),
    ]
    ranked = [TASKS.group(7, "b"), TASKS.group(3, "a"), TASKS.group(10, "a"), TASKS.group("others", "c")]
    cells = {group: one_of(5) for group in reversed(order)}
    cells.update((group, one_of(9 if group.values[0] == 7 else 5)) for group in reversed(ranked))
    assert list(arranged(cells, [whole, REQUEST, OPERATION, TASKS])) == [*order, *ranked]


def test_a_share_is_that_of_the_own_total_or_of_all_ranked_ones() -> None:
    read = REQUEST.group("sda", "read")
    cells = {read: one_of(100, device=80, unattributed=0), **{TASKS.group(0, who): one_of(25) for who in "abc"}}
    found = report_of({**cells, TASKS.group(0, "d"): one_of(125)})
    shares = [("device", 0.8), ("total", 1.0), ("total", 0.625), *[("total", 0.125)] * 3]
    # What took no time, and is rare, has no row.
    assert [(row.metric, row.share) for row in found.rows] == shares
    # Those that are left out are still part of the whole.
    few = found.only([TASKS.group(0, "a"), read])
    assert [(row.metric, row.share) for row in few.rows] == [shares[-1], *shares[:2]]


def test_what_is_not_told_apart_is_added_up() -> None:
    reads = {REQUEST.group(dev, "read"): one_of(10, device=7) for dev in ("sda", "sdb")}
    alone = one_of(5, device=5)
    write, operation = REQUEST.group("sdb", "write"), OPERATION.group("sda", "read")
    counters = {
        **{group: {BYTES: 512, UNTIMED: 1, "merged": 3} for group in reads},
        operation: {BYTES: 512, "merged": 1},
    }
    found = report_of({**reads, write: alone, operation: one_of(30)}, counters=counters)
    anywhere = REQUEST.group(ALL, "read")
    assert everywhere(found.cells)[write.everywhere]["total"] is alone["total"]
    for merged in (found.everywhere(), found.without(["dev"]), found.without(["dev"], [REQUEST])):
        assert (merged.cells[anywhere]["total"].sum, merged.cells[anywhere]["device"].count) == (20, 2)
        assert merged.counters[anywhere] == {BYTES: 1024, UNTIMED: 2, "merged": 6}
        assert merged.events(anywhere) == {"merged": 6}
        # The bytes of operations are those of their requests.
        assert merged.bytes == 1024
    assert operation in found.without(["dev"], [REQUEST]).cells
    assert operation not in found.without(["dev"]).cells


def test_costs_are_those_since_and_memory_is_a_level() -> None:
    assert Overhead(10, 20, 30, 40, 50, 60).since(Overhead(1, 2, 3, 4, 5, 6)) == Overhead(9, 18, 27, 40, 50, 54)
