# SPDX-License-Identifier: Apache-2.0
"""Privileges of this process, and what the kernel locks away."""

from __future__ import annotations

import resource
from pathlib import Path

from wptrace.errors import NotPermittedError
from wptrace.kernel import procfs

# include/uapi/linux/capability.h
CAPABILITIES = {
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_SYSLOG": 34,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}


def effective(status: Path = Path("/proc/self/status")) -> set[str]:
    """Return the CAPABILITIES that this process has."""
    mask = int(procfs.field(status, "CapEff") or "0", 16)
    return {name for name, bit in CAPABILITIES.items() if mask >> bit & 1}


def may_trace(held: set[str]) -> bool:
    return "CAP_SYS_ADMIN" in held or {"CAP_BPF", "CAP_PERFMON"} <= held


def require_tracing() -> None:
    held = effective()
    if not may_trace(held):
        lacking = _lacking(held)
        missing = "are" if len(lacking) == 2 else "is"
        raise NotPermittedError(f"tracing needs {' and '.join(lacking)}, which {missing} missing", hint=advice())


def require_reading(what: str) -> None:
    """Require the capability to read the memory of other processes, as for /proc/PID/mem."""
    if not effective() & {"CAP_SYS_PTRACE", "CAP_SYS_ADMIN"}:
        lacks = "takes CAP_SYS_PTRACE, which is missing"
        raise NotPermittedError(f"{what} reads the memory of other processes and {lacks}", hint="run it with sudo")


def require_admin(what: str) -> None:
    """Require CAP_SYS_ADMIN, which the kernel asks for."""
    if "CAP_SYS_ADMIN" not in effective():
        raise NotPermittedError(f"{what} needs CAP_SYS_ADMIN, which is missing", hint="run it with sudo")


def hidden_addresses() -> str:
    """Why /proc/kallsyms shows this process no addresses (kallsyms_show_value in kernel/ksyms_common.c)."""
    if "CAP_SYSLOG" in effective():
        return "kernel.kptr_restrict hides them from all"
    return "it needs CAP_SYSLOG, which is missing, and kernel.kptr_restrict below 2"


def _lacking(held: set[str]) -> list[str]:
    return [name for name in ("CAP_BPF", "CAP_PERFMON") if name not in held]


def advice() -> str:
    """Return the advice where the kernel does not permit something."""
    held = effective()
    if not may_trace(held):
        lacking = _lacking(held)
        both = len(lacking) == 2
        return f"run it with sudo, or grant {'both capabilities' if both else f'{lacking[0]} as well'}"
    if "CAP_SYS_ADMIN" not in held:
        known = "it needs CAP_SYS_ADMIN, which is missing, or a policy (lockdown, an LSM) refuses it"
        more = "; before Linux 5.11 it may be the limit of locked memory (ulimit -l)"
        return known + (more if memlock() >= 0 and "CAP_SYS_RESOURCE" not in held else "")
    return "this kernel's policy (lockdown, an LSM) refuses it: see wptrace doctor"


def lockdown(path: Path = Path("/sys/kernel/security/lockdown")) -> str | None:
    """The lockdown mode in force ("none", "integrity", "confidentiality"); None if the kernel does not show it."""
    try:
        text = path.read_text()
    except OSError:
        return None
    start, end = text.find("["), text.find("]")
    return text[start + 1 : end] if 0 <= start < end else None


def memlock() -> int:
    """The soft limit of locked memory in bytes, -1 for none. Kernels before 5.11 charge BPF maps to it."""
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
