# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from wptrace.errors import UsageError
from wptrace.kernel import tasks


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process of two threads; /proc has files of both, but lists only the first."""
    for tid in (41, 42):
        (tmp_path / str(tid)).mkdir()
        (tmp_path / str(tid) / "status").write_bytes(f"Name:\tx\nTgid:\t41\nPid:\t{tid}\n".encode() + b"\xff\n")
    return tmp_path


def test_a_process_is_its_first_thread(proc: Path) -> None:
    assert tasks.process("41", proc) == tasks.thread("41", proc) == 41
    with pytest.raises(UsageError, match="42 is a thread of process 41") as caught:
        tasks.process("42", proc)
    assert caught.value.hint == "name the process: --pid 41"


@pytest.mark.parametrize("name", [b"a\rTgid:\t1", b"a\rTgid:\tx", b"a\x0bTgid:\t1", b"a\xc2\x85Tgid:\t1", b"\xff"])
def test_no_name_tells_another_process(proc: Path, name: bytes) -> None:
    for tid in (41, 42):
        status = proc / str(tid) / "status"
        status.write_bytes(status.read_bytes().replace(b"Name:\tx", b"Name:\t" + name))
    assert tasks.process("41", proc) == 41
    assert tasks.thread("42", proc) == 42
    assert tasks.leader_of(42, proc) == 41
    with pytest.raises(UsageError, match="42 is a thread of process 41"):
        tasks.process("42", proc)


def test_what_is_not_there(proc: Path) -> None:
    with pytest.raises(UsageError, match="there is no process 43") as caught:
        tasks.process("43", proc)
    assert caught.value.hint == "ps -e lists the processes"
    with pytest.raises(UsageError, match="there is no thread 43") as caught:
        tasks.thread("43", proc)
    assert caught.value.hint == "ps -eL lists the threads"


@pytest.mark.parametrize("text", ["", "0", "-1", "041", "1.5", "self", "../41", "9" * 11, "\u0664\u0661", "41\n"])
def test_what_is_no_number_of_one(proc: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a process id$"):
        tasks.process(text, proc)
    with pytest.raises(UsageError, match=r"is not a thread id$"):
        tasks.thread(text, proc)


def test_threads_of_this_process() -> None:
    found: list[int] = []

    def run() -> None:
        tid = threading.get_native_id()
        found.append(tasks.thread(str(tid)))
        with pytest.raises(UsageError, match=f"{tid} is a thread of process {os.getpid()}"):
            tasks.process(str(tid))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [thread.native_id]
    assert tasks.process(str(os.getpid())) == os.getpid()


@pytest.mark.parametrize(
    ("kept", "name"),
    [
        (b"fio\0\0\0", "fio"),
        (b"kworker/u8:1-ev\0", "kworker/u8:1-ev"),
        (b"x\0left over", "x"),
        (b"\xff\n\x1b[31m\0", "\udcff\n\x1b[31m"),
        ("größe\0".encode(), "größe"),
        (b"", ""),
    ],
)
def test_a_name_as_the_kernel_keeps_it(kept: bytes, name: str) -> None:
    assert tasks.comm(kept) == name


def test_the_name_of_a_task(proc: Path) -> None:
    (proc / "41" / "comm").write_bytes(b"a b\xff\n\n")
    assert tasks.name_of(41, proc) == "a b\udcff\n"
    assert tasks.name_of(42, proc) == ""
    assert tasks.name_of(43, proc) == ""
    assert tasks.name_of(0, proc) == ""


def test_the_process_of_a_thread(proc: Path) -> None:
    assert tasks.leader_of(41, proc) == 41
    assert tasks.leader_of(42, proc) == 41
    assert tasks.leader_of(43, proc) == 43
    assert tasks.leader_of(os.getpid()) == os.getpid()


def test_another_namespace_has_other_tasks_by_the_same_ids(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs report the machine's ids, which /proc of a container does not have."""
    (proc / "41" / "comm").write_text("fio\n")
    assert tasks.namespace(proc) == 0
    assert (tasks.leader_of(42, proc), tasks.name_of(41, proc)) == (41, "fio")
    place = proc / "self" / "ns" / "pid"
    place.parent.mkdir(parents=True)
    place.touch()
    assert tasks.namespace(proc) == place.stat().st_ino
    assert (tasks.leader_of(42, proc), tasks.name_of(41, proc)) == (42, "")
    # The initial namespace has a well-known inode (PROC_PID_INIT_INO).
    monkeypatch.setattr(tasks, "_FIRST_NAMESPACE", place.stat().st_ino)
    assert tasks.namespace(proc) == 0
    assert tasks.name_of(41, proc) == "fio"


def test_children_are_those_that_it_started(proc: Path) -> None:
    for pid, parent in ((50, 41), (7, 41), (60, 4), (61, 410)):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "status").write_text(f"Name:\tPPid: 41\nPPid:\t{parent}\n")
    (proc / "99").mkdir()
    assert tasks.children(41, proc) == [7, 50]
    assert tasks.children(1, proc) == []
    assert tasks.descendants(410, proc) == [61]


def test_descendants_are_of_any_generation(proc: Path) -> None:
    """Even if they seem to be a circle, because they were read at different moments."""
    for pid, parent in ((50, 41), (60, 50), (61, 60), (70, 71), (71, 70), (72, 70)):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "status").write_text(f"PPid:\t{parent}\n")
    assert tasks.descendants(41, proc) == [50, 60, 61]
    assert tasks.descendants(70, proc) == [71, 72]


def test_the_end_of_a_process_is_seen() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as one:
        watched = tasks.Watched(one.pid)
        assert not watched.look()
        one.communicate(timeout=60)
    assert not watched.ended
    assert watched.look()
    assert watched.ended
    watched.close()
    # The process has been waited for.
    assert tasks.Watched(one.pid).ended
