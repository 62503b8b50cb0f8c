# SPDX-License-Identifier: Apache-2.0
"""Names of cgroups by id, in folders like a hierarchy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kernel.procfs import Procfs
from wptrace.kernel import cgroup_names
from wptrace.kernel.cgroup_names import CgroupNames


@pytest.fixture
def hierarchy(tmp_path: Path) -> Path:
    root = tmp_path / "cgroup"
    (root / "system.slice" / "a.service").mkdir(parents=True)
    return root


def names(tmp_path: Path, root: Path | None, mounted: str = "/") -> CgroupNames:
    tmp_path.mkdir(exist_ok=True)
    proc = Procfs(tmp_path / "proc")
    proc.mount(1, "0:1", "/", "ext4", "/dev/sda", "rw")
    if root is not None:
        proc.mount(2, "0:2", root, "cgroup2", "cgroup2", "rw", root=mounted)
    return CgroupNames(proc.root)


def test_a_name_is_the_path_below_the_root(tmp_path: Path, hierarchy: Path) -> None:
    found = names(tmp_path, hierarchy)
    service = hierarchy / "system.slice" / "a.service"
    assert found.of(service.stat().st_ino) == "/system.slice/a.service"
    assert found.of(1) == found.of(hierarchy.stat().st_ino) == "/"


def test_a_cgroup_that_came_later_is_found(tmp_path: Path, hierarchy: Path) -> None:
    found = names(tmp_path, hierarchy)
    assert found.of(hierarchy.stat().st_ino) == "/"
    late = hierarchy / "late"
    late.mkdir()
    assert found.of(late.stat().st_ino) == "/late"


def test_one_that_is_gone_keeps_its_name(tmp_path: Path, hierarchy: Path) -> None:
    found = names(tmp_path, hierarchy)
    service = hierarchy / "system.slice" / "a.service"
    number = service.stat().st_ino
    assert found.of(number).endswith("a.service")
    service.rmdir()
    assert found.of(number).endswith("a.service")


def test_one_that_nobody_sees_has_its_number(tmp_path: Path, hierarchy: Path) -> None:
    assert names(tmp_path, hierarchy).of(1 << 60) == f"cgroup {1 << 60}"


def test_without_a_hierarchy_there_is_the_root(tmp_path: Path) -> None:
    found = names(tmp_path, None)
    assert (found.of(1), found.of(5)) == ("/", "cgroup 5")


def test_one_that_was_removed_is_asked_for_first(tmp_path: Path, hierarchy: Path) -> None:
    found = names(tmp_path, hierarchy)
    found.gone = {7: "/gone"}.__getitem__
    assert found.of(7) == "/gone"
    service = hierarchy / "system.slice" / "a.service"
    found.gone = lambda _number: ""
    assert found.of(service.stat().st_ino) == "/system.slice/a.service"


def test_a_container_knows_the_root_of_the_host(tmp_path: Path, hierarchy: Path) -> None:
    """The cgroup namespace shows that the root is above. The root of cgroups has inode 1, as that of sysfs."""
    of_host, of_part = names(tmp_path / "a", Path("/sys"), "/../.."), names(tmp_path / "b", hierarchy, "/..")
    of_host.gone = of_part.gone = lambda _number: "/gone"
    assert of_host.of(7) == "/gone"
    assert of_part.of(1 << 60) == f"cgroup {1 << 60}"


@pytest.mark.parametrize("asked", [2, 3, 4])
def test_one_that_is_removed_meanwhile_has_its_name(tmp_path: Path, hierarchy: Path, asked: int) -> None:
    """Its directory is gone when the folders are read, and its removal is not recorded yet when it is asked for."""
    found = names(tmp_path, hierarchy)
    answers = iter([""] * (asked - 1) + ["/brief"])
    found.gone = lambda _number: next(answers)
    assert found.of(1 << 60) == "/brief"


def test_names_do_not_grow_for_ever(tmp_path: Path, hierarchy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup_names, "_MOST", 8)
    found = names(tmp_path, hierarchy)
    found.gone = lambda number: f"/gone{number}"
    assert [found.of(number) for number in range(100, 200)] == [f"/gone{number}" for number in range(100, 200)]
    assert len(found._known) <= 8
    assert found.of(1) == "/"
