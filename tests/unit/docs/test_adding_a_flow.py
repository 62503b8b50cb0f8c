# SPDX-License-Identifier: Apache-2.0
"""The example in docs/adding-a-flow.md works with the current package: its parts match, and its command runs."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from inspect import signature
from types import ModuleType
from typing import Any

import pytest

from tests.unit.docs.pages import blocks, text
from wptrace.engine import run as engine
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import Way
from wptrace.engine.resolver import Attempts, Loaded
from wptrace.engine.run import RunOptions
from wptrace.model.distribution import SLOTS
from wptrace.model.kind import REQUESTS, names
from wptrace.model.report import Output
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.text.output import TextOutput

PAGE = text("adding-a-flow.md")
(SOURCE,) = blocks(PAGE, "c")
FLOW, COMMAND, TEST = blocks(PAGE, "python")


def module(name: str, source: str) -> ModuleType:
    made = ModuleType(name)
    made.__dict__["__file__"] = f"{name}.py"
    exec(compile(source, f"docs/adding-a-flow.md: {name}", "exec"), made.__dict__)  # noqa: S102 - our own document
    return made


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = module("wptrace.flows.irq", FLOW)
    monkeypatch.setitem(sys.modules, "wptrace.flows.irq", made)
    return made


def test_the_flow_has_all_that_a_flow_needs(flow: ModuleType) -> None:
    kind = flow.IrqFlow
    assert issubclass(kind, Flow)
    unmade = {name for name in vars(Flow) if "raise NotImplementedError" in _source_of(name)}
    assert unmade
    assert unmade <= set(vars(kind))
    for name in ("name", "object", "kinds", "hooks"):
        assert name in vars(kind)


def _source_of(name: str) -> str:
    import inspect

    found = vars(Flow)[name]
    return inspect.getsource(found) if inspect.isfunction(found) else ""


def test_the_programs_of_the_hooks_are_those_of_the_source(flow: ModuleType) -> None:
    named = {program for hook in flow.IrqFlow.hooks for way in hook.ways for program in way.programs}
    assert named == set(re.findall(r'^SEC\("\w+/\w+"\)\nint (\w+)\(', SOURCE, re.M))
    served = {stage for hook in flow.IrqFlow.hooks for stage in hook.serves}
    assert served == set(names(flow.IrqFlow.kinds))


def test_the_source_has_the_fields_that_the_flow_reads(flow: ModuleType) -> None:
    (cell,) = re.findall(r"struct irq_cell \{(.*?)\};", SOURCE, re.S)
    assert set(re.findall(r"cell\.(\w+)", FLOW)) <= set(re.findall(r"(\w+);", cell))


class Cell:
    """A cell as the map decodes it."""

    def __init__(self, value: int) -> None:
        self.started = self.finished = 1
        self.handler = argparse.Namespace(
            slots=(0,) * value + (1,) + (0,) * (SLOTS - value - 1),
            sum=value,
            low=value ^ (1 << 64) - 1,
            max=value,
            squares=value * value,
            squares_high=0,
        )


class Program:
    name, section = "leave_tp_btf", "tp_btf/irq_handler_exit"

    def statistics(self) -> Any:
        return argparse.Namespace(run_time_ns=10, run_count=1)


class CellMap(dict[int, Any]):
    def memory(self) -> int:
        return 4096


def test_the_flow_reads_its_cells(flow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    obj: Any = argparse.Namespace(maps={"cells": CellMap({0: [Cell(3), Cell(5)]})}, progs={"leave_tp_btf": Program()})
    made = flow.IrqFlow()
    attempts = Attempts(made.hooks)
    attempts.chosen["handler.exit"] = Way(("leave_tp_btf",))
    monkeypatch.setattr(flow, "load", lambda *_: Loaded(obj, attempts))
    assert made.start(None).sources == [("handler", "tp_btf/irq_handler_exit")]
    found = made.snapshot()
    book = found.books[REQUESTS]
    assert (book.started, book.finished, book.in_flight) == (2, 2, 0)
    assert {group: cells["handler"].max for group, cells in found.cells.items()} == {
        flow.HANDLER.group(0): 3,
        flow.HANDLER.group(1): 5,
    }
    assert found.overhead.map_bytes == 4096


@pytest.mark.parametrize(("words", "kind"), [([], TextOutput), (["-j"], NdjsonOutput)])
def test_the_command_hands_the_flow_to_the_runner(
    flow: ModuleType, monkeypatch: pytest.MonkeyPatch, words: list[str], kind: type[Output]
) -> None:
    ran: list[Any] = []

    def run(pairs: Sequence[tuple[Flow, Output]], options: RunOptions) -> None:
        ran.append((*pairs, options))

    assert signature(run) == signature(engine.run)
    monkeypatch.setattr(engine, "run", run)
    monkeypatch.setattr("wptrace.kernel.privileges.require_tracing", lambda: None)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    command = module("wptrace.cli.irq", COMMAND)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([*words, "1", "2"])) == 0
    (((made, output), how),) = ran
    assert isinstance(made, flow.IrqFlow)
    assert isinstance(output, kind)
    assert (how.interval_s, how.reports, how.watch_fd) == (1.0, 2, 1)


def test_the_test_imports_what_there_is(flow: ModuleType) -> None:
    assert module("test_irq", TEST).test_every_interrupt_is_timed
