# SPDX-License-Identifier: Apache-2.0
"""Weeks of `wptrace agent` and `wptrace io` in minutes: owners and devices come and go, reloads, triggers, intervals.

`make soak` runs all of it, `make test-all` a tenth.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from tests.kernel.disks import Disk, loop_device
from tests.kernel.loads import hierarchy
from tests.kernel.test_agent import Agent, metrics_address, running
from tests.kernel.trace import PATIENCE, ROOT, metrics, wait_until, wptrace
from tests.thorough import only_all

SHARE = float(os.environ.get("WPTRACE_TESTS_SOAK", "0.1"))
ROUNDS, OWNERS, TRIGGERS = round(500 * SHARE), 200, 200
"""Each round has so many new owners, and a reload that replaces a device; triggers are so many in 500 rounds."""
_MOST_GROWN = 4 << 20
# Names and counts of owners that left are kept, at most the last 65,536.
_OF_OWNER, _KEPT = 3 << 10, 65_536
_SCRAPES, _TOP, _LINES = 4, 20, 200

# A process that becomes a new owner for each read. Its arguments are the first number and how many owners.
OWNER = """
import mmap, os, sys
top, disk = sys.argv[1:]
memory, fd = mmap.mmap(-1, 4096), os.open(disk, os.O_RDONLY | os.O_DIRECT)
for line in sys.stdin:
    first, count = map(int, line.split())
    for number in range(first, first + count):
        group = os.path.join(top, f"wptsoak-{os.getpid()}-{number}.service")
        os.mkdir(group)
        with open(os.path.join(group, "cgroup.procs"), "w") as procs:
            procs.write("0")
        os.preadv(fd, [memory], number % 4096 * 4096)
        with open(os.path.join(top, "cgroup.procs"), "w") as procs:
            procs.write("0")
        os.rmdir(group)
    print(count, flush=True)
"""


class Reading(NamedTuple):
    memory: int
    """Resident."""
    maps: int
    descriptors: int
    lines: int
    """Lines of the answer to a scrape, without those about loss."""
    scrape_s: float
    """The CPU time of the agent for it."""


def config(folder: Path, others: list[Disk], disk: Disk, number: int) -> str:
    names = ", ".join(f'"{one.name}"' for one in (disk, *others))
    return f"""
