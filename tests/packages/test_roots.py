# SPDX-License-Identifier: Apache-2.0
"""Each package is installed in a clean root with the README's command, used, and removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.disks import loop_device
from tests.packages.installed import ROOT, run, succeeds
from tests.packages.roots import Root, root, traces
from wptrace import __version__

pytestmark = pytest.mark.clean_root

NEEDS = ("python3-cffi-backend", "python3-pyelftools", "python3-rich", "libbpf1")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All packages; WPTRACE_TESTS_DIST names a folder with existing ones."""
    if "WPTRACE_TESTS_DIST" in os.environ:
        return Path(os.environ["WPTRACE_TESTS_DIST"])
    out = tmp_path_factory.mktemp("dist")
    succeeds_slowly(sys.executable, "packaging/dist.py", "--out", str(out))
    distributions(out)
    return out


def distributions(out: Path) -> None:
    """Build a deb and an rpm for each machine."""
    succeeds_slowly("packaging/deb.sh", str(out), PYTHON=sys.executable)
    succeeds_slowly("packaging/rpm.sh", str(out), PYTHON=sys.executable)


def succeeds_slowly(*words: str, **variables: str) -> None:
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    with loop_device(tmp_path / "disk.img") as made:
        yield made.path


def install_lines() -> list[str]:
    """Return the README's commands for installing, without comments."""
    section = (ROOT / "README.md").read_text().partition("\n## Install\n")[2].partition("\n## ")[0]
    lines = "".join(re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)).splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def line_with(word: str) -> str:
    (found,) = (line for line in install_lines() if word in line)
    return found.replace("sudo ", "")


def works(place: Root, command: str, disk: str) -> None:
    assert place.succeeds(command, "--version") == f"wptrace {__version__}\n"
    assert "libbpf" in place.succeeds(command, "doctor")
    assert "netrx" in place.succeeds(command, "flow", "--list")
    traces(place, command, disk)


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_deb(dist: Path, tmp_path: Path, disk: str, suite: str) -> None:
    (deb,) = dist.glob("*_amd64.deb")
    with root(suite, tmp_path) as place:
        place.put(deb)
        before = place.named()
        place.succeeds("apt-get", "-q", "update", timeout=600)
        line = line_with(".deb").replace("apt install", "apt-get -q -y --no-install-recommends install")
        place.succeeds("sh", "-c", f"cd /root && {line}", timeout=900)
        works(place, "wptrace", disk)
        place.succeeds("apt-get", "-q", "-y", "purge", "wptrace")
        assert place.named() == before


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_rpm(dist: Path, tmp_path: Path, disk: str, suite: str) -> None:
    """Install by `rpm --root`: dependencies are Debian's packages, which rpm does not see."""
    (package,) = dist.glob("*.x86_64.rpm")
    with root(suite, tmp_path) as place:
        place.install(*NEEDS)
        before = place.named()
        succeeds("rpm", "--root", str(place.path), "--initdb")
        succeeds("rpm", "--root", str(place.path), "--install", "--nodeps", "--nosignature", str(package))
        works(place, "wptrace", disk)
        listed = succeeds("rpm", "--root", str(place.path), "--query", "--list", "wptrace").split()
        assert [name for name in listed if name.startswith("/usr/share/man/man1/wptrace-io.1")]
        units = {name.rpartition("/")[2] for name in listed if "/systemd/system/" in name}
        assert units == {"wptrace-agent.service", "wptrace-io.service"}
        succeeds("rpm", "--root", str(place.path), "--erase", "wptrace")
        # Including what Python has compiled there.
        assert place.named() == before


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_make_install(tmp_path: Path, disk: str, suite: str) -> None:
    """The same tree for the Python of each suite."""
    with root(suite, tmp_path) as place:
        place.install(*NEEDS)
        before = place.named()
        succeeds("make", "install", f"DESTDIR={place.path}")
        works(place, "wptrace", disk)
        succeeds("make", "uninstall", f"DESTDIR={place.path}")
        assert place.named() == before


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_from_the_source(dist: Path, tmp_path: Path, disk: str, suite: str) -> None:
    """Both commands of the README, in a root with Python and without a compiler."""
    with root(suite, tmp_path) as place:
        before = place.named()
        archive = place.put(dist / f"wptrace-{__version__}.tar.gz")
        place.succeeds("tar", "-xf", archive, "-C", "/root", "--one-top-level=source", "--strip-components=1")
        place.succeeds("apt-get", "-q", "update", timeout=600)
        for word in ("clang", "make install"):
            line = line_with(word).replace("apt install", "apt-get -q -y --no-install-recommends install")
            place.succeeds("sh", "-c", f"cd /root/source && {line}", timeout=3600)
        works(place, "wptrace", disk)
        place.succeeds("make", "-C", "/root/source", "uninstall")
        place.succeeds("sh", "-c", f"rm -r {archive} /root/source")
        assert place.named() == before


