# SPDX-License-Identifier: Apache-2.0
"""Points in programs, against what a program has counted itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.flows import defined, running_flow
from tests.kernel.loads import compiled
from tests.kernel.test_capabilities import BOTH
from tests.kernel.trace import PATIENCE, ROOT, wptrace
from wptrace.engine.definition.flow import DefinedFlow
from wptrace.errors import UsageError
from wptrace.model.kind import REQUESTS, TOTAL
from wptrace.model.report import Snapshot

CALLS = """
name = "calls"
key = "task"
[[point]]
name = "called"
at = "ufn:PROGRAM:work"
labels = [{ name = "name", value = "arg1:str" }, { name = "odd", value = "arg0:1" }]
[[point]]
name = "returned"
at = "uret:PROGRAM:work"
failed = "ret:32 == 0xffffffff"
"""
NESTED = """
name = "nested"
key = "task"
nest = "outer"
[[point]]
name = "down"
at = "ufn:PROGRAM:descend"
[[point]]
name = "up"
at = "uret:PROGRAM:descend"
"""
PROBES = """
name = "probes"
key = "task"
[[point]]
name = "started"
at = "usdt:PROGRAM:probed:started"
labels = [LABELS]
[[point]]
name = "done"
at = "usdt:PROGRAM:probed:done"
"""
TWO_ENDS = """
name = "twice"
key = "task"
[[point]]
name = "in"
at = "ufn:PROGRAM:work"
[[point]]
name = "first"
at = "END"
outcome = "first"
[[point]]
name = "second"
at = "END"
outcome = "second"
"""


class Running:
    """A running process of the program, which obeys commands."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # Until it has answered, it may still be before its exec.
        assert self.do(0)[0] == 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, count: int, name: str = "one") -> tuple[int, int]:
        """Return the sum of the returned values, and the semaphore."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count} {name}\n")
        self._process.stdin.flush()
        returned, semaphore = map(int, self._process.stdout.readline().split())
        return returned, semaphore

    def end(self) -> None:
        self._process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("probed.c", tmp_path_factory.mktemp("programs"))


@contextmanager
def running(program: Path) -> Iterator[Running]:
    found = Running(program)
    try:
        yield found
    finally:
        found.end()


@contextmanager
def traced(text: str, program: Path) -> Iterator[DefinedFlow]:
    with running_flow(defined(text.replace("PROGRAM", str(program)))) as flow:
        yield flow


def counts(found: Snapshot) -> dict[tuple[object, ...], int]:
    return {group.values: stages[TOTAL].count for group, stages in found.cells.items() if stages[TOTAL].count}


def book(found: Snapshot) -> tuple[int, int, int, int]:
    one = found.books[REQUESTS]
    assert (one.lost, one.noted) == ({}, {})
    return one.started, one.finished, one.failed, one.in_flight


@pytest.mark.each_kernel
def test_functions_of_processes_that_run_and_that_start(program: Path) -> None:
    """The first call is seen already; strings, integers and returned values are read."""
    with running(program) as earlier, traced(CALLS, program) as flow:
        earlier.do(30, "early")
        with running(program) as later:
            later.do(11, "with_many_letters")
        flow.stop()
        found = flow.snapshot()
        earlier.do(5, "after")
    # One call in three returns -1.
    assert book(found) == (41, 41, 10 + 4, 0)
    assert counts(found) == {
        ("early", 0): 15,
        ("early", 1): 15,
        ("with_many_lette", 0): 6,
        ("with_many_lette", 1): 5,
    }


@pytest.mark.each_kernel
@pytest.mark.parametrize("failed", ["ret < 0", "ret:32 < 0", "ret:32 == -1"])
def test_what_is_below_0_has_failed(program: Path, failed: str) -> None:
    with running(program) as process, traced(CALLS.replace("ret:32 == 0xffffffff", failed), program) as flow:
        process.do(30)
        flow.stop()
        assert book(flow.snapshot()) == (30, 30, 10, 0)


def test_a_function_that_calls_itself(program: Path) -> None:
    with traced(NESTED, program) as flow:
        with running(program) as process:
            process.do(20)
        flow.stop()
        assert book(flow.snapshot()) == (20, 20, 0, 0)


@pytest.mark.each_kernel
@pytest.mark.parametrize("end", ["uret:PROGRAM:work", "ufn:PROGRAM:descend"])
def test_of_two_ends_at_one_place_the_first_in_the_file_counts(program: Path, end: str) -> None:
    with traced(TWO_ENDS.replace("END", end), program) as flow:
        with running(program) as process:
            process.do(20)
        flow.stop()
        found = flow.snapshot()
    events = [counters["first"] for counters in found.counters.values()]
    assert events == [20], found.counters


def test_check_names_the_places(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "calls.toml"
    file.write_text(CALLS.replace("PROGRAM", "/nowhere"))
    with running(program) as process:
        done = wptrace("flow", str(file), "--check", f"--program=/proc/{process.pid}/exe")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"called    begin  uprobe /proc/{process.pid}/exe:work" in done.stdout
    done = wptrace("flow", str(file), "--check")
    assert done.returncode == 2
    assert "/nowhere cannot be read: No such file or directory" in done.stderr


@pytest.mark.one_kernel
def test_what_a_kernel_asks_for_is_said(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "calls.toml"
    file.write_text(CALLS.replace("PROGRAM", str(program)))
    words = [*BOTH, sys.executable, "-m", "wptrace", "flow", str(file), "0.1", "1"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert done.returncode == 4
    assert done.stderr.splitlines()[0].endswith(
        "the point returned: loads, but cannot be attached: not permitted, because probes in programs need "
        "CAP_SYS_ADMIN, which is missing"
    )


def test_progs_shows_where_they_are(program: Path) -> None:
    with traced(CALLS, program):
        done = wptrace("progs", "--json", "0.1", "1")
    assert done.returncode == 0, done.stderr
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    places = {one["name"]: one["attached"] for one in found["programs"] if str(program) in str(one)}
    assert sorted(place[0].partition("+")[0] for place in places.values()) == [
        f"uprobe/{program}",
        f"uretprobe/{program}",
    ]


def test_a_file_that_was_replaced_since_it_was_read(program: Path, tmp_path: Path) -> None:
    """The instruction may be elsewhere in the new file."""
    mine = tmp_path / "probed"
    shutil.copy(program, mine)
    flow = defined(CALLS.replace("PROGRAM", str(mine)))
    shutil.copy(program, tmp_path / "other")
    (tmp_path / "other").rename(mine)
    with pytest.raises(UsageError, match=f"{mine} has changed since it was read"), running_flow(flow):
        pass


@pytest.mark.each_kernel
@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("arg0:str", {"some": 21}),
        ("arg1", {-1: 10, -2: 11}),
        ("arg2", {1: 10, 2: 11}),
        ("arg2:1", {1: 10, 0: 11}),
        ("arg3", {-7: 21}),
        ("arg4[1]:str", {"some": 21}),
    ],
)
def test_arguments_of_static_probes(program: Path, label: str, values: dict[object, int]) -> None:
    """Arguments in registers, in memory and constant; the probe has two places, each with registers of its own."""
    with (
        running(program) as process,
        traced(PROBES.replace("LABELS", f'{{ name = "x", value = "{label}" }}'), program) as flow,
    ):
        _, semaphore = process.do(21, "some")
        flow.stop()
        _, afterwards = process.do(5, "some")
        found = flow.snapshot()
    assert book(found) == (21, 21, 0, 0)
    assert {one: count for (one,), count in counts(found).items()} == values
    # Begin and end share the semaphore, and each has two places.
    assert (semaphore, afterwards) == (4, 0)
    assert flow.missing == {}
