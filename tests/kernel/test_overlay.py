# SPDX-License-Identifier: Apache-2.0
"""Containers: operations on overlayfs and FUSE are those of the file system below; ids of a PID namespace."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel import fuse
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, mounting, opened, read_direct, total, unmount
from tests.kernel.loads import mounted
from tests.kernel.patience import said
from tests.kernel.test_async import observes
from tests.kernel.test_io_path import settle, sums_up
from tests.kernel.trace import PATIENCE, ROOT, Line, Lines, Trace, count, lossless
from tests.kernel.window import Running
from tests.thorough import only_all
from wptrace.engine.filters import Filter
from wptrace.kernel import mounts

# The emulated nvme of 5.10 loses commands with several in flight (docs/testing.md).
GUEST_DISK = "vda"


def watched() -> bool:
    """Tell whether functions of a file system can be observed that is a loaded module."""
    return bool(GUEST) and Path("/sys/kernel/btf/ext4").exists()


def overlay(*lower: Path, upper: Path, folder: Path) -> AbstractContextManager[Path]:
    (upper / "data").mkdir(exist_ok=True)
    (upper / "work").mkdir(exist_ok=True)
    layers = f"lowerdir={':'.join(map(str, lower))},upperdir={upper / 'data'},workdir={upper / 'work'}"
    return mounting(folder, "-t", "overlay", "overlay", "-o", layers)


def reported(trace: Lines, path: Path) -> list[Line]:
    return [one for one in trace.operations if one["path"] == str(path)]


def seen_once(trace: Lines, job: dict[str, Any], engine: str, kind: str) -> list[Line]:
    """Return fio's operations; there are as many as it made if this kernel shows those of the engine."""
    assert lossless(trace.summary), trace.summary["loss"]
    mine = [one for one in trace.operations if one["op"] != "sync" and one["path"].endswith("/data")]
    if engine == "psync" or observes(engine, trace, kind):
        assert len(mine) == total(job) == 60, engine
        assert trace.summary["operations"]["in_flight"] == 0
    else:
        assert not mine
    for one in mine:
        sums_up(one)
        assert one["requests"] >= 1
        assert one["length"] == one["result"] == 4096
    return mine


@pytest.mark.guest
@pytest.mark.parametrize(
    "kind", ["ext4", *(pytest.param(kind, marks=pytest.mark.one_kernel) for kind in ("xfs", "btrfs"))]
)
def test_asynchronous_operations_are_counted(path_flow: Running, disk: Disk, tmp_path: Path, kind: str) -> None:
    """There are as many as fio made, even with one overlay on top of another."""
    with ExitStack() as stack:
        below = stack.enter_context(mounted(disk, kind, tmp_path / "fs"))
        (below / "empty").mkdir()
        (below / "first").mkdir()
        (below / "second").mkdir()
        merged = stack.enter_context(overlay(below / "empty", upper=below / "first", folder=tmp_path / "merged"))
        (merged / "data").write_bytes(os.urandom(1 << 20))
        twice = stack.enter_context(
            overlay(merged, upper=below / "second", folder=tmp_path / "twice"),
        )
        settle()
        flow = path_flow.aim(disk)
        for engine in ("psync", "libaio", "io_uring"):
            for path, rw in ((merged / "data", "randrw"), (twice / "data", "randread")):
                with flow.window(Filter(comm="fio")) as trace:
                    job = fio(str(path), rw=rw, number_ios=60, ioengine=engine, iodepth=4, size="1M")
                mine = seen_once(trace, job, engine, kind)
                # With one overlay on top of another, the path is that of either.
                assert path.parent == twice or mine == [one for one in reported(trace, path) if one["op"] != "sync"]
                for one in mine:
                    assert one["offset"] % 4096 == 0
                    assert one["offset"] < 1 << 20
                assert len({one["offset"] for one in mine}) > 20 or not mine


