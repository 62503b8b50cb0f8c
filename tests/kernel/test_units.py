# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --by unit`: operations of a program in units that it was told to work on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, loop_device
from tests.kernel.loads import compiled
from tests.kernel.patience import said
from tests.kernel.test_capture import replayed
from tests.kernel.test_owners import counts, exact, totals
from tests.kernel.test_recorder import Recording, dumps
from tests.kernel.test_statements import has_rows_of_records, names_the_one_with_the_most_time
from tests.kernel.trace import Line, Trace

CALLS = """
[unit]
name = "calls"
program = "PROGRAM"
begin = ["ufn:no_such_function", "ufn:work"]
end = "uret:work"
label = "arg1:str"
length = "arg2"
only = "arg0 == 3"
others = { 7 = "seven" }
"""
LATER = """
later = ["ufn:no_such_function", "ufn:know"]
later_label = "arg0:str"
later_length = "arg1"
"""
STATIC = """
[unit]
name = "static"
program = "PROGRAM"
begin = "usdt:worker:begin"
end = "usdt:worker:end"
label = "arg0:str"
"""
LENGTHS = STATIC.replace("arg0:str", "arg1")
VARIABLE = """
[unit]
name = "variable"
program = "PROGRAM"
variable = "unit_text"
"""
ARRAY = VARIABLE.replace("unit_text", "unit_array") + 'type = "char[]"'
NUMBER = VARIABLE.replace("unit_text", "unit_number") + 'type = "int"'
LONG = "x" * 1023


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with loop_device(tmp_path_factory.mktemp("disk") / "disk.img") as made:
        yield made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("worker.c", tmp_path_factory.mktemp("programs"), "-pthread")


