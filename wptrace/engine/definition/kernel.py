# SPDX-License-Identifier: Apache-2.0
"""The kernel that a definition is resolved for: the running one, or one whose types are in a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from wptrace.bpf import kernel_btf
from wptrace.bpf.btf import Btf
from wptrace.bpf.generated import EVENTS
from wptrace.engine.definition import source
from wptrace.errors import UsageError, WptraceError
from wptrace.kernel import cgroups

_KALLSYMS = Path("/proc/kallsyms")
_MODULES = Path("/sys/module")
_MAX_FORMAT = 64 * 1024
_MAX_BTF = 64 << 20
_FIELD = re.compile(
    r"\tfield:(?P<type>[^;]*?)(?P<name>\w+)(?P<array>\[\d*\])?;\toffset:(\d+);\tsize:(\d+);\tsigned:([01]);"
)


class EventField(NamedTuple):
    """A field in the record of a classic event."""

    type: str
    """The type in C, with the brackets of an array."""
    offset: int
    size: int
    signed: bool


class Kernel:
    """Another kernel, of which only the types are known."""

    runs = False

    def __init__(self, name: str, types: Btf, modules: dict[str, Btf] | None = None) -> None:
        self.name = name
        self.types = types
        self._modules = modules or {}
        self.machine = os.uname().machine

    def module(self, name: str) -> Btf | None:
        return self._modules.get(name)

    def without_module(self, name: str) -> str:
        """Why there are no types of a module, to append to a message; empty if that is not known."""
        return f": nothing is known of the module {name}"

    def event(self, name: str) -> dict[str, EventField] | None:
        """The fields of an event "category/name"; None if there is no such event."""
        return None

    def has_tracepoint(self, name: str) -> bool:
        """Whether there is such a tracepoint, even without types."""
        return False

    def tracepoints(self) -> list[str]:
        """The names of all tracepoints, for suggestions."""
        head = "btf_trace_"
        return [entry.name[len(head) :] for entry in self.types if entry.name.startswith(head)]

    @property
    def symbols(self) -> frozenset[str]:
        """All functions that can be attached to by name; empty if unknown."""
        return frozenset()

    @property
    def modules_of(self) -> Mapping[str, str]:
        return {}

    def cgroup(self, path: str) -> tuple[int, int]:
        """The id of a cgroup of v2, and its level below the root."""
        return 0, len([name for name in path.split("/") if name])


def _events() -> list[Path]:
    """pathlib raises an error if tracefs is readable by root only."""
    return [home for home in EVENTS if os.path.isdir(home)]  # noqa: PTH112


class RunningKernel(Kernel):
    runs = True

    def __init__(self) -> None:
        super().__init__(os.uname().release, kernel_btf.vmlinux())

    def module(self, name: str) -> Btf | None:
        return kernel_btf.module(name)

    def without_module(self, name: str) -> str:
        return "" if (_MODULES / name).exists() else f": the module {name} is not loaded"

    def event(self, name: str) -> dict[str, EventField] | None:
        for home in EVENTS:
            try:
                with (home / name / "format").open("rb") as file:
                    return fields(file.read(_MAX_FORMAT).decode("utf-8", "replace"))
            except OSError:
                continue
        return None

    def tracepoints(self) -> list[str]:
        return [path.parent.name for home in _events() for path in home.glob("*/*/id")]

    def has_tracepoint(self, name: str) -> bool:
        return any(any(home.glob(f"*/{name}/id")) for home in _events())

    @cached_property
    def symbols(self) -> frozenset[str]:
        return frozenset(self._functions)

    @cached_property
    def modules_of(self) -> Mapping[str, str]:
        return {name: module for name, module in self._functions.items() if module}

    @cached_property
    def _functions(self) -> dict[str, str]:
        """Functions with their modules; empty for the kernel's own."""
        try:
            lines = _KALLSYMS.read_bytes().split(b"\n")
        except OSError:
            return {}
        # ADDRESS KIND NAME [MODULE]
        words = (line.decode("utf-8", "replace").split(None, 3) for line in lines)
        named = ((word[2], word[3].strip("[]") if len(word) > 3 else "") for word in words if _is_function(word))
        # The kernel's own function wins over a module's function of the same name.
        return dict(sorted(named, key=lambda one: one[1], reverse=True))

    def cgroup(self, path: str) -> tuple[int, int]:
        found = cgroups.resolve(path)
        if found.level is None or found.controller is not None:
            raise UsageError(f"the cgroup {path} is not in cgroup v2, or its level is unknown")
        return found.id, found.level


def _is_function(words: Sequence[str]) -> bool:
    return len(words) > 2 and words[1] in "tTwW"


def fields(text: str) -> dict[str, EventField]:
    """Parse a format file of tracefs; fields that all events have are left out."""
    found = {}
    for match in _FIELD.finditer(text):
        if not match["name"].startswith("common_"):
            kind = f"{match['type'].strip()}{match['array'] or ''}"
            found[match["name"]] = EventField(kind, int(match[4]), int(match[5]), match[6] == "1")
    return found


def from_file(path: Path) -> Kernel:
    """A kernel by its BTF, a copy of /sys/kernel/btf/vmlinux."""
    data = source.plain(path, _MAX_BTF + 1)
    if len(data) > _MAX_BTF:
        raise UsageError(f"{path} is larger than {_MAX_BTF >> 20} MiB: it is not the BTF of a kernel")
    try:
        return Kernel(path.name, Btf.parse(data))
    except WptraceError as error:
        raise UsageError(f"{path}: {error.message}") from error
