# SPDX-License-Identifier: Apache-2.0
"""Times, in guests whose clock counts instructions, where they mean something: against a device of a set latency."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import fio, null_device
from tests.kernel.trace import Trace, count
from wptrace.engine.distribution import bounds, index

LATENCY_NS = 5_000_000

pytestmark = [pytest.mark.icount]


@pytest.fixture(scope="module", autouse=True)
def _needs_guest() -> None:
    if not GUEST:
        pytest.fail("these tests need a guest with --icount: tests/run.sh starts it")


@pytest.mark.parametrize("times", ["auto", "own"])
@pytest.mark.parametrize("engine", ["psync", "libaio"])
def test_a_device_of_5_ms(times: str, engine: str) -> None:
    """Q to C is fio's completion latency: the mean within 5 %, percentiles within a bucket."""
    with (
        null_device(irqmode=2, completion_nsec=LATENCY_NS) as disk,
        Trace("--dev", disk.name, "--times", times) as trace,
    ):
        job = fio(disk.path, ioengine=engine, iodepth=4 if engine == "libaio" else 1, number_ios=400)
        trace.stop()
    clat = job["read"]["clat_ns"]
    rows: dict[str, dict[str, Any]] = {row["stage"]: row for row in trace.summary["rows"]}
    assert count(trace.summary) == clat["N"]
    assert rows["request"]["mean_ns"] == pytest.approx(clat["mean"], rel=0.05)
    assert rows["request"]["min_ns"] >= LATENCY_NS
    assert rows["device"]["min_ns"] >= LATENCY_NS
    assert rows["device"]["share"] > 0.95
    for key, name in (("p50_ns", "50.000000"), ("p90_ns", "90.000000"), ("p99_ns", "99.000000")):
        low, high = bounds(index(rows["request"][key]))
        width = high - low
        assert low - width <= clat["percentile"][name] <= high + width
