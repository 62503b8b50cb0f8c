# SPDX-License-Identifier: Apache-2.0
"""The example in docs/adding-a-filter.md works with the current package."""

from __future__ import annotations

import pwd
import re
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.docs.pages import blocks, text
from wptrace.engine import filters
from wptrace.engine.filters import Filter, cgroup, file, operation, task
from wptrace.errors import UsageError
from wptrace.flows.io.path import PathFlow

PATH = "adding-a-filter.md"
PAGE = text(PATH)
(HEADER,) = blocks(PAGE, "c")
CODE, LIST = blocks(PAGE, "python")


def made() -> tuple[filters.Predicate, ...]:
    """The filters of a flow that has the example's."""
    found: dict[str, Any] = {**vars(task), "pwd": pwd}
    exec(compile(f"from __future__ import annotations\n{CODE}", PATH, "exec"), found)  # noqa: S102 - our own document
    found.update(cgroup=cgroup, file=file, operation=operation, task=SimpleNamespace(**found))
    exec(compile(LIST, PATH, "exec"), found)  # noqa: S102
    listed: tuple[filters.Predicate, ...] = found["FILTERS"]
    return listed


def test_the_list_is_that_of_the_flow_and_one_more() -> None:
    assert [one.name for one in made() if one.name != "uid"] == [one.name for one in PathFlow.filters]


def test_the_predicate_writes_the_globals_of_the_header() -> None:
    (uid,) = (one for one in made() if one.name == "uid")
    known = re.findall(r"^(?:bool|__u32) (\w+);", HEADER, re.M)
    for value, on in ((None, False), (0, True)):
        bss = SimpleNamespace()
        filters.apply(bss, Filter(uid=value), (uid,))
        assert set(vars(bss)) == {*known, "filter_task", "filtering"}
        assert {bss.filter_by_uid, bss.filter_task, bss.filtering} == {on}
    assert uid.parse("root") == uid.parse("0") == 0
    with pytest.raises(UsageError, match="there is no user nobody-of-this-name"):
        uid.parse("nobody-of-this-name")