@contextmanager
def passed_through(below: Path, folder: Path) -> Iterator[Path]:
    """The path of a file by a FUSE server that leaves reads and writes to the kernel."""
    subprocess.run(["modprobe", "fuse"], check=True)
    folder.mkdir()
    command = [sys.executable, "-I", "-S", str(Path(fuse.__file__)), str(folder), str(below)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert said(server) == "ready\n"
            yield folder / fuse.NAME.decode()
        finally:
            unmount(folder)
        assert server.wait(timeout=PATIENCE) == 0


RELEASE = tuple(map(int, os.uname().release.split(".")[:2]))


@pytest.mark.guest
@pytest.mark.skipif(RELEASE < (6, 9), reason="FUSE passes reads and writes through since 6.9")
def test_what_fuse_passes_through_is_of_the_file_system_below(path_flow: Running, disk: Disk, tmp_path: Path) -> None:
    """It is seen once, by the path that was opened, and is never a hit."""
    with ExitStack() as stack:
        below = stack.enter_context(mounted(disk, "ext4", tmp_path / "fs"))
        (below / "data").write_bytes(os.urandom(1 << 20))
        path = stack.enter_context(passed_through(below / "data", tmp_path / "passed"))
        settle()
        flow = path_flow.aim(disk)
        for engine in ("psync", "libaio", "io_uring"):
            with flow.window(Filter(comm="fio")) as trace:
                job = fio(str(path), rw="randrw", number_ios=60, ioengine=engine, iodepth=4, size="1M")
            mine = seen_once(trace, job, engine, "ext4")
            assert {one["kind"] for one in mine} <= {"operation"}
            assert mine == [one for one in reported(trace, path) if one["op"] != "sync"]


@only_all
@pytest.mark.guest
def test_what_no_known_file_system_got_is_reported(tmp_path: Path) -> None:
    """A file system that is mounted during the trace has operations that are counted as a cause; pipes do not count."""
    with ExitStack() as stack:
        stack.enter_context(mounted(Disk("vda"), "ext4", tmp_path / "known"))
        with Trace("--dev=vda", "--dev=sda") as trace:
            late = stack.enter_context(mounted(Disk("sda"), "xfs", tmp_path / "late"))
            made = 0
            for path in (tmp_path / "known" / "data", late / "data"):
                path.write_bytes(bytes(1 << 20))
                os.sync()
                made = total(fio(str(path), number_ios=30, ioengine="libaio", iodepth=4, size="1M"))
    # Otherwise AIO is observed for all file systems.
    assert trace.summary["loss"].get("unentered", 0) == (made if watched() else 0)
    assert trace.summary["loss"].get("unwatched", 0) == (1 if watched() else 0)
    assert count(trace.summary, op="read", dev="vda", kind="operation") >= 30
    assert count(trace.summary, op="read", dev="sda") >= 30
    assert watched() or count(trace.summary, op="read", dev="sda", kind="operation") >= 30


@pytest.mark.guest
@pytest.mark.one_kernel
def test_files_of_what_is_mounted_later_have_rows(path_flow: Running, disk: Disk, tmp_path: Path) -> None:
    """btrfs has a device number that no disk has, and no request shows where cached data came from."""
    flow = path_flow.aim(disk)
    with mounted(disk, "btrfs", tmp_path / "late") as late:
        (late / "data").write_bytes(bytes(1 << 20))
        settle()
        with opened(late / "data", os.O_RDONLY) as fd, flow.window(Filter(pid=os.getpid())) as trace:
            for number in range(20):
                assert len(os.pread(fd, 4096, 4096 * number)) == 4096
            for _ in range(3):
                os.fsync(fd)
    assert lossless(trace.summary), trace.summary["loss"]
    assert count(trace.summary, op="read", dev=disk.name, kind="hit") == 20
    syncs = [count(trace.summary, op="sync", dev=disk.name, kind=kind) for kind in ("hit", "operation")]
    assert sum(syncs) == 3


def test_a_file_and_a_directory_of_an_overlay(path_flow: Running, disk: Disk, tmp_path: Path) -> None:
    """Both the path in the container and the one below it name the file; its neighbours are left out."""
    with ExitStack() as stack:
        below = stack.enter_context(mounted(disk, "ext4", tmp_path / "fs"))
        lower = below / "lower"
        for name in ("in/wanted", "out/other"):
            (lower / name).parent.mkdir(parents=True)
            (lower / name).write_bytes(os.urandom(1 << 20))
        (below / "upper").mkdir()
        merged = stack.enter_context(overlay(lower, upper=below / "upper", folder=tmp_path / "merged"))
        settle()
        wanted, other = merged / "in/wanted", merged / "out/other"
        flow = path_flow.aim(disk)
        paths = {
            wanted: Filter(file=mounts.file(str(wanted))),
            wanted.parent: Filter(dir=mounts.directory(str(wanted.parent))),
            merged: Filter(dir=mounts.directory(str(merged))),
            lower / "in/wanted": Filter(file=mounts.file(str(lower / "in/wanted"))),
        }
        for engine, path in itertools.product(("psync", "libaio"), paths):
            with flow.window(paths[path]) as trace:
                if engine == "psync":
                    read_direct(wanted, 20)
                    read_direct(other, 10)
                else:
                    for one in (wanted, other):
                        fio(str(one), number_ios=20 if one == wanted else 10, ioengine=engine, size="1M")
            assert lossless(trace.summary), trace.summary["loss"]
            seen = engine == "psync" or observes(engine, trace, "ext4")
            mine = {
                name: len([one for one in reported(trace, name) if one["op"] == "read"]) for name in (wanted, other)
            }
            # System calls, and functions of all files, only know the upper file.
            seen = seen and (watched() or path != lower / "in/wanted")
            assert mine[wanted] == (20 if seen else 0), (engine, path)
            assert mine[other] == (10 if path == merged and seen else 0), (engine, path)


def test_what_the_page_cache_serves_of_an_overlay_is_a_hit(path_flow: Running, disk: Disk, tmp_path: Path) -> None:
    """Even if only the overlay's file is known, because no request has the device."""
    with ExitStack() as stack:
        below = stack.enter_context(mounted(disk, "ext4", tmp_path / "fs"))
        (below / "lower").mkdir()
        (below / "upper").mkdir()
        merged = stack.enter_context(overlay(below / "lower", upper=below / "upper", folder=tmp_path / "merged"))
        path = merged / "data"
        path.write_bytes(os.urandom(16 << 12))
        with opened(path, os.O_RDONLY) as fd, path_flow.aim(disk).window() as trace:
            for page in range(16):
                os.pread(fd, 4096, page << 12)
    assert lossless(trace.summary), trace.summary["loss"]
    mine = [one for one in reported(trace, path) if one["pid"] == os.getpid()]
    assert [(one["kind"], one["op"], one["dev"]) for one in mine] == [("hit", "read", disk.name)] * 16


_INSIDE = """
import json, os, sys
from pathlib import Path
from tests.kernel.disks import read_direct
from tests.kernel.trace import Trace

reader, writer = os.pipe()
child = os.fork()
if not child:
    os.read(reader, 1)
    read_direct(Path(sys.argv[1]), 30)
    os._exit(0)
with Trace("--each", f"--dev={Path(sys.argv[1]).name}", f"{sys.argv[2]}={child}") as trace:
    read_direct(Path(sys.argv[1]), 10)
    os.write(writer, b"x")
    os.waitpid(child, 0)
    trace.stop()
print(json.dumps([child, len(trace.operations), trace.lines[0]["notes"]]))
"""


@pytest.mark.one_kernel
@pytest.mark.parametrize("option", ["--pid", "--tid"])
def test_ids_are_those_of_the_namespace_of_who_asks(disk: Disk, option: str) -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _INSIDE, disk.path, option]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    child, operations, notes = json.loads(done.stdout)
    assert operations == 30
    assert f"{child} is an id of this pid namespace; ids in the output are those of the whole machine" in notes
