# SPDX-License-Identifier: Apache-2.0
"""Globals that Python sets for a filter, and their meaning in bpf_src/lib/filters/."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wptrace.bpf.ring import Reader
from wptrace.engine import filters
from wptrace.engine.filters import Filter, cgroup, describe, notes, task
from wptrace.engine.flow import Flow
from wptrace.errors import UnsupportedError, UsageError
from wptrace.flows import discover
from wptrace.flows.cpu import CpuFlow
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.path import PathFlow
from wptrace.kernel import tasks
from wptrace.kernel.cgroups import Cgroup
from wptrace.kernel.mounts import Place
from wptrace.model.book import EXITED, REMOVED, Book, Cause
from wptrace.model.kind import REQUESTS

LIB = Path(__file__).resolve().parents[3] / "bpf_src/lib"
SOURCE = "".join(path.read_text() for path in (LIB / "filter.h", LIB / "pid_namespace.h", *LIB.glob("filters/*.h")))
EVERY = PathFlow.filters
SWITCHES = {"filtering": False, "filter_task": False, "filter_file": False, "filter_operation": False}
FILE = Place("/data/file", 0x800001, 4711, stat.S_IFREG | 0o644, None)
FOLDER = Place("/data", 35, 256, stat.S_IFDIR | 0o755, None)
V2 = Cgroup("/sys/fs/cgroup/a/b", 4242, 2, None)


class Kernel:
    """A kernel's enum with made-up numbers."""

    def enum_value(self, enum: str, name: str) -> int | None:
        assert enum == "cgroup_subsys_id"
        return {"io_cgrp_id": 3, "memory_cgrp_id": 14}.get(name)


NAMES = set(re.findall(r"^(?:bool|char|__[us]\d+|enum \w+) (\w+)(?:\[16\] [^;]*)?;", SOURCE, re.MULTILINE))


class Globals:
    """A section with the globals of the header, which keeps the order of writes."""

    order: list[str]

    def __init__(self) -> None:
        self.__dict__["order"] = []

    def __setattr__(self, name: str, value: object) -> None:
        assert name in NAMES
        assert value is not None
        self.order.append(name)
        self.__dict__[name] = value

    def view(self, name: str) -> bytes:
        return {"filter_comm": bytes(16)}[name]


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "vmlinux", Kernel)


def applied(wanted: Filter, bss: Any = None) -> dict[str, Any]:
    bss = bss or Globals()
    filters.apply(bss, wanted, EVERY)
    return {name: value for name, value in vars(bss).items() if name != "order"}


def test_the_source_still_says_what_is_tested_here() -> None:
    assert len(NAMES) == 22
    assert "filter_ops >> what & 1" in SOURCE
    assert dict(re.findall(r"FILTER_OPS_(\w+) = (\d+),", SOURCE)) == {
        "READ": "1", "WRITE": "2", "BOTH": "3", "SYNC": "4", "PAGEFAULT": "8", "SWAPIN": "16",
    }  # fmt: skip
    assert "if (filter_cgroup_subsys >= 0)" in SOURCE
    assert "char filter_comm[16]" in SOURCE


def test_nothing_wanted_is_all_off() -> None:
    found = applied(Filter())
    assert {name: found[name] for name in SWITCHES} == SWITCHES


