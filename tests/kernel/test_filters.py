# SPDX-License-Identifier: Apache-2.0
"""The filters on a real kernel: they pass what they should of the test's own reads and writes."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import mounting
from tests.kernel.patience import joined, reaped
from tests.kernel.trace import object_path
from wptrace.bpf.object import BpfObject
from wptrace.engine.filters import Filter, apply
from wptrace.engine.filters.cgroup import subsystem
from wptrace.errors import UnsupportedError
from wptrace.flows.io.path import PathFlow
from wptrace.kernel import cgroups, mounts

READ, WRITE = {"x86_64": (17, 18), "aarch64": (67, 68)}[os.uname().machine]  # pread64, pwrite64
# A hardened kernel refuses fentry programs.
WAYS: dict[str, tuple[str, ...]] = {"raw_tp": ("on_raw_tp",), "tp_btf": ("on_tp_btf",)}
if GUEST:
    WAYS["fentry"] = ("on_fentry_read", "on_fentry_write")
_PR_SET_NAME = 15
_LIBC = ctypes.CDLL(None, use_errno=True)

Act = Callable[[], None]


class Tracer:
    def __init__(self, obj: BpfObject) -> None:
        self.obj = obj

    def wants(self, **wanted: object) -> None:
        apply(self.obj.bss, Filter(**wanted), PathFlow.filters)

    def passes(self, act: Act) -> bool:
        """Tell whether the only call that `act` makes passes."""
        calls, hits = self.obj.bss.calls, self.obj.bss.hits
        act()
        assert self.obj.bss.calls == calls + 1
        assert self.obj.bss.hits in (hits, hits + 1)
        return bool(self.obj.bss.hits > hits)

    def reads(self, path: Path | str, size: int = 512) -> Act:
        """Make one pread. Opening, and what Python does around it, is not counted."""

        def act() -> None:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                self._counted(lambda: os.pread(file.fileno(), size, 0))

        return act

    def writes(self, path: Path | str, size: int = 512) -> Act:
        def act() -> None:
            with open(path, "r+b", buffering=0) as file:  # noqa: PTH123
                self._counted(lambda: os.pwrite(file.fileno(), b"x" * size, 0))

        return act

    def _counted(self, call: Callable[[], object]) -> None:
        self.obj.bss.counting = True
        try:
            call()
        finally:
            self.obj.bss.counting = False


@pytest.fixture(
    scope="module",
    # Filters work the same on each kernel by the ways that need no guest.
    params=[name if name == "fentry" else pytest.param(name, marks=pytest.mark.one_kernel) for name in WAYS],
)
def loaded(request: pytest.FixtureRequest) -> Iterator[BpfObject]:
    with BpfObject(object_path("filter")) as obj:
        for name, program in obj.progs.items():
            program.autoload = name in WAYS[request.param]
        obj.bss.target_tgid = os.getpid()
        obj.bss.target_read, obj.bss.target_write = READ, WRITE
        obj.load()
        obj.attach()
        yield obj


@pytest.fixture
def tracer(loaded: BpfObject) -> Tracer:
    """Programs without a filter. They stay attached for all tests, which change filters while they run."""
    made = Tracer(loaded)
    made.wants()
    return made


def mounted(point: Path, kind: str, *options: str) -> AbstractContextManager[Path]:
    return mounting(point, "-t", kind, *options, kind)


def bound(source: Path, point: Path) -> AbstractContextManager[Path]:
    return mounting(point, "--bind", str(source))


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A new file system: below /tmp there may be others, as with an overlay, that read as well."""
    with mounted(tmp_path / "tree", "tmpfs") as root:
        yield root


def file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"y" * 4096)
    return path


def child(act: Act) -> Act:
    """Act in a new process."""

    def forked() -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                act()
                code = 0
            finally:
                os._exit(code)
        assert reaped(pid) == 0

    return forked


def named(name: bytes, act: Act) -> Act:
    """Act in a process whose thread has this name."""

    def renamed() -> None:
        assert _LIBC.prctl(_PR_SET_NAME, name, 0, 0, 0) == 0
        act()

    return child(renamed)


def moving(cgroup: Path, act: Act) -> Act:
    """Act after this process, a child, has moved to a cgroup."""

    def there() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        act()

    return there


def moved(cgroup: Path, act: Act) -> Act:
    return child(moving(cgroup, act))


# --- Tasks ----------------------------------------------------------------------------------------------------