[agent]
budget = "100%"
folder = "{folder}"
keep = "{20 + number % 2}M"
daily = "100G"
[always.io]
level = "path"
dev = [{names}]
by = "cgroup"
recorder = "1s"
[prometheus]
listen = "127.0.0.1:0"
owners = "unit"
top = {_TOP - number % 10}
[history]
dir = "{folder / "history"}"
keep = "{4 + number % 3}M"
interval = "1s"
[trigger.soak]
when = "io.stuck > {1 + number % 50}h"
after = "0s"
"""


def cpu_s(agent: Agent) -> float:
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    (found,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) << 10


def reading(agent: Agent, status: str) -> Reading:
    before = cpu_s(agent)
    text = metrics(metrics_address(status))
    took = cpu_s(agent) - before
    process = Path(f"/proc/{agent.process.pid}")
    maps = sum(float(one) for one in re.findall(r"^wptrace_map_bytes\{.*\} (.+)$", text, re.M))
    lines = [line for line in text.splitlines() if "_loss_" not in line]
    return Reading(resident(agent.process.pid), int(maps), len(list((process / "fd").iterdir())), len(lines), took)


@contextmanager
def owners(top: Path, disk: Disk) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OWNER, str(top), str(disk.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str], first: int) -> None:
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    stdin.write(f"{first} {OWNERS}\n")
    stdin.flush()
    assert int(stdout.readline()) == OWNERS


def drained(pipe: IO[str]) -> None:
    os.set_blocking(pipe.fileno(), False)
    with suppress(BlockingIOError):
        while os.read(pipe.fileno(), 1 << 16):
            pass


@only_all
@pytest.mark.one_kernel
def test_what_weeks_bring_leaves_memory_and_descriptors_as_they_are(disk: Disk, tmp_path: Path) -> None:
    found: list[Reading] = []
    devices = {disk.name}
    made = fired = 0
    with (
        hierarchy(tmp_path / "cgroups") as top,
        running(tmp_path, config(tmp_path, [], disk, 0)) as agent,
        owners(top, disk) as process,
    ):
        status, errors = agent.ready, agent.process.stderr
        assert errors is not None
        for number in range(1, ROUNDS + 1):
            with loop_device(tmp_path / "other.img", "1M") as other:
                devices.add(other.name)
                status = agent.reload(config(tmp_path, [other], disk, number))
                told(process, made)
                subprocess.run(
                    ["dd", f"if={other.path}", "of=/dev/null", "iflag=direct", "bs=4k", "count=1", "status=none"],
                    check=True,
                )
            made += OWNERS
            if number * TRIGGERS // 500 > fired:
                fired += 1
                asked = wptrace("agent", "--trigger", "soak", "--pid", str(agent.process.pid))
                assert asked.stdout == "trigger soak has fired\n"
            drained(errors)
            found += [reading(agent, status) for _ in range(1 if number % 5 else _SCRAPES)]
        wait_until(
            lambda: f'wptrace_trigger_fired_total{{trigger="soak"}} {fired}\n' in metrics(metrics_address(status)),
            "all triggers",
        )
        last = metrics(metrics_address(status))
        agent.process.terminate()
        agent.process.communicate(timeout=PATIENCE)
        assert agent.process.returncode == 0
    late = found[len(found) * 4 // 5 :]
    early = found[len(found) // 2 : -len(late)]
    named = _OF_OWNER * made // 5 if made < 1.3 * _KEPT else 0
    times = [sorted(one.scrape_s for one in part) for part in (early, late)]
    print(
        f"\n{ROUNDS} rounds: {made} owners, {ROUNDS} reloads and devices, {fired} triggers; resident "
        f"{max(one.memory for one in early) >> 10} kB, then {max(one.memory for one in late) >> 10} kB; descriptors "
        f"{max(one.descriptors for one in early)}, then {max(one.descriptors for one in late)}; scrapes "
        f"{statistics.median(times[0]) * 1e3:.0f} ms, then {statistics.median(times[1]) * 1e3:.0f} ms"
    )
    # One read of each owner. A hardened kernel hides the end of one now and then, which is counted as lost.
    labels = f'device="{disk.name}",operation="read",kind="request",'
    counts = re.findall(rf"^wptrace_io_owner_duration_seconds_count\{{{labels}.*\}} (\d+)$", last, re.M)
    lost = sum(map(int, re.findall(r"^wptrace_loss_total\{.*\} (\d+)$", last, re.M)))
    assert made - lost <= sum(map(int, counts)) <= made
    assert max(one.memory for one in late) < max(one.memory for one in early) + _MOST_GROWN + named
    assert max(one.maps for one in late) <= max(one.maps for one in early)
    assert max(one.descriptors for one in late) <= max(one.descriptors for one in early) + 1
    # Devices keep their totals when they get another number; owners that left have none.
    assert max(one.lines for one in found) < _LINES * (len(devices) + _TOP)
    # The folders stay within their limits.
    dumps = sum(path.stat().st_size for path in tmp_path.glob("wptrace-*"))
    assert 0 < dumps < 21 << 20
    assert sum(path.stat().st_size for path in (tmp_path / "history").rglob("*.wpt")) < 6 << 20
    replayed = wptrace("replay", str(tmp_path / "history" / "io"), "--json")
    assert replayed.returncode == 0
    assert json.loads(replayed.stdout.splitlines()[-1])["kind"] == "summary"
    assert not list(Path("/proc").glob(f"{agent.process.pid}/fd/*"))


@only_all
@pytest.mark.one_kernel
def test_short_intervals_leave_memory_as_it_is(disk: Disk, tmp_path: Path) -> None:
    """Each request is in one interval, and the summary has all of them."""
    intervals, sizes = round(100_000 * SHARE), []
    load = ["fio", "--name=job", f"--filename={disk.path}", "--direct=1", "--rw=randread", "--size=32M"]
    load += ["--rate_iops=100", "--time_based", "--runtime=30d"]
    command = [sys.executable, "-m", "wptrace", "io", "--json", "--level=path", "--by=process", f"--dev={disk.name}"]
    with subprocess.Popen([*command, "20ms", str(intervals)], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "start"
        requests = seen = 0
        with subprocess.Popen(load, stdout=subprocess.DEVNULL) as fio:
            for text in process.stdout:
                if '"kind":"interval"' not in text:
                    break
                line = json.loads(text)
                requests += line["requests"]["finished"]
                seen += 1
                if seen % (intervals // 10) == 0:
                    sizes.append(resident(process.pid))
                if seen == intervals - 10:
                    fio.terminate()
        process.wait(PATIENCE)
    summary = json.loads(text)
    print(f"\n{seen} intervals, {requests} requests; resident {[size >> 10 for size in sizes]} kB")
    assert seen == intervals
    assert requests == summary["requests"]["finished"]
    assert sizes[-1] < sizes[len(sizes) // 2] + (1 << 20)
