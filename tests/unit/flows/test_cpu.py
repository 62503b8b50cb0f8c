# SPDX-License-Identifier: Apache-2.0
"""The cpu flow before its programs are loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.outputs.samples import distribution
from wptrace.bpf.object import open_object
from wptrace.engine.cells import Cells
from wptrace.engine.resolver import Loaded
from wptrace.flows import cpu
from wptrace.flows.cpu import CpuFlow, Options
from wptrace.kernel import cpus
from wptrace.model.book import STATE_FULL
from wptrace.model.kind import REQUESTS


def test_there_is_an_element_for_the_largest_number_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "possible", lambda *_: [0, 3])
    with open_object("cpu") as obj:
        CpuFlow(Options(slow_ns=0))._prepare(obj)
        assert [obj.maps[name].max_entries for name in ("cpus", "histories")] == [4, 4]


def read(**counts: int) -> Cells:
    """Cells whose rows have these numbers of turns."""
    found = {cpu.KINDS[cpu.CPU][0].group(name): {"total": distribution([1] * count)} for name, count in counts.items()}
    return cast(Cells, SimpleNamespace(read=lambda: None, copy=lambda: found, shrunk=0))


def test_as_many_turns_have_finished_as_rows_have() -> None:
    """Rows are read before the book, and turns end meanwhile."""
    flow = CpuFlow(Options())
    flow._cells, flow._others = read(cpu0=5, cpu1=3), read(others=1)
    flow._causes = list(cpu._CAUSES.values())
    loss = [{cpu._INCOMPLETE: 2, STATE_FULL: 4}.get(cause, 0) for cause in flow._causes]
    book = SimpleNamespace(started=40, finished=33)
    obj: Any = SimpleNamespace(
        bss=SimpleNamespace(loss=loss), maps={"books": SimpleNamespace(summed=lambda _: book)}, progs={}
    )
    flow._loaded = cast(Loaded, SimpleNamespace(obj=obj, programs=[]))
    flow._map_bytes = 0
    found = flow.snapshot().books[REQUESTS]
    assert (found.finished, found.in_flight, found.lost_total) == (5 + 3 + 1 + 2, 40 - 33 - 4, 4)
