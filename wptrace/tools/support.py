# SPDX-License-Identifier: Apache-2.0
"""Facts about this system and its configuration for a bug report, without names unless they are wanted."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from wptrace.bpf.kernel_btf import KERNEL_BTF
from wptrace.bpf.lib import libbpf
from wptrace.errors import WptraceError
from wptrace.kernel import elf, files, privileges

_PACKAGES = ("cffi", "pyelftools", "rich", "perfetto", "pyarrow", "otf2", "opentelemetry-proto")
_SETTINGS = (
    *("kernel/kptr_restrict", "kernel/perf_event_paranoid", "kernel/unprivileged_bpf_disabled"),
    *("kernel/bpf_stats_enabled", "net/core/bpf_jit_enable", "net/core/bpf_jit_harden"),
)
_NOTES = Path("/sys/kernel/notes")
_LARGEST_BTF = 1 << 26
# linux/elf.h: the type of the note with the build ID, whose owner is "GNU".
_BUILD_ID = 3
# A duration, a size, a share, a word, or a device; of what is not one of these settings.
_PLAIN = re.compile(r"(?:/dev/)?[A-Za-z0-9.:%_,-]{0,32}")
_NAMING = ("comm", "cgroup", "file", "dir", "command", "definition")
HIDDEN = "(left out)"


def versions(own: str) -> dict[str, Any]:
    name = os.uname()
    found: dict[str, Any] = {
        "wptrace": own,
        "python": platform.python_version(),
        "libbpf": _libbpf(),
        "packages": {package: _package(package) for package in _PACKAGES},
        "kernel": {"release": name.release, "version": name.version, "machine": name.machine},
        "build_id": build_id(_read(_NOTES, 1 << 16)),
        "btf_sha256": hashlib.sha256(_read(KERNEL_BTF, _LARGEST_BTF)).hexdigest() if KERNEL_BTF.exists() else None,
        "system": _system(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "cgroup_v2": Path("/sys/fs/cgroup/cgroup.controllers").exists(),
        "capabilities": sorted(privileges.effective()),
        "lockdown": privileges.lockdown(),
        "sysctl": {one: files.first_line(Path("/proc/sys", one)) for one in _SETTINGS},
    }
    return found


def build_id(notes: bytes) -> str | None:
    """The build ID among ELF notes."""
    found = (content.hex() for owner, kind, content in elf.notes(notes) if (owner, kind) == (b"GNU\0", _BUILD_ID))
    return next(found, None)


def without_names(value: Any) -> Any:
    """A configuration in which texts that may name files, owners or commands are left out."""
    if isinstance(value, Mapping):
        return {
            key: one if key == "when" else HIDDEN if key in _NAMING else without_names(one)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [without_names(one) for one in value]
    return value if not isinstance(value, str) or _PLAIN.fullmatch(value) else HIDDEN


def _libbpf() -> str | None:
    with suppress(WptraceError):
        return ".".join(map(str, libbpf().version))
    return None


def _package(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _system() -> str:
    text = _read(Path("/etc/os-release"), 1 << 16).decode(errors="replace")
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
    return found[1] if found else platform.system()


def _read(path: Path, most: int) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(most)
    return b""
