# SPDX-License-Identifier: Apache-2.0
"""A missing, old or broken libbpf or BPF object is reported in a sentence."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cli.command import ROOT, UNPRIVILEGED, run, sentence
from wptrace.bpf import lib
from wptrace.bpf import object as objects
from wptrace.bpf.lib import Libbpf, libbpf
from wptrace.bpf.object import BpfObject
from wptrace.cli.main import main
from wptrace.errors import LibbpfError, UnsupportedError, WptraceError
from wptrace.kernel import privileges
from wptrace.model.diagnosis import MISSING
from wptrace.tools import doctor

INSTALL = "install libbpf 1.x (Debian: libbpf1; Fedora, RHEL: libbpf), or name one in WPTRACE_LIBBPF"
REBUILD = "rebuild it with make, or reinstall wptrace"
# A process that assumes the privileges to trace; no test here gets as far as to use them.
BELIEVES = "import wptrace.kernel.privileges as p; p.effective = lambda: {'CAP_SYS_ADMIN'}; "
ALLOWED = [*UNPRIVILEGED, sys.executable, "-W", "error", "-c", f"{BELIEVES}from wptrace.cli.main import run; run()"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open libbpf anew, for this test and for later ones, and assume the privileges to trace."""
    libbpf.cache_clear()
    monkeypatch.setattr(privileges, "effective", lambda: {"CAP_SYS_ADMIN"})
    yield
    monkeypatch.undo()
    libbpf.cache_clear()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libbpf.so"
    path.write_text("text")
    with pytest.raises(LibbpfError, match=r"libbpf\.so cannot be opened as libbpf"):
        Libbpf(str(path))


def test_the_environment_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WPTRACE_LIBBPF", "/nonexistent/libbpf.so")
    with pytest.raises(LibbpfError, match=r"^/nonexistent/libbpf\.so cannot"):
        libbpf()
    monkeypatch.setenv("WPTRACE_LIBBPF", "")
    assert libbpf().path == "libbpf.so.1"


class FakeFfi:
    """A machine with these versions of libbpf."""

    error = type("error", (Exception,), {})

    def __init__(self, libraries: dict[str, tuple[int, int]]) -> None:
        self.libraries = libraries

    def dlopen(self, path: str) -> Any:
        if path not in self.libraries:
            raise OSError(f"cannot load library '{path}'")
        major, minor = self.libraries[path]
        return SimpleNamespace(
            libbpf_major_version=lambda: major,
            libbpf_minor_version=lambda: minor,
            libbpf_set_print=lambda printer: None,
        )

    def callback(self, kind: str, function: object, onerror: object) -> object:
        return function


def install(monkeypatch: pytest.MonkeyPatch, **libraries: tuple[int, int]) -> None:
    named = {f"libbpf.so.{name[3:]}": version for name, version in libraries.items()}
    monkeypatch.setitem(sys.modules, "wptrace.bpf._libbpf", SimpleNamespace(ffi=FakeFfi(named)))
    # Earlier tests may have imported it or not.
    monkeypatch.setattr("wptrace.bpf._libbpf", SimpleNamespace(ffi=FakeFfi(named)), raising=False)


@pytest.mark.parametrize(
    ("libraries", "problem"),
    [
        ({}, "libbpf.so.1 is not installed"),
        ({"lib0": (0, 8)}, "only libbpf.so.0 is installed; it is older than 1.0"),
        ({"lib1": (0, 8)}, "libbpf.so.1 is libbpf 0.8; 1.0 or newer is needed"),
    ],
)
def test_a_libbpf_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch, libraries: dict[str, tuple[int, int]], problem: str
) -> None:
    install(monkeypatch, **libraries)
    with pytest.raises(LibbpfError) as caught:
        Libbpf()
    assert caught.value.message.startswith(problem)
    assert caught.value.hint == INSTALL


@pytest.mark.parametrize("version", [(1, 0), (1, 7), (2, 0)])
def test_a_libbpf_that_is_new_enough(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]) -> None:
    install(monkeypatch, lib1=version)
    assert Libbpf().version == version


def test_a_binding_that_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wptrace.bpf._libbpf", None)
    monkeypatch.delattr("wptrace.bpf._libbpf", raising=False)
    with pytest.raises(WptraceError, match="the libbpf binding is not built"):
        Libbpf()