def test_without_a_filter_everything_passes(tracer: Tracer, tree: Path) -> None:
    path = file(tree / "file")
    for act in (tracer.reads(path), tracer.writes(path), child(tracer.reads(path))):
        assert tracer.passes(act)
    tracer.wants(pid=1, comm="nobody", op="read", size=(9999, None))
    assert not tracer.passes(tracer.reads(path))
    tracer.wants()
    assert tracer.passes(tracer.reads(path))


def test_process(tracer: Tracer, tree: Path) -> None:
    act = tracer.reads(file(tree / "file"))
    tracer.wants(pid=os.getpid())
    assert tracer.passes(act)
    assert not tracer.passes(child(act))
    tracer.wants(pid=os.getppid())
    assert not tracer.passes(act)


def test_all_threads_are_of_the_process(tracer: Tracer, tree: Path) -> None:
    tracer.wants(pid=os.getpid())
    thread = threading.Thread(target=tracer.reads(file(tree / "file")))

    def run() -> None:
        thread.start()
        joined(thread)

    assert tracer.passes(run)
    assert thread.native_id != os.getpid()


def test_thread(tracer: Tracer, tree: Path) -> None:
    act = tracer.reads(file(tree / "file"))

    def run() -> None:
        tracer.wants(tid=threading.get_native_id())
        act()

    thread = threading.Thread(target=run)

    def in_thread() -> None:
        thread.start()
        joined(thread)

    assert tracer.passes(in_thread)
    assert not tracer.passes(act)
    tracer.wants(tid=os.getpid())
    assert tracer.passes(act)


@pytest.mark.parametrize(
    ("wanted", "name", "passes"),
    [
        ("reader", b"reader", True),
        ("reader", b"reader2", False),
        ("reader", b"reade", False),
        ("reader", b"Reader", False),
        ("exactly-fifteen", b"exactly-fifteen", True),
        ("exactly-fifteex", b"exactly-fifteen", False),
        ("longer-than-fifteen", b"longer-than-fifteen", True),
        ("longer-than-fifty", b"longer-than-fifteen", True),
        ("longer-then-fifty", b"longer-than-fifteen", False),
        ("\u00e9crit", "\u00e9crit".encode(), True),
    ],
)
def test_comm(tracer: Tracer, tree: Path, wanted: str, name: bytes, passes: bool) -> None:
    tracer.wants(comm=wanted)
    assert tracer.passes(named(name, tracer.reads(file(tree / "file")))) is passes


def test_nothing_of_a_longer_name_is_left(tracer: Tracer, tree: Path) -> None:
    act = tracer.reads(file(tree / "file"))

    def renamed_twice() -> None:
        for name in (b"a-longer-name", b"short"):
            assert _LIBC.prctl(_PR_SET_NAME, name, 0, 0, 0) == 0
        act()

    tracer.wants(comm="a-longer-name")
    tracer.wants(comm="short")
    assert tracer.passes(child(renamed_twice))
    tracer.wants(comm="a-longer-name")
    assert not tracer.passes(child(renamed_twice))


# --- Cgroups --------------------------------------------------------------------------------------------------


@contextmanager
def made(root: Path, *names: str) -> Iterator[list[Path]]:
    """Cgroups below a mount, removed at the end."""
    with ExitStack() as stack:
        found = []
        for name in names:
            path = root / name
            path.mkdir()
            stack.callback(path.rmdir)
            found.append(path)
        yield found


def check_subtree(tracer: Tracer, root: Path, act: Act) -> None:
    top = f"wptrace-{os.getpid()}"
    names = (top, f"{top}/a", f"{top}/a/b", f"{top}/a/b/c", f"{top}/ab")
    with made(root, *names) as (above, wanted, below, deep, sibling):
        found = cgroups.resolve(str(wanted))
        assert found.id == wanted.stat().st_ino
        for known in (found, found._replace(level=None)):
            tracer.wants(cgroup=known)
            for cgroup, passes in ((above, False), (wanted, True), (below, True), (deep, True), (sibling, False)):
                assert tracer.passes(moved(cgroup, act)) is passes, cgroup
            assert not tracer.passes(act)
        # A cgroup is only looked for at its own level, so a known level is cheap.
        for level in (0, 1, 3):
            tracer.wants(cgroup=found._replace(level=level))
            assert not tracer.passes(moved(deep, act))
        tracer.wants(cgroup=cgroups.resolve(str(deep)))
        assert tracer.passes(moved(deep, act))
        assert not tracer.passes(moved(below, act))
        tracer.wants(cgroup=cgroups.resolve(str(root)))
        assert tracer.passes(act)
        assert tracer.passes(moved(deep, act))


