# SPDX-License-Identifier: Apache-2.0
"""Perf events that BPF programs run on."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from wptrace.bpf.lib import libbpf
from wptrace.errors import UnsupportedError

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
# include/uapi/linux/perf_event.h
# type, size, config, sample_period, flags, config1 and config2, with which PERF_ATTR_SIZE_VER1 ends
_ATTRIBUTE = struct.Struct("<IIQQ16xQ8xQQ")
_PINNED = 1 << 2
_CLOSE_ON_EXEC = 1 << 3
_SET_PERIOD = 0x40082404  # PERF_EVENT_IOC_PERIOD


class Event(NamedTuple):
    """Events to count; on x86-64 and arm64 these have the same numbers."""

    name: str
    type: int
    config: int


CPU_CLOCK = Event("cpu-clock", 1, 0)
"""A timer of the kernel: its unit is the nanosecond."""
CYCLES = Event("cycles", 0, 0)
"""A counter of the CPU, which interrupts it by an NMI where there are some. An idle CPU counts none."""


def open_event(event: Event, cpu: int, period: int, pid: int = -1, pinned: bool = False) -> int:
    """A descriptor of an event that overflows after every `period` on a CPU, or in a process on any (cpu -1)."""
    words = (event.config, period, _PINNED if pinned else 0, 0, 0)
    return _open(event.type, words, pid, cpu, f"an event of {event.name} on CPU {cpu} cannot be opened")


def _open(kind: int, words: tuple[int, ...], pid: int, cpu: int, what: str) -> int:
    lib = libbpf()
    number = _PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        raise UnsupportedError(f"perf events are not known on {os.uname().machine}")
    ffi = lib.ffi
    arguments = [ffi.cast("long", value) for value in (pid, cpu, -1, _CLOSE_ON_EXEC)]
    attribute = ffi.from_buffer(_ATTRIBUTE.pack(kind, _ATTRIBUTE.size, *words))
    fd = lib.lib.syscall(number, attribute, *arguments)
    if fd < 0:
        lib.fail(ffi.errno, what)
    return int(fd)


class InFile(NamedTuple):
    """An instruction in an open file."""

    fd: int
    offset: int
    counter: int = 0
    """The place of a number that the kernel increments as long as a program is there; 0: there is none."""


class Probe(NamedTuple):
    """The target of such an event: a function, an instruction, or the number of a tracepoint."""

    name: str
    type: int
    config: int
    text: str = ""
    """The name of the function, or the path of the file."""
    offset: int = 0


_ENABLE, _SET_PROGRAM = 0x2400, 0x40042408  # PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF
_SOURCES = Path("/sys/bus/event_source/devices")
_COUNTER_BITS = 32
_TRACEPOINT = 2  # PERF_TYPE_TRACEPOINT


def function_probe(function: str, on_return: bool) -> Probe:
    kind, bit = _source("kprobe", "retprobe")
    return Probe(f"{'kretprobe' if on_return else 'kprobe'}/{function}", kind, on_return << bit, function)


def file_probe(name: str, place: InFile, on_return: bool) -> Probe:
    """Return the target in all processes that execute this file. By its path another file could be meant by now."""
    kind, bit = _source("uprobe", "retprobe")
    config = on_return << bit
    if place.counter:
        if place.counter >> _COUNTER_BITS:
            raise UnsupportedError(f"{name} has its semaphore beyond 4 GiB of the file")
        config |= place.counter << _source("uprobe", "ref_ctr_offset")[1]
    return Probe(name, kind, config, f"/proc/self/fd/{place.fd}", place.offset)


def _source(name: str, field: str) -> tuple[int, int]:
    """The number of a source of events, and the lowest bit of a field of its config."""
    try:
        kind = int((_SOURCES / name / "type").read_text())
        bits = (_SOURCES / name / "format" / field).read_text().partition(":")[2]
        return kind, int(bits.partition("-")[0])
    except (OSError, ValueError):
        raise UnsupportedError(f"this kernel has no {name}s") from None


def tracepoint_probe(event: str, number: int) -> Probe:
    return Probe(f"tracepoint/{event}", _TRACEPOINT, number)


def open_probe(probe: Probe) -> int:
    """A descriptor of such an event, on all CPUs. No program runs there yet."""
    ffi = libbpf().ffi
    text = ffi.new("char[]", probe.text.encode())
    address = int(ffi.cast("uintptr_t", text)) if probe.text else 0
    words = (probe.config, 0, 0, address, probe.offset)
    return _open(probe.type, words, -1, 0, f"program cannot be attached to {probe.name}")


def run_at(probe: Probe, program: int) -> int:
    """A descriptor: the program runs there, on all CPUs, until it is closed."""
    fd = open_probe(probe)
    try:
        fcntl.ioctl(fd, _SET_PROGRAM, program)
        fcntl.ioctl(fd, _ENABLE, 0)
    except OSError as error:
        os.close(fd)
        libbpf().fail(error.errno or 0, f"program cannot be attached to {probe.name}")
    return fd


class Ticks:
    """A clock on each CPU on which no program runs: all that comes of it is that a timer expires there."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._fds: dict[int, int] = {}

    def start(self, cpu: int) -> None:
        """Anew where the kernel took the event away when the CPU went."""
        self._end(cpu)
        self._fds[cpu] = open_event(CPU_CLOCK, cpu, self._period_ns)

    def _end(self, cpu: int) -> None:
        if cpu in self._fds:
            os.close(self._fds.pop(cpu))

    def close(self) -> None:
        for cpu in list(self._fds):
            self._end(cpu)


def set_period(fd: int, period: int) -> None:
    """Set the period from the next overflow on."""
    fcntl.ioctl(fd, _SET_PERIOD, period.to_bytes(8, "little"))


def most_a_second(path: Path = Path("/proc/sys/kernel/perf_event_max_sample_rate")) -> int:
    """Return how often an event may overflow before it is throttled; the kernel lowers this if handlers are slow."""
    return int(path.read_text())
