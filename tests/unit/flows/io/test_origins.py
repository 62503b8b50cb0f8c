# SPDX-License-Identifier: Apache-2.0
"""Whose statements are: what programs have kept of them, and the names that become known later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from wptrace.flows.io.parts.origins import Origins

SCAN = "select ? from t"


def origin(
    query_id: int = 0,
    database: int = 0,
    user: int = 0,
    postmaster: int = 7,
    application: bytes = b"psql",
    title: bytes = b"",
) -> Any:
    return SimpleNamespace(
        query_id=query_id,
        database=database,
        user=user,
        postmaster=postmaster,
        application=application.ljust(64, b"\0"),
        title=title.ljust(192, b"\0"),
    )


TITLE = b"postgres: app shop [local] SELECT"


def of(found: Origins, names: bool = True) -> dict[str, list[str]]:
    (one,) = found.of([SCAN, "another"], names)
    assert one.pop("owner") == SCAN
    return one


def test_a_process_has_all_of_it() -> None:
    found = Origins()
    found.add(SCAN, origin((1 << 64) - 5, 16384, 10, title=TITLE))
    assert of(found) == {"query_ids": ["-5"], "databases": ["shop"], "users": ["app"], "applications": ["psql"]}
    # Names are data of others.
    assert of(found, names=False) == {"query_ids": ["-5"], "databases": [], "users": [], "applications": []}


def test_an_older_server_has_no_numbers() -> None:
    found = Origins()
    found.add(SCAN, origin(title=TITLE, application=b""))
    assert of(found) == {"query_ids": [], "databases": ["shop"], "users": ["app"], "applications": []}


def test_names_of_what_workers_read_are_those_of_other_processes() -> None:
    found = Origins()
    found.add(SCAN, origin(5, 16384, 10))
    assert of(found)["databases"] == []
    assert found.unknown == 2
    found.add(SCAN, origin(5, 16384, 10))
    assert found.unknown == 2, "once each"
    # Another server has other catalogues.
    found.learn(8, 16384, 10, "theirs", "them")
    assert of(found)["databases"] == []
    found.add(None, origin(0, 16384, 10, title=TITLE))
    assert (of(found)["databases"], of(found)["users"]) == (["shop"], ["app"])


def test_a_row_has_several() -> None:
    found = Origins()
    for number in range(20):
        title = b"postgres: app shop%d [local] SELECT" % number
        found.add(SCAN, origin(number + 1, 100 + number, 10, application=b"a%d" % (number % 2), title=title))
    assert of(found) == {
        "query_ids": [str(number + 1) for number in range(8)],
        "databases": [f"shop{number}" for number in range(8)],
        "users": ["app"],
        "applications": ["a0", "a1"],
    }


def test_what_is_no_name() -> None:
    found = Origins()
    found.add(SCAN, origin(1, application=b"\x1b[2J", title=b"postgres: \x1b[2J shop [local]"))
    assert of(found) == {"query_ids": ["1"], "databases": [], "users": [], "applications": []}


def test_a_row_of_which_nothing_is_known() -> None:
    found = Origins()
    found.add(SCAN, origin(application=b""))
    found.add(None, origin(title=TITLE))
    assert found.of([SCAN, "postgres: checkpointer"], True) == []
