# SPDX-License-Identifier: Apache-2.0
"""The shipped definitions, each against the kernel's counters or the hits of its own tracing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio, total
from tests.kernel.trace import FlowTrace, Line, Trace
from tests.kernel.tracefs import ROOT as TRACEFS

# They trace the whole machine.
pytestmark = pytest.mark.guest

_COUNTERS = (Path("/proc/net/snmp"), Path("/proc/net/netstat"))
_HITS = re.compile(r"^(?:entries|overrun): (\d+)", re.MULTILINE)


class PagesTrace(FlowTrace):
    """Tasks and interrupts use pages all the time. An interrupt within a program makes the kernel skip its own."""

    adds_skipped = True


class NetTrace(Trace):
    command = "net"


def _counters() -> dict[str, int]:
    found = {}
    for file in _COUNTERS:
        lines = [line.split() for line in file.read_text().splitlines()]
        for names, values in zip(lines[::2], lines[1::2]):
            found.update({f"{names[0][:-1]}{name}": int(value) for name, value in zip(names[1:], values[1:])})
    return found


def _grown(before: dict[str, int]) -> dict[str, int]:
    return {name: value - before.get(name, 0) for name, value in _counters().items()}


@contextmanager
def _hits(*events: str) -> Iterator[dict[str, int]]:
    """Count these events meanwhile, with a buffer for each."""
    found: dict[str, int] = {}
    buffers = {event: TRACEFS / "instances" / f"wptest_{os.getpid()}_{event.replace('/', '_')}" for event in events}
    with ExitStack() as stack:
        for event, buffer in buffers.items():
            buffer.mkdir()
            stack.callback(buffer.rmdir)
            (buffer / "events" / event / "enable").write_text("1")
        yield found
        for event, buffer in buffers.items():
            (buffer / "events" / event / "enable").write_text("0")
            stats = "".join(file.read_text() for file in buffer.glob("per_cpu/*/stats"))
            found[event] = sum(map(int, _HITS.findall(stats)))


def _talk() -> None:
    """Send and receive over TCP, and over UDP, with some datagrams that no socket wants."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                while data := peer.recv(4096):
                    peer.sendall(data[:1])

        thread = threading.Thread(target=answer)
        thread.start()
        with socket.create_connection(server.getsockname()) as client:
            for _ in range(100):
                client.sendall(b"x" * 100)
                client.recv(1)
        thread.join()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as reader,
        socket.socket(type=socket.SOCK_DGRAM) as writer,
    ):
        reader.bind(("127.0.0.1", 0))
        for _ in range(50):
            writer.sendto(b"y" * 50, reader.getsockname())
            reader.recv(100)
        for _ in range(20):
            writer.sendto(b"z", ("127.0.0.1", 9))


def _counted(summary: Line, stage: str) -> int:
    return sum(int(row["count"]) for row in summary["rows"] if row["stage"] == stage)


def test_packets() -> None:
    """Packets that IP received or sent, and writes that TCP had acknowledged."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    names = "netrx", "nettx", "tcp"
    with NetTrace(*(f"--what={name}" for name in names)) as trace:
        before = _counters()
        _talk()
        grown = _grown(before)
    summaries = {line["flow"]: line for line in trace.lines if line["kind"] == "summary"}
    assert tuple(summaries) == names
    received, sent, acknowledged = summaries.values()
    for summary, packets in ((received, grown["IpInReceives"]), (sent, grown["IpOutRequests"])):
        requests = summary["requests"]
        assert (requests["lost"], requests["in_flight"]) == (0, 0), summary["loss"]
        assert requests["finished"] == packets, (requests, grown)
    reasons = [row["labels"].get("reason") for row in received["rows"] if row["stage"] == "total"]
    if any(reason not in (0, "0", None) for reason in reasons):
        # Reasons are there from 5.17 on.
        assert "drop_reason_no_socket" in reasons
    # Only TCP is counted; datagrams in one piece are copied without that tracepoint.
    assert _counted(received, "user") == 200
    # All 200 writes are acknowledged; of each socket one at a time is timed.
    finished = acknowledged["requests"]["finished"]
    assert 100 <= finished <= 200
    assert acknowledged["requests"]["lost"] == 0
    assert {row["labels"]["peer"] for row in acknowledged["rows"]} == {"127.0.0.1"}


@pytest.mark.one_kernel
def test_interrupts_softirqs_work_and_waits(disk: Disk) -> None:
    """There are at least as many as the kernel's own tracing counts in a shorter time."""
    names = {
        "irq": "irq/irq_handler_entry",
        "softirq": "irq/softirq_entry",
        "workqueue": "workqueue/workqueue_execute_end",
        "runqueue": "sched/sched_wakeup",
    }
    with ExitStack() as stack:
        traces = {name: stack.enter_context(FlowTrace(name)) for name in names}
        with _hits(*names.values()) as hits:
            fio(disk.path, rw="randread", number_ios=100)
        for trace in traces.values():
            trace.stop()
    for name, event in names.items():
        requests = traces[name].summary["requests"]
        assert requests["finished"] >= hits[event] > 0, (name, requests, hits)
        assert requests["lost"] == 0
    vectors = {row["labels"]["vector"] for row in traces["softirq"].summary["rows"]}
    assert vectors & {"timer", "block", "sched", "rcu"}
    assert vectors <= {
        "hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu",
    }  # fmt: skip


def test_blocks_and_pages(disk: Disk) -> None:
    with FlowTrace("block") as blocks, PagesTrace("pagelife", "--slots=16384") as pages:
        with _hits("kmem/mm_page_alloc") as hits:
            made = total(fio(disk.path, rw="randread", number_ios=200))
        for trace in (blocks, pages):
            trace.stop()
    mine = [row for row in blocks.summary["rows"] if row["labels"]["device"] == disk.name and row["stage"] == "issued"]
    assert sum(row["count"] for row in mine) == made
    assert blocks.summary["bytes"] >= 4096 * made
    started, skipped = pages.summary["requests"]["started"], pages.summary["loss"].get("recursion", 0)
    assert started + skipped >= hits["kmem/mm_page_alloc"] > 0
    assert started > skipped


_EATER = """
import os, mmap
with open("{group}/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
fd = os.open("{file}", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 32 << 20)
with mmap.mmap(fd, 32 << 20) as memory:
    for at in range(0, len(memory), 4096):
        memory[at] = 1
"""


def test_reclaim(tmp_path: Path) -> None:
    """A cgroup that reaches its limit has to reclaim its own pages."""
    group = Path("/sys/fs/cgroup/wptest-reclaim")
    Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    try:
        (group / "memory.max").write_text(str(8 << 20))
        with FlowTrace("reclaim") as trace, _hits("vmscan/mm_vmscan_memcg_reclaim_begin") as hits:
            eater = _EATER.format(group=group, file=tmp_path / "file")
            subprocess.run([sys.executable, "-c", eater], check=False)
    finally:
        group.rmdir()
    requests = trace.summary["requests"]
    assert requests["finished"] >= hits["vmscan/mm_vmscan_memcg_reclaim_begin"] > 0
    assert requests["lost"] == 0
    assert _counted(trace.summary, "memcg") >= hits["vmscan/mm_vmscan_memcg_reclaim_begin"]
