# SPDX-License-Identifier: Apache-2.0
"""docs/agent.md has the settings of the agent, and its files are right ones."""

from __future__ import annotations

import pytest

from tests.unit.agent.test_config import make
from tests.unit.docs.pages import blocks, section, tables, text
from wptrace.agent import config


def test_every_setting_has_a_row_with_what_it_is_without_one() -> None:
    rows = [row for table in tables(section("agent.md", "## The file")) for row in table]
    named = [tuple(row[:4]) for row in rows if row[0] in {table.name for table in config.TABLES}]
    assert named == [
        (table.name, key.name, key.default, row[3])
        for row, (table, key) in zip(named, [(table, key) for table in config.TABLES for key in table.keys])
    ]
    assert len(named) == sum(len(table.keys) for table in config.TABLES)


@pytest.mark.parametrize("file", blocks(text("agent.md"), "toml"))
def test_the_files_of_the_page_are_right(file: str) -> None:
    config.parse(file, "agent.md", make)
