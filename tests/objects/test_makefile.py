# SPDX-License-Identifier: Apache-2.0
"""The Makefile builds what changed, and reports what is missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.objects.building import ARCHES, ROOT, built, run_make

TYPES = "BPF_SRC=tests/objects"


def compiled(output: str) -> list[str]:
    return [line.split()[1] for line in output.splitlines() if line.startswith("  CLANG")]


def write_source(path: Path, include: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#include "vmlinux.h"\n#include <bpf/bpf_helpers.h>\n{include}'
        'SEC("raw_tp") int program(void *ctx) { return 0; }\nchar LICENSE[] SEC("license") = "GPL";\n'
    )


def test_only_what_changed_is_built(tmp_path: Path) -> None:
    source = tmp_path / "bpf_src"
    (source / "lib").mkdir(parents=True)
    header = source / "lib" / "value.h"
    header.write_text("#define VALUE 1\n")
    write_source(source / "block/one.bpf.c", '#include "lib/value.h"\nint value = VALUE;\n')
    write_source(source / "two.bpf.c")
    arguments = (f"BPF_SRC={source}", "ARCHES=arm64")
    assert compiled(run_make(tmp_path, *arguments).stdout) == ["arm64/one.bpf.o", "arm64/two.bpf.o"]
    assert compiled(run_make(tmp_path, *arguments).stdout) == []
    header.write_text("#define VALUE 2\n")
    future = header.stat().st_mtime + 10
    os.utime(header, (future, future))
    assert compiled(run_make(tmp_path, *arguments).stdout) == ["arm64/one.bpf.o"]


def test_a_source_may_move_to_another_folder(tmp_path: Path) -> None:
    source = tmp_path / "bpf_src"
    write_source(source / "one.bpf.c")
    arguments = (f"BPF_SRC={source}", "ARCHES=arm64")
    assert compiled(run_make(tmp_path, *arguments).stdout) == ["arm64/one.bpf.o"]
    (source / "block").mkdir()
    (source / "one.bpf.c").rename(source / "block/one.bpf.c")
    assert compiled(run_make(tmp_path, *arguments).stdout) == ["arm64/one.bpf.o"]
    assert compiled(run_make(tmp_path, *arguments).stdout) == []


def test_two_sources_of_one_name_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "bpf_src"
    write_source(source / "block/one.bpf.c")
    write_source(source / "sched/one.bpf.c")
    done = run_make(tmp_path, f"BPF_SRC={source}", "ARCHES=arm64")
    assert done.returncode
    assert "have one name" in done.stderr


def test_other_flags_and_headers_build_all_anew(tmp_path: Path) -> None:
    header = tmp_path / "header.h"
    shutil.copy(ROOT / "vmlinux" / "x86_64" / "vmlinux.h", header)
    steps = [
        (("ARCHES=x86_64",), ["x86_64/types.bpf.o"]),
        (("ARCHES=x86_64", "WERROR="), ["x86_64/types.bpf.o"]),
        (("ARCHES=x86_64", "WERROR=", f"VMLINUX_H={header}"), ["x86_64/types.bpf.o"]),
        (("ARCHES=x86_64", "WERROR=", f"VMLINUX_H={header}"), []),
        (("ARCHES=x86_64", "WERROR="), ["x86_64/types.bpf.o"]),
        (("WERROR=", f"VMLINUX_H_x86_64={header}"), ["x86_64/types.bpf.o", "arm64/types.bpf.o"]),
    ]
    for arguments, expected in steps:
        done = run_make(tmp_path, TYPES, *arguments)
        assert done.returncode == 0, done.stderr
        assert compiled(done.stdout) == expected, arguments


def test_commands_are_shown_on_request(tmp_path: Path) -> None:
    assert "-target bpf" in run_make(tmp_path, TYPES, "V=1").stdout
    assert "-target bpf" not in run_make(tmp_path / "quiet", TYPES).stdout


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("CLANG=no-such-clang", "clang is missing: install clang"),
        ("LLVM_STRIP=no-such-strip", "llvm-strip is missing: install llvm"),
        ("LIBBPF_CFLAGS=-nostdinc", "bpf/bpf_tracing.h is missing: install libbpf-dev"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, argument: str, message: str) -> None:
    done = run_make(tmp_path, TYPES, argument)
    assert done.returncode
    assert message in done.stderr


def test_an_old_clang_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old-clang"
    old.write_text("#!/bin/sh\necho 11\n")
    old.chmod(0o755)
    assert "is too old: version 14" in run_make(tmp_path, TYPES, f"CLANG={old}").stderr


@pytest.mark.parametrize("section", [".BTF", ".BTF.ext"])
def test_an_object_that_lost_its_types_is_not_kept(tmp_path: Path, section: str) -> None:
    objcopy = shutil.which("llvm-objcopy") or shutil.which("llvm-objcopy-14")
    if not objcopy:
        pytest.fail("llvm-objcopy is not there: tests/setup.sh installs it")
    strip = tmp_path / "greedy-strip"
    strip.write_text(f'#!/bin/sh\nexec {objcopy} -R {section} -R .rel{section} "$4" "$3"\n')
    strip.chmod(0o755)
    done = run_make(tmp_path, TYPES, f"LLVM_STRIP={strip}")
    assert done.returncode
    assert ".BTF or .BTF.ext is missing or empty" in done.stderr
    assert not list((tmp_path / "objects").glob("*/*.o"))


def test_parallel_builds_give_the_same(types_objects: dict[str, Path], tmp_path: Path) -> None:
    parallel = built(tmp_path, TYPES, "--jobs=8")
    assert len(parallel) == len(ARCHES)
    for name, path in parallel.items():
        assert path.read_bytes() == types_objects[name].read_bytes()


def test_help_lists_the_targets(tmp_path: Path) -> None:
    # No other objects are built.
    (tmp_path / "none").mkdir()
    output = run_make(tmp_path, "help", f"BPF_SRC={tmp_path / 'none'}").stdout
    for target in ("all", "clean", "lint", "test-unit", "install", "vmlinux"):
        assert f"  make {target} " in output
