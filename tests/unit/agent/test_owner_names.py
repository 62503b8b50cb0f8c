# SPDX-License-Identifier: Apache-2.0
"""Names of owners in labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.engine.conftest import Time, clock
from tests.unit.model.test_cgroup import ID, SLICE, UID
from wptrace.agent import owner_names
from wptrace.agent.owner_names import OwnerNames
from wptrace.kernel import pods
from wptrace.kernel.pods import Volume
from wptrace.model.cgroup import Made, made
from wptrace.model.kind import NOBODY

__all__ = ["clock"]
SCOPE = f"{SLICE}/cri-containerd-{ID}.scope"


def log(folder: Path) -> None:
    (folder / "pods" / f"shop_web-1_{UID}").mkdir(parents=True)
    (folder / "containers").mkdir()
    (folder / "containers" / f"web-1_shop_nginx-{ID}.log").touch()


@pytest.mark.parametrize(
    ("by", "path", "named"),
    [
        ("unit", "/system.slice/nginx.service", ("nginx.service",)),
        ("unit", SCOPE, ("kubepods",)),
        ("unit", NOBODY, (NOBODY,)),
        ("unit", "/", ("none",)),
        ("namespace", SCOPE, ("shop",)),
        ("pod", SCOPE, ("shop", "web-1")),
        ("pod", SLICE, ("shop", "web-1")),
        ("pod", "/system.slice/nginx.service", ("", "")),
        ("container", SCOPE, ("shop", "web-1", "nginx")),
        ("container", f"{SCOPE}/init", ("shop", "web-1", "nginx")),
        ("container", SLICE, ("shop", "web-1", "")),
        ("container", f"/system.slice/docker-{ID}.scope", ("", "", ID[:12])),
        ("container", NOBODY, ("", "", "")),
    ],
)
def test_an_owner_has_values_for_labels(by: str, path: str, named: tuple[str, ...], tmp_path: Path) -> None:
    log(tmp_path)
    names = OwnerNames(by, tmp_path, tmp_path)
    assert names.of(path) == named
    assert len(names.labels) == len(named)


def test_a_pod_whose_log_comes_later_has_its_name_then_and_keeps_it(tmp_path: Path, clock: Time) -> None:
    names = OwnerNames("container", tmp_path, tmp_path)
    assert names.of(SCOPE) == ("", UID[:13], ID[:12])
    log(tmp_path)
    # The names are not read again for each of thousands of owners.
    assert names.of(SCOPE) == ("", UID[:13], ID[:12])
    clock.now += 6
    assert names.of(SCOPE) == ("shop", "web-1", "nginx")
    (tmp_path / "pods" / f"shop_web-1_{UID}").rmdir()
    clock.now += 60
    assert names.of(SCOPE) == ("shop", "web-1", "nginx")


def test_a_name_that_is_not_final_is_found_once_between_two_scans(
    tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    split: list[str] = []

    def counted(path: str) -> Made:
        split.append(path)
        return made(path)

    monkeypatch.setattr(owner_names, "made", counted)
    names = OwnerNames("container", tmp_path, tmp_path)
    for _ in range(100):
        assert names.of(SCOPE) == ("", UID[:13], ID[:12])
    assert split == [SCOPE]
    clock.now += 6
    for _ in range(100):
        names.of(SCOPE)
    assert split == [SCOPE] * 2


def test_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_names, "_MOST", 50)
    names = OwnerNames("unit")
    for number in range(1000):
        assert names.of(f"/system.slice/a{number}.service") == (f"a{number}.service",)
    assert len(names._known) == 50
    names = OwnerNames("pod", Path("/nonexistent"), Path("/nonexistent"))
    for number in range(1000):
        names.of(SCOPE.replace(ID, f"{number:064x}"))
    assert len(names._provisional) == 50


@pytest.mark.parametrize(
    ("by", "named"),
    [
        ("unit", []),
        ("namespace", [("sda", "pvc-1", "shop"), ("sdb", "pvc-2", "")]),
        ("pod", [("sda", "pvc-1", "shop", "web-1"), ("sdb", "pvc-2", "", "00000000-0000")]),
        ("container", [("sda", "pvc-1", "shop", "web-1"), ("sdb", "pvc-2", "", "00000000-0000")]),
    ],
)
def test_volumes_are_those_of_pods(
    by: str, named: list[tuple[str, ...]], tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(tmp_path)
    other = "00000000-0000-0000-0000-000000000000"
    mounted = [Volume("sdb", "pvc-2", other), Volume("sda", "pvc-1", UID)]
    looks = 0

    def found() -> list[Volume]:
        nonlocal looks
        looks += 1
        return mounted

    monkeypatch.setattr(pods, "volumes", found)
    names = OwnerNames(by, tmp_path, tmp_path)
    clock.now += 6
    assert names.volumes() == names.volumes() == named
    assert looks == bool(named)
    mounted = []
    clock.now += 6
    assert names.volumes() == []
