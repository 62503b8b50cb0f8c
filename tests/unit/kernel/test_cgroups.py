# SPDX-License-Identifier: Apache-2.0
"""Cgroups in folders; a made-up mountinfo says where they are mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kernel.procfs import Procfs
from wptrace.errors import UsageError
from wptrace.kernel import cgroups
from wptrace.kernel.cgroups import Cgroup

CONTROLLERS = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n" + "".join(
    f"{name}\t1\t1\t1\n" for name in ("cpu", "cpuacct", "blkio", "memory", "freezer", "pids")
)
UNIFIED, MEMORY, CPU, SYSTEMD, DISK = 1, 2, 3, 4, 9


@pytest.fixture
def proc(tmp_path: Path) -> Procfs:
    made = Procfs(tmp_path / "proc")
    (made.root / "cgroups").write_text(CONTROLLERS)
    return made


@pytest.fixture
def tree(tmp_path: Path, proc: Procfs) -> Path:
    """The hybrid layout of systemd: v2 and some v1 hierarchies."""
    root = tmp_path / "cgroup"
    for name in ("unified/system.slice/a:b", "memory/system.slice/x", "memory/memory", "cpu,cpuacct/x", "systemd/x"):
        (root / name).mkdir(parents=True)
    (root / "cpu").symlink_to("cpu,cpuacct")
    (root / "unified" / "cgroup.procs").touch()
    proc.mount(DISK, "8:1", "/", "ext4", "/dev/sda1", "rw")
    proc.mount(SYSTEMD, "0:37", root / "systemd", "cgroup", "cgroup", "rw,xattr,name=systemd")
    proc.mount(MEMORY, "0:32", root / "memory", "cgroup", "cgroup", "rw,memory")
    proc.mount(CPU, "0:29", root / "cpu,cpuacct", "cgroup", "cgroup", "rw,cpu,cpuacct")
    proc.mount(UNIFIED, "0:38", root / "unified", "cgroup2", "cgroup2", "rw,nsdelegate")
    return root


def found(proc: Procfs, mount: int, text: str) -> Cgroup:
    proc.opens_on(mount)
    return cgroups.resolve(text, proc.root)


def expected(path: Path, level: int | None, controller: str | None) -> Cgroup:
    return Cgroup(str(path), path.stat().st_ino, level, controller)


@pytest.mark.parametrize(
    ("mount", "text", "path", "level", "controller"),
    [
        (UNIFIED, "{}/unified", "unified", 0, None),
        (UNIFIED, "{}/unified/system.slice", "unified/system.slice", 1, None),
        (UNIFIED, "{}/unified/system.slice/", "unified/system.slice", 1, None),
        (UNIFIED, "{}/unified/system.slice/a:b", "unified/system.slice/a:b", 2, None),
        # Below the root of v2: /proc/PID/cgroup and systemd-cgls show such paths.
        (UNIFIED, "system.slice", "unified/system.slice", 1, None),
        (UNIFIED, "/system.slice", "unified/system.slice", 1, None),
        (UNIFIED, "system.slice/", "unified/system.slice", 1, None),
        (UNIFIED, "system.slice/a:b", "unified/system.slice/a:b", 2, None),
        (MEMORY, "{}/memory", "memory", 0, "memory"),
        (MEMORY, "{}/memory/system.slice/x", "memory/system.slice/x", 2, "memory"),
        (MEMORY, "memory:/", "memory", 0, "memory"),
        (MEMORY, "memory:system.slice/x", "memory/system.slice/x", 2, "memory"),
        (MEMORY, "memory:/system.slice/x", "memory/system.slice/x", 2, "memory"),
        # One of two controllers of a hierarchy will do.
        (CPU, "cpu:x", "cpu,cpuacct/x", 1, "cpu"),
        (CPU, "cpuacct:/x", "cpu,cpuacct/x", 1, "cpu"),
        (CPU, "{}/cpu/x", "cpu,cpuacct/x", 1, "cpu"),
    ],
)
def test_a_cgroup_by_its_directory_or_path(
    proc: Procfs, tree: Path, mount: int, text: str, path: str, level: int, controller: str | None
) -> None:
    assert found(proc, mount, text.format(tree)) == expected(tree / path, level, controller)


def test_a_bind_mount_shows_only_what_is_below(proc: Procfs, tree: Path) -> None:
    place = tree / "shown"
    (place / "b").mkdir(parents=True)
    proc.mount(50, "0:38", place, "cgroup2", "cgroup2", "rw", root="/system.slice/a:b")
    assert found(proc, 50, str(place / "b")) == expected(place / "b", 3, None)
    assert found(proc, 50, str(place)) == expected(place, 2, None)


def test_a_cgroup_namespace_hides_the_level(proc: Procfs, tree: Path) -> None:
    path = tree / "unified" / "system.slice"
    proc.namespace("cgroup:[4026532278]")
    assert found(proc, UNIFIED, str(path)) == expected(path, None, None)
    (proc.root / "self" / "ns" / "cgroup").unlink()
    assert found(proc, UNIFIED, str(path)) == expected(path, 1, None)


@pytest.mark.parametrize(
    ("mount", "text", "message"),
    [
        (UNIFIED, "none", "there is no cgroup none"),
        (UNIFIED, "/system.slice/none", "there is no cgroup /system.slice/none"),
        (UNIFIED, "", "there is no cgroup ''"),
        (UNIFIED, "cgroup.procs", "there is no cgroup cgroup.procs"),
        (UNIFIED, "pids:/", "there is no cgroup pids:/"),
        (MEMORY, "memory:none", "there is no cgroup memory:none"),
        (DISK, "/", "there is no cgroup /"),
    ],
)
def test_what_is_no_cgroup(proc: Procfs, tree: Path, mount: int, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        found(proc, mount, text)
    assert caught.value.message == message
    assert caught.value.hint == "systemd-cgls and /proc/PID/cgroup show the cgroups"


def test_a_hierarchy_without_a_controller_does_not_tell(proc: Procfs, tree: Path) -> None:
    path = tree / "systemd" / "x"
    with pytest.raises(UsageError, match=f"^{path} is in a hierarchy without a controller"):
        found(proc, SYSTEMD, str(path))


def test_without_hierarchies_there_is_no_cgroup(proc: Procfs, tmp_path: Path) -> None:
    proc.mount(DISK, "8:1", "/", "ext4", "/dev/sda1", "rw")
    with pytest.raises(UsageError, match="there is no cgroup x: no hierarchy of cgroups is mounted"):
        found(proc, DISK, "x")


def test_a_removed_cgroup_is_gone_even_if_another_has_its_path(proc: Procfs, tree: Path) -> None:
    path = tree / "unified" / "system.slice" / "a:b"
    one = found(proc, UNIFIED, str(path))
    assert not one.is_gone
    # Its inode stays in use, so that the other one has a number of its own.
    path.rename(tree / "away")
    assert one.is_gone
    path.mkdir()
    assert one.is_gone


def test_a_cgroup_that_cannot_be_looked_at_is_not_gone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not Cgroup(str(tmp_path / "file" / "x"), 1, None, None).is_gone
