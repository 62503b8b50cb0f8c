# SPDX-License-Identifier: Apache-2.0
"""The recipes against the checks of rpm and dpkg, without building anything."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.packages.installed import ROOT, run, succeeds
from wptrace import __version__

SPEC = "packaging/wptrace.spec"


def test_rpm_parses_the_spec() -> None:
    done = run("rpmspec", "--parse", SPEC)
    assert (done.returncode, done.stderr) == (0, "")
    reported = succeeds("rpmspec", "--query", "--queryformat", r"%{NAME} %{VERSION} %{ARCH}\n[%{REQUIRES}\n]", SPEC)
    first, *needs = reported.splitlines()
    assert first.split()[:2] == ["wptrace", __version__]
    assert {"libbpf", "python3", "python3-cffi", "python3-pyelftools", "python3-rich"} <= set(needs)


def test_the_spec_rebuilds_what_was_built() -> None:
    parsed = succeeds("rpmspec", "--parse", SPEC)
    # Debian's rpm does not print the name %build.
    before = parsed.partition("\n%prep\n")[2].partition("\n%install\n")[0]
    removed, made = before.index("rm -rf build wptrace/objects"), re.search(r"^\S*make .*\ball\b", before, re.M)
    assert made
    assert removed < made.start()
    # strip of this machine does not know BPF and would fail.
    assert "__brp_strip %{nil}" in (ROOT / SPEC).read_text()


# Macros of Fedora's rpm that the spec uses and Debian's lacks.
FEDORA = {"fedora": "41", "dist": ".fc41", "_libdir": "/usr/lib64", "py_byte_compile(-)": "%{1} -m compileall %{2}"}


@pytest.mark.parametrize(("target", "machine"), [("x86_64", "x86_64"), ("aarch64", "arm64")])
def test_the_spec_with_the_macros_of_fedora(target: str, machine: str) -> None:
    defined = [word for name, value in FEDORA.items() for word in ("--define", f"{name} {value}")]
    done = run("rpmspec", "--target", target, *defined, "--parse", SPEC)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"^Release: +\d+\{FEDORA['dist']}$", done.stdout, re.M)
    installed = done.stdout.partition("\n%install\n")[2].partition("\n%check\n")[0]
    assert f" MACHINE={machine} " in installed
    assert "LIBDIR=/usr/lib64 " in installed
    # Otherwise Python would compile modules there that rpm does not know and does not remove.
    assert re.search(r"-m compileall \S+/usr/lib64/wptrace$", installed, re.M)
    listed = done.stdout.partition("\n%files\n")[2].splitlines()
    assert {"/usr/bin/wptrace", "/usr/lib64/wptrace/"} <= set(listed)
    units = {line.rpartition("/")[2] for line in listed if "/lib/systemd/system/" in line}
    assert units == {"wptrace-agent.service", "wptrace-io.service"}
    # A macro that was not expanded.
    assert [line for line in listed if "%{" in line] == []


def test_the_rules_of_debian_call_what_there_is() -> None:
    changelog = (ROOT / "packaging/debian/changelog").read_text()
    assert re.match(rf"wptrace \({re.escape(__version__)}-\d+\) unstable; ", changelog)
    control = (ROOT / "packaging/debian/control").read_text()
    for package in ("libbpf1 (>= 1:1.0)", "python3-cffi-backend", "python3-pyelftools", "python3-rich"):
        assert f" {package},\n" in control
    reported = set(re.findall(r"\$\(MAKE\) ([a-z ]+?) \$\(given\)", (ROOT / "packaging/debian/rules").read_text()))
    assert reported == {"all", "install"}
    targets = set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
    assert {target for words in reported for target in words.split()} <= targets


def test_the_agent_is_exposed_to_little() -> None:
    """systemd-analyze rates the exposure from 0 to 10."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = ROOT / "packaging" / "wptrace-agent.service"
    result = run(analyze, "security", "--offline=true", "--no-pager", "--threshold=19", str(unit))
    if "unrecognized option" in result.stderr:
        pytest.skip("this systemd-analyze looks at running units alone")
    assert result.returncode == 0, result.stdout