@pytest.mark.parametrize(
    ("wanted", "globals_"),
    [
        (Filter(pid=42), {"filter_task": True, "filter_tgid": 42, "filter_tid": 0, "filter_by_comm": False}),
        (Filter(tid=43), {"filter_task": True, "filter_tgid": 0, "filter_tid": 43}),
        (Filter(comm="fio"), {"filter_task": True, "filter_by_comm": True, "filter_comm": b"fio"}),
        (Filter(comm="x" * 16), {"filter_comm": b"x" * 15}),
        (Filter(comm="\u00e9" * 8), {"filter_comm": b"\xc3\xa9" * 7 + b"\xc3"}),
        (Filter(comm="\udcff"), {"filter_comm": b"\xff"}),
        (
            Filter(cgroup=V2),
            {
                "filter_task": True,
                "filter_cgroup": 4242,
                "filter_cgroup_subsys": -1,
                "filter_cgroup_first": 2,
                "filter_cgroup_last": 2,
            },
        ),
        (Filter(cgroup=V2._replace(level=0)), {"filter_cgroup_first": 0, "filter_cgroup_last": 0}),
        (Filter(cgroup=V2._replace(level=None)), {"filter_cgroup_first": 0, "filter_cgroup_last": (1 << 32) - 1}),
        (Filter(cgroup=V2._replace(controller="memory")), {"filter_cgroup_subsys": 14}),
        (Filter(cgroup=V2._replace(controller="blkio")), {"filter_cgroup_subsys": 3}),
        (
            Filter(file=FILE),
            {"filter_file": True, "filter_inode": 4711, "filter_inode_dev": 0x800001, "filter_directory_dev": 0},
        ),
        (
            Filter(dir=FOLDER),
            {"filter_file": True, "filter_directory": 256, "filter_directory_dev": 35, "filter_inode_dev": 0},
        ),
        (
            Filter(op="read"),
            {
                "filter_operation": True,
                "filter_ops": "FILTER_OPS_READ",
                "filter_min_bytes": 0,
                "filter_max_bytes": (1 << 64) - 1,
            },
        ),
        (Filter(op="write"), {"filter_operation": True, "filter_ops": "FILTER_OPS_WRITE"}),
        (Filter(op="sync"), {"filter_operation": True, "filter_ops": "FILTER_OPS_SYNC"}),
        (
            Filter(size=(4096, None)),
            {
                "filter_operation": True,
                "filter_ops": "FILTER_OPS_BOTH",
                "filter_min_bytes": 4096,
                "filter_max_bytes": (1 << 64) - 1,
            },
        ),
        (Filter(size=(None, 0)), {"filter_operation": True, "filter_min_bytes": 0, "filter_max_bytes": 0}),
    ],
    ids=str,
)
def test_what_is_wanted_is_written(wanted: Filter, globals_: dict[str, object]) -> None:
    found = applied(wanted)
    assert {name: found[name] for name in globals_} == globals_


EVERYTHING = Filter(pid=1, tid=2, comm="x", cgroup=V2, file=FILE, dir=FOLDER, op="read", size=(1, 2))


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_kind_alone_turns_on_one_switch(name: str) -> None:
    found = applied(Filter(**{name: EVERYTHING[name]}))
    kind = {"file": "filter_file", "dir": "filter_file", "op": "filter_operation", "size": "filter_operation"}.get(
        name, "filter_task"
    )
    assert {name: found[name] for name in SWITCHES} == {**SWITCHES, "filtering": True, kind: True}


def test_a_filter_leaves_nothing_of_the_one_before() -> None:
    bss = Globals()
    applied(EVERYTHING, bss)
    found = applied(Filter(), bss)
    assert {name: found[name] for name in SWITCHES} == SWITCHES
    found = applied(Filter(pid=7), bss)
    assert (found["filter_tgid"], found["filter_tid"], found["filter_by_comm"], found["filter_cgroup"]) == (7, 0, 0, 0)
    applied(EVERYTHING, bss)
    found = applied(Filter(dir=FOLDER, size=(None, 9)), bss)
    assert (found["filter_inode_dev"], found["filter_directory_dev"]) == (0, 35)
    assert (found["filter_ops"], found["filter_min_bytes"], found["filter_max_bytes"]) == (
        "FILTER_OPS_BOTH",
        0,
        9,
    )


def test_a_switch_is_written_after_what_it_switches() -> None:
    bss = Globals()
    filters.apply(bss, EVERYTHING, EVERY)
    order = bss.__dict__["order"]
    assert set(order) == NAMES
    for switch, values in {
        "filter_by_comm": ("filter_comm",),
        "filter_cgroup": ("filter_cgroup_subsys", "filter_cgroup_first", "filter_cgroup_last"),
        "filter_task": ("filter_tgid", "filter_tid", "filter_by_comm", "filter_cgroup"),
        "filter_file": ("filter_inode", "filter_inode_dev", "filter_directory", "filter_directory_dev"),
        "filter_operation": ("filter_ops", "filter_min_bytes", "filter_max_bytes"),
        "filtering": ("filter_task", "filter_file", "filter_operation"),
    }.items():
        assert all(order.index(name) < order.index(switch) for name in values)


def test_a_controller_that_the_kernel_does_not_know() -> None:
    with pytest.raises(UnsupportedError, match="this kernel does not show the cgroups of the controller rdma"):
        applied(Filter(cgroup=V2._replace(controller="rdma")))


