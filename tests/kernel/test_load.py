# SPDX-License-Identifier: Apache-2.0
"""Every object loads in every way; the end of the run lists what the verifier processed."""

from __future__ import annotations

import functools
import os
import subprocess
import weakref
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.kernel import verified
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, total
from tests.kernel.trace import object_path
from tests.lab.matrix import RUNNING
from wptrace.bpf import trial
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.bpf.object import BpfObject, find
from wptrace.bpf.ring import Reader
from wptrace.engine import functions
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import Hook
from wptrace.engine.resolver import find_target, load
from wptrace.errors import UnsupportedError, WptraceError
from wptrace.flows import discover
from wptrace.flows.io.block import BlockFlow, Options
from wptrace.flows.io.operations import MODULES
from wptrace.flows.io.options import Options as PathOptions
from wptrace.flows.io.parts.interference import FUNCTIONS
from wptrace.flows.io.path import PathFlow
from wptrace.flows.io.request import RequestFlow
from wptrace.kernel import symbols
from wptrace.model.kind import REQUESTS

pytestmark = pytest.mark.each_kernel


@pytest.fixture(scope="session", autouse=True)
def _file_systems() -> None:
    """Load modules of file systems, so that their functions are there no matter what was mounted before."""
    for module in MODULES if GUEST else ():
        subprocess.run(["modprobe", "--quiet", module], check=False)


def test_tables_of_zeros_take_no_memory_of_this_process() -> None:
    """libbpf alone would copy the zeros into the maps, which then have all their pages."""
    with trial.open_here("io_path") as obj:
        for one in obj.progs.values():
            one.autoload = False
        before = _shared_kib()
        obj.load()
        tables = obj.view("bios"), obj.view("dones"), obj.view("ops")
        assert sum(map(len, tables)) > 8 << 20
        assert _shared_kib() - before < 1 << 10
        assert not any(table[0] or table[-1] for table in tables)


def test_what_tables_take_is_known_before_the_load() -> None:
    with trial.open_here("io_path") as obj:
        for one in obj.progs.values():
            one.autoload = False
        obj.maps["op_cells"].max_entries = 64
        planned = {name: found.planned_bytes for name, found in obj.maps.items()}
        obj.load()
        for name in ("op_cells", "wait_cells", "records"):
            assert planned[name] == pytest.approx(obj.maps[name].memory(), rel=0.1, abs=1 << 15), name


