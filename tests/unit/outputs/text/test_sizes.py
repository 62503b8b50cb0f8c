# SPDX-License-Identifier: Apache-2.0
"""Sizes of requests as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.outputs import samples
from tests.unit.outputs.samples import HOSTILE, PLAIN, reported, written
from wptrace.flows.size import REQUEST
from wptrace.model.book import STATE_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group
from wptrace.model.report import Report, Start
from wptrace.model.tally import Tally
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.sizes import SizesView, exact

APART = Wanted(per_device=True)
KIB = 1024


def cell(sequential: Mapping[int, int], random: Mapping[int, int]) -> dict[str, Distribution]:
    total = Tally(sequential)
    total.merge(Tally(random))
    return {"sequential": Tally(sequential), "random": Tally(random), "total": total}


def report(cells: Mapping[Group, Mapping[str, Distribution]], kind: str = "interval", lost: int = 0) -> Report:
    count = sum(stages["total"].count for stages in cells.values())
    sizes = {group: stages["total"].sum for group, stages in cells.items()}
    return samples.report(cells, sizes, kind, Book.read(count + lost, count, {STATE_FULL: lost}, {}))


def shown(wanted: Wanted, found: object) -> list[str]:
    return written(SizesView(wanted), Start("size", "", "6.12", {"dev": ["sda"]}, [], (REQUEST,), []), found)


SDA, SDB = REQUEST.group("sda", "read"), REQUEST.group("sdb", "read")
TWO = {SDA: cell({4 * KIB: 3}, {4 * KIB: 1, 8 * KIB: 1}), SDB: cell({}, {4 * KIB: 5})}


def test_a_row_for_each_size() -> None:
    assert shown(PLAIN, report(TWO)) == [
        "Tracing size on sda, Linux 6.12. Ctrl-C ends.",
        "",
        "22:13:20  10 requests in 1.00 s, 44 KiB",
        "",
        "read: 10 requests, 10 /s, 44 KiB/s, 30.0% sequential",
        "  size                        count   share sequential",
        "  4 KiB                           9   90.0%      33.3%  ███████████████████████████",
        "  8 KiB                           1   10.0%       0.0%  ███",
        "  mean 4.4 KiB, p50 4 KiB, p99 8 KiB, max 8 KiB",
    ]


def test_each_device_by_itself() -> None:
    lines = shown(APART, report(TWO, "summary"))
    assert lines[2] == "Summary"
    assert "sda read: 5 requests, 5 /s, 24 KiB/s, 60.0% sequential" in lines
    assert "sdb read: 5 requests, 5 /s, 20 KiB/s, 0.0% sequential" in lines


def test_many_sizes_become_powers_of_two() -> None:
    sizes = {512 * sectors: sectors for sectors in range(1, 41)}
    found = report({SDA: cell({}, sizes)})
    rows = [line for line in shown(PLAIN, found) if " - " in line]
    names = [exact(512 << power) for power in range(7)]
    assert [row[2:21].rstrip() for row in rows] == [f"{low} - {high}" for low, high in zip(names, names[1:])]
    assert [int(row[21:35]) for row in rows] == [sum(range(low, min(2 * low, 41))) for low in (1, 2, 4, 8, 16, 32)]
    each = shown(PLAIN._replace(exact=True), found)
    assert [line[2:21].rstrip() for line in each if line.startswith("  ")][1:-1] == [exact(size) for size in sizes]


def test_flushes_have_no_size() -> None:
    flushes = Tally({0: 7})
    lines = shown(PLAIN, report({REQUEST.group("sda", "flush"): {"total": flushes}}))
    assert lines[-1] == "flush: 7 requests, 7 /s, 0 B/s"


def test_nothing_is_said_of_single_ones_in_flight() -> None:
    assert len(shown(PLAIN, [])) == 1


def test_losses_and_costs_are_reported() -> None:
    lines = shown(PLAIN._replace(statistics=True), report(TWO, lost=3))
    assert lines[-2].startswith("lost: 3 x state_full: ")
    assert lines[-1].startswith("own cost: ")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_move_no_cursor(name: str) -> None:
    lines = shown(APART, report({REQUEST.group(name, "read"): cell({}, {512: 1})}))
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (36, "36 B"),
        (511, "511 B"),
        (512, "0.5 KiB"),
        (4096, "4 KiB"),
        (131_584, "128.5 KiB"),
        (1 << 20, "1 MiB"),
        ((1 << 20) + 512, "1,024.5 KiB"),
        ((100 << 20) + 512, "102,400.5 KiB"),
        (614_401 << 10, "614,401 KiB"),
        ((3 << 30) + 512, "3,145,728.5 KiB"),
        (5 << 30, "5,120 MiB"),
    ],
)
def test_a_size_keeps_all_of_its_digits(size: int, text: str) -> None:
    assert exact(size) == text


def test_json_has_bytes_and_counts() -> None:
    rows = reported(report({SDA: TWO[SDA]}))[0]["rows"]
    assert [row["stage"] for row in rows] == ["sequential", "random", "total"]
    assert [row["counts"] for row in rows] == [{"4096": 3}, {"4096": 1, "8192": 1}, {"4096": 4, "8192": 1}]
    assert [row["share"] for row in rows] == [0.5, 0.5, 1.0]
    assert (rows[2]["sum_bytes"], rows[2]["p50_bytes"], rows[2]["max_bytes"]) == (24576, 4096, 8192)
    assert not [key for row in rows for key in row if key.endswith("_ns")]