def test_what_the_first_line_says() -> None:
    assert describe(Filter(), EVERY) == {}
    assert describe(EVERYTHING, EVERY) == {
        "pid": 1,
        "tid": 2,
        "comm": "x",
        "cgroup": "/sys/fs/cgroup/a/b",
        "file": "/data/file",
        "dir": "/data",
        "op": "read",
        "min_bytes": 1,
        "max_bytes": 2,
    }
    assert describe(Filter(size=(0, 0)), EVERY) == {"min_bytes": 0, "max_bytes": 0}


@pytest.mark.parametrize("one", [task.PID, task.TID, *BlockFlow.filters], ids=lambda one: one.name)
def test_of_which_namespace_an_id_is(one: filters.Predicate, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a note if the namespace is not the machine's and an id was given."""
    ours = ["42 is an id of this pid namespace; ids in the output are those of the whole machine"]
    for number, reported in ((0, []), (7, ours)):
        monkeypatch.setattr(tasks, "namespace", lambda number=number: number)
        bss = SimpleNamespace()
        filters.apply(bss, Filter(), (one,))
        assert bss.pid_namespace == number
        assert [note for note in notes(Filter(**{one.name: 42}), (one,)) if "namespace" in note] == reported
        assert notes(Filter(), (one,)) == []


def test_what_a_flow_cannot_tell_apart_is_refused() -> None:
    """It must not be ignored silently."""
    with pytest.raises(UsageError, match=r"^this flow has no filter by file, size$"):
        filters.apply(Globals(), Filter(pid=1, size=(1, 2), file=FILE), CpuFlow.filters)


def test_a_flow_without_switches_has_none_written() -> None:
    bss = SimpleNamespace()
    filters.apply(bss, Filter(pid=7), BlockFlow.filters)
    assert vars(bss).keys() == {"pid_namespace", "target_tgid"}


def test_what_is_wanted_is_a_value() -> None:
    assert Filter(pid=None) == Filter()
    assert not Filter()
    assert {Filter(pid=1): "one", Filter(pid=2): "two"}[Filter(pid=1, comm=None)] == "one"
    assert repr(Filter(pid=1, op="read")) == "Filter(pid=1, op='read')"
    assert "comm" not in Filter(pid=1)


@pytest.mark.parametrize("flow", discover(), ids=lambda flow: flow.object)
def test_a_flow_takes_all_of_what_one_test_looks_at(flow: type[Flow]) -> None:
    """A missing bound is not 0: no request has at most 0 bytes."""
    assert len({"op", "size"} & {one.name for one in flow.filters}) in (0, 2)


class OfProcesses(Flow):
    """A flow with nothing but --pid, as if its programs ran."""

    name = "processes"
    kinds = ()
    filters = (task.PID,)
    _map_bytes = 0
    bss = SimpleNamespace(filter_tgid=0)

    @property
    def _obj(self) -> Any:
        return SimpleNamespace(bss=self.bss, maps={})

    def noted(self, cause: Cause = EXITED) -> int:
        book = Book()
        self._snapshot({REQUESTS: book}, {}, {}, [])
        return book.noted.get(cause, 0)


@pytest.mark.parametrize("late", [False, True])
def test_a_process_is_wanted_until_its_end(late: bool) -> None:
    """If it ended while the programs were loaded, the first snapshot is too early to say so."""
    flow, reader = OfProcesses(), Reader()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as one:
        flow._watch_wanted(reader, Filter(pid=one.pid))
        if not late:
            one.communicate(timeout=60)
        assert flow.noted() == 0
        flow.begin()
        if late:
            assert flow.noted() == 0
            one.communicate(timeout=60)
            # Nobody asks for a report meanwhile.
            reader.wait(60)
            assert flow.bss.filter_tgid == task.NO_PROCESS
    assert flow.noted() == 1
    assert flow.bss.filter_tgid == task.NO_PROCESS
    flow.close()


def test_a_flow_says_that_its_cgroup_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "service"
    path.mkdir()
    flow = OfProcesses()
    flow._watch_wanted(Reader(), Filter(cgroup=Cgroup(str(path), path.stat().st_ino, 2, None)))
    assert flow.noted(REMOVED) == 0
    path.rmdir()
    assert flow.noted(REMOVED) == 1


def test_what_two_filters_note_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thread of a process has its number."""
    monkeypatch.setattr(tasks, "namespace", lambda: 4711)
    said = notes(Filter(pid=5, tid=5), CpuFlow.filters)
    assert len(said) == 2
    assert OfProcesses()._started({}, [], said).notes == said[:1]
