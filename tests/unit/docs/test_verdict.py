# SPDX-License-Identifier: Apache-2.0
"""docs/verdict.md agrees with the rules."""

from __future__ import annotations

import re

from tests.unit.docs.pages import blocks, section, tables, text
from wptrace.analysis import growth, verdict
from wptrace.analysis.history import CAPACITY
from wptrace.flows.io import block, rules
from wptrace.flows.io.kinds import OPERATION

RULES = rules.path()
FIRST, MORE = tables(section("verdict.md", "## Rules"))


def test_the_rules_are_those_of_the_code_in_their_order() -> None:
    assert [row[0] for row in FIRST] == [rule.__name__ for rule in RULES.first]
    assert [row[0] for row in MORE] == [rule.__name__ for rule in RULES.more]


def test_the_bounds_are_those_of_the_code() -> None:
    conditions = {row[0]: row[1] for row in MORE}
    assert f"at least {verdict.TAIL:.0f} times the median, of {verdict.TAIL_COUNT} or more" in conditions["tail"]
    outlier = f"at least {verdict.OUTLIER_SHARE:.0%} of the time, of {verdict.OUTLIER_COUNT} or more"
    assert outlier.replace("%", " %") in conditions["outlier"]
    assert f"at least {verdict.INSIDE_SHARE:.0%}".replace("%", " %") in conditions["inside"]
    (bounds,) = tables(section("verdict.md", "## Growth"))
    assert [value for _, value in bounds] == [
        f"{growth.FACTOR:.0f}", f"{growth.SHARE:.0%}".replace("%", " %"), f"{growth.ENOUGH}", f"{growth.ERRORS:.0f}",
    ]  # fmt: skip
    assert f"The history has {CAPACITY}\nstretches at most" in text("verdict.md")
    assert verdict.PLACE_SHARE == 0.5
    assert verdict.LOST_SHARE == 1 / 10_000


def test_the_advice_is_that_of_the_code() -> None:
    (rows,) = tables(section("verdict.md", "## What to look at"))
    stages = {stage.name: stage.advice for stage in OPERATION.stages if stage.advice}
    assert dict(rows) == {**stages, **RULES.advice}
    assert set(RULES.advice) <= {"unattributed", *(rule.__name__ for rule in (*RULES.first, *RULES.more))}


def test_there_is_advice_for_the_stages_of_the_block_layer() -> None:
    assert all(stage.advice for stage in block.REQUEST.stages)


def test_the_example_has_a_line_of_each_sort() -> None:
    (example,) = blocks(text("verdict.md"), "")
    assert re.findall(r"^(\w+(?: at)?): ", example, re.M) == ["verdict", "look at", "also", "but"]
