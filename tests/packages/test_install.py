# SPDX-License-Identifier: Apache-2.0
"""`make install` into folders, run by the distribution's Python."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.packages.installed import ROOT, files, make, name_of_process, run, succeeds, tree
from wptrace import __version__

# The distribution's, whatever other Pythons there are.
SYSTEM = "/usr/bin/python3"
MACHINE = {"x86_64": "x86_64", "aarch64": "arm64"}[os.uname().machine]
SOURCES = {path.name.replace(".bpf.c", ".bpf.o") for path in (ROOT / "bpf_src").rglob("*.bpf.c")}


def pythons() -> list[str]:
    """Return the distribution's Python and all others that are supported."""
    found = {SYSTEM: ""}
    for minor in range(9, 20):
        path = shutil.which(f"python3.{minor}")
        if path and run(path, "-c", "pass").returncode == 0:
            found.setdefault(path, "")
    versions = Path.home() / ".pyenv/versions"
    found.update((str(path), "") for path in versions.glob("3.*/bin/python3") if int(path.parts[-3].split(".")[1]) >= 9)
    return [path for path in found if "/shims/" not in path]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation that runs in place."""
    prefix = tmp_path_factory.mktemp("installed") / "prefix"
    succeeds("make", "install", f"PREFIX={prefix}")
    return prefix


@pytest.fixture
def destdir(tmp_path: Path) -> Path:
    succeeds("make", "install", f"DESTDIR={tmp_path}/root", "PREFIX=/usr")
    return tmp_path / "root"


def test_the_places_are_those_of_a_system(destdir: Path) -> None:
    found = set(files(destdir))
    package = {place for place in found if place.startswith("usr/lib/wptrace/")}
    objects = {Path(place).name for place in package if place.startswith(f"usr/lib/wptrace/objects/{MACHINE}/")}
    assert objects == SOURCES
    assert {"usr/lib/wptrace/__init__.py", "usr/lib/wptrace/bpf/_libbpf.py", "usr/lib/wptrace/cli/io.py"} < package
    # For one machine, without files of the build.
    assert {Path(place).parts[4] for place in package if "/objects/" in place} == {MACHINE}
    assert not {place for place in found if place.endswith(".pyc")}
    others = found - package
    assert {place for place in others if "/man/" in place} == {
        f"usr/share/man/man1/{path.name}" for path in (ROOT / "docs/man").iterdir()
    }
    assert {place for place in others if "/licenses/" in place} == {
        f"usr/share/licenses/wptrace/{path.name}" for path in (ROOT / "LICENSES").iterdir()
    }
    rest = {place for place in others if "/man/" not in place and "/licenses/" not in place}
    assert {place for place in rest if "complet" not in place and "site-functions" not in place} == {
        "usr/bin/wptrace",
        "usr/lib/systemd/system/wptrace-agent.service",
        "usr/lib/systemd/system/wptrace-io.service",
    }
    for command in ("agent", "io"):
        unit = (destdir / f"usr/lib/systemd/system/wptrace-{command}.service").read_text()
        assert f"\nExecStart=/usr/bin/wptrace {command} " in unit


def test_libdir_and_mandir_may_be_others(tmp_path: Path) -> None:
    words = ("PREFIX=/usr", "LIBDIR=/usr/lib64", "MANDIR=/usr/man", "MACHINE=arm64", "INTERPRETER=/usr/bin/python3.9")
    succeeds("make", "install", f"DESTDIR={tmp_path}", *words)
    assert (tmp_path / "usr/lib64/wptrace/objects/arm64/io_path.bpf.o").is_file()
    assert (tmp_path / "usr/man/man1/wptrace.1").is_file()
    launcher = (tmp_path / "usr/bin/wptrace").read_text()
    assert launcher.startswith("#!/usr/bin/python3.9 -IS\n")
    assert '"/usr/lib64"' in launcher.replace("'", '"')
    succeeds("make", "uninstall", f"DESTDIR={tmp_path}", *words)
    assert files(tmp_path) == []


def test_two_installations_are_the_same_and_name_no_folder_of_the_build(tmp_path: Path) -> None:
    """Neither umask nor folder makes a difference."""
    trees = []
    for name, umask in (("one", "022"), ("another", "077")):
        script = f'umask {umask}; exec make install PREFIX=/usr "DESTDIR=$1"'
        succeeds("sh", "-c", script, "sh", str(tmp_path / name), PYTHONHASHSEED=umask.lstrip("0"))
        trees.append(tree(tmp_path / name / "usr"))
    assert trees[0] == trees[1]
    assert {str(entry).split()[0] for entry in trees[0].values() if isinstance(entry, str)} == {"40755"}
    for place, entry in trees[0].items():
        for folder in (ROOT, tmp_path):
            assert str(folder).encode() not in (entry if isinstance(entry, bytes) else entry.encode()), place


def test_the_distributions_python_runs_it(prefix: Path) -> None:
    assert (prefix / "bin/wptrace").read_text().startswith(f"#!{SYSTEM} -IS\n")
    # Start in a folder with another package of that name.
    foreign = prefix.parent / "foreign"
    (foreign / "wptrace").mkdir(parents=True)
    (foreign / "wptrace/__init__.py").write_text("raise SystemExit('the wrong one')\n")
    command = str(prefix / "bin/wptrace")
    assert succeeds(command, "--version", cwd=foreign, PYTHONPATH=str(foreign)) == f"wptrace {__version__}\n"
    found = run(command, "io", "--dev", "nothing", cwd=foreign)
    assert (found.returncode in (2, 3), found.stdout) == (True, "")
    assert re.fullmatch(r"wptrace: [^\n]+\n(hint: [^\n]+\n)?", found.stderr)
    assert name_of_process(command) == "wptrace"


def test_a_launcher_takes_signals_before_python_looks_for_packages(tmp_path: Path) -> None:
    """Then Ctrl-C ends it without a traceback."""
    places = (("PREFIX", "usr"), ("LIBDIR", "lib"), ("MANDIR", "man"))
    succeeds("make", "install", *(f"{name}={tmp_path}/{place}" for name, place in places))
    (tmp_path / "lib/wptrace/__init__.py").write_text(
        "import signal, sys\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL, 'site' in sys.modules)\n"
        "sys.exit()\n"
    )
    launcher = tmp_path / "usr/bin/wptrace"
    first = launcher.read_text().partition("import site")
    assert first[1]
    # Modules that are imported before are built in.
    names = re.findall(r"^import (\w+)", first[0], re.M)
    assert names == ["_signal"]
    assert names[0] in sys.builtin_module_names
    assert succeeds(str(launcher)) == "True True\n"


def test_an_old_python_is_reported_in_a_sentence(tmp_path: Path) -> None:
    """Whichever Python runs `-m wptrace`: it has to be able to parse everything up to the message."""
    for name in ("__main__.py", "__init__.py"):
        ast.parse((ROOT / "wptrace" / name).read_text(), feature_version=(3, 4))
    script = "import sys, runpy; sys.version_info = (3, 8, 18); runpy.run_module('wptrace', run_name='__main__')"
    done = run(SYSTEM, "-c", script, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "wptrace: it needs Python 3.9 or newer\nhint: python3.9 -m wptrace, or any later one\n"


@pytest.mark.parametrize("path", sorted((ROOT / "packaging").glob("*.py")), ids=lambda path: path.name)
def test_what_installs_is_for_every_python_too(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))
    assert "# SPDX-License-Identifier: Apache-2.0\n" in path.read_text()[:80]


def test_the_distributions_python_reads_its_objects(prefix: Path) -> None:
    """Loading objects needs cffi and libbpf, here those of the distribution."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from wptrace.bpf.object import find, BpfObject\n"
        "with BpfObject(find('io_path')) as found: print(found.path, len(found.progs) > 20)"
    )
    reported = succeeds(SYSTEM, "-I", "-B", "-c", script, str(prefix / "lib"))
    assert reported == f"{prefix}/lib/wptrace/objects/{MACHINE}/io_path.bpf.o True\n"