def test_a_start_loads_once(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known before what this kernel lacks: a second load takes as long as the first."""
    opened: list[str] = []

    def recorded(name: str, own_types: bool = False) -> BpfObject:
        opened.append(name)
        return open_here(name, own_types)

    open_here = trial.open_here
    monkeypatch.setattr(trial, "open_here", recorded)
    with closing(PathFlow(PathOptions((disk.name,), slow_ns=0, interference=True, writeback=True))) as flow:
        flow.start(Reader())
    assert opened.count(flow.object) == 1


def test_a_start_does_not_keep_the_kernels_types(disk: Disk) -> None:
    """They are 5 MB of memory."""
    known = weakref.ref(vmlinux())
    with closing(PathFlow(PathOptions((disk.name,)))) as flow:
        flow.start(Reader())
        assert known() is None


def test_functions_lie_where_kallsyms_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel finds them by name where it has an index of names, in no time; in a module as well."""
    names = {**dict.fromkeys(FUNCTIONS.values(), ""), "vfs_read": "", "jbd2_log_wait_commit": "jbd2", "missing": ""}
    expected = symbols.code(names)
    assert {"vfs_read", "jbd2_log_wait_commit"} <= set(expected)
    assert "missing" not in expected
    major, minor = os.uname().release.split(".")[:2]
    if (int(major), int(minor.partition("-")[0])) >= (6, 2):
        monkeypatch.setattr(symbols, "code", None)
    assert functions.places(names) == expected


def _shared_kib() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem:"))
    return int(line.split()[1])


def _name(flow: type[Flow]) -> str:
    """Return the name of the object; levels may share one, and add theirs."""
    return f"{flow.name}_{flow.level}" if flow.level else flow.object


# Subsets of the same programs: other tests load on each kernel those that are chosen there.
@pytest.mark.one_kernel
@pytest.mark.parametrize(
    ("flow", "name"),
    [
        *((PathFlow, name) for name in (PathFlow.without_options, PathFlow.with_rows, PathFlow.with_recorder)),
        (RequestFlow, RequestFlow.without_options),
    ],
)
def test_every_program_loads_without_options(flow: type[Flow], name: str, pytestconfig: pytest.Config) -> None:
    _loads(flow, name, name, pytestconfig)


# Its programs are subsets of those of the path, so one kernel is enough for the time that they take.
FLOWS = [pytest.param(one, marks=pytest.mark.one_kernel) if one.level == "request" else one for one in discover()]


@pytest.mark.parametrize("flow", FLOWS, ids=_name)
def test_every_program_loads(flow: type[Flow], pytestconfig: pytest.Config) -> None:
    _loads(flow, flow.object, _name(flow), pytestconfig)


def _loads(flow: type[Flow], name: str, written: str, pytestconfig: pytest.Config) -> None:
    """Load and attach every program that this kernel can have, within the verifier's limits."""
    with trial.open_here(name) as obj:
        here = set()
        for hook in (hook for hook in flow.hooks if hook.applies):
            for program in (program for way in hook.ways for program in way.programs):
                section = obj.progs[program].section
                kind, _, target = section.partition("/")
                if kind in REFUSED or find_target(section, hook.module)[1]:
                    continue
                if kind not in ("kprobe", "kretprobe") or target in _functions():
                    here.add(program)
        for one in obj.progs.values():
            one.autoload = one.name in here
        flow.configure(obj)
        # Fail if the kernel refuses one.
        obj.load()
        sizes = _sizes(obj, written)
        for program in here:
            # Only now it shows whether the module of a tracepoint, or a counter, is missing.
            with suppress(WptraceError):
                obj.progs[program].attach()
    pytestconfig.stash.setdefault(_SIZES, {}).update(sizes)
    assert max((size.verified for size in sizes.values()), default=0) < 100_000
    assert verified.grown(GUEST or RUNNING.name, sizes) == []


@functools.cache
def _functions() -> set[str]:
    return {line.split()[2] for line in Path("/proc/kallsyms").read_text().splitlines()}


def test_every_program_loads_of_definitions(pytestconfig: pytest.Config) -> None:
    """Verify the bodies, each by itself and without stages."""
    with trial.open_here("generic") as obj:
        obj.rodata.without_exchange = not trial.exchanges()
        obj.load()
        sizes = _sizes(obj, "generic")
    assert set(sizes) == {f"generic/{name}" for name in ("begin", "pass", "end", "drop", "begin_asking", "pass_asking")}
    pytestconfig.stash.setdefault(_SIZES, {}).update(sizes)
    assert max(size.verified for size in sizes.values()) < 100_000
    written = verified.read().get(GUEST or RUNNING.name, {})
    if any(name in written for name in sizes):
        assert verified.grown(GUEST or RUNNING.name, sizes) == []


def _sizes(obj: BpfObject, name: str) -> verified.Sizes:
    return {
        f"{name}/{program.name}": verified.Size(program.instructions, program.statistics().verified_instructions)
        for program in obj.progs.values()
        if program.autoload
    }


# The running kernel refuses these, as hardened production kernels do.
REFUSED = () if GUEST else ("fentry", "fexit", "kprobe", "kretprobe")
_SIZES = pytest.StashKey[verified.Sizes]()


@pytest.fixture(scope="session", autouse=True)
def _list_sizes(pytestconfig: pytest.Config) -> object:
    yield
    sizes = pytestconfig.stash.get(_SIZES, {})
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n" + verified.listing(os.uname().release, sizes))


@pytest.mark.one_kernel
@pytest.mark.parametrize("times", ["kernel", "own"])
def test_the_fallback_counts_the_same(disk: Disk, times: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force raw_tp, which replaces tp_btf where that is refused; no kernel of the matrix needs that."""
    hooks = tuple(hook._replace(programs=hook.programs[1:]) for hook in BlockFlow.hooks)
    monkeypatch.setattr(BlockFlow, "hooks", hooks)
    with closing(BlockFlow(Options((disk.path,), slow_ns=0, times=times))) as flow:
        start = flow.start(Reader())
        assert all("raw_tp" in source.how and "tp_btf" not in source.how for source in start.sources)
        flow.begin()
        job = fio(disk.path, rw="randrw")
        found = flow.snapshot()
    assert found.books[REQUESTS].finished == total(job)
    assert sum(stages["total"].count for stages in found.cells.values()) == total(job)
    assert found.books[REQUESTS].lost_total == 0


@pytest.mark.one_kernel
def test_a_refused_program_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WPTRACE_BPF_DIR", str(object_path("binding").parent))
    hooks = (
        Hook("calls", "every call", ("refused", "on_call"), (), ""),
        Hook("nothing", "what is refused", ("refused",), (), "it is not seen", required=False),
    )
    loaded = load("binding", hooks, lambda obj: None)
    with loaded.obj as obj:
        assert loaded.way("calls").programs == ("on_call",)
        assert set(loaded.attempts.refused) == {"refused"}
        (note,) = loaded.attempts.notes()
        why = loaded.attempts.refused["refused"]
        assert why.startswith("refused at load: ")
        assert note == f"it is not seen (what is refused cannot be observed here: {why})"
        assert obj.progs["on_call"].links


@pytest.mark.one_kernel
def test_nothing_left_to_try_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WPTRACE_BPF_DIR", str(object_path("binding").parent))
    with pytest.raises(UnsupportedError, match="no way to observe every call"):
        load("binding", (Hook("calls", "every call", ("refused",), (), ""),), lambda obj: None)


def test_trials_leave_nothing_attached() -> None:
    found = [trial.attempt(name) for name in ("tp_btf", "raw_tp")]
    assert all(one.works for one in found)


@pytest.mark.one_kernel
def test_an_object_without_its_kernel_type_information(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/sys/kernel/btf/vmlinux" and real(path))
    with BpfObject(find("io_block")) as obj, pytest.raises(UnsupportedError, match="no type information"):
        obj.load()


@pytest.mark.one_kernel
def test_the_package_finds_its_objects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packaged = find("io_block")
    assert packaged.parts[-4:-1] == ("wptrace", "objects", packaged.parts[-2])
    copy = tmp_path / "io_block.bpf.o"
    copy.write_bytes(packaged.read_bytes())
    monkeypatch.setenv("WPTRACE_BPF_DIR", str(tmp_path))
    assert find("io_block") == copy
