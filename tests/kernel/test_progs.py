# SPDX-License-Identifier: Apache-2.0
"""`wptrace progs` against bpftool."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.patience import guarded, rest, said
from tests.kernel.trace import PATIENCE, ROOT, Line, bpftool, check, wait_until, wptrace
from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.programs import Program, run_statistics
from wptrace.tools.progs import Watch

# Kinds of programs that this kernel can attach, and where. 5.10 does not report the function of a trampoline.
PLACES = {
    "tp_btf": "tp_btf/sched_process_exit",
    "raw_tp": "raw_tp/sched_process_exit",
    "tracepoint": "tracepoint/sched_process_exit",
}
if GUEST:
    PLACES |= {"kprobe": "kprobe/vfs_fsync_range", "kretprobe": "kretprobe/vfs_fsync_range"}
    PLACES |= {name: name if GUEST == "5.10" else f"{name}/vfs_fsync_range" for name in ("fentry", "fexit")}


@pytest.fixture
def features() -> Iterator[BpfObject]:
    """Programs that do nothing, all attached."""
    with open_object("features") as obj:
        obj.maps["ring"].disable()
        obj.maps["storage"].disable()
        for program in obj.progs.values():
            program.autoload = program.name in PLACES
        obj.load()
        obj.attach()
        yield obj


def both(kind: str, listed: list[Line], before: dict[int, Any]) -> list[tuple[Line, dict[str, Any]]]:
    """Pair programs that were there all the time; on a machine in use others come and go."""
    after = bpftool(kind)
    ours = {one["id"]: one for one in listed}
    stayed = before.keys() & after.keys()
    assert stayed <= ours.keys() <= before.keys() | after.keys() or not GUEST
    return [(ours[number], after[number]) for number in sorted(stayed)]


def test_it_lists_what_bpftool_lists(features: BpfObject) -> None:
    before = bpftool("prog"), bpftool("map")
    done = wptrace("progs", "--json", "20ms", "1")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = map(json.loads, done.stdout.splitlines())
    check(line)
    programs, maps = both("prog", line["programs"], before[0]), both("map", line["maps"], before[1])
    ours = {program.statistics().id: program.name for program in features.progs.values() if program.autoload}
    assert ours.items() <= {one["id"]: one["name"] for one, _ in programs}.items()
    for one, known in programs:
        assert one["type"] == known["type"]
        assert one["name"] == known.get("name", "")
        assert one["memory_bytes"] == known["bytes_memlock"]
        assert one["maps"] == known.get("map_ids", [])
    for one, known in maps:
        assert (one["type"], one["name"]) == (known["type"], known.get("name", ""))
        assert (one["key_bytes"], one["value_bytes"]) == (known["bytes_key"], known["bytes_value"])
        assert one["max_entries"] == known["max_entries"]
        assert one["memory_bytes"] == known.get("bytes_memlock", 0)
    held = [one for one, _ in programs if one["id"] in ours]
    assert all({"pid": os.getpid(), "comm": _comm()} in one["held_by"] for one in held)
    # The holder is no command of wptrace.
    assert not any(one["own"] for one in held)


def _comm() -> str:
    return Path("/proc/self/comm").read_text().strip()


@pytest.mark.parametrize("name", PLACES)
def test_it_tells_where_programs_are_attached(features: BpfObject, name: str) -> None:
    number = features.progs[name].statistics().id
    (found,) = [program for program in Watch().take().programs if program.id == number]
    assert found.attached == (PLACES[name],)
    features.progs[name].close()
    (found,) = [program for program in Watch().take().programs if program.id == number]
    assert found.attached == ()


def exits(count: int) -> None:
    for _ in range(count):
        subprocess.run(["true"], check=True)


def of(program: Program, lines: list[Line]) -> list[Line]:
    number = program.statistics().id
    return [one for line in lines for one in line["programs"] if one["id"] == number]


@pytest.mark.one_kernel
def test_it_counts_the_runs_of_its_interval(features: BpfObject) -> None:
    program = features.progs["raw_tp"]
    command = [sys.executable, "-m", "wptrace", "progs", "--json", "100ms"]
    with run_statistics(), subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        lines = [json.loads(said(process))]
        exits(20)
        with guarded(process):
            while sum(one["runs"] for one in of(program, lines)) < 20:
                lines.append(json.loads(said(process)))
        process.send_signal(signal.SIGINT)
        lines += map(json.loads, rest(process))
        assert process.wait(PATIENCE) == 0
        last = program.statistics()
    seen = of(program, lines)
    assert sum(one["runs"] for one in seen) <= last.run_count
    assert 0 < sum(one["run_ns"] for one in seen) <= last.run_time_ns
    busy = max(seen, key=lambda one: one["runs"])
    assert busy["mean_ns"] == round(busy["run_ns"] / busy["runs"])
    for line in lines:
        check(line)
        assert [one["run_ns"] for one in line["programs"]] == sorted(
            (one["run_ns"] for one in line["programs"]), reverse=True
        )


@pytest.mark.one_kernel
@pytest.mark.guest
def test_statistics_are_on_only_while_it_runs(features: BpfObject) -> None:
    """Run in a guest, where no other process turns them on."""
    program = features.progs["raw_tp"]
    exits(2)
    assert program.statistics().run_count == 0
    with subprocess.Popen([sys.executable, "-m", "wptrace", "progs", "1h"], cwd=ROOT) as process:

        def has_run() -> bool:
            exits(1)
            return program.statistics().run_count > 0

        wait_until(has_run, "statistics")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    counted = program.statistics().run_count
    exits(2)
    assert program.statistics().run_count == counted


@pytest.mark.one_kernel
def test_it_knows_its_own() -> None:
    command = [sys.executable, "-m", "wptrace", "cpu", "--pid", str(os.getpid()), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        said(process)
        found = Watch().take()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    held = [one for one in found.programs if process.pid in {holder.pid for holder in one.holders}]
    # The kernel keeps 15 characters of a name.
    assert {one.name: one.attached for one in held} == {
        "switch_tp_btf": ("tp_btf/sched_switch",),
        "wakeup_tp_btf": ("tp_btf/sched_wakeup",),
        "first_wakeup_tp_btf": ("tp_btf/sched_wakeup_new",),
    }
    assert all(one.own for one in held)
    maps = {one.id: one for one in found.maps}
    assert all(maps[number].own for one in held for number in one.maps)


@pytest.mark.one_kernel
def test_a_terminal_gets_a_screen(features: BpfObject) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
    command = [sys.executable, "-m", "wptrace", "progs", "50ms"]
    with subprocess.Popen(command, stdout=theirs, cwd=ROOT, env=environment) as process:
        os.close(theirs)
        seen = b""
        with guarded(process):
            while seen.count(b"attached to") < 2:
                seen += os.read(ours, 1 << 16)
            process.send_signal(signal.SIGINT)
            while True:
                try:
                    if not os.read(ours, 1 << 16):
                        break
                except OSError:  # the process has exited
                    break
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    # The alternate screen, redrawn in place.
    assert seen.startswith(b"\x1b[?1049h")
    assert seen.count(b"\x1b[H") > 2
