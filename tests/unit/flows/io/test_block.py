# SPDX-License-Identifier: Apache-2.0
"""The flow of the block level, from counters to its book."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from wptrace.bpf.programs import Statistics
from wptrace.engine.devices import DeviceCells, Devices
from wptrace.engine.filters import Filter
from wptrace.engine.resolver import Attempts, Loaded
from wptrace.flows.io import block
from wptrace.flows.io.block import BlockFlow, Options
from wptrace.model.book import RECURSION
from wptrace.model.kind import REQUESTS


def flow(wanted: Filter, **skipped: int) -> BlockFlow:
    """A flow without requests, of whose programs the kernel skipped so many runs."""
    made = BlockFlow(Options(filter=wanted))
    attempts = Attempts(made.hooks)
    attempts.chosen.update({hook.id: hook.ways[0] for hook in made.hooks})
    programs = {name: skipped.get(name, 0) for way in attempts.chosen.values() for name in way.programs}
    progs: Any = {
        name: SimpleNamespace(name=name, statistics=lambda count=count: Statistics(0, 0, 0, count, 0, 0))
        for name, count in programs.items()
    }
    made._causes = list(block._CAUSES.values())
    bss = SimpleNamespace(loss=[0] * len(made._causes), elsewhere=0)
    made._loaded = Loaded(cast(Any, SimpleNamespace(bss=bss, progs=progs)), attempts)
    made._cells = cast(DeviceCells, SimpleNamespace(counters={}, total=lambda _: 0, shrunk=0, counted=dict))
    loads = SimpleNamespace(counters=dict)
    made._devices = cast(Devices, SimpleNamespace(extents=[], stateful=[], loads=loads))
    made.read_cells = dict  # type: ignore[method-assign]
    made._map_bytes = 0
    return made


@pytest.mark.parametrize(("wanted", "noted"), [(Filter(), 0), (Filter(pid=5), 2 + 3)])
def test_starts_that_were_skipped_are_noted_where_they_leave_requests_out(wanted: Filter, noted: int) -> None:
    """Without its start nobody knows that a request is of the wanted process."""
    found = flow(wanted, getrq_tp_btf=2, issue_tp_btf=3, split_tp_btf=7, complete_tp_btf=11).snapshot()
    book = found.books[REQUESTS]
    assert (book.noted.get(RECURSION, 0), book.lost) == (noted, {RECURSION: 11})
