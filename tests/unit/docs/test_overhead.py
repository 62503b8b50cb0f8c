# SPDX-License-Identifier: Apache-2.0
"""What other pages say of the costs of tracing is in the tables of overhead.md."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.pages import ROOT, section, tables, text

(SHARES,) = tables(section("overhead.md", "# What tracing costs").partition("<!-- end -->")[0])
ADDED = {row[0]: row[1:] for row in tables(section("overhead.md", "## Instructions added to a request"))[1]}
BY = {row[0]: row[1:] for row in tables(section("overhead.md", "## Rows by owner and neighbours"))[0]}
STATEMENTS = {row[0]: row[1:] for row in tables(section("overhead.md", "### Statements and units"))[0]}
COSTS_OF_OWNERS = re.sub(r"\s+", " ", section("owners.md", "## What it costs"))


def number(cell: str) -> int:
    return int(cell.replace(",", "").replace("+", ""))


def test_the_shares_of_the_readme_are_those_of_the_table() -> None:
    shares = {row[0].removesuffix(" --times kernel"): row[3] for row in SHARES}
    (costs,) = (table for table in tables((ROOT / "README.md").read_text()) if "blktrace" in dict(table))
    of_readme = {name: share for name, share in costs if name.startswith("wptrace")}
    assert of_readme == {name: shares[name] for name in of_readme}


@pytest.mark.parametrize("command", ["size", "stacks"])
def test_what_a_command_adds_is_in_the_table(command: str) -> None:
    said = re.sub(r"\s+", " ", text(f"{command}.md"))
    untraced = ADDED["untraced (the whole request)"][1]
    assert (
        f"{untraced} instructions each), `wptrace {command}` adds {ADDED[f'wptrace {command}'][1][1:]} instructions"
        in said
    )


def test_what_owners_add_is_in_the_tables() -> None:
    rows = [cells for name, cells in BY.items() if name.startswith("--by")]
    late, hits = ([number(cells[at]) for cells in rows] for at in (1, 2))
    assert f"adds {min(late)} to {max(late)} instructions to a request" in COSTS_OF_OWNERS
    assert f"{min(hits)} to {max(hits)} to a page-cache hit" in COSTS_OF_OWNERS
    assert f"`--neighbours` adds another {number(BY['--neighbours, beyond --by cgroup'][1])} " in COSTS_OF_OWNERS


def test_what_statements_and_units_add_is_in_the_tables() -> None:
    short, long = STATEMENTS["56"], STATEMENTS["1,000"]
    statement, read, unit, begins, _ = ([one[at].lstrip("+") for one in (short, long)] for at in range(5))
    assert f"adds {statement[0]} to a read with its request" in COSTS_OF_OWNERS
    assert f"{read[0]} or {read[1]} where its text is read each time" in COSTS_OF_OWNERS
    assert f"adds {unit[0]} and {unit[1]}, and {begins[0]} and {begins[1]} to each begin" in COSTS_OF_OWNERS


def test_what_the_recorder_adds_is_in_the_table() -> None:
    said = re.sub(r"\s+", " ", section("recorder.md", "## What it costs"))
    io, block, flow = (
        [number(recorded) - number(bare) for recorded, bare in zip(ADDED[name], ADDED[of]) if "+" in recorded + bare]
        for name, of in (
            ("wptrace io --recorder", "wptrace io"),
            ("wptrace io --level block --recorder", "wptrace io --level block --times kernel"),
            ("wptrace flow three --recorder", "wptrace flow three"),
        )
    )
    assert f"{io[1]} instructions per request and {io[2]} per page-cache hit" in said
    assert (
        f"{block[1]} instructions per request in addition to {ADDED['wptrace io --level block --times kernel'][2][1:]}"
        in said
    )
    assert f"{flow[0]} per object in addition to {ADDED['wptrace flow three'][1][1:]}" in said
