# SPDX-License-Identifier: Apache-2.0
"""Times in guests whose clock counts instructions, against devices with a set latency."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.kernel.disks import fio, null_device
from tests.kernel.trace import PATIENCE, BlockTrace, Trace, count
from wptrace.model.distribution import bounds, index

LATENCY_NS = 5_000_000

pytestmark = [pytest.mark.icount]


# On one kernel, each way to take times and each engine is tested on all of them.
ONE_KERNEL = (pytest.mark.guest, pytest.mark.one_kernel)


@pytest.mark.parametrize(
    ("engine", "times"),
    [
        ("psync", "auto"),
        ("libaio", "own"),
        pytest.param("psync", "own", marks=ONE_KERNEL),
        pytest.param("libaio", "auto", marks=ONE_KERNEL),
    ],
)
def test_a_device_of_5_ms(engine: str, times: str) -> None:
    """Q to C is fio's completion latency: the mean within 5 %, percentiles within a bucket."""
    with (
        null_device(irqmode=2, completion_nsec=LATENCY_NS) as disk,
        BlockTrace("--dev", disk.name, "--times", times) as trace,
    ):
        job = fio(disk.path, ioengine=engine, iodepth=4 if engine == "libaio" else 1, number_ios=400)
    clat = job["read"]["clat_ns"]
    rows: dict[str, dict[str, Any]] = {row["stage"]: row for row in trace.summary["rows"]}
    assert count(trace.summary) == clat["N"]
    assert rows["total"]["mean_ns"] == pytest.approx(clat["mean"], rel=0.05)
    assert rows["total"]["min_ns"] >= LATENCY_NS
    assert rows["device"]["min_ns"] >= LATENCY_NS
    assert rows["device"]["share"] > 0.95
    for key, name in (("p50_ns", "50.000000"), ("p90_ns", "90.000000"), ("p99_ns", "99.000000")):
        low, high = bounds(index(rows["total"][key]))
        width = high - low
        assert low - width <= clat["percentile"][name] <= high + width


def test_stuck_requests_are_listed() -> None:
    """Requests in flight on a device that takes seconds are listed with their age and stage."""
    with (
        null_device(irqmode=2, completion_nsec=8_000_000_000) as disk,
        Trace(f"--dev={disk.name}", "--stuck=1s") as trace,
    ):
        reader = subprocess.Popen(["dd", f"if={disk.path}", "of=/dev/null", "bs=4k", "count=1", "iflag=direct"])
        reader.wait(PATIENCE)
    found = next(line for line in trace.lines if line["kind"] == "in_flight")["found"]
    assert {one["kind"] for one in found} == {"operation", "request"}
    for one in found:
        assert (one["dev"], one["op"], one["stage"], one["comm"]) == (disk.name, "read", "device", "dd")
        assert one["age_ns"] >= 1_000_000_000
    assert trace.summary["operations"]["in_flight"] == 0
