# SPDX-License-Identifier: Apache-2.0
"""`--segments`: reads that wait for one page after another, against the kernel's own tracing."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.kernel.disks import Disk, null_device, opened, setting
from tests.kernel.trace import Line
from tests.kernel.tracefs import Record, traced
from tests.kernel.window import RING, Running, running
from wptrace.flows.io import options as io_options
from wptrace.flows.io.path import PathFlow

PAGE = os.sysconf("SC_PAGE_SIZE")
LATE_NS = 50_000_000
FEW, MANY = 4, 16
EVENTS = ("block_bio_queue", "block_rq_issue", "block_rq_complete")
# tracefs has microseconds.
US = 1_000

pytestmark = pytest.mark.guest


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    """A disk that takes 50 ms for a request; each page of a read is a request, and the next one waits for it."""
    with (
        null_device("wptest_pages", irqmode=2, completion_nsec=LATE_NS) as made,
        setting(made.queue / "read_ahead_kb", "0"),
    ):
        yield made


@pytest.fixture(scope="module")
def flow(disk: Disk) -> Iterator[Running]:
    options = io_options.Options((disk.name,), slow_ns=0, ring_bytes=RING, segments=True)
    with running(lambda: PathFlow(options), [disk]) as made:
        yield made


def read(flow: Running, disk: Disk, pages: int, at: int) -> tuple[Line, list[Record]]:
    """Read, and return the operation and the kernel's events of its requests."""
    dev = f"dev == {os.stat(disk.path).st_rdev >> 8 << 20 | os.stat(disk.path).st_rdev & 255}"  # noqa: PTH116
    with (
        opened(disk.path, os.O_RDONLY) as fd,
        traced(*(f"block/{name}" for name in EVENTS), filters=dict.fromkeys(EVENTS, dev)) as trace,
    ):
        with flow.window() as reported:
            assert len(os.pread(fd, pages * PAGE, at * PAGE)) == pages * PAGE
        records = trace.records()
    (found,) = [line for line in reported.operations if line["offset"] == at * PAGE]
    return found, records


def sums(line: Line) -> Counter[str]:
    """Sum up the segments by stage; they follow one another from the start."""
    found: Counter[str] = Counter()
    at = 0
    for one in line["segments"]:
        assert one["from_ns"] == at < one["to_ns"]
        at = one["to_ns"]
        found[f"{one['stage']}_ns"] += one["to_ns"] - one["from_ns"]
    return found


def by_sector(records: list[Record], name: str) -> dict[int, int]:
    """Return the times of an event by the first sector of its request."""
    return {int(one.text.rpartition(" + ")[0].rpartition(" ")[2]): one.ns for one in records if one.name == name}


def test_each_wait_has_its_stretches_and_its_request(flow: Running, disk: Disk) -> None:
    line, records = read(flow, disk, FEW, 0)
    assert sums(line) == +Counter(line["stages"])
    assert (line["more_segments"], line["segments"][-1]["to_ns"]) == (0, line["total_ns"])
    queued, issued, completed = (by_sector(records, name) for name in EVENTS)
    children = line["children"]
    assert [one["sector"] for one in children] == sorted(queued) == [at * PAGE // 512 for at in range(FEW)]
    start = line["clock"]["end_ns"] - line["total_ns"]
    before = 0
    for one in children:
        assert (one["bytes"], one["rwbs"][0], one["readahead"], one["error"]) == (PAGE, "R", False, 0)
        assert one["maj_min"] == line["maj_min"]
        at = {name: start + one[f"{name}_ns"] for name in ("queued", "got", "issued", "handed", "seen", "completed")}
        assert list(at.values()) == sorted(at.values())
        # One after the other, in the order of cause and effect, by the kernel's clock as well.
        assert before <= queued[one["sector"]] + US
        assert at["queued"] <= issued[one["sector"]] + US
        assert queued[one["sector"]] <= at["issued"] <= completed[one["sector"]] + US
        assert issued[one["sector"]] + LATE_NS <= at["completed"] + US
        before = at["completed"]
    waits = [(one["from_ns"], one["to_ns"]) for one in line["segments"] if one["stage"] == "device"]
    # An emulated CPU may be so slow that a request is done before its task sleeps.
    spans = [(one["handed_ns"], one["seen_ns"]) for one in children]
    assert waits == [span for span in spans if span in waits]
    assert len(waits) > 1
    assert all(end - begin >= LATE_NS - US for begin, end in waits)


def test_what_has_no_room_is_a_sum(flow: Running, disk: Disk) -> None:
    line, records = read(flow, disk, MANY, FEW)
    found = sums(line)
    assert len(line["segments"]) + line["more_segments"] > len(line["segments"]) == flow.flow._obj.constants["SEGMENTS"]
    assert all(found[name] <= ns for name, ns in line["stages"].items())
    assert sum(line["stages"].values()) == line["total_ns"] > sum(found.values())
    # All requests but the last ones.
    first = [FEW * PAGE // 512 + at * PAGE // 512 for at in range(flow.flow._obj.constants["CHILDREN"] - 1)]
    assert [one["sector"] for one in line["children"]] == first
    assert line["requests"] == MANY == len(by_sector(records, "block_rq_issue"))
