# SPDX-License-Identifier: Apache-2.0
"""Whose statements are, as lines: they fit the terminal, and hostile names are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.outputs.samples import HOSTILE, report
from wptrace.outputs.text.described import lines
from wptrace.outputs.text.tables import Style
from wptrace.outputs.text.words import columns


def one(
    owner: str, ids: Sequence[str], databases: Sequence[str], users: Sequence[str], applications: Sequence[str]
) -> dict[str, Any]:
    return {
        "owner": owner,
        "query_ids": ids,
        "databases": databases,
        "users": users,
        "applications": applications,
    }


def shown(*found: dict[str, Any], width: int = 100) -> list[str]:
    return list(lines(report({}, {})._replace(lists={"statements": found}), Style(width, False)))


def test_a_line_for_each_statement() -> None:
    assert shown(
        one("select ? from t", ["-1190174320727608274"], ["shop", "test"], ["app"], ["psql"]),
        one("create index on t(id)", [], ["shop"], [], ["a long application", "another"]),
    ) == [
        "statements                             database     user         application                query id",
        "select ? from t                        shop +1      app          psql           -1190174320727608274",
        "create index on t(id)                  shop                      a long a... +1",
    ]
    assert shown() == []


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_fit(width: int) -> None:
    for name in HOSTILE:
        for line in shown(one(name * 3, ["-" + "9" * 19] * 2, [name * 9] * 8, [name], [name * 2] * 2), width=width):
            assert line.isprintable()
            assert columns(line) <= width