@pytest.fixture
def v2(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "v2", "cgroup2") as root:
        yield root


@pytest.fixture
def v1(tmp_path: Path) -> Iterator[Path]:
    """The hierarchy of a controller that kernels have and that limits nothing here."""
    with mounted(tmp_path / "v1", "cgroup", "-o", "pids") as root:
        yield root


def test_cgroup(tracer: Tracer, tree: Path, v2: Path) -> None:
    assert cgroups.resolve(str(v2)).controller is None
    check_subtree(tracer, v2, tracer.reads(file(tree / "file")))


def test_cgroup_of_v1(tracer: Tracer, tree: Path, v1: Path) -> None:
    assert cgroups.resolve(str(v1)).controller == "pids"
    check_subtree(tracer, v1, tracer.reads(file(tree / "file")))


def test_a_cgroup_of_one_hierarchy_is_none_of_the_other(tracer: Tracer, tree: Path, v1: Path, v2: Path) -> None:
    act = tracer.reads(file(tree / "file"))
    name = f"wptrace-{os.getpid()}"
    with made(v1, name) as (first,), made(v2, name) as (second,):
        for wanted, other in ((first, second), (second, first)):
            tracer.wants(cgroup=cgroups.resolve(str(wanted)))
            assert tracer.passes(moved(wanted, act))
            assert not tracer.passes(moved(other, act))
            assert tracer.passes(moved(other, moving(wanted, act)))


def test_cgroups_are_found_by_all_that_users_call_them(v1: Path, v2: Path) -> None:
    name = f"wptrace-{os.getpid()}"
    with made(v1, name, f"{name}/a") as (_, first), made(v2, name, f"{name}/a") as (_, second):
        wanted: tuple[int, int, str | None] = (first.stat().st_ino, 2, "pids")
        assert [cgroups.resolve(text)[1:] for text in (str(first), f"pids:{name}/a", f"pids:/{name}/a")] == [wanted] * 3
        wanted = (second.stat().st_ino, 2, None)
        assert [cgroups.resolve(text)[1:] for text in (str(second), f"{name}/a", f"/{name}/a")] == [wanted] * 3


def test_the_controllers_are_numbered_in_the_order_in_which_the_kernel_lists_them() -> None:
    rows = [line.split()[0] for line in Path("/proc/cgroups").read_text().splitlines()[1:]]
    numbers = [subsystem(controller) for controller in rows]
    assert "blkio" in rows
    assert numbers == sorted(set(numbers))
    assert subsystem(None) == -1
    with pytest.raises(UnsupportedError, match="does not show the cgroups of the controller nonsense"):
        subsystem("nonsense")


# --- Files ----------------------------------------------------------------------------------------------------


def test_file(tracer: Tracer, tree: Path) -> None:
    wanted, other = file(tree / "wanted"), file(tree / "other")
    tracer.wants(file=mounts.file(str(wanted)))
    assert tracer.passes(tracer.reads(wanted))
    assert tracer.passes(tracer.writes(wanted))
    assert tracer.passes(child(tracer.reads(wanted)))
    assert not tracer.passes(tracer.reads(other))


def test_file_by_a_hard_link_and_by_a_symbolic_one(tracer: Tracer, tree: Path) -> None:
    wanted = file(tree / "wanted")
    (tree / "folder").mkdir()
    hard, symbolic = tree / "folder" / "hard", tree / "symbolic"
    os.link(wanted, hard)
    symbolic.symlink_to(wanted)
    for name in (wanted, hard, symbolic):
        tracer.wants(file=mounts.file(str(name)))
        assert all(tracer.passes(tracer.reads(path)) for path in (wanted, hard, symbolic))
    wanted.unlink()
    assert tracer.passes(tracer.reads(hard))


def test_file_that_took_the_name_of_another(tracer: Tracer, tree: Path) -> None:
    wanted, other = file(tree / "wanted"), file(tree / "other")
    tracer.wants(file=mounts.file(str(wanted)))
    wanted.rename(tree / "elsewhere")
    other.rename(wanted)
    assert not tracer.passes(tracer.reads(wanted))
    assert tracer.passes(tracer.reads(tree / "elsewhere"))


