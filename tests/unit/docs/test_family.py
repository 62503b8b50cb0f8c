# SPDX-License-Identifier: Apache-2.0
"""The pages of flows other than io agree with their modules."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.unit.docs.pages import section, tables, text
from tests.unit.docs.test_json import SCHEMA
from wptrace.bpf.object import BpfObject, find
from wptrace.engine.flow import Flow
from wptrace.flows import size, stacks
from wptrace.flows.size import SizeFlow
from wptrace.flows.stacks import StacksFlow
from wptrace.model.book import EXITED, RECURSION, Cause

FLOWS = [("size.md", SizeFlow), ("stacks.md", StacksFlow)]


@pytest.mark.parametrize(("page", "flow"), FLOWS)
def test_the_hooks_are_those_of_the_flow(page: str, flow: type[Flow]) -> None:
    (rows,) = tables(section(page, "## By which hooks"))
    reported = [(hook, programs.partition(" on ")[0], without) for hook, programs, without in rows]
    assert reported == [(hook.name, hook.by.replace(" or else ", ", "), hook.without) for hook in flow.hooks]


@pytest.mark.parametrize(("page", "module"), [("size.md", size), ("stacks.md", stacks)])
def test_the_causes_of_loss_are_those_of_the_flow(page: str, module: ModuleType) -> None:
    causes = {value for value in vars(module).values() if isinstance(value, Cause)}
    causes |= {EXITED} if module is stacks else set()
    (rows,) = tables(section(page, "## Loss"))
    assert dict(rows) == {cause.name: cause.description for cause in causes}


def test_which_causes_cost_something() -> None:
    assert [name for name, _ in tables(section("size.md", "## Loss"))[0][:2]] == [size._NO_CELL.name, RECURSION.name]
    lost = {cause.name for cause in stacks._LOST}
    assert {name for name, _ in tables(section("stacks.md", "## Loss"))[0][:3]} == lost


@pytest.mark.parametrize(("page", "row"), [("size.md", "size_row"), ("stacks.md", "stack_row")])
def test_the_page_has_the_fields_of_its_rows(page: str, row: str) -> None:
    words = section(page, "## JSON").replace("`", " ").replace(",", " ").replace(".", " ").split()
    ours = {"kind", "dev", "op", "stage"}  # in json.md
    assert set(SCHEMA["$defs"][row]["required"]) - ours <= set(words)


def test_how_much_fits_is_what_the_page_says() -> None:
    page = text("stacks.md")
    with BpfObject(find("stacks")) as obj:
        ios = obj.constants["IOS"]
    assert f"room for {ios:,} I/Os in flight, {stacks._CELLS:,} rows and some 4,000 stacks" in page
    assert stacks._STACKS == 4096
