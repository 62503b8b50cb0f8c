# SPDX-License-Identifier: Apache-2.0
"""A program that runs on a cycle counter of each CPU, so often by the real clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wptrace.bpf import perf
from wptrace.bpf.programs import Program

# The first guess: on a faster CPU the program runs too often, until that was seen.
CYCLES_PER_NS = 1
# No CPU is so slow that it would take longer for them than a tick of the scheduler.
_FEWEST = 10_000


def run_on_cycles(program: Program, every_ns: int, cpus: Iterable[int]) -> None:
    """Before the load: says what the program will attach to."""
    program.run_on(perf.CYCLES, every_ns * CYCLES_PER_NS, cpus)


class Paced:
    def __init__(self, program: Program, every_ns: int, cpus: Iterable[int]) -> None:
        self._program = program
        self._every_ns = every_ns
        self._cycles = dict.fromkeys(cpus, every_ns * CYCLES_PER_NS)

    def attach(self, cpu: int) -> None:
        """Anew, after the CPU was away."""
        self._program.attach_cpu(cpu)
        self._cycles[cpu] = self._every_ns * CYCLES_PER_NS

    def follow(self, spacing_ns: Mapping[int, int]) -> None:
        """CPUs differ in speed and change it: `spacing_ns` is the time that the cycles took on a CPU that was busy."""
        for cpu, cycles in self._cycles.items():
            spacing = spacing_ns.get(cpu, 0)
            if spacing and not self._every_ns // 2 < spacing < self._every_ns * 2:
                self._cycles[cpu] = max(cycles * self._every_ns // spacing, _FEWEST)
                self._program.set_period(cpu, self._cycles[cpu])

    def close(self) -> None:
        self._program.close()