@pytest.mark.parametrize("python", pythons())
def test_one_tree_is_for_every_python(prefix: Path, python: str) -> None:
    """Everything that needs neither a kernel nor a library, including the arguments of each command."""
    launcher = str(prefix / "bin/wptrace")
    assert succeeds(python, "-I", "-B", launcher, "--version") == f"wptrace {__version__}\n"
    assert "--writeback" in succeeds(python, "-I", "-B", launcher, "io", "--help")


def test_a_second_installation_replaces_the_first(tmp_path: Path) -> None:
    """Modules that a new version no longer has are removed, and a link is not followed."""
    words = (f"DESTDIR={tmp_path}", "PREFIX=/usr")
    old = tmp_path / "usr/lib/wptrace"
    (old / "x86_64").mkdir(parents=True)
    (old / "old_module.py").touch()
    (old / "x86_64/old_module.bpf.o").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/wptrace").symlink_to(elsewhere)
    succeeds("make", "install", *words)
    assert elsewhere.read_text() == "kept"
    first = tree(tmp_path)
    assert not [place for place in first if "old_module" in place]
    succeeds("make", "install", *words)
    assert tree(tmp_path) == first


def test_nothing_stays_behind(tmp_path: Path) -> None:
    """Other files stay, and compiled modules are removed."""
    prefix = tmp_path / "prefix"
    other = prefix / "share/man/man1/other.1"
    other.parent.mkdir(parents=True)
    other.touch()
    succeeds("make", "install", f"PREFIX={prefix}")
    succeeds(str(prefix / "bin/wptrace"), "--help")
    assert (prefix / "lib/wptrace/cli/__pycache__").is_dir()
    succeeds("make", "uninstall", f"PREFIX={prefix}")
    assert files(prefix) == ["share/man/man1/other.1"]
    assert not (prefix / "lib/wptrace").exists()
    succeeds("make", "uninstall", f"PREFIX={prefix}")


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("PREFIX=usr", "PREFIX is usr, which is not an absolute path"),
        ("LIBDIR=/usr/../lib", "LIBDIR is /usr/../lib, which is not an absolute path"),
        ("DESTDIR=/dev/null", "/dev/null/usr/bin/wptrace: Not a directory"),
    ],
)
def test_what_cannot_be_is_reported_in_one_sentence(word: str, problem: str) -> None:
    done = make("install", "PREFIX=/usr", "DESTDIR=/dev/null", word)
    assert done.returncode
    assert f"install: {problem}\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_half_of_the_objects_are_not_installed(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "packaging", copy / "packaging")
    shutil.copytree(ROOT / "bpf_src", copy / "bpf_src")
    shutil.copytree(ROOT / "wptrace", copy / "wptrace")
    (copy / f"wptrace/objects/{MACHINE}/io_path.bpf.o").unlink()
    done = run(SYSTEM, "packaging/install.py", "--destdir", str(tmp_path / "root"), "install", cwd=copy)
    assert (done.returncode, done.stderr) == (1, f"install: wptrace/objects/{MACHINE} lacks io_path.bpf.o: run make\n")
    assert not (tmp_path / "root").exists()
