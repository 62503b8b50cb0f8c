# SPDX-License-Identifier: Apache-2.0
"""`make dist`: contents of sdist, wheel and SBOM, and the same bytes from two runs."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.packages.installed import ROOT, TIMEOUT, environment, run, succeeds
from wptrace import __version__

SDIST = f"wptrace-{__version__}.tar.gz"
WHEEL = f"wptrace-{__version__}-py3-none-any.whl"
SBOM = f"wptrace-{__version__}.cdx.json"
OBJECTS = {
    f"{arch}/{path.name.replace('.bpf.c', '.bpf.o')}"
    for path in (ROOT / "bpf_src").rglob("*.bpf.c")
    for arch in ("x86_64", "arm64")
}
LICENCES = {path.name for path in (ROOT / "LICENSES").iterdir()}


def dist(out: Path, **variables: str) -> Path:
    words = ("--kind", "sdist", "--kind", "wheel", "--out", str(out))
    succeeds(sys.executable, "packaging/dist.py", *words, cwd=ROOT, **variables)
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dist(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def source(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("source")
    succeeds("tar", "-xf", str(made / SDIST), "-C", str(folder))
    return folder / f"wptrace-{__version__}"


def test_two_runs_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    """The second run has another time, time zone and hash seed."""
    again = dist(tmp_path, TZ="Asia/Tokyo", PYTHONHASHSEED="7")
    names = sorted(path.name for path in made.iterdir())
    assert names == sorted(["SHA256SUMS", SDIST, WHEEL, SBOM])
    for name in names:
        assert (again / name).read_bytes() == (made / name).read_bytes(), name


def test_the_sums_are_those_of_the_files(made: Path) -> None:
    reported = {line.split("  ")[1]: line.split("  ")[0] for line in (made / "SHA256SUMS").read_text().splitlines()}
    assert reported == {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in (SDIST, WHEEL, SBOM)}


def test_everything_has_the_time_of_the_commit(made: Path) -> None:
    when = int(succeeds("git", "log", "-1", "--format=%ct"))
    with tarfile.open(made / SDIST) as tar:
        assert {(one.mtime, one.uid, one.gid, one.uname) for one in tar} == {(when, 0, 0, "")}
        assert {oct(one.mode) for one in tar} == {"0o644", "0o755"}


def test_the_wheel_is_whole(made: Path) -> None:
    with ZipFile(made / WHEEL) as wheel:
        names = set(wheel.namelist())
        objects = {name.removeprefix("wptrace/objects/") for name in names if name.startswith("wptrace/objects/")}
        assert objects == OBJECTS
        for name in objects:
            assert wheel.read(f"wptrace/objects/{name}") == (ROOT / "wptrace/objects" / name).read_bytes()
        # pip, pipx and uv install below a prefix in which man and the shells find these.
        data = f"wptrace-{__version__}.data/data/share/"
        manuals = {f"man/man1/{path.name}" for path in (ROOT / "docs/man").iterdir()}
        assert {name.removeprefix(data) for name in names if name.startswith(data)} == {
            "bash-completion/completions/wptrace",
            "fish/vendor_completions.d/wptrace.fish",
            "zsh/site-functions/_wptrace",
            *manuals,
        }
        modules = {str(path.relative_to(ROOT)) for path in (ROOT / "wptrace").rglob("*.py")}
        assert {name for name in names if name.endswith(".py")} == modules
        about = f"wptrace-{__version__}.dist-info"
        assert {name for name in names if name.startswith(f"{about}/licenses/")} == {
            f"{about}/licenses/LICENSES/{name}" for name in LICENCES
        }
        assert "Tag: py3-none-any\n" in wheel.read(f"{about}/WHEEL").decode()
        metadata = wheel.read(f"{about}/METADATA").decode()
        assert f"\nVersion: {__version__}\n" in metadata
        assert "\nLicense-Expression: Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)\n" in metadata
        for name in names:
            assert str(ROOT).encode() not in wheel.read(name), name


def test_the_wheel_runs(made: Path, tmp_path: Path) -> None:
    with ZipFile(made / WHEEL) as wheel:
        wheel.extractall(tmp_path)  # noqa: S202
    script = "import wptrace; from wptrace.bpf.object import find; print(wptrace.__file__, find('io_path'))"
    reported = succeeds(sys.executable, "-c", script, cwd=tmp_path)
    assert reported.split()[0] == f"{tmp_path}/wptrace/__init__.py"
    assert reported.split()[1].startswith(f"{tmp_path}/wptrace/objects/")


def test_the_sdist_has_all_that_is_needed(source: Path) -> None:
    """It has everything that is in git, except files that are only about git or CI."""
    known = set(succeeds("git", "ls-files").split("\n")) - {""}
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    made_by_setuptools = {name for name in there if name == "PKG-INFO" or name.startswith("wptrace.egg-info/")}
    assert there - made_by_setuptools - {"setup.cfg"} == {
        name for name in known if not name.startswith(".ci/") and name != ".gitignore" and (ROOT / name).is_file()
    }
    assert not [name for name in there if name.endswith((".o", "/_libbpf.py", ".pyc"))]


def backend(source: Path, what: str, out: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    script = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
    return run(sys.executable, "-c", script, what, str(out), cwd=source, **variables)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CLANG": "no-such-clang"}, "clang is missing: install clang (Debian, Ubuntu, Fedora), 14 or newer"),
        ({"LIBBPF_CFLAGS": "-nostdinc"}, "bpf/bpf_tracing.h is missing: install libbpf-dev"),
        ({"MAKE": "no-such-make"}, "no-such-make: No such file or directory"),
    ],
)
def test_without_objects_there_is_no_wheel(
    source: Path, tmp_path: Path, variables: dict[str, str], reason: str
) -> None:
    done = backend(source, "build_wheel", tmp_path, **variables)
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"wptrace cannot be built: {reason}")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_editable_installation_needs_no_compiler(source: Path, tmp_path: Path) -> None:
    """tests/setup.sh makes one before anything is built."""
    done = backend(source, "build_editable", tmp_path, CLANG="no-such-clang")
    assert done.returncode == 0, done.stderr


def test_the_sbom_names_what_it_is_of(made: Path) -> None:
    found = json.loads((made / SBOM).read_text())
    assert (found["bomFormat"], found["metadata"]["component"]["name"]) == ("CycloneDX", "wptrace")
    assert found["metadata"]["component"]["version"] == __version__
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", found["serialNumber"])


def test_the_version_is_in_one_place() -> None:
    """Formats that repeat the version are compared with it."""
    sys.path.insert(0, str(ROOT / "packaging"))
    try:
        release = importlib.import_module("release")
    finally:
        sys.path.pop(0)
    assert list(release.versions(__version__)) == []
    other = list(release.versions("9.8.7"))
    assert "packaging/wptrace.spec is not of 9.8.7" in other
    assert "packaging/debian/changelog does not begin with 9.8.7" in other


def test_release_check_says_what_is_missing(made: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "packaging/release.py", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "there is no dist/SHA256SUMS: run make dist" in done.stdout.splitlines()
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in made.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / WHEEL).write_bytes(b"other")
    done = run(sys.executable, "packaging/release.py", str(broken))
    assert f"dist/{WHEEL} is not what SHA256SUMS says: run make dist" in done.stdout.splitlines()
    assert f"dist/wptrace-{__version__}-linux.tar.xz is missing: run make dist" in done.stdout.splitlines()
    assert f"dist/{SDIST} is not what SHA256SUMS says: run make dist" not in done.stdout.splitlines()


def test_what_is_no_clone_is_reported(source: Path, tmp_path: Path) -> None:
    """Without git there is neither a list of files nor a time."""
    # Do not use a repository further up.
    variables = environment(GIT_CEILING_DIRECTORIES=str(source.parent))
    command = [sys.executable, "packaging/dist.py", "--kind", "sdist", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=source, env=variables, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 1
    assert re.fullmatch(
        r"dist: git log: [^\n]+: packages are made from a clone, or with SOURCE_DATE_EPOCH\n", done.stderr
    )
    assert not list(tmp_path.iterdir())
