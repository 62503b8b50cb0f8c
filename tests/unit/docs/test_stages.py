# SPDX-License-Identifier: Apache-2.0
"""docs/stages.md and the man page say what the stage table says."""

from __future__ import annotations

from tests.unit.docs.pages import man_text, section, tables, text
from wptrace.engine.stages import Stage
from wptrace.flows.io_block import BlockFlow

TABLE = BlockFlow.stages
# Rows that a trace shows: this flow leaves nothing unattributed.
SHOWN = (*TABLE.stages, TABLE.total)


def as_row(stage: Stage) -> list[str]:
    way = f"{stage.start.letter} → {stage.end.letter}"
    return [stage.name, way, stage.description, stage.meaning]


def test_the_stages_are_those_of_the_table() -> None:
    (rows,) = tables(section("stages.md", "## `wptrace io --level block`"))
    assert rows == [as_row(stage) for stage in SHOWN]


def test_the_points_are_those_of_the_stages() -> None:
    points = dict.fromkeys(point for stage in TABLE for point in (stage.start, stage.end))
    assert tables(text("stages.md"))[0] == [[point.letter, point.name] for point in points]


def test_the_hooks_are_those_of_the_flow() -> None:
    rows = tables(section("stages.md", "## By which hooks"))[0]
    documented = {hook: programs.partition(" on ")[0] for _, hook, programs, _ in rows}
    assert documented == {hook.name: ", ".join(hook.programs) for hook in BlockFlow.hooks}


def test_the_man_page_has_the_stages() -> None:
    words = man_text("wptrace-io.1")
    for stage in TABLE:
        assert stage.description in words, stage.name
        assert f"{stage.name} From " in words
    assert f"{TABLE.total.name} The whole" in words
