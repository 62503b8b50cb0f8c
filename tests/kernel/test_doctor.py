# SPDX-License-Identifier: Apache-2.0
"""`wptrace doctor` reports what is known of each kernel."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, setting
from tests.kernel.trace import check, wptrace

# The features that kernels of the matrix lack. The running one permits neither kind, as hardened production kernels do.
LACKING = {"5.10": {"task_storage", "exchange"}, "": {"fentry", "fexit", "kprobe", "kretprobe"}}
# Interfaces whose operations are seen only as requests.
ASYNCHRONOUS = {
    "5.10": "asynchronous operations (io_uring) are seen as requests only",
    "": "asynchronous operations (io_uring, AIO) are seen as requests only",
}


def test_doctor_tells_what_works() -> None:
    # --watch traces the whole machine, so only in a guest.
    watch = ["--watch=500ms"] if GUEST else []
    done = wptrace("doctor", "--json", *watch)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check(found)
    _was_seen(found, bool(watch))
    assert found["kernel"] == os.uname().release
    assert found["permitted"]
    assert found["io_works"]
    missing = {feature["name"] for feature in found["features"] if feature["state"] == "missing"}
    assert missing == LACKING.get(GUEST, set())
    assert all(feature["advice"] for feature in found["features"] if feature["state"] == "missing")
    _knows_the_arguments(found["flows"])
    for flow in found["flows"]:
        if flow["flow"] != "io":
            continue
        assert flow["works"]
        assert all(field["state"] == "ok" for field in flow["fields"])
        if flow["level"] == "path":
            reported = " ".join(check["detail"] for check in flow["checks"])
            assert ASYNCHRONOUS.get(GUEST, "") in reported
            assert ("asynchronous" in reported) == (GUEST in ASYNCHRONOUS)
        # The running kernel refuses programs that some stages of the path need; the block layer is always seen.
        if GUEST or flow["level"] == "block":
            assert {stage["state"] for stage in flow["stages"]} == {"ok"}
        # The attempts end with the first way that works.
        if flow["level"] == "block":
            assert {tuple(way["works"] for way in hook["ways"]) for hook in flow["hooks"]} == {(True, None)}
        for hook in flow["hooks"]:
            assert hook["state"] != "missing" or all(way["reason"] for way in hook["ways"] if way["works"] is False)
            assert (hook["state"] == "missing") == (True not in {way["works"] for way in hook["ways"]})


def _was_seen(found: dict[str, Any], watched: bool) -> None:
    if not watched:
        assert (found["seen"], found["watched_s"]) == ([], 0)
        return
    counts: dict[tuple[str, str], int] = {}
    for one in found["seen"]:
        assert one["times"] is not None, one
        counts[one["flow"], one["point"]] = counts.get((one["flow"], one["point"]), 0) + one["times"]
    works = {one["name"] for one in found["definitions"] if one["state"] != "missing"}
    assert {flow for flow, _ in counts} == works
    # There is always a timer, and a task that waits for it.
    for place in (("timer", "expired"), ("runqueue", "woken")):
        assert counts[place] > 0, place


def _knows_the_arguments(flows: list[dict[str, Any]]) -> None:
    (hooks,) = [flow["hooks"] for flow in flows if flow["level"] == "block"]
    arguments = {hook["ways"][0]["section"].rpartition("/")[2]: hook["arguments"] for hook in hooks}
    assert arguments["block_rq_complete"][0] == "request *"
    # Only in 5.10 is the first argument of block_getrq the queue.
    assert arguments["block_getrq"][0] == ("request_queue *" if GUEST == "5.10" else "bio *")


@pytest.mark.one_kernel
def test_doctor_names_the_disk_without_stamps(loop: Disk) -> None:
    with setting(loop.queue / "iostats", "0"):
        done = wptrace("doctor")
    assert done.returncode == 0
    assert len([line for line in done.stdout.splitlines() if line.split()[:1] == [f"{loop.name}:"]]) == 1
    assert f"/sys/block/{loop.name}/queue/iostats" in done.stdout
