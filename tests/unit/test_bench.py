# SPDX-License-Identifier: Apache-2.0
"""Figures of the benchmark, from its measurements."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

from bench import table, tools
from bench.guest import closest
from bench.instructions import differences, disagreements, figures
from bench.paired import estimate

Found = dict[str, Any]


def load(*added: float, reader: tuple[float, ...] = ()) -> Found:
    return {"added": list(added), "reader": list(reader), "latency": [5000.0], "cpu": [5000.0], "added_latency": []}


def run(**loads: Found) -> Found:
    base = {"cpu": [15000.0], "latency": [5000.0, 5004.0]}
    tool = {"name": "io", "tells": "all", "peer": "", "loads": loads, "idle_per_s": 2e6}
    return {"kernel": "6.12.95", "requests": 20000, "base": dict.fromkeys(loads, base), "tools": [tool]}


def test_a_figure_is_the_mean_of_the_repeats() -> None:
    assert figures(run(inline=load(500.0, 510.0, reader=(90.0, 110.0))))["io", "inline"] == {
        "added": 505.0,
        "reader": 100.0,
        "spread": 10.0,
        "reader_spread": 20.0,
    }


def test_repeats_that_differ_by_more_than_the_resolution_are_reported() -> None:
    assert disagreements(run(inline=load(500.0, 549.0))) == []
    assert disagreements(run(inline=load(500.0, 551.0))) == ["io, inline: repeats differ by 51 instructions"]
    end = {**run(inline=load(1.0)), "end": {"inline": {"cpu": [1.0], "latency": [5100.0]}}}
    assert disagreements(end) == ["untraced, inline: runs differ by 100 instructions"]


def test_a_run_that_something_else_took_part_in_is_left_out() -> None:
    assert closest([500.0, 770.0, 505.0], 2) == [500.0, 505.0]
    assert closest([770.0, 500.0, 765.0], 2) == [765.0, 770.0]
    assert closest([500.0], 2) == [500.0]
    assert closest([], 2) == []


def test_boots_that_differ_are_reported() -> None:
    assert differences(run(inline=load(500.0)), run(inline=load(540.0), late=load(1.0))) == []
    assert differences(run(inline=load(500.0)), run(inline=load(560.0))) == ["io, inline: 500 and 560 instructions"]


def test_the_interval_of_a_ratio_covers_it() -> None:
    chance = random.Random(3)  # noqa: S311
    ratios = [math.exp(chance.gauss(math.log(1.1), 0.05)) for _ in range(40)]
    ratio, low, high = estimate(ratios)
    assert low < 1.1 < high
    assert low < ratio < high
    assert high - low < 0.08
    assert estimate([1.25] * 5) == pytest.approx((1.25, 1.25, 1.25))


def test_tables_go_between_their_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "overhead.md"
    page.write_text(
        "# Costs\n\n<!-- instructions -->\nold\n<!-- end -->\n\n<!-- reader -->\nkept\n<!-- end -->\nafter\n"
    )
    monkeypatch.setattr(table, "DOCUMENT", page)
    on = {"wptrace": "0.1.0", "commit": "abc", "fio": "fio-3.33", "qemu": "QEMU emulator version 7.2 (x)", "peers": {}}
    part = {
        "command": "python3 -m bench instructions",
        "at": "2026-11-21 04:00",
        "on": on,
        "results": run(inline=load(5)),
    }
    for _ in range(2):
        table.write({"instructions": part})
    text = page.read_text()
    assert text.count("| `wptrace io`") == 1
    assert "old" not in text
    assert "kept" in text
    assert text.endswith("after\n")


def test_the_page_begins_with_per_cent_of_its_own_figures() -> None:
    page = (table.DOCS / "overhead.md").read_text()
    assert page.partition("<!-- percent -->")[2].partition("<!-- end -->")[0].strip() == table.percent(page)
    rows = table.percent(page).splitlines()[2:]
    assert len(rows) == len(table._COSTS)


def test_per_cent_are_instructions_over_those_of_a_second() -> None:
    head = "| a | b | c | d | e | f | g | h |"
    row = "| `wptrace io` | all | +100 | +2,000 | +5 | +1 | 500 to 1,000 | 30.0 |"
    (found,) = table.percent(f"<!-- instructions -->\n{head}\n{row}\n<!-- end -->").splitlines()[2:]
    # 3,000 instructions a request, and a constant hundredth of a CPU.
    cells = [cell.strip() for cell in found.strip("|").split("|")]
    assert cells == ["`wptrace io`", "3,000", "1.1 %", "2.0 %", "11.0 %", "101.0 %"]


def test_every_tool_says_what_it_tells() -> None:
    names = [tool.name for tool in tools.TOOLS]
    assert len(names) == len(set(names))
    assert all(tool.shows and tool.loads for tool in tools.TOOLS)
    assert tools.chosen(["biosnoop"]) == [tool for tool in tools.PEERS if tool.name == "biosnoop"]


def test_disks_are_named_to_wptrace() -> None:
    (tool,) = (tool for tool in tools.WPTRACE if tool.name == "size")
    assert tool.command(["a", "b"])[1:] == ["-m", "wptrace", "size", "--dev", "a", "--dev", "b", "--json"]
