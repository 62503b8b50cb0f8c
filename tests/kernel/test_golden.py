# SPDX-License-Identifier: Apache-2.0
"""Fields of JSON lines that users rely on: none disappears, and none changes its type.

`golden/COMMAND.json` lists the contents of each kind of line with their types: `rows[kind=operation].sum_ns: int`. A
field whose values are words of wptrace has those instead: `rows[kind=operation].stage = fs`. Lines that begin with `?`
are optional. The output may contain more. `WPTRACE_TESTS_GOLDEN=write` rewrites the files.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.disks import Disk, fio, read_direct
from tests.kernel.loads import cgroup_of, mounted
from tests.kernel.modules import inserted
from tests.kernel.patience import said
from tests.kernel.test_iopf import IopfTrace
from tests.kernel.test_irqoff import IrqoffTrace
from tests.kernel.trace import (
    PATIENCE,
    BlockTrace,
    CpuTrace,
    FlowTrace,
    Line,
    SizeTrace,
    StacksTrace,
    Trace,
    check,
    wait_until,
    wptrace,
)

pytestmark = pytest.mark.one_kernel

GOLDEN = Path(__file__).parent / "golden"
# Fields whose values are words of wptrace, or names made like those.
_WORDS = {"kind", "dev", "op", "stage", "rule", "flow", "level", "by", "sampled", "controller", "interface", "step"}
# The fields that identify an object in a list.
_NAMES = (("rule",), ("flow", "level"), ("kind",))
# Stages that few operations have, and other fields that are rare or depend on the kernel.
_SPARSE = "hardirq|softirq|irq_delay|preempted|journal|layers|unattributed|unknown|submit|tag|wbt|io_\\w+"
# Fields that may be absent by chance, after the kind of their line.
_OPTIONAL = re.compile(
    rf"(interval|summary) (rows.*\.(events\b|stage = ({_SPARSE})$)|verdict\.findings\[rule=(?!largest)|verdict\..* = )"
    r"|interval (rows\[|verdict)"
    r"|(interval|summary) budget\.(changes|shed)\["
    r"|(operation|hit|request|wait) (interference\[|flush|commit|throttled_by|events|instead)"
    rf"|(operation|hit|request) stages\.({_SPARSE})_ns"
    r"|request op = (read|flush)"
    r"|in_flight found\[.*(stage|op|dev) = (?!handle|fault|N)|in_flight found\[kind=(layer|writeback)"
    r"|irqoff (sampled = |stack\[\])"
    r"|doctor .*(\.(checks|fields|lacks|arguments)\[|: null)"
    r"|start notes\["
)
# Fields that may be null.
_NULLABLE = re.compile(
    r"cpus\.\w+|offset|budget\.programs|interference\[.*\]\.pid|.*\.(arguments|works)|\w+\[.*\]\.pasid"
)


def _type(value: Any) -> str:
    names = {bool: "bool", int: "int", float: "number", str: "string", list: "list", dict: "object"}
    return "null" if value is None else names[type(value)]


def _form(word: str, names: dict[str, str]) -> str:
    """Replace what differs between runs."""
    if word.startswith("/"):
        return "PATH"
    return re.sub(r"\d+", "N", names.get(word, word))


def _inside(value: Any, path: str, names: dict[str, str]) -> Iterator[str]:
    """Generate a description of a value and of what is in it."""
    key = path.rpartition(".")[2]
    if not path.endswith("]") or not isinstance(value, dict):
        yield f"{path}: {_type(value)}"
    if isinstance(value, dict) and key != "loss":  # json.md lists its names
        for name, one in value.items():
            yield from _inside(one, f"{path}.{'N' if name.isdecimal() else name}", names)
    elif isinstance(value, list):
        for one in value:
            yield from _inside(one, f"{path}[{_name(one)}]", names)
    elif isinstance(value, str) and value and key in _WORDS:
        yield f"{path} = {_form(value, names)}"


def _name(one: Any) -> str:
    for keys in _NAMES if isinstance(one, dict) else ():
        if set(keys) <= set(one):
            return ",".join(f"{key}={one[key]}" for key in keys)
    return ""


def _seen(lines: list[Line], names: dict[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        for name, value in line.items():
            if name != "kind":
                found[line["kind"]].update(_inside(value, name, names))
    return found


def _split(entry: str) -> tuple[str, str]:
    path, _, kind = entry.removeprefix("? ").partition(": ")
    return path, kind


def _types(entries: set[str]) -> dict[str, set[str]]:
    """Group types by field. An integer is a number as well."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, kind in map(_split, entries):
        if kind:
            found[path].add(kind)
    return found


