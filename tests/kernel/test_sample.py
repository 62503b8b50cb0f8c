# SPDX-License-Identifier: Apache-2.0
"""One in N, as programs choose."""

from __future__ import annotations

import os

import pytest

from tests.kernel.trace import object_path
from wptrace.bpf.object import BpfObject


@pytest.mark.one_kernel
@pytest.mark.parametrize(("one_in", "most"), [(0, 0), (1, 0), (10, 18)])
def test_as_many_are_left_out_as_belong_to_one(one_in: int, most: int) -> None:
    """A budget sets 0 once all are timed again, maybe between two reads of a program; then none is left out."""
    with BpfObject(object_path("sample")) as obj:
        obj.load()
        obj.bss.one_in = one_in
        obj.attach()
        obj.bss.target_tgid = os.getpid()
        for _ in range(2000):
            os.getppid()
        obj.bss.target_tgid = 0
        calls, left, found = obj.bss.calls, obj.bss.left, obj.bss.most
    assert calls >= 2000
    assert found <= most
    # About 9 of 10, far beyond chance.
    assert (left > 5 * calls) is (one_in == 10)
