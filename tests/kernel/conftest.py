# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that trace a real kernel: the running one, or a guest's. `tests/run.py` runs them on each kernel.

On the running kernel tests trace only loop devices that they made. Guests have real drivers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.kernel.disks import Disk, loop_device, null_device
from tests.kernel.loads import hierarchy, mounted
from tests.kernel.modules import Module, inserted
from tests.kernel.trace import BlamelessError, KernelSkippedError, commands, object_path, skipped
from tests.kernel.window import Running, Shared
from tests.thorough import ALL
from wptrace.bpf.object import BpfObject

GUEST = os.environ.get("WPTRACE_LAB_KERNEL", "")
REAL = ("nvme0n1", "vda", "sda")
ONE_CPU = "maxcpus=1" in Path("/proc/cmdline").read_text().split()


MARKS = {
    "icount": "asserts on times; runs in guests whose clock counts instructions",
    "guest": "needs drivers or permissions that only guests have",
    "one_kernel": "about Python or the command on a live kernel: one is enough, the running one if it is no guest's",
    "each_kernel": "differs most between kernels: the oldest and the newest run it as well",
    "smp": "needs a second CPU, which most guests do not have",
    "realclock": "an emulated CPU that stands still may make it fail: it runs once more, and the run says so",
}

# How often a test may run if the kernel skipped programs of its traces, and how often `make test-all` runs a
# `realclock` test.
_TRIES, _ROUNDS = 20, 20


def pytest_configure(config: pytest.Config) -> None:
    for mark, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests, and leave out those that had passed when a guest died (tests/run.py)."""
    # Tests that share a trace come last, because it would run beside the commands of others. Those that need a second
    # CPU come first: it is online only for them, because without it the others cost an emulated machine less.
    items.sort(key=lambda item: (item.get_closest_marker("smp") is None, _shared_trace(item)))
    if "WPTRACE_TESTS_DONE" not in os.environ:
        return
    done = set(Path(os.environ["WPTRACE_TESTS_DONE"]).read_text().split("\n"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


def _shared_trace(item: pytest.Item) -> int:
    fixtures = getattr(item, "fixturenames", ())
    return 1 + SHARED.index(next(name for name in SHARED if name in fixtures)) if set(SHARED) & set(fixtures) else 0


_RAISED = pytest.StashKey[BaseException]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    if call.excinfo is not None and _RAISED not in item.stash:
        item.stash[_RAISED] = call.excinfo.value
    return (yield)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test once more only if the kernel or an emulated CPU is to blame, and report each time."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    _set_cpus(item.get_closest_marker("smp") is not None)
    realclock = item.get_closest_marker("realclock") is not None
    rounds = _ROUNDS if ALL and realclock and GUEST else 1
    again = 0
    while True:
        if _RAISED in item.stash:
            del item.stash[_RAISED]
        before = _skipped
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        raised = item.stash.get(_RAISED, None)
        if not any(report.failed for report in reports):
            rounds -= 1
            if rounds:
                continue
            break
        if isinstance(raised, AssertionError) and _skipped > before:
            raised = KernelSkippedError(f"the kernel skipped {_skipped - before} runs of programs before: {raised}")
        blameless = isinstance(raised, BlamelessError) and again < _TRIES - 1
        if not blameless and not (realclock and GUEST and not ALL and not again):
            break
        again += 1
        why = " ".join(f"{type(raised).__name__}: {raised}".split())
        item.config.stash.setdefault(_RETRIES, []).append(f"{item.nodeid}: {why[:300]}")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


_second = ExitStack()


def _set_cpus(two: bool) -> None:
    """Switch the second CPU of a guest on or off. Most guests boot with one of their two (tests/run.py)."""
    if ONE_CPU and two != (os.cpu_count() == 2):
        _second.enter_context(_second_cpu()) if two else _second.close()


_RETRIES = pytest.StashKey[list[str]]()
_loads = 0
_skipped = 0
"""Runs of programs that the kernel skipped, of objects that tests loaded themselves and have closed."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print figures for the table of tests/run.py."""
    for line in config.stash.get(_RETRIES, []):
        terminalreporter.write_line(f"retried {line}")
    terminalreporter.write_line(f"started the command {len(commands)} times, loaded {_loads} objects in tests")


@pytest.fixture(scope="session", autouse=True)
def _count_loads() -> Iterator[None]:
    load, close = BpfObject.load, BpfObject.close

    def counted(obj: BpfObject) -> None:
        global _loads
        _loads += 1
        load(obj)

    def asked(obj: BpfObject) -> None:
        global _skipped
        if obj._handle is not None:
            _skipped += skipped(obj)
        close(obj)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BpfObject, "load", counted)
        patch.setattr(BpfObject, "close", asked)
        yield


