# SPDX-License-Identifier: Apache-2.0
"""The cpu flow before its programs are loaded."""

from __future__ import annotations

import pytest

from wptrace.bpf.object import open_object
from wptrace.flows.cpu import CpuFlow, Options
from wptrace.kernel import cpus


def test_there_is_an_element_for_the_largest_number_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "possible", lambda *_: [0, 3])
    with open_object("cpu") as obj:
        CpuFlow(Options(slow_ns=0))._prepare(obj)
        assert [obj.maps[name].max_entries for name in ("cpus", "histories")] == [4, 4]