def missing(golden: set[str], seen: set[str]) -> list[str]:
    """Return the lines of the golden file that do not hold here."""
    types, known = _types(seen), _types(golden)
    found = []
    for entry in sorted(golden):
        path, kind = _split(entry)
        there = entry in seen or (kind == "number" and "int" in types.get(path, ()))
        if not entry.startswith("? ") and not there:
            found.append(f"{entry}, but found {sorted(types.get(path, ())) or 'nothing'}")
    # The type of a field that was always null is unknown.
    for path in sorted(path for path in known.keys() & types.keys() if known[path] != {"null"}):
        allowed = known[path] | ({"int"} if "number" in known[path] else set())
        found += [f"{path}: {kind}, but it was {sorted(known[path])}" for kind in sorted(types[path] - allowed)]
    return found


def keeps(name: str, lines: list[Line], names: dict[str, str] | None = None, chance: str = "$^") -> None:
    """Compare lines with a golden file. `names` replaces names of this run; `chance` matches more optional lines."""
    file, seen = GOLDEN / f"{name}.json", _seen(lines, names or {})
    golden = json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get("WPTRACE_TESTS_GOLDEN") == "write":
        file.write_text(json.dumps(_written(golden, seen, re.compile(chance)), indent=1) + "\n")
        return
    assert golden, f"there is no {file}"
    for kind, entries in golden.items():
        assert kind in seen, f"{name}: there is no {kind} line any more"
        lost = missing(set(entries), seen[kind])
        assert not lost, f"{name}, {kind} line: {'; '.join(lost)}"


def _written(golden: dict[str, list[str]], seen: dict[str, set[str]], chance: re.Pattern[str]) -> dict[str, list[str]]:
    """Merge what was seen into the golden file. Optional lines stay."""
    made = {}
    for kind in sorted(golden.keys() | seen.keys()):
        optional = {entry[2:] for entry in golden.get(kind, ()) if entry.startswith("? ")}
        for entry in seen.get(kind, ()):
            if _OPTIONAL.match(f"{kind} {entry}") or chance.match(f"{kind} {entry}"):
                optional.add(entry)
        sure = seen.get(kind, set()) - optional
        optional |= {f"{path}: null" for path in _types(sure | optional) if _NULLABLE.fullmatch(path)}
        sure -= optional
        made[kind] = [f"? {entry}" if entry in optional else entry for entry in sorted(sure | optional)]
    return made


def test_what_a_field_may_become() -> None:
    golden = {"a: int", "b: number", "? c: string", "? d: null", "d: int", "rows[].op = read"}
    seen = {"a: int", "b: number", "d: int", "rows[].op = read"}
    assert missing(golden, seen | {"b: int", "d: null", "e: list", "rows[].op = write"}) == []
    assert missing(golden, seen - {"b: number"} | {"b: int"}) == []
    assert len(missing(golden, seen - {"a: int"})) == 1
    assert len(missing(golden, seen | {"c: int"})) == 1
    assert len(missing(golden, seen | {"a: null"})) == 1
    assert missing({"? e: null"}, {"e: int"}) == []
    assert len(missing(golden, seen | {"a: number"})) == 1
    assert len(missing(golden, seen - {"rows[].op = read"})) == 1


# --- The commands -----------------------------------------------------------------------------------------------------


def every_operation(path: Path) -> None:
    """Do all kinds of operations and groups in this process."""
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes(1 << 16), 0)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for _ in range(2):  # from the disk, then from the page cache
        os.pread(fd, 4096, 0)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(fd, 1 << 16) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        assert memory[4096] == 0
    os.pwrite(fd, bytes(1 << 16), 1 << 16)
    os.sync()
    os.close(fd)
    read_direct(path, 50)


@pytest.fixture
def file(loop: Disk, tmp_path: Path) -> Iterator[Path]:
    with mounted(loop, "ext4", tmp_path / "mnt") as top:
        found = top / "file"
        found.write_bytes(bytes(1 << 20))
        os.sync()
        yield found


def test_io(loop: Disk, file: Path) -> None:
    options = ("--interference", "--writeback", "--stats", "--budget=100%", "-D", "--hist=device", "--stuck=1h")
    with Trace("--each", *options, f"--dev={loop.name}", "100ms") as trace:
        every_operation(file)
        for _ in range(10):  # some of it may be under way at that moment
            trace.process.send_signal(signal.SIGUSR1)
            read_direct(file, 50)
        trace.wait_for('"kind":"in_flight"')
        trace.wait_for('"kind":"interval"')
    keeps("io", trace.lines, {loop.name: "DISK"}, chance=r"in_flight found\[")