@pytest.fixture(scope="session", autouse=True)
def _needs_root() -> None:
    if os.geteuid() != 0:
        pytest.fail("these tests load BPF programs: run them as root")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("icount") and not GUEST:
        pytest.fail("this test needs a guest with --icount: tests/run.py starts it")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Disk]:
    with loop_device(tmp_path / "disk.img") as disk:
        yield disk


@pytest.fixture
def irqoff() -> Iterator[Module]:
    with inserted("irqoff") as module:
        yield module


@pytest.fixture
def smmu() -> Iterator[Module]:
    with inserted("smmu") as module:
        yield module


@pytest.fixture
def iopf() -> Iterator[Module]:
    with inserted("iopf") as module:
        yield module


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Disk]]:
    """One disk of each kind at once, for tests that trace all of them: a tracer is slow to start in a guest."""
    if GUEST:
        with null_device() as null:
            yield [*map(Disk, REAL), null]
    else:
        with loop_device(tmp_path_factory.mktemp("disk") / "disk.img") as loop:
            yield [loop]


@pytest.fixture(scope="module")
def folders(disks: dict[str, Disk], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The mount points of the disks of a module that has them by what is on them: a file system, or nothing (raw)."""
    top = tmp_path_factory.mktemp("mounted")
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(mounted(disk, kind, top / kind)) for kind, disk in disks.items() if kind != "raw"
        }


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk without a file system. In guests it is nvme, whose driver has all features, or the module's GUEST_DISK."""
    if GUEST:
        yield Disk(getattr(request.module, "GUEST_DISK", "nvme0n1"))
    else:
        with loop_device(tmp_path / "disk.img") as made:
            yield made


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Cgroups v2, mounted before a trace begins."""
    with hierarchy(tmp_path_factory.mktemp("cgroups") / "v2") as top:
        yield top


@pytest.fixture(scope="session")
def _shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def path_flow(_shared: Shared) -> Running:
    """`wptrace io --each`, shared by all modules. A test aims it at its devices."""
    return _shared.of(writeback=False)


@pytest.fixture(scope="module")
def writeback_flow(_shared: Shared) -> Running:
    """`wptrace io --each --writeback`, shared by all modules."""
    return _shared.of(writeback=True)


# The shared sessions, in the order in which they run.
SHARED = ("path_flow", "writeback_flow")


@pytest.fixture
def binding() -> Iterator[BpfObject]:
    """The object of these tests, with the autoload of every program off."""
    with BpfObject(object_path("binding")) as obj:
        for program in obj.progs.values():
            program.autoload = False
        yield obj


_TRACING = Path("/sys/kernel/tracing")


@pytest.fixture(scope="session", autouse=True)
def _filesystems() -> None:
    """Mount tracefs, which classic tracepoints need."""
    if not (_TRACING / "events").is_dir():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(_TRACING)], check=False, capture_output=True)


@pytest.fixture(scope="session", autouse=True)
def _nvme_has_no_scheduler() -> None:
    """Use no scheduler, as with several CPUs. With a single queue the kernel would choose mq-deadline."""
    scheduler = Path("/sys/block/nvme0n1/queue/scheduler")
    if GUEST and scheduler.exists():
        scheduler.write_text("none")


@pytest.fixture(scope="session", autouse=True)
def _counters_may_overflow_often() -> None:
    """Keep the kernel from lowering the sample rate because an emulated CPU is slow at overflows."""
    if GUEST:
        # With 0, which turns the watch off, the kernel takes no rate; a test that runs again finds 0.
        Path("/proc/sys/kernel/perf_cpu_time_max_percent").write_text("25")
        Path("/proc/sys/kernel/perf_event_max_sample_rate").write_text("100000")
        Path("/proc/sys/kernel/perf_cpu_time_max_percent").write_text("0")


# Functions that run all the time and that flows trace.
_BUSY = (
    *(f"sched/{name}" for name in ("sched_switch", "sched_wakeup", "sched_wakeup_new", "sched_process_exit")),
    *(f"irq/{name}" for name in ("irq_handler_entry", "irq_handler_exit", "softirq_entry", "softirq_exit")),
    "timer/hrtimer_expire_entry",
)


@contextmanager
def _second_cpu() -> Iterator[None]:
    """Keep one CPU more online, and the tracepoints of busy functions patched.

    The first and the second user of a tracepoint make the kernel patch its code, and emulated CPUs may die of that. So
    each has two users all the time: buffers that record nothing.
    """
    switch = Path("/sys/devices/system/cpu/cpu1/online")
    folders = [_TRACING / "instances" / f"wptest_{number}" for number in range(2)]
    for folder in folders:
        folder.mkdir()
        (folder / "tracing_on").write_text("0")
        (folder / "buffer_size_kb").write_text("4")
        for event in _BUSY:
            (folder / "events" / event / "enable").write_text("1")
    switch.write_text("1")
    try:
        yield
    finally:
        switch.write_text("0")
        for folder in folders:
            (folder / "events" / "enable").write_text("0")
            folder.rmdir()
