# SPDX-License-Identifier: Apache-2.0
"""CPUs by sysfs, and a barrier for all of them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from wptrace.kernel import procfs

SYS = Path("/sys")
PROC = Path("/proc")

# Far beyond what kernels are built for (CONFIG_NR_CPUS).
_MOST = 1 << 16


def online(sys: Path = SYS) -> list[int]:
    return ranges((sys / "devices" / "system" / "cpu" / "online").read_text())


def possible(sys: Path = SYS) -> list[int]:
    """In the order of the values of a per-CPU map. Numbers in between may be of no CPU."""
    return ranges((sys / "devices" / "system" / "cpu" / "possible").read_text())


def numbers(sys: Path = SYS) -> int:
    """The length of an array whose index is the number of a CPU."""
    return possible(sys)[-1] + 1


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
    """Return the steal time of all CPUs since boot, in ticks of 10 ms; also 0 if the hypervisor does not report any."""
    words = (proc / "stat").read_text().split(maxsplit=9)
    return int(words[8])


def busy_ns(proc: Path = PROC) -> int:
    """Return how long all CPUs have worked since boot, interrupts included, in ticks of 10 ms."""
    words = (proc / "stat").read_text().split(maxsplit=9)
    user, nice, system, _, _, irq, softirq = map(int, words[1:8])
    return (user + nice + system + irq + softirq) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine)
_GLOBAL = 1  # MEMBARRIER_CMD_GLOBAL: as synchronize_rcu(), so programs that ran are over as well


def barrier() -> None:
    """Make all earlier writes of any CPU visible here. A kernel without the call gets the time of a system call."""
    if _MEMBARRIER is not None:
        ctypes.CDLL(None).syscall(_MEMBARRIER, _GLOBAL, 0, 0)
