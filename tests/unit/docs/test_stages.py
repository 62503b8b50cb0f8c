# SPDX-License-Identifier: Apache-2.0
"""docs/stages.md and the man page agree with the stage tables and the hooks."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.pages import ROOT, man_text, section, tables, text
from wptrace.flows.io import block
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.kinds import KINDS, OPERATION, WRITEBACK
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import Kind, Measured

BLOCK = block.REQUEST
PATH = list(dict.fromkeys(stage for kind in KINDS for stage in kind.measured))


def as_row(stage: Measured) -> list[str]:
    assert stage.start is not None
    assert stage.end is not None
    way = f"{stage.start.letter} → {stage.end.letter}"
    return [stage.name, way, stage.description, stage.meaning]


def test_the_stages_of_the_path_are_those_of_its_table() -> None:
    shared, inside, apart = tables(section("stages.md", "## `wptrace io`"))
    stages: list[Measured] = [*OPERATION.stages, OPERATION.unattributed, OPERATION.total]
    assert shared == [as_row(stage) for stage in stages]
    assert inside == [as_row(stage) for stage in OPERATION.interference]
    assert apart == [as_row(stage) for stage in WRITEBACK.stages]


def test_the_stages_of_the_block_layer_are_those_of_its_table() -> None:
    (rows,) = tables(section("stages.md", "## `wptrace io --level block`"))
    assert rows == [as_row(stage) for stage in (*BLOCK.measured, BLOCK.total)]  # it leaves nothing unattributed


def test_the_points_are_those_of_the_stages() -> None:
    def points(*kinds: Kind) -> list[list[str]]:
        found = [point for kind in kinds for stage in kind.stages for point in (stage.start, stage.end)]
        return [[point.letter, point.name] for point in dict.fromkeys(found)]

    documented = [row[:2] for row in tables(text("stages.md"))[0]]
    assert documented == points(*KINDS)
    assert [row for row in documented if row in points(BLOCK)] == points(BLOCK)


def test_the_hooks_of_the_path_are_those_of_the_flow() -> None:
    (rows,) = tables(section("stages.md", "### The whole path"))
    assert rows == [[hook.name, hook.by, ", ".join(hook.serves), hook.without] for hook in PathFlow.hooks]


def test_the_hooks_of_the_block_layer_are_those_of_the_flow() -> None:
    (rows,) = tables(section("stages.md", "### The block layer alone"))
    documented = {hook: found.partition(" on ")[0].replace(", ", " or else ") for _, hook, found, _ in rows}
    assert documented == {hook.name: hook.by for hook in BlockFlow.hooks}


def test_the_hooks_of_drivers_are_those_of_the_source() -> None:
    source = (ROOT / "bpf_src/block/io_path.bpf.c").read_text()
    attached = set(re.findall(r'SEC\("\w+/(\w+)"\)', source))
    attached |= set(re.findall(r"^TRACEPOINT\(\w+, (\w+),", source, re.M))
    (rows,) = tables(section("stages.md", "### By driver"))
    for row in rows:
        for cell in row[1:]:
            assert set(re.findall(r"\w+_\w+", cell)) <= attached, row


@pytest.mark.parametrize("stage", [*PATH, *BLOCK.measured], ids=lambda stage: stage.name)
def test_the_man_page_has_the_stages(stage: Measured) -> None:
    words = man_text("wptrace-io.1")
    assert stage.description in words
    if stage in PATH:
        assert f"{stage.name} From " in words
    assert "total The whole" in words
