# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import fetch, matrix, packages
from tests.lab.errors import LabError, UsageError


def test_the_newest_release_is_not_the_last_by_name() -> None:
    kernel = matrix.find("6.12")
    releases = [
        "6.12.95+deb12-amd64",
        "6.12.107+deb12-amd64",
        "6.12.9+deb12-amd64",
        "6.12-amd64",
        "6.1.0-9-amd64",
    ]
    assert fetch.newest_release(releases, kernel) == "6.12.107+deb12-amd64"
    assert fetch.newest_release(["6.12.95+deb12-cloud-amd64"], kernel) is None


@pytest.mark.parametrize(
    ("name", "release"),
    [("5.10", "5.10.0-46-amd64"), ("6.1", "6.1.0-56-amd64"), ("7.2", "7.2.13+deb14-amd64")],
)
def test_release_patterns(name: str, release: str) -> None:
    kernel = matrix.find(name)
    assert fetch.newest_release([release, release.replace("amd64", "rt-amd64"), ".new-" + release], kernel) == release


def test_a_release_that_came_only_in_part_is_not_offered() -> None:
    kernel = matrix.find("7.2")
    whole = list(kernel.package_names("7.2.11+deb13-amd64"))
    assert fetch.releases_on_offer([*whole, "linux-modules-7.2.12+deb13-amd64"], kernel) == ["7.2.11+deb13-amd64"]
    assert fetch.releases_on_offer([*whole[1:], "linux-binary-amd64"], kernel) == []


def test_nothing_in_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WPTRACE_LAB_CACHE", str(tmp_path))
    kernel = matrix.find("6.1")
    assert fetch.present(kernel) is None
    (tmp_path / "kernels" / "6.1" / ".new-6.1.0-56-amd64").mkdir(parents=True)
    assert fetch.present(kernel) is None
    (tmp_path / "kernels" / "6.1" / "6.1.0-56-amd64").mkdir()
    found = fetch.fetch(kernel)
    assert found.modules == tmp_path / "kernels/6.1/6.1.0-56-amd64/lib/modules/6.1.0-56-amd64"


@pytest.mark.parametrize("top", ["lib", "usr/lib"])
@pytest.mark.parametrize("among_modules", [False, True])
def test_arrange_knows_the_layouts_of_debian(tmp_path: Path, top: str, among_modules: bool) -> None:
    release = "7.2.13+deb14-amd64"
    unpacked, target = tmp_path / "unpacked", tmp_path / "target"
    modules = unpacked / top / "modules" / release
    (modules / "kernel").mkdir(parents=True)
    (modules / "kernel" / "x.ko").touch()
    (unpacked / "boot").mkdir()
    target.mkdir()
    (modules / "vmlinuz" if among_modules else unpacked / "boot" / f"vmlinuz-{release}").touch()
    (modules / "config" if among_modules else unpacked / "boot" / f"config-{release}").touch()
    fetch.arrange(unpacked, target, release)
    assert (target / "vmlinuz").is_file()
    assert (target / "config").is_file()
    assert (target / "lib" / "modules" / release / "kernel" / "x.ko").is_file()


def test_arrange_wants_an_image_and_modules(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no kernel image"):
        fetch.arrange(tmp_path, tmp_path, "7.2.13+deb14-amd64")


def test_the_first_error_of_apt() -> None:
    said = "W: something\nE: Unable to locate package x.\nE: more\n"
    assert packages.first_error(said) == "Unable to locate package x"
    assert packages.first_error("W: only a warning") == ""


def test_an_unknown_kernel_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no kernel '6\.6'.*6\.12.*running"):
        matrix.find("6.6")


def test_names_are_unique_and_patterns_whole() -> None:
    kernels = (*matrix.KERNELS, *matrix.OTHER_MACHINES)
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    for kernel in kernels:
        if not kernel.running:
            assert kernel.suites
            assert all("{}" in package for package in kernel.packages)
            assert kernel.release.endswith(kernel.arch)