def test_file_with_the_same_number_on_another_file_system(tracer: Tracer, tree: Path, tmp_path: Path) -> None:
    with mounted(tmp_path / "twin", "tmpfs") as twin:
        wanted, other = file(tree / "file"), file(twin / "file")
        while wanted.stat().st_ino != other.stat().st_ino:
            # Since 5.9 each tmpfs numbers its own inodes, in steps of one.
            behind = min((wanted, other), key=lambda path: path.stat().st_ino)
            behind.unlink()
            file(behind)
        tracer.wants(file=mounts.file(str(wanted)))
        assert tracer.passes(tracer.reads(wanted))
        assert not tracer.passes(tracer.reads(other))
        tracer.wants(dir=mounts.directory(str(tree)))
        assert tracer.passes(tracer.reads(wanted))
        assert not tracer.passes(tracer.reads(other))


def test_directory(tracer: Tracer, tree: Path) -> None:
    wanted = tree / "a" / "wanted"
    inside = [file(wanted / "file"), file(wanted / "b/c/d/file")]
    outside = [file(tree / "file"), file(tree / "a/file"), file(tree / "a/wanted2/file")]
    tracer.wants(dir=mounts.directory(str(wanted)))
    assert [tracer.passes(tracer.reads(path)) for path in inside] == [True, True]
    assert [tracer.passes(tracer.reads(path)) for path in outside] == [False, False, False]
    moved_away = inside[1].rename(tree / "a" / "moved")
    moved_in = outside[0].rename(wanted / "moved")
    assert not tracer.passes(tracer.reads(moved_away))
    assert tracer.passes(tracer.reads(moved_in))
    tracer.wants(dir=mounts.directory("/"))
    assert tracer.passes(tracer.reads(moved_away))


def test_directory_far_above(tracer: Tracer, tree: Path) -> None:
    """A loop of the program covers 16 directories."""
    wanted = tree / "wanted"
    tracer.wants(dir=mounts.directory(str(file(wanted / "file").parent)))
    for depth in (0, 14, 15, 16, 17, 31, 32, 33, 200):
        assert tracer.passes(tracer.reads(file(Path(wanted, *"d" * depth, "file")))), depth
        assert not tracer.passes(tracer.reads(file(Path(tree, *"d" * depth, "file")))), depth


def test_a_deleted_file_is_still_below_its_directory(tracer: Tracer, tree: Path) -> None:
    path = file(tree / "wanted" / "file")
    tracer.wants(dir=mounts.directory(str(path.parent)))
    with path.open("rb", buffering=0) as opened:
        path.unlink()
        assert tracer.passes(tracer.reads(f"/proc/self/fd/{opened.fileno()}"))


def test_file_systems_below_the_directory_belong_to_it(tracer: Tracer, tree: Path) -> None:
    wanted = tree / "wanted"
    (wanted / "deep").mkdir(parents=True)
    (tree / "beside").mkdir()
    with mounted(wanted / "deep" / "disk", "tmpfs") as disk, mounted(tree / "beside" / "disk", "tmpfs") as other:
        (disk / "more").mkdir()
        with mounted(disk / "more" / "disk", "tmpfs") as second:
            inside = [file(disk / "file"), file(disk / "more/file"), file(second / "a/b/file")]
            outside = [file(other / "file"), file(tree / "file")]
            tracer.wants(dir=mounts.directory(str(wanted)))
            assert [tracer.passes(tracer.reads(path)) for path in inside] == [True, True, True]
            assert [tracer.passes(tracer.reads(path)) for path in outside] == [False, False]
            tracer.wants(dir=mounts.directory(str(disk)))
            assert [tracer.passes(tracer.reads(path)) for path in inside] == [True, True, True]
            assert not tracer.passes(tracer.reads(file(wanted / "file")))


def test_bind_mounts_show_the_same_directory(tracer: Tracer, tree: Path) -> None:
    wanted = tree / "wanted"
    path = file(wanted / "a" / "b" / "file")
    with bound(wanted, tree / "whole") as whole, bound(wanted / "a", tree / "part") as part:
        tracer.wants(dir=mounts.directory(str(wanted)))
        assert tracer.passes(tracer.reads(whole / "a/b/file"))
        assert tracer.passes(tracer.reads(part / "b/file"))
        for other in (whole / "a", part):
            tracer.wants(dir=mounts.directory(str(other)))
            assert tracer.passes(tracer.reads(path))
        # The path below the bind mount does not lead through the directory.
        (tree / "shown").mkdir()
        with bound(wanted / "a", tree / "shown" / "a") as shown:
            tracer.wants(dir=mounts.directory(str(tree / "shown")))
            assert tracer.passes(tracer.reads(shown / "b/file"))
            assert not tracer.passes(tracer.reads(path))