def test_a_python_without_cffi(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution's Python where only the command is installed, which differs from a binding that was not built."""
    monkeypatch.setitem(sys.modules, "_cffi_backend", None)
    # A module that is imported anew becomes an attribute of its package and would stay there.
    monkeypatch.setattr("wptrace.bpf", sys.modules["wptrace.bpf"])
    for name in ("wptrace.bpf._libbpf", "wptrace.bpf"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(WptraceError, match=r"^Python 3\.\d+ \(/.*\) has no cffi$") as caught:
        Libbpf()
    assert caught.value.hint == "install it (Debian, Ubuntu, Fedora: python3-cffi)"


def test_a_kernel_without_type_information(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(UnsupportedError, match="this kernel has no type information") as caught:
        lib.require_kernel_btf()
    assert caught.value.exit_code == 4


# --- Objects --------------------------------------------------------------------------------------------------


def broken(folder: Path, how: str, name: str = "io_block") -> Path:
    path = folder / f"{name}.bpf.o"
    whole = objects.find(name).read_bytes()
    if how == "text":
        path.write_text("int main(void) { return 0; }\n")
    elif how == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    return path


BROKEN = {
    "text": "is not a 64-bit little-endian ELF file",
    "truncated": "is truncated",
}


def test_an_object_that_only_libbpf_finds_broken(tmp_path: Path) -> None:
    """libbpf refuses it without the sections that match its BTF, and only says so in its own log."""
    whole = bytearray(objects.find("io_block").read_bytes())
    at = whole.index(b"\x00.maps\x00") + 1
    whole[at : at + 5] = b".mops"
    path = tmp_path / "io_block.bpf.o"
    path.write_bytes(whole)
    with pytest.raises(WptraceError, match=rf"^libbpf [\d.]+ cannot open {re.escape(str(path))}$") as caught:
        BpfObject(path)
    assert caught.value.hint == REBUILD


def test_a_folder_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WPTRACE_BPF_DIR", str(tmp_path))
    assert objects.find("io_block").parent != tmp_path
    path = broken(tmp_path, "text")
    assert objects.find("io_block") == path


@pytest.mark.parametrize("words", [["io", "--dry-run"], ["doctor"], ["progs"], ["size", "1", "1"]])
def test_every_command_minds_a_folder_that_is_not_there(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Other objects than the intended ones would be loaded. Commands that open none mind it as well."""
    monkeypatch.setenv("WPTRACE_BPF_DIR", "/nonexistent")
    with pytest.raises(WptraceError, match=r"^WPTRACE_BPF_DIR names /nonexistent, which is not a folder$") as caught:
        main(words)
    assert caught.value.exit_code == 1


def test_an_object_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "folders", lambda: [tmp_path, tmp_path / "none"])
    with pytest.raises(WptraceError) as caught:
        objects.find("io_block")
    assert caught.value.message == (
        f"the BPF object io_block.bpf.o is not installed (looked in {tmp_path}, {tmp_path}/none)"
    )
    assert caught.value.hint == "run make in the source tree, or name the folder in WPTRACE_BPF_DIR"


def test_a_machine_without_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64", release="6.12"))
    with pytest.raises(UnsupportedError, match="wptrace has no BPF objects for riscv64"):
        objects.machine()


# --- The same on the command line -----------------------------------------------------------------------------


def test_io_without_libbpf() -> None:
    found = run(ALLOWED, "io", "--json", "1", "1", WPTRACE_LIBBPF="/nonexistent")
    assert (found.returncode, found.stdout) == (4, "")
    assert sentence(found.stderr) == "/nonexistent cannot be opened as libbpf"
    assert found.stderr.endswith(f"hint: {INSTALL}\n")


def test_doctor_without_libbpf() -> None:
    found = run(ALLOWED, "doctor", WPTRACE_LIBBPF="/nonexistent")
    assert (found.returncode, found.stderr) == (4, "")
    assert "\n  NO    libbpf         /nonexistent cannot be opened as libbpf\n" in found.stdout
    assert "\n\nnothing works without what is missing below\n\nsystem\n" in found.stdout


@pytest.mark.parametrize("level", ["path", "block"])
@pytest.mark.parametrize("how", BROKEN)
def test_io_with_a_broken_object(tmp_path: Path, how: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = broken(tmp_path, how, {"path": "io_path_plain", "block": "io_block"}[level])
    monkeypatch.setenv("WPTRACE_BPF_DIR", str(tmp_path))
    with pytest.raises(WptraceError) as caught:
        main(["io", "--level", level, "1", "1"])
    assert (caught.value.message, caught.value.hint) == (f"{path} {BROKEN[how]}", REBUILD)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("/nonexistent/results", "No such file or directory"),
        (str(ROOT), "Is a directory"),
        (f"{ROOT}/pyproject.toml/x", "Not a directory"),
    ],
)
@pytest.mark.parametrize("level", ["path", "block"])
def test_a_file_that_cannot_be_written_is_found_out_before_anything_is_opened(
    file: str, reason: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*given: object) -> None:
        raise AssertionError("BPF was loaded first")

    monkeypatch.setattr("wptrace.flows.io.path.load", load)
    monkeypatch.setattr("wptrace.flows.io.block.load", load)
    with pytest.raises(WptraceError) as caught:
        main(["io", "--level", level, "1", "1", "-o", file])
    assert (caught.value.message, caught.value.exit_code) == (f"{file} cannot be written: {reason}", 1)


@pytest.mark.parametrize("words", [[], ["--level", "block", "--times", "own"]], ids=["path", "block"])
def test_a_dry_run_tells_the_plan_and_loads_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wptrace.flows.io.path.load", lambda *given: pytest.fail("BPF was loaded"))
    monkeypatch.setattr("wptrace.flows.io.block.load", lambda *given: pytest.fail("BPF was loaded"))
    monkeypatch.setattr("wptrace.flows.io.calls.are_all_that_is_left", lambda: True)
    monkeypatch.setattr("wptrace.flows.io.calls.price", lambda: pytest.fail("system calls were counted"))
    assert main(["io", "--dry-run", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("trace ", "observe ")) for line in lines[:-1])
    assert re.fullmatch(r"take [\d.]+ [KM]iB of the kernel's memory, for \d+ CPUs", lines[-1])
    assert "observe completion of a request (C) by complete_tp_btf or else complete_raw_tp" in lines
    assert any("more than 50,000 system calls a second" in line for line in lines) is (not words)


def test_a_python_that_reads_no_toml_has_everything_but_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    (found,) = doctor._definitions(set())
    assert (found.name, found.state) == ("definitions", MISSING)
    assert (found.detail, found.advice) == (
        "reading TOML needs Python 3.11 or newer",
        "install tomli (python3-tomli)",
    )
