# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from tests.lab import fetch, matrix, modules
from tests.lab.errors import LabError

BTF = b"\x9f\xeb\x01\x00\x18\x00\x00\x00" + b"\0\0\0\0\x08\0\0\0" + b"\x08\0\0\0\x03\0\0\0" + b"typesxyz" + b"\0s\0"


@pytest.fixture
def installed(tmp_path: Path) -> fetch.Installed:
    kernel = matrix.find("6.1")
    made = fetch.Installed(kernel, "6.1.0-56-amd64", tmp_path / "kernels/6.1/6.1.0-56-amd64")
    made.directory.mkdir(parents=True)
    return made


@pytest.fixture
def cached(tmp_path: Path, installed: fetch.Installed, monkeypatch: pytest.MonkeyPatch) -> fetch.Installed:
    monkeypatch.setenv("WPTRACE_LAB_CACHE", str(tmp_path))
    return installed


def image() -> bytes:
    return b"boot code" + lzma.compress(b"a kernel" + BTF + b"and more") + b"the end"


@pytest.mark.parametrize(
    ("name", "release", "packages"),
    [
        (
            "6.1",
            "6.1.0-56-amd64",
            ("linux-headers-6.1.0-56-amd64", "linux-headers-6.1.0-56-common", "linux-kbuild-6.1"),
        ),
        (
            "7.2",
            "7.2.13+deb14-amd64",
            (
                "linux-headers-7.2.13+deb14-amd64",
                "linux-headers-7.2.13+deb14-common",
                "linux-kbuild-7.2.13+deb14",
            ),
        ),
        (
            "6.12-arm64",
            "6.12.95+deb12-arm64",
            (
                "linux-headers-6.12.95+deb12-arm64",
                "linux-headers-6.12.95+deb12-common",
                "linux-kbuild-6.12.95+deb12",
            ),
        ),
    ],
)
def test_header_packages(name: str, release: str, packages: tuple[str, ...]) -> None:
    assert matrix.find(name).header_names(release) == packages


def test_modules_are_built_for_all_guests() -> None:
    kernels = (*matrix.KERNELS, *matrix.OTHER_MACHINES)
    assert [kernel.name for kernel in kernels if not kernel.headers] == ["running"]


def test_another_machine_has_another_compiler() -> None:
    compiler, recipe = modules._tools(matrix.find("6.12-arm64"))
    assert compiler[0] == "ARCH=arm64"
    # The tools that make calls are in the packages.
    assert [word for word in compiler if word.startswith("CC=")] == ["CC=aarch64-linux-gnu-gcc-16"]
    assert "gcc-16-aarch64-linux-gnu" in recipe.packages
    assert recipe != modules._tools(matrix.find("6.12"))[1]


def test_built_modules_are_found_until_a_source_changes(
    cached: fetch.Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "sources"
    shutil.copytree(modules.SOURCES, copy)
    monkeypatch.setattr(modules, "SOURCES", copy)
    before = modules.directory(cached)
    (copy / "irqoff.c~").write_text("of an editor")
    assert modules.directory(cached) == before
    before.mkdir(parents=True)
    assert modules.build(cached.kernel) == before
    for change in ("irqoff.c", "control.h", "Kbuild"):
        with (copy / change).open("a") as file:
            file.write("\n")
        assert modules.directory(cached) != before
        before = modules.directory(cached)


def test_every_release_has_its_modules(cached: fetch.Installed) -> None:
    other = fetch.Installed(cached.kernel, "6.1.0-57-amd64", cached.directory)
    assert modules.directory(other) != modules.directory(cached)


def test_the_btf_of_a_kernel() -> None:
    assert modules.btf_of(image()) == BTF
    with pytest.raises(LabError, match="no BTF"):
        modules.btf_of(b"boot code" + lzma.compress(b"a kernel"))


@pytest.mark.parametrize(
    ("config", "shipped", "expected"),
    [
        ("CONFIG_DEBUG_INFO_BTF_MODULES=y\n", None, BTF),
        ("CONFIG_DEBUG_INFO_BTF_MODULES=y\n", b"their own", b"their own"),
        ("# CONFIG_DEBUG_INFO_BTF_MODULES is not set\n", None, None),
    ],
)
def test_headers_work_where_they_lie(
    installed: fetch.Installed, tmp_path: Path, config: str, shipped: bytes | None, expected: bytes | None
) -> None:
    installed.image.write_bytes(image())
    tree = tmp_path / "unpacked/usr/src/linux-headers-6.1.0-56-amd64"
    tree.mkdir(parents=True)
    (tree / "Makefile").write_text("KBUILD_OUTPUT=/usr/src/a\ninclude /usr/src/b/Makefile\n")
    (tree / ".config").write_text(config)
    if shipped:
        (tree / "vmlinux").write_bytes(shipped)
    modules.arrange_headers(tmp_path / "unpacked", installed)
    assert (tree / "Makefile").read_text() == "KBUILD_OUTPUT=/headers/usr/src/a\ninclude /headers/usr/src/b/Makefile\n"
    found = tree / "vmlinux"
    assert (found.read_bytes() if found.exists() else None) == expected