def test_files_of_an_overlay(tracer: Tracer, tree: Path, tmp_path: Path) -> None:
    """The layers are file systems whose inode numbers differ from the overlay's, which is usual in containers."""
    with mounted(tmp_path / "lower", "tmpfs") as lower:
        below, _ = file(lower / "a/below"), file(lower / "b/below")
        (tree / "upper").mkdir()
        (tree / "work").mkdir()
        layers = f"lowerdir={lower},upperdir={tree}/upper,workdir={tree}/work"
        with mounted(tmp_path / "overlay", "overlay", "-o", layers) as root:
            above = file(root / "a/above")
            for wanted in (root / "a/below", above):
                tracer.wants(file=mounts.file(str(wanted)))
                passing = [
                    path for path in (root / "a/below", root / "b/below", above) if tracer.passes(tracer.reads(path))
                ]
                assert passing == [wanted]
            tracer.wants(dir=mounts.directory(str(root / "a")))
            assert tracer.passes(tracer.reads(root / "a/below"))
            assert tracer.passes(tracer.reads(above))
            assert not tracer.passes(tracer.reads(root / "b/below"))
            assert not tracer.passes(tracer.reads(below))


# --- Operations, and filters together -------------------------------------------------------------------------


def test_reads_and_writes(tracer: Tracer, tree: Path) -> None:
    path = file(tree / "file")
    for ops, expected in (("read", [True, False]), ("write", [False, True]), (None, [True, True])):
        tracer.wants(op=ops)
        assert [tracer.passes(act) for act in (tracer.reads(path), tracer.writes(path))] == expected


@pytest.mark.parametrize(
    ("least", "most", "passing"),
    [
        (None, 512, [1, 511, 512]),
        (512, None, [512, 513, 4096, 1 << 20]),
        (512, 4096, [512, 513, 4096]),
        (512, 512, [512]),
        (0, 1, [1]),
        (1 << 20, 1 << 62, [1 << 20]),
    ],
)
def test_sizes(tracer: Tracer, tree: Path, least: int | None, most: int | None, passing: list[int]) -> None:
    path = file(tree / "file")
    tracer.wants(size=(least, most))
    sizes = [1, 511, 512, 513, 4096, 1 << 20]
    assert [size for size in sizes if tracer.passes(tracer.reads(path, size))] == passing
    assert [size for size in sizes if tracer.passes(tracer.writes(path, size))] == passing


def test_filters_hold_together(tracer: Tracer, tree: Path) -> None:
    wanted, other = file(tree / "a" / "wanted"), file(tree / "a" / "other")
    us, place, folder = os.getpid(), mounts.file(str(wanted)), mounts.directory(str(tree / "a"))

    tracer.wants(pid=us, file=place)
    assert tracer.passes(tracer.reads(wanted))
    assert not tracer.passes(tracer.reads(other))
    assert not tracer.passes(child(tracer.reads(wanted)))

    tracer.wants(file=place, op="write", size=(1024, None))
    assert tracer.passes(tracer.writes(wanted, 1024))
    assert not tracer.passes(tracer.writes(wanted, 1023))
    assert not tracer.passes(tracer.reads(wanted, 1024))
    assert not tracer.passes(tracer.writes(other, 1024))

    tracer.wants(comm="reader", dir=folder)
    assert tracer.passes(named(b"reader", tracer.reads(other)))
    assert not tracer.passes(named(b"writer", tracer.reads(other)))
    assert not tracer.passes(named(b"reader", tracer.reads(file(tree / "file"))))

    # A hard link elsewhere is the same file, but not below the directory.
    os.link(wanted, tree / "link")
    tracer.wants(file=place, dir=folder)
    assert tracer.passes(tracer.reads(wanted))
    assert not tracer.passes(tracer.reads(tree / "link"))
    assert not tracer.passes(tracer.reads(other))

    tracer.wants(pid=us, comm="nobody")
    assert not tracer.passes(tracer.reads(wanted))
