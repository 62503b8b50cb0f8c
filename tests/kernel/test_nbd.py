# SPDX-License-Identifier: Apache-2.0
"""`wptrace flow nbd` against what the server counts."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.kernel import nbd
from tests.kernel.disks import fio_jobs, total
from tests.kernel.trace import PATIENCE, FlowTrace, Line, wait_until
from tests.thorough import only_all

pytestmark = [
    pytest.mark.guest,
    # A server and two traces are slow on an emulated CPU.
    only_all,
]


@pytest.fixture(autouse=True)
def _module() -> None:
    nbd.load()


def _outcomes(summary: Line) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in summary["rows"]:
        for name, count in row.get("events", {}).items():
            found[name] = found.get(name, 0) + count
    return found


def test_requests_of_a_network_block_device(tmp_path: Path) -> None:
    with nbd.server(tmp_path) as server, FlowTrace("nbd") as trace:
        with nbd.connected(tmp_path) as disk:
            job = {"filename": disk.path, "number_ios": 100, "stonewall": 1}
            jobs = fio_jobs({**job, "rw": "randread"}, {**job, "rw": "randwrite", "ioengine": "libaio", "iodepth": 8})
        trace.stop()
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE)
    served = nbd.served(tmp_path)
    summary = trace.summary
    requests = summary["requests"]
    assert requests["finished"] == served["total"] >= sum(map(total, jobs)) == 200
    assert (requests["lost"], requests["in_flight"]) == (0, 0)
    for stage in ("send", "sent", "reply"):
        rows = [row for row in summary["rows"] if row["stage"] == stage]
        counts = {(row["labels"]["device"], row["labels"]["op"]): row["count"] for row in rows}
        assert counts == {("nbd0", op): served[op] for op in ("read", "write", "flush") if op in served}
    # A flush has no bytes.
    assert summary["bytes"] >= 200 * 4096


def test_requests_that_the_server_never_answers(tmp_path: Path) -> None:
    with nbd.server(tmp_path) as server, FlowTrace("nbd") as trace, nbd.connected(tmp_path) as disk:
        server.send_signal(signal.SIGSTOP)
        words = [f"if={disk.path}", "of=/dev/null", "bs=4k", "count=1", "skip=1000", "iflag=direct"]
        reader = subprocess.Popen(["dd", *words], stderr=subprocess.DEVNULL)
        wait_until(lambda: Path("/sys/block/nbd0/inflight").read_text().split()[0] != "0", "the read")
        server.kill()
        assert reader.wait(PATIENCE) != 0
    assert _outcomes(trace.summary)["unanswered"] == 1
    requests = trace.summary["requests"]
    assert (requests["lost"], requests["in_flight"]) == (0, 0)
