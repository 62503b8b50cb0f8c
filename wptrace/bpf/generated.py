# SPDX-License-Identifier: Apache-2.0
"""Programs whose instructions were made here: loaded, and attached until their descriptors are closed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from wptrace.bpf import perf
from wptrace.bpf.lib import libbpf
from wptrace.bpf.programs import INSTRUCTION, Statistics, statistics_of
from wptrace.bpf.targets import KINDS, TRACING
from wptrace.errors import LibbpfError, NotPermittedError, UnsupportedError, VerifierError

# enum bpf_prog_type, and enum bpf_attach_type for those that the kernel checks by types
_KPROBE, _TRACEPOINT, _RAW_TRACEPOINT = 2, 5, 17
_TYPES = {
    **{kind: (TRACING, attaches) for kind, attaches in KINDS.items()},
    "raw_tp": (_RAW_TRACEPOINT, 0),
    "event": (_TRACEPOINT, 0),
    "kprobe": (_KPROBE, 0),
    "kretprobe": (_KPROBE, 0),
    "uprobe": (_KPROBE, 0),
    "uretprobe": (_KPROBE, 0),
}
# The kernel keeps 15 characters of a name, and takes few others.
_NAME, _ODD = 15, re.compile(r"[^A-Za-z0-9_]")
# A refused program is looked at once more with a log, which has to hold all of it on kernels before 6.4.
_LOG = 1 << 24
_LOG_TAIL = 12
EVENTS = (Path("/sys/kernel/tracing/events"), Path("/sys/kernel/debug/tracing/events"))
"""Where tracefs may be mounted."""


class Target(NamedTuple):
    way: str
    """A key of _TYPES."""
    name: str
    """The name of a tracepoint or a function, or "category/name" of an event."""
    btf_id: int = 0
    btf_fd: int = 0
    """The BTF of the module that has this type; 0: the kernel's own."""
    place: perf.InFile | None = None
    """The place of a uprobe, whose descriptor the program closes."""

    @property
    def section(self) -> str:
        """The section name that an object would have for it."""
        return f"{'tracepoint' if self.way == 'event' else self.way}/{self.name}"


class Generated:
    """A loaded generated program. The end of the process detaches it."""

    def __init__(self, name: str, target: Target, code: bytes) -> None:
        """Loads it; raises where the kernel does not take it."""
        self.name = name
        self.target = target
        self.section = target.section
        self._link = -1
        self._fd = _load(name, target, code)
        if self._fd < 0:
            number, ffi = -self._fd, libbpf().ffi
            log = ffi.new("char[]", _LOG)
            self._fd = _load(name, target, code, log)
            if self._fd < 0:
                raise _refusal(name, bytes(ffi.string(log)).decode("utf-8", "replace"), number)

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def links(self) -> list[int]:
        return [self._link] if self._link >= 0 else []

    def attach(self) -> None:
        lib = libbpf()
        what = f"program {self.name} cannot be attached to {self.section}"
        way, place = self.target.way, self.target.place
        if place is not None:
            self._link = perf.run_at(perf.file_probe(self.section, place, way == "uretprobe"), self._fd)
        elif way in ("kprobe", "kretprobe"):
            self._link = perf.run_at(perf.function_probe(self.target.name, way == "kretprobe"), self._fd)
        elif way == "event":
            self._link = perf.run_at(perf.tracepoint_probe(self.target.name, _event_number(self.target.name)), self._fd)
        else:
            name = lib.ffi.new("char[]", self.target.name.encode()) if way == "raw_tp" else lib.ffi.NULL
            self._link = lib.check(lib.lib.bpf_raw_tracepoint_open(name, self._fd), what)

    def detach(self) -> None:
        if self._link >= 0:
            os.close(self._link)
            self._link = -1

    def statistics(self) -> Statistics:
        return statistics_of(self._fd, self.name)

    def close(self) -> None:
        self.detach()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self.target.place is not None:
                os.close(self.target.place.fd)


def is_accepted(target: Target, code: bytes) -> bool:
    """Whether the kernel accepts such a program; it is unloaded again on return."""
    fd = _load(target.name, target, code)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _load(name: str, target: Target, code: bytes, log: Any = None) -> int:
    """A descriptor, or the number of an error, negative."""
    kind, attach_type = _TYPES[target.way]
    lib = libbpf()
    ffi = lib.ffi
    options: Any = ffi.new("struct bpf_prog_load_opts *")
    options.sz = ffi.sizeof("struct bpf_prog_load_opts")
    options.expected_attach_type = attach_type
    options.attach_btf_id = target.btf_id
    options.attach_btf_obj_fd = target.btf_fd
    if log is not None:
        options.log_buf, options.log_size, options.log_level = log, _LOG, 1
    short = ffi.new("char[]", _ODD.sub("_", name).encode()[:_NAME])
    license_ = ffi.new("char[]", b"Dual BSD/GPL")
    lib.recent.clear()
    count = len(code) // INSTRUCTION
    return int(lib.lib.bpf_prog_load(kind, short, license_, ffi.from_buffer(code), count, options))


def _refusal(name: str, said: str, number: int) -> VerifierError | NotPermittedError | LibbpfError:
    tail = "\n".join([line for line in said.splitlines() if line.strip()][-_LOG_TAIL:])
    if tail:
        return VerifierError(name, tail, errno=number)
    if number in (1, 13):  # EPERM, EACCES: before the verifier looked at it
        return NotPermittedError(f"the kernel does not permit the program {name}", program=name)
    return LibbpfError(f"the kernel refuses the program {name}: {os.strerror(number)}", errno=number)


def _event_number(event: str) -> int:
    for place in EVENTS:
        try:
            return int((place / event / "id").read_text())
        except (OSError, ValueError):
            continue
    raise UnsupportedError(f"there is no event {event} in tracefs")