class Worker:
    def __init__(self, program: Path, disk: Disk) -> None:
        self.process = subprocess.Popen(
            [program, disk.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="latin-1"
        )

    def do(self, how: str, count: int, kind: int = 3, text: str = "-") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{how} {count} {kind} {text}\n")
        self.process.stdin.flush()
        assert said(self.process) == "done\n"


@contextmanager
def working(program: Path, disk: Disk) -> Iterator[Worker]:
    found = Worker(program, disk)
    with found.process:
        yield found
        assert found.process.stdin is not None
        found.process.stdin.close()


@contextmanager
def traced(text: str, program: Path, disk: Disk, folder: Path, *more: str, each: bool = True) -> Iterator[Trace]:
    """Trace with `--each`, or with a recorder."""
    file = folder / "unit.toml"
    file.write_text(text.replace("PROGRAM", str(program)))
    options = ["--dev", disk.name, "--by=unit", f"--unit={file}", "--top=0", *more]
    with Trace("--each", *options) if each else Recording("--recorder=4M", *options) as trace:
        yield trace


def reads(summary: Line) -> dict[str, int]:
    return {owner: count for owner, count in counts(summary, "owned_operation").items() if owner != "udev-worker"}


@pytest.mark.each_kernel
def test_calls(program: Path, disk: Disk, tmp_path: Path) -> None:
    """A unit lasts from a call to its return, in the thread that makes it, whatever is in the memory meanwhile.

    Each operation and request of a capture has the unit that it has in rows.
    """
    capture = tmp_path / "trace.wpt"
    with (
        working(program, disk) as earlier,
        traced(CALLS, program, disk, tmp_path, f"--capture={capture}", "--neighbours") as trace,
    ):
        earlier.do("call", 5, text="get /index/1")
        earlier.do("call", 6, text="get /index/22")
        earlier.do("call", 7, 7, "not an other's text")
        earlier.do("call", 8, 8, "no other")
        earlier.do("call", 2, text=LONG + "beyond")
        earlier.do("call", 1, text="get /index/333")
        earlier.do("call", 3, text="\x01\x02 binary")
        earlier.do("none", 4)
        earlier.do("thread", 9)
        earlier.do("named", 12)
        # Whatever is executed in a unit is not part of it.
        earlier.do("call", 0, text="ends with a program")
        earlier.do("none", 11)
        with working(program, disk) as later:
            later.do("call", 10, text="get /index/3")
        trace.stop()
    summary = trace.summary
    exact(summary)
    units = {"get /index/?": 22, "seven": 7, "no unit": 8 + 4 + 9 + 11, LONG: 2, "unread": 3}
    assert reads(summary) == {**units, "cleaner": 12}
    texts = {row["owner"]: row["unit"] for row in totals(summary, "owned_operation")}
    assert texts["get /index/?"] == "get /index/?"
    assert texts["no unit"] is texts["unread"] is texts["cleaner"] is None
    names_the_one_with_the_most_time(summary, "unit")
    has_rows_of_records(replayed(capture), "unit")
    again = replayed(capture, "--by=unit", "--comm=worker", "--summary")[-1]
    assert reads(again) == units


@pytest.mark.each_kernel
def test_dumps(program: Path, disk: Disk, tmp_path: Path) -> None:
    """A dump has the unit of each operation and request, also of those that ended before the texts were looked at."""
    options = ["--recorder-at-end", f"--dump-dir={tmp_path}", "--neighbours", "600"]
    with (
        traced(CALLS, program, disk, tmp_path, *options, each=False) as trace,
        working(program, disk) as worker,
    ):
        worker.do("call", 5, text="get /index/1")
        worker.do("call", 6, text="get /index/22")
        worker.do("call", 7, 7, "not an other's text")
        worker.do("call", 3, text="\x01\x02 binary")
        worker.do("none", 4)
        worker.do("named", 2)
        trace.stop()
    (dump,) = dumps(tmp_path)
    exact(trace.summary)
    assert reads(trace.summary) == {"get /index/?": 11, "seven": 7, "no unit": 4, "cleaner": 2, "unread": 3}
    found = replayed(dump)
    has_rows_of_records(found, "unit")
    assert reads(found[-1]) == reads(trace.summary)
    assert counts(found[-1], "owned_request") == counts(trace.summary, "owned_request")
    neighbours = replayed(dump, "--neighbours", "--summary")[-1]["neighbours"]
    assert {one["owner"]: one["requests"] for one in neighbours} == reads(trace.summary)


@pytest.mark.each_kernel
def test_what_a_thread_with_a_name_dirties(program: Path, disk: Disk, tmp_path: Path) -> None:
    """It is written back by others, and belongs to the thread's row."""
    with traced(CALLS, program, disk, tmp_path, "--writeback") as trace, working(program, disk) as worker:
        worker.do("call", 1, text="first")
        worker.do("dirty", 6)
        os.sync()
        trace.stop()
    exact(trace.summary)
    written = {row["owner"]: row["bytes"] for row in totals(trace.summary, "owned_request") if row["op"] == "write"}
    assert written == {"cleaner": 6 * 4096}
    has_rows_of_records(trace.lines, "unit")


@pytest.mark.each_kernel
def test_texts_that_become_known_later(program: Path, disk: Disk, tmp_path: Path) -> None:
    """A unit that has a text keeps it, and one outside of a unit is none."""
    with traced(CALLS + LATER, program, disk, tmp_path) as trace, working(program, disk) as worker:
        worker.do("call", 5, text="first")
        worker.do("call", 6, 9)
        worker.do("call", 7, 7)
        worker.do("call", 2, 10)
        worker.do("none", 4)
        trace.stop()
    exact(trace.summary)
    assert reads(trace.summary) == {"first": 5, "known later": 6, "seven": 7, "unread": 2, "no unit": 4}
    has_rows_of_records(trace.lines, "unit")


def test_a_program_without_the_later_point(program: Path, disk: Disk, tmp_path: Path) -> None:
    """It is said, and all else is known."""
    text = CALLS + LATER.replace('"ufn:know"', '"ufn:none"')
    with traced(text, program, disk, tmp_path) as trace, working(program, disk) as worker:
        worker.do("call", 5, text="first")
        worker.do("call", 7, 7)
        trace.stop()
    assert reads(trace.summary) == {"first": 5, "seven": 7}
    said = f"{program} has no ufn:no_such_function or ufn:none: units without a text at their begin have none"
    assert said in trace.lines[0]["notes"]


@pytest.mark.each_kernel
def test_static_probes(program: Path, disk: Disk, tmp_path: Path) -> None:
    with traced(STATIC, program, disk, tmp_path) as trace, working(program, disk) as worker:
        worker.do("static", 5, text="first")
        worker.do("static", 6, text="'second'")
        worker.do("none", 7)
        # Whose text ends where nothing is mapped, or is nowhere.
        worker.do("lie", 3, 1)
        worker.do("lie", 2, 0)
        trace.stop()
    exact(trace.summary)
    assert reads(trace.summary) == {"first": 5, "?": 6, "no unit": 7, "unread": 5}


def test_numbers_of_static_probes(program: Path, disk: Disk, tmp_path: Path) -> None:
    with traced(LENGTHS, program, disk, tmp_path) as trace, working(program, disk) as worker:
        worker.do("static", 5, text="four")
        worker.do("static", 6, text="twelve chars")
        worker.do("none", 7)
        trace.stop()
    assert reads(trace.summary) == {"4": 5, "12": 6, "no unit": 7}
    has_rows_of_records(trace.lines, "unit")


@pytest.mark.parametrize(
    ("text", "one", "two", "none"),
    [
        (VARIABLE, "get ?", "post", "no unit"),
        (ARRAY, "get ?", "post", "no unit"),
        (NUMBER, "300", "65535", "0"),
    ],
)
def test_variables(text: str, one: str, two: str, none: str, program: Path, disk: Disk, tmp_path: Path) -> None:
    with traced(text, program, disk, tmp_path) as trace, working(program, disk) as worker:
        worker.do("set", 5, 300, "get 1")
        worker.do("set", 6, 300, "get 22")
        worker.do("set", 7, -1, "post")
        worker.do("none", 8)
        trace.stop()
    exact(trace.summary)
    assert reads(trace.summary) == {one: 11, two: 7, none: 8}


def test_lies_of_a_variable(program: Path, disk: Disk, tmp_path: Path) -> None:
    with traced(VARIABLE, program, disk, tmp_path) as trace, working(program, disk) as worker:
        worker.do("lie", 3, 1)
        worker.do("lie", 2, 0)
        trace.stop()
    assert reads(trace.summary) == {"unread": 5}