def commands_to_try() -> list[str]:
    """Return the README's commands to try it, without comments."""
    section = (ROOT / "README.md").read_text().partition("\n## Try it\n")[2].partition("\n## ")[0]
    (lines,) = re.findall(r"^```\n(.*?)^```$", section, re.M | re.S)
    return [line.partition("#")[0].strip() for line in lines.splitlines()]


# Jobs of `make test` that need neither a kernel nor a guest; CI runs all on a clean machine.
JOBS = ("lint", "unit")


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_what_is_there_to_try(tmp_path: Path, suite: str) -> None:
    """Run the demo, lint and unit tests in a clone, which has what is committed."""
    with root(suite, tmp_path) as place:
        place.install("git", "make")
        place.configure_pip()
        succeeds("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(place.path / "root/clone"))
        demo, test = commands_to_try()
        shown = place.succeeds("sh", "-c", f"cd /root/clone && {demo}", timeout=5400)
        assert re.search(r"^demo: /dev/loop\d+ is a scratch disk", shown, re.M), shown
        # Without a cgroup of its own, the backup is shown by name.
        summary = shown.rpartition("\nSummary\n")[2]
        named = r"^also: waiting for loop\d+ takes \d+% of the requests of .*(?:/backup|rsync)"
        assert re.search(named, summary, re.M), shown
        assert str(place.path) not in succeeds("losetup", "--all")
        assert test == "make test"
        place.succeeds("make", "-C", "/root/clone", "setup", "all", "test-objects", timeout=3600)
        place.succeeds("sh", "-c", f"cd /root/clone && .venv/bin/python -m tests.run {' '.join(JOBS)}", timeout=3600)


# An empty package that provides what Debian has, under the names that an rpm requires.
PROVIDES = """
Name: debian-has
Version: 1
Release: 1
Summary: What dpkg installed
License: none
BuildArch: noarch
Provides: libbpf = 2:1.1, python3 = 3.11, python3-cffi, python3-pyelftools, python3-rich, /usr/bin/python3, /bin/sh
%description
For dnf, which knows nothing of dpkg.
%files
"""


def test_rpm_by_dnf(dist: Path, tmp_path: Path, disk: str) -> None:
    """The README's command with Debian's dnf; a package stands for what dpkg has installed."""
    (package,) = dist.glob("*.x86_64.rpm")
    spec = tmp_path / "debian-has.spec"
    spec.write_text(PROVIDES)
    succeeds_slowly("rpmbuild", "-bb", "--define", f"_topdir {tmp_path}/rpm", str(spec))
    (has,) = (tmp_path / "rpm").rglob("debian-has*.rpm")
    with root("bookworm", tmp_path) as place:
        place.install(*NEEDS, "dnf")
        place.put(package)
        succeeds("rpm", "--root", str(place.path), "--initdb")
        succeeds("rpm", "--root", str(place.path), "--install", "--nosignature", str(has))
        line = line_with(".rpm").replace("dnf install", "dnf --assumeyes --nogpgcheck install")
        place.succeeds("sh", "-c", f"cd /root && {line}", timeout=900)
        works(place, "wptrace", disk)
        place.succeeds("dnf", "--assumeyes", "remove", "wptrace")


def test_each_line_of_the_readme_is_run_here() -> None:
    words = [".whl", ".rpm", ".deb", ".tar.xz", "clang", "make install"]
    assert [[word for word in words if word in line] for line in install_lines()] == [[word] for word in words]


@pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie", "sid"])
def test_tarball(dist: Path, tmp_path: Path, disk: str, suite: str) -> None:
    """bullseye has no libbpf 1.0, and no root has anything but Python."""
    with root(suite, tmp_path) as place:
        place.install("xz-utils")
        before = place.named()
        place.put(dist / f"wptrace-{__version__}-linux.tar.xz")
        place.succeeds("sh", "-c", f"cd /root && {line_with('.tar.xz')}")
        works(place, f"/root/wptrace-{__version__}-linux/wptrace", disk)
        place.succeeds("sh", "-c", "rm -r /root/wptrace-*")
        assert place.named() == before


def test_tarball_on_the_other_machine(dist: Path, tmp_path: Path) -> None:
    """Run it in an arm64 guest with Debian's Python."""
    succeeds("tar", "-xf", str(dist / f"wptrace-{__version__}-linux.tar.xz"), "-C", str(tmp_path))
    folder = tmp_path / f"wptrace-{__version__}-linux"
    lab = (sys.executable, "-m", "tests.lab", "run", "--kernel", "6.12-arm64", "--cpus", "1", "--timeout", "900")
    # A guest of another machine sees the current folder.
    done = subprocess.run(
        (*lab, "--", f"{folder}/wptrace", "doctor", "--json"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["machine"], found["io_works"]) == ("aarch64", True)
    libbpf = next(one for one in found["system"] if one["name"] == "libbpf")
    assert f"({folder}/lib/native/arm64/libbpf.so.1)" in libbpf["detail"]


def python_of(version: str) -> str | None:
    found = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python3"))
    return str(found[0]) if found else shutil.which(f"python{version}")


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_wheel(dist: Path, tmp_path: Path, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    succeeds_slowly(python, "-m", "venv", str(tmp_path / "pipx"))
    succeeds_slowly(str(tmp_path / "pipx/bin/pip"), "install", "--quiet", "pipx")
    line = line_with(".whl").replace("/opt/pipx", f"{tmp_path}/opt").replace("/usr/local/bin", f"{tmp_path}/bin")
    assert line.count(str(tmp_path)) == 2
    path = f'PATH="{tmp_path}/pipx/bin:$PATH"'
    succeeds_slowly("sh", "-c", f'cd "{dist}" && {path} && {line}')
    wptrace = str(tmp_path / "bin/wptrace")
    assert succeeds(wptrace, "--version") == f"wptrace {__version__}\n"
    assert "libbpf" in run(wptrace, "doctor").stdout
    assert (tmp_path / "opt/venvs/wptrace/share/man/man1/wptrace-io.1").is_file()
    where = " ".join(word for word in line.split() if word.startswith("PIPX_"))
    succeeds_slowly("sh", "-c", f"cd / && {path} && {where} pipx uninstall wptrace")
    # An empty lock file stays.
    left = {path.name for path in (tmp_path / "opt/venvs").rglob("*wptrace*")}
    assert left <= {".wptrace.lock"}
    assert not Path(wptrace).exists()


def test_an_sdist_builds_where_there_is_a_compiler(dist: Path, tmp_path: Path) -> None:
    succeeds_slowly(
        sys.executable,
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)),
        str(dist / f"wptrace-{__version__}.tar.gz"),
    )
    (made,) = tmp_path.glob("*.whl")
    assert made.read_bytes()[:2] == b"PK"


def test_lintian_and_rpmlint_find_no_error(dist: Path) -> None:
    (deb,) = dist.glob("*_amd64.deb")
    done = run("lintian", "--fail-on", "error", str(deb))
    assert done.returncode == 0, done.stdout
    (package,) = dist.glob("*.x86_64.rpm")
    done = run("rpmlint", "--config", "packaging/rpmlint.toml", str(package), "packaging/wptrace.spec")
    # There are warnings about the package because Debian's rpm differs from Fedora's, but none about the spec.
    assert "1 packages and 1 specfiles checked; 0 errors" in done.stdout, done.stdout
    assert not re.findall(r"^wptrace\.spec: .*$", done.stdout, re.M), done.stdout


def test_all_packages_have_the_same_bytes_twice(dist: Path, tmp_path: Path) -> None:
    succeeds_slowly(sys.executable, "packaging/dist.py", "--out", str(tmp_path))
    distributions(tmp_path)
    again = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "SHA256SUMS"}
    # All that differ are named: with the sdist among them, somebody has changed the tree meanwhile.
    assert sorted(name for name, found in again.items() if found != (dist / name).read_bytes()) == []
    sums = (tmp_path / "SHA256SUMS").read_text()
    assert f"wptrace-{__version__}-linux.tar.xz" in sums
