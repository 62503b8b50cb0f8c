# SPDX-License-Identifier: Apache-2.0
"""The tarball for this machine and the distribution's Python: built, unpacked, run."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from tests.packages.installed import ROOT, name_of_process, run, succeeds
from tests.unit.cli.command import UNPRIVILEGED
from wptrace import __version__

PYTHON = "/usr/bin/python3"
MACHINE = {"x86_64": "x86_64", "aarch64": "arm64"}[os.uname().machine]
TOP = f"wptrace-{__version__}-linux"
# Without programs that were installed locally.
PATH = "/usr/bin:/bin"
# bullseye has 2.31, RHEL 8 has 2.28.
GLIBC = (2, 28)


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    version = succeeds(PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    words = ("--kind", "tarball", "--machine", MACHINE, "--python", version, "--out", str(out))
    succeeds(str(ROOT / ".venv/bin/python"), "packaging/dist.py", *words)
    return out / f"{TOP}.tar.xz"


@pytest.fixture(scope="module")
def folder(tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("some where")
    with tarfile.open(tarball) as tar:
        tar.extractall(place)  # noqa: S202
    return place / TOP


def test_it_runs_from_where_it_lies_and_through_a_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "wptrace"
    link.symlink_to(folder / "wptrace")
    for command in (folder / "wptrace", link):
        assert succeeds(str(command), "--version", PATH=PATH) == f"wptrace {__version__}\n"
    assert "--writeback" in succeeds(str(link), "io", "--help", PATH=PATH)
    assert name_of_process(str(link)) == "wptrace"


def test_it_brings_libbpf_and_cffi_of_its_own(folder: Path) -> None:
    done = run(*UNPRIVILEGED, str(folder / "wptrace"), "doctor", "--json", PATH=PATH)
    system = {one["name"]: one for one in json.loads(done.stdout)["system"]}
    assert system["libbpf"]["state"] == "ok"
    assert f"({folder}/lib/native/{MACHINE}/libbpf.so.1)" in system["libbpf"]["detail"]
    # Modules are loaded from this folder.
    start = folder / "lib/start/wptrace"
    reported = succeeds(
        PYTHON,
        "-I",
        "-c",
        "import sys, runpy\n"
        "path = sys.argv.pop(1)\n"
        "try:\n    runpy.run_path(path, run_name='__main__')\nexcept SystemExit:\n    pass\n"
        "from wptrace.bpf.lib import libbpf; libbpf()\n"
        "import _cffi_backend; print(_cffi_backend.__file__)\n"
        "print(open('/proc/self/maps').read())",
        str(start),
        "--version",
        PATH=PATH,
    )
    assert f"\n{folder}/lib/vendor/_cffi_backend.cpython-" in reported
    mapped = {Path(line.split(None, 5)[5]) for line in reported.splitlines() if " /" in line and line.count(" ") > 5}
    for name in ("libbpf.so.1", "libelf.so.1"):
        assert folder / "lib/native" / MACHINE / name in mapped
    assert not [path for path in mapped if "libbpf" in path.name and not path.is_relative_to(folder)]


def test_no_python_is_reported(folder: Path, tmp_path: Path) -> None:
    """There is no Python, or only old ones."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    for tool in ("dirname", "readlink", "sh"):
        (tmp_path / tool).symlink_to(Path("/bin") / tool)
    done = run(str(folder / "wptrace"), "--version", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("wptrace: there is no Python of 3.9 or newer on PATH\nhint: ")


def test_it_has_everything(tarball: Path) -> None:
    with tarfile.open(tarball) as tar:
        names = {one.name.removeprefix(f"{TOP}/") for one in tar if one.isfile()}
    sources = {path.name.replace(".bpf.c", ".bpf.o") for path in (ROOT / "bpf_src").rglob("*.bpf.c")}
    assert {f"lib/wptrace/objects/{MACHINE}/{name}" for name in sources} <= names
    assert {f"share/man/man1/{path.name}" for path in (ROOT / "docs/man").iterdir()} <= names
    assert {"share/systemd/wptrace-agent.service", "share/systemd/wptrace-io.service"} <= names
    assert {f"LICENSES/{path.name}" for path in (ROOT / "LICENSES").iterdir()} <= names
    others = ("cffi", "rich", "pyelftools", "tomli", "libbpf1", "libelf1", "zlib1g")
    assert {f"LICENSES/third-party/{name}.txt" for name in others} <= names
    assert {name for name in names if "complet" in name or "site-functions" in name} == {
        "share/bash-completion/completions/wptrace",
        "share/fish/vendor_completions.d/wptrace.fish",
        "share/zsh/site-functions/_wptrace",
    }
    assert not [name for name in names if name.endswith(".pyc")]


def test_nothing_of_the_build_is_in_it(tarball: Path) -> None:
    with tarfile.open(tarball) as tar:
        for one in tar:
            if one.isfile():
                data = tar.extractfile(one)
                assert data is not None
                assert str(ROOT).encode() not in data.read(), one.name


def elves(tarball: Path) -> list[tuple[str, ELFFile]]:
    with tarfile.open(tarball) as tar:
        found = []
        for one in tar:
            if ".so" in one.name:
                data = tar.extractfile(one)
                assert data is not None
                found.append((one.name, ELFFile(io.BytesIO(data.read()))))
        return found


def asks_of_glibc(elf: ELFFile) -> set[tuple[int, ...]]:
    asked = set()
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                names = (one.name for one in versions)
                asked |= {tuple(map(int, re.findall(r"\d+", name))) for name in names if re.match(r"GLIBC_\d", name)}
    return asked


def test_old_distributions_can_load_its_libraries(tarball: Path) -> None:
    found = elves(tarball)
    assert len(found) == 4
    for name, elf in found:
        asked = asks_of_glibc(elf)
        assert asked, name
        assert max(asked) <= GLIBC, name
        if "/native/" in name:
            dynamic: Any = elf.get_section_by_name(".dynamic")
            paths = [
                one.runpath if hasattr(one, "runpath") else getattr(one, "rpath", "") for one in dynamic.iter_tags()
            ]
            assert "$ORIGIN" in paths, name