def test_io_with_filters_and_replay(loop: Disk, file: Path, v2: Path, tmp_path: Path) -> None:
    comm, capture = Path("/proc/self/comm").read_text().strip(), tmp_path / "trace.wpt"
    whose = (f"--pid={os.getpid()}", f"--tid={os.getpid()}", f"--comm={comm}", f"--cgroup={v2}{cgroup_of()}")
    which = (f"--file={file}", f"--dir={file.parent}", "--op=read", "--size=4K-1M", f"--dev={loop.name}")
    with Trace(*whose, *which, "--slow=1ns", "--sample=1/2", "--limit=100000", f"--capture={capture}") as trace:
        every_operation(file)
    keeps("io-filters", trace.lines, {loop.name: "DISK"})
    done = wptrace("replay", str(capture), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    keeps("replay", [json.loads(line) for line in done.stdout.splitlines()], {loop.name: "DISK"})
    done = wptrace("diff", str(capture), str(capture), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    # The compared figures depend on the load.
    lists = r"diff (unlike|joined|rows|devices|changes|text)(\[|\.)"
    keeps("diff", [json.loads(line) for line in done.stdout.splitlines()], {loop.name: "DISK"}, chance=lists)


def test_io_level_block(loop: Disk) -> None:
    with BlockTrace("--each", "--stats", f"--dev={loop.name}") as trace:
        fio(loop.path, rw="randrw", number_ios=100)
    keeps("io-block", trace.lines, {loop.name: "DISK"})


DEFINITION = """
name = "golden"
noun = ["request", "requests"]
[[point]]
name = "D"
at = "tp:block_rq_issue"
key = "request"
stage = "device"
value = "request->__data_len"
filter = ["request->q->disk->disk_name | request->rq_disk->disk_name == 'NAME'"]
labels = [{ name = "disk", value = "request->q->disk->disk_name | request->rq_disk->disk_name" }]
[[point]]
name = "C"
at = "tp:block_rq_complete"
key = "request"
outcome = "done"
"""


def test_flow(loop: Disk, tmp_path: Path) -> None:
    file = tmp_path / "golden.toml"
    file.write_text(DEFINITION.replace("NAME", loop.name))
    with FlowTrace(str(file), "--each", "--stats", "--stuck=1h", "100ms") as trace:
        fio(loop.path, rw="randrw", number_ios=100)
        trace.process.send_signal(signal.SIGUSR1)
        trace.wait_for('"kind":"in_flight"')
        trace.wait_for('"kind":"interval"')
    keeps("flow", trace.lines, {loop.name: "DISK"})


def test_stacks_and_size(loop: Disk) -> None:
    names = {loop.name: "DISK"}
    with (
        StacksTrace("--user", f"--dev={loop.name}") as stacks,
        SizeTrace("--exact", f"--dev={loop.name}") as size,
    ):
        fio(loop.path, rw="randrw", number_ios=100)
        fio(loop.path, rw="read", number_ios=100)
        stacks.stop()
    keeps("stacks", stacks.lines, names)
    keeps("size", size.lines, names)


# Two processes that share a CPU, so that each waits for the other.
WORKER = """
import os, sys, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
with open("/proc/self/comm", "w") as comm:
    comm.write("golden")
print(flush=True)
sys.stdin.readline()
for _ in range(10):
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    time.sleep(0.001)
"""


def test_cpu(v2: Path) -> None:
    with ExitStack() as stack:
        command = [sys.executable, "-S", "-c", WORKER]
        workers = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(2)
        ]
        for worker in workers:
            stack.callback(worker.kill)
        for worker in workers:
            said(worker)
        one = workers[0].pid
        options = {
            "process": (f"--pid={one}", "--slow=1ns"),
            "thread": (f"--tid={one}",),
            "cgroup": ("--comm=golden",),
            "cpu": (f"--cgroup={v2}{cgroup_of()}", "--stats"),
        }
        traces = {by: stack.enter_context(CpuTrace(f"--by={by}", *which)) for by, which in options.items()}
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        for worker in workers:
            worker.wait(PATIENCE)
        for by, trace in traces.items():
            trace.stop()
            keeps(f"cpu-{by}", trace.lines)


def one_line(*command: str) -> list[Line]:
    done = wptrace(*command, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = map(json.loads, done.stdout.splitlines())
    check(line)
    return [line]


def test_doctor() -> None:
    keeps("doctor", one_line("doctor"))


def test_progs() -> None:
    with CpuTrace("--comm=nobody"):  # so that there are programs
        keeps("progs", one_line("progs", "20ms", "1"))


# --- What only test modules do ----------------------------------------------------------------------------------------


@pytest.mark.guest
def test_irqoff() -> None:
    with inserted("irqoff") as module, IrqoffTrace("--min=2ms", "--cpu=0", "--stats", "100ms") as trace:
        for _ in range(3):
            module.run(0, 30_000)
        wait_until(lambda: trace.written().count('"kind":"irqoff"') >= 3, "the periods")
        trace.wait_for('"kind":"interval"')
    keeps("irqoff", trace.lines)


@pytest.mark.guest
def test_iopf() -> None:
    """One device has its faults answered, the other one does not."""
    with inserted("smmu") as module, IopfTrace("--dev=0000:75:00.0", "--pasid=3", "--stuck=10ms", "100ms") as trace:
        module.run(0, 3, 5, 100)
        module.run(0, 3, 1, -1)
        trace.wait_for('"kind":"in_flight"')
    keeps("iopf", trace.lines)
