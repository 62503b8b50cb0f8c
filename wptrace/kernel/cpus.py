# SPDX-License-Identifier: Apache-2.0
"""CPUs by sysfs."""

from __future__ import annotations

import os
from pathlib import Path

from wptrace.kernel import procfs

SYS = Path("/sys")
PROC = Path("/proc")

# Far beyond what kernels are built for (CONFIG_NR_CPUS).
_MOST = 1 << 16


def online(sys: Path = SYS) -> list[int]:
    return ranges((sys / "devices" / "system" / "cpu" / "online").read_text())


def ranges(text: str) -> list[int]:
    """The numbers of `0-3,8`; raises ValueError where it is none, or of CPUs that no kernel has."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if int(last or first) >= _MOST or len(found) > _MOST:
            raise ValueError(f"no machine has a CPU {last or first}")
        found += range(int(first), int(last or first) + 1)
    return found


def hypervisor(proc: Path = PROC) -> bool:
    """Whether the CPUs say that they are virtual; those of arm64 do not say."""
    flags = next((line for line in procfs.lines(proc / "cpuinfo") if line.startswith(b"flags")), b"")
    return b"hypervisor" in flags.split()


def stolen(proc: Path = PROC) -> int:
    """What a hypervisor took of all CPUs since the start, in ticks of 10 ms; also 0 if it does not report any."""
    words = (proc / "stat").read_text().split(maxsplit=9)
    return int(words[8])


def busy_ns(proc: Path = PROC) -> int:
    """How long all CPUs worked since the start, handlers of interrupts included; to the tick, which is 10 ms."""
    words = (proc / "stat").read_text().split(maxsplit=9)
    user, nice, system, _, _, irq, softirq = map(int, words[1:8])
    return (user + nice + system + irq + softirq) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
