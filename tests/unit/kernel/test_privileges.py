# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import resource
from pathlib import Path

import pytest

from wptrace.errors import NotPermittedError
from wptrace.kernel import privileges

ADMIN, RESOURCE, PERFMON, BPF = 1 << 21, 1 << 24, 1 << 38, 1 << 39


def status(folder: Path, mask: int) -> Path:
    path = folder / "status"
    # All other sets are full: only the effective one counts.
    path.write_bytes(
        b"Name:\tpython3\nUmask:\t0022\nCapInh:\t000001ffffffffff\nCapPrm:\t000001ffffffffff\n"
        + f"CapEff:\t{mask:016x}\n".encode()
        + b"CapBnd:\t000001ffffffffff\nCapAmb:\t000001ffffffffff\n"
    )
    return path


@pytest.mark.parametrize(
    ("mask", "held"),
    [
        (0, set()),
        ((1 << 41) - 1, set(privileges.CAPABILITIES)),
        (ADMIN, {"CAP_SYS_ADMIN"}),
        (PERFMON | BPF, {"CAP_PERFMON", "CAP_BPF"}),
        (RESOURCE | 1 << 20 | 1 << 40, {"CAP_SYS_RESOURCE"}),
        (1 << 19 | 1 << 34 | 1 << 35, {"CAP_SYS_PTRACE", "CAP_SYSLOG"}),
    ],
)
def test_effective_capabilities_are_read(tmp_path: Path, mask: int, held: set[str]) -> None:
    assert privileges.effective(status(tmp_path, mask)) == held


@pytest.mark.parametrize("name", [b"\xff\xfe\x1b[31m", b"a\rCapEff:\t0", b"a\x0cCapEff:", b"a\xc2\x85CapEff:\tx"])
def test_a_hostile_process_name_does_not_matter(tmp_path: Path, name: bytes) -> None:
    path = status(tmp_path, ADMIN)
    path.write_bytes(path.read_bytes().replace(b"python3", name))
    assert privileges.effective(path) == {"CAP_SYS_ADMIN"}


def test_a_kernel_that_tells_no_capabilities_grants_none(tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_text("Name:\tpython3\n")
    assert privileges.effective(path) == set()


def test_this_process_has_a_status() -> None:
    assert privileges.effective() <= set(privileges.CAPABILITIES)


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        ({"CAP_SYS_ADMIN"}, ""),
        ({"CAP_BPF", "CAP_PERFMON"}, ""),
        ({"CAP_BPF"}, "CAP_PERFMON, which is missing"),
        ({"CAP_PERFMON", "CAP_SYS_RESOURCE"}, "CAP_BPF, which is missing"),
        (set(), "CAP_BPF and CAP_PERFMON, which are missing"),
    ],
)
def test_tracing_needs_admin_or_both_newer_capabilities(
    held: set[str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert privileges.may_trace(held) is not bool(missing)
    monkeypatch.setattr(privileges, "effective", lambda: held)
    if not missing:
        privileges.require_tracing()
        return
    with pytest.raises(NotPermittedError, match=f"^tracing needs {missing}$"):
        privileges.require_tracing()


THERE = "it needs CAP_SYS_ADMIN, which is missing, or a policy (lockdown, an LSM) refuses it"


@pytest.mark.parametrize(
    ("held", "advice"),
    [
        (set(), "run it with sudo, or grant both capabilities"),
        ({"CAP_BPF"}, "run it with sudo, or grant CAP_PERFMON as well"),
        ({"CAP_PERFMON", "CAP_SYS_RESOURCE"}, "run it with sudo, or grant CAP_BPF as well"),
        ({"CAP_BPF", "CAP_PERFMON", "CAP_SYS_RESOURCE"}, THERE),
        (
            {"CAP_BPF", "CAP_PERFMON"},
            f"{THERE}; before Linux 5.11 it may be the limit of locked memory (ulimit -l)",
        ),
        ({"CAP_SYS_ADMIN"}, "this kernel's policy (lockdown, an LSM) refuses it: see wptrace doctor"),
    ],
)
def test_advice_asks_for_what_is_not_there(held: set[str], advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileges, "memlock", lambda: 65536)
    monkeypatch.setattr(privileges, "effective", lambda: held)
    assert privileges.advice() == advice
    if "CAP_SYS_ADMIN" not in held:
        with pytest.raises(NotPermittedError, match=r"^--stats needs CAP_SYS_ADMIN, which is missing$"):
            privileges.require_admin("--stats")
    else:
        privileges.require_admin("--stats")


def test_who_sees_no_addresses_hears_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileges, "effective", lambda: {"CAP_BPF", "CAP_PERFMON"})
    assert "CAP_SYSLOG, which is missing" in privileges.hidden_addresses()
    monkeypatch.setattr(privileges, "effective", lambda: {"CAP_SYSLOG"})
    assert "CAP_" not in privileges.hidden_addresses()


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("[none] integrity confidentiality\n", "none"),
        ("none [integrity] confidentiality\n", "integrity"),
        ("none integrity [confidentiality]\n", "confidentiality"),
        ("none integrity\n", None),
        ("]none[\n", None),
        ("", None),
    ],
)
def test_lockdown_is_the_mode_in_brackets(tmp_path: Path, text: str, mode: str | None) -> None:
    path = tmp_path / "lockdown"
    path.write_text(text)
    assert privileges.lockdown(path) == mode


def test_a_kernel_without_lockdown_tells_nothing(tmp_path: Path) -> None:
    assert privileges.lockdown(tmp_path / "none") is None
    assert privileges.lockdown(tmp_path) is None


def test_memlock_is_the_soft_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (65536, resource.RLIM_INFINITY))
    assert privileges.memlock() == 65536
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert privileges.memlock() == -1
