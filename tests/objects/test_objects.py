# SPDX-License-Identifier: Apache-2.0
"""The compiled objects: complete, stripped, identical wherever they are built, with every clang that is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.objects.building import ARCHES, ROOT, built, compilers, sources
from wptrace.bpf.btf import Btf, Func
from wptrace.bpf.elf import ObjectFile

NAMES = [f"{arch}/{name}.bpf.o" for arch in ARCHES for name in sources(ROOT / "bpf_src")]


def test_each_source_gives_an_object_for_each_arch(objects: dict[str, Path]) -> None:
    assert sorted(objects) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_object_is_whole(objects: dict[str, Path], name: str) -> None:
    file = ObjectFile(objects[name])
    assert b"GPL" in file.content("license"), "tracing helpers are for GPL-compatible programs"
    assert any(isinstance(entry, Func) for entry in Btf.parse(file.content(".BTF")))
    assert not [section for section in file.sections if section.startswith(".debug")]
    assert str(ROOT).encode() not in file.data
    assert b"/tmp/" not in file.data


def copy_of_sources(target: Path, objects: bool = True) -> Path:
    """Copy the sources of objects, or only the headers."""
    for name in ("Makefile", "bpf_src", "vmlinux"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name)
        else:
            target.mkdir(parents=True)
            shutil.copy2(source, target / name)
    for source in () if objects else list((target / "bpf_src").rglob("*.bpf.c")):
        source.unlink()
    return target


def test_each_header_of_the_path_includes_what_it_needs(tmp_path: Path) -> None:
    tree = copy_of_sources(tmp_path / "tree", objects=False)
    for path in (tree / "bpf_src/block/path").glob("*.h"):
        program = 'SEC("raw_tp") int nothing(void *ctx) { return 0; }\nchar LICENSE[] SEC("license") = "GPL";\n'
        source = f'#include "block/path/{path.name}"\n{program}'
        (tree / "bpf_src/lib" / f"alone_{path.stem}.bpf.c").write_text(source)
    # Functions without a caller are no error here.
    built(tmp_path, "ARCHES=x86_64", "WERROR=-Werror=implicit-function-declaration", source=tree)


def test_the_build_gives_the_same_bytes_anywhere(objects: dict[str, Path], tmp_path: Path) -> None:
    elsewhere = copy_of_sources(tmp_path / "some" / "other place")
    again = built(tmp_path / "again", source=elsewhere)
    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in objects.items()
    }


@pytest.mark.parametrize("clang", compilers())
def test_every_clang_builds_every_object(
    clang: str, objects: dict[str, Path], types_objects: dict[str, Path], tmp_path: Path
) -> None:
    for source, by_default in (("bpf_src", objects), ("tests/objects", types_objects)):
        # The default clang has built them already.
        is_default = (default := shutil.which("clang")) and Path(default).samefile(str(shutil.which(clang)))
        made = by_default if is_default else built(tmp_path / source, f"CLANG={clang}", f"BPF_SRC={source}")
        assert len(made) == len(ARCHES) * len(sources(ROOT / source))
        for path in made.values():
            Btf.parse(ObjectFile(path).content(".BTF"))
