# SPDX-License-Identifier: Apache-2.0
"""Trials of programs: loaded and attached for a moment, because no claim about a kernel is reliable."""

from __future__ import annotations

import functools
import mmap
import os
import struct
from typing import NamedTuple

from wptrace.bpf import atomics
from wptrace.bpf.generated import Generated, Target, is_accepted
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.bpf.object import BpfObject, find
from wptrace.bpf.perf import InFile
from wptrace.errors import NotPermittedError, VerifierError, WptraceError


class Trial(NamedTuple):
    program: str
    section: str
    works: bool
    reason: str
    """Why not."""


# On every kernel.
_FUNCTION = "vfs_fsync_range"
# An object would do as well, but libbpf would read all types of the kernel for each.
_ZERO, _EXIT = struct.pack("<Q", 0xB7), struct.pack("<Q", 0x95)
NOTHING = _ZERO + _EXIT
"""A program that does nothing."""
# A word of the stack becomes 0, and then, if it is 0, it does so once more.
_EXCHANGE = _ZERO + struct.pack("<BBhiBBhi", 0x7B, 10, -8, 0, 0xDB, 10, -8, 0xF1) + _EXIT

FEATURES = "features"
"""The object of single ways to observe the kernel; each of its programs does nothing."""


def open_here(name: str, own_types: bool = False) -> BpfObject:
    """An object, as this kernel takes it."""
    return BpfObject(find(name), None if name == FEATURES else _fitting, own_types)


def _fitting(data: bytes) -> bytes:
    return atomics.as_stores(data) if atomics.exchanges(data) and not exchanges() else data


@functools.lru_cache(maxsize=1)
def exchanges() -> bool:
    """Whether programs may compare and exchange; where not, a global says so (bpf_src/lib/place.h)."""
    return is_accepted(Target("raw_tp", "exchange"), _EXCHANGE)


@functools.lru_cache(maxsize=1)
def functions() -> bool:
    """Whether there may be fentry and fexit programs: not on a kernel without trampolines, or with a policy."""
    function = vmlinux().function(_FUNCTION)
    return bool(function) and is_accepted(Target("fentry", _FUNCTION, function), NOTHING)


def attempt(program: str, needs: str = "") -> Trial:
    """Load one of FEATURES and attach it, with the one map that it needs; everything is gone again on return."""
    with open_here(FEATURES) as obj:
        for other in obj.progs.values():
            other.autoload = other.name == program
        for found in obj.maps.values():
            if found.name != needs:
                found.disable()
        section = obj.progs[program].section
        try:
            obj.load()
        except WptraceError as error:
            return Trial(program, section, False, reason("refused at load", error))
        try:
            obj.progs[program].attach()
        except WptraceError as error:
            return Trial(program, section, False, reason("loads, but cannot be attached", error))
        return Trial(program, section, True, "")


def attempt_in_program(way: str) -> Trial:
    """Attach a uprobe or uretprobe to a file that nobody executes."""
    place = InFile(os.memfd_create("wptrace", os.MFD_CLOEXEC), 0)
    target = Target(way, "a file in memory", place=place)
    try:
        os.write(place.fd, bytes(mmap.PAGESIZE))
        program = Generated(way, target, NOTHING)
    except WptraceError as error:
        os.close(place.fd)
        return Trial(way, target.section, False, reason("refused at load", error))
    try:
        program.attach()
    except WptraceError as error:
        return Trial(way, target.section, False, reason("loads, but cannot be attached", error))
    finally:
        program.close()
    return Trial(way, target.section, True, "")


def reason(stage: str, error: WptraceError) -> str:
    """Why the kernel did not take a program, in its own words as far as it has any."""
    if isinstance(error, VerifierError) and error.log:
        said = [line for line in error.log.splitlines() if not line.startswith(("processed ", "-- "))]
        return f"{stage}: {said[-1] if said else error.message}"
    if isinstance(error, NotPermittedError):
        return f"{stage}: not permitted"
    number = getattr(error, "errno", 0)
    return f"{stage}: {os.strerror(number) if number else error.message}"
