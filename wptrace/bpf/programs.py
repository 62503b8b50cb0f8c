# SPDX-License-Identifier: Apache-2.0
"""BPF programs: which of them load, where they attach, what they cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple

from wptrace.bpf import perf, targets
from wptrace.bpf.lib import libbpf
from wptrace.bpf.targets import Target
from wptrace.errors import WptraceError

_BPF_STATS_RUN_TIME = 0
INSTRUCTION = 8
"""Bytes."""


class Statistics(NamedTuple):
    """The kernel's counters of a program. Runs and time stay 0 unless `run_statistics` are on."""

    id: int
    run_count: int
    run_time_ns: int
    recursion_misses: int
    verified_instructions: int
    translated_bytes: int


class Link:
    """A program attached to a hook, until it is closed (or the process ends, in whatever way)."""

    def __init__(self, handle: Any, where: str) -> None:
        self._handle = handle
        self.where = where

    def close(self) -> None:
        if self._handle is not None:
            libbpf().lib.bpf_link__destroy(self._handle)
            self._handle = None


class Program:
    def __init__(self, handle: Any) -> None:
        self._libbpf = libbpf()
        self._lib = self._libbpf.lib
        self._handle = handle
        self.name: str = self._libbpf.ffi.string(self._lib.bpf_program__name(handle)).decode()
        self.section: str = self._libbpf.ffi.string(self._lib.bpf_program__section_name(handle)).decode()
        self.links: list[Link] = []
        self.target: Target | None = None
        """The target of a fentry, fexit or tp_btf program, if it is known before the load."""
        self._event: tuple[perf.Event, int, tuple[int, ...]] | None = None
        self._on_cpus: dict[int, tuple[int, Link]] = {}
        self._in_files: Sequence[Callable[[], perf.InFile]] = ()
        self._on_return = False

    @property
    def autoload(self) -> bool:
        return bool(self._lib.bpf_program__autoload(self._handle))

    @autoload.setter
    def autoload(self, load: bool) -> None:
        result = self._lib.bpf_program__set_autoload(self._handle, load)
        self._libbpf.check(result, f"autoload of program {self.name} cannot change after the load")

    @property
    def address(self) -> int:
        return int(self._libbpf.ffi.cast("uintptr_t", self._handle))

    @property
    def traces_types(self) -> bool:
        return self.section.partition("/")[0] in targets.KINDS

    @property
    def fd(self) -> int:
        fd = int(self._lib.bpf_program__fd(self._handle))
        if fd < 0:
            raise WptraceError(f"program {self.name} is not loaded")
        return fd

    @property
    def instructions(self) -> int:
        return int(self._lib.bpf_program__insn_cnt(self._handle))

    @property
    def code(self) -> bytes:
        """Its instructions: after the load those that the kernel got, with the descriptors of maps in them."""
        start = self._lib.bpf_program__insns(self._handle)
        return bytes(self._libbpf.ffi.buffer(start, self.instructions * INSTRUCTION))

    def run(self) -> None:
        """Run a program of the section `syscall` once."""
        options = self._libbpf.ffi.new("struct bpf_test_run_opts *")
        options.sz = self._libbpf.ffi.sizeof("struct bpf_test_run_opts")
        self._libbpf.check(self._lib.bpf_prog_test_run_opts(self.fd, options), f"program {self.name} cannot run")

    def run_on(self, event: perf.Event, period: int, cpus: Iterable[int]) -> None:
        """Says what a program of the section `perf_event` attaches to: an event on each of these CPUs."""
        self._event = (event, period, tuple(cpus))
        self.section = f"perf_event/{event.name}"

    def run_in(self, files: Sequence[Callable[[], perf.InFile]], on_return: bool) -> None:
        """Says where a program of the section `uprobe` attaches: instructions, each in a file that is opened for it."""
        self._in_files, self._on_return = files, on_return

    def attach(self) -> Link:
        """Attaches to what the program's section name says, or `run_on` or `run_in`."""
        if self._event is not None:
            return [self.attach_cpu(cpu) for cpu in self._event[2]][-1]
        if self._in_files:
            return [self._attach_in(opened) for opened in self._in_files][-1]
        attach = self._lib.bpf_program__attach_trace if self.traces_types else self._lib.bpf_program__attach
        return self._keep(attach(self._handle), self.section)

    def attach_perf_event(self, fd: int) -> Link:
        """Runs the program on each overflow of the perf event `fd`, which the link owns, or is closed if it cannot."""
        try:
            return self._keep(self._lib.bpf_program__attach_perf_event(self._handle, fd), f"perf_event/{fd}")
        except WptraceError:
            os.close(fd)
            raise

    def attach_cpu(self, cpu: int) -> Link:
        """Attaches to the event of `run_on` on one CPU; anew where the kernel took it away when the CPU went."""
        if self._event is None:
            raise WptraceError(f"program {self.name} runs on no event")
        event, period, _ = self._event
        if cpu in self._on_cpus:
            _, old = self._on_cpus.pop(cpu)
            old.close()
            self.links.remove(old)
        fd = perf.open_event(event, cpu, period, pinned=True)
        link = self.attach_perf_event(fd)
        self._on_cpus[cpu] = (fd, link)
        return link

    def _attach_in(self, opened: Callable[[], perf.InFile]) -> Link:
        place = opened()
        try:
            fd = perf.open_probe(perf.file_probe(self.section, place, self._on_return))
        finally:
            os.close(place.fd)
        return self.attach_perf_event(fd)

    def set_period(self, cpu: int, period: int) -> None:
        """Set the period of the event on a CPU to which the program is attached."""
        if cpu in self._on_cpus:
            perf.set_period(self._on_cpus[cpu][0], period)

    def _keep(self, handle: Any, where: str) -> Link:
        link = Link(self._libbpf.pointer(handle, f"program {self.name} cannot be attached to {where}"), where)
        self.links.append(link)
        return link

    def statistics(self) -> Statistics:
        return statistics_of(self.fd, self.name)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.links.clear()
        self._on_cpus.clear()


def statistics_of(fd: int, name: str) -> Statistics:
    lib = libbpf()
    info = lib.ffi.new("struct bpf_prog_info *")
    size = lib.ffi.new("__u32 *", lib.ffi.sizeof("struct bpf_prog_info"))
    lib.check(lib.lib.bpf_obj_get_info_by_fd(fd, info, size), f"the kernel says nothing about program {name}")
    return Statistics(
        info.id, info.run_cnt, info.run_time_ns, info.recursion_misses, info.verified_insns, info.xlated_prog_len
    )


@contextmanager
def run_statistics() -> Iterator[None]:
    """Let the kernel count runs and run time of all programs while this is open. It costs some 20 ns a run."""
    lib = libbpf()
    fd = lib.check(lib.lib.bpf_enable_stats(_BPF_STATS_RUN_TIME), "run-time statistics cannot be switched on")
    try:
        yield
    finally:
        os.close(fd)
