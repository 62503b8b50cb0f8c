# SPDX-License-Identifier: Apache-2.0
"""Counts, in a guest, the instructions that a wait with a reason costs (docs/waits.md).

Two threads read the same pages of a slow disk, so one of them waits for the other one's read.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from tests.kernel.disks import null_device
from tests.kernel.loads import mounted
from tests.kernel.stacks import delayed
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow

_READS = 200
_NEVER = (1 << 63) - 1


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        null_device(memory_backed=1) as below,
        delayed(below, 4, 4) as disk,
        mounted(disk, "ext4", Path(folder) / "mounted") as top,
    ):
        file = top / "file"
        file.write_bytes(bytes(_READS * 4096 * 16))
        os.sync()
        _, without = _run(disk.name, file, _NEVER)
        waits, found = _run(disk.name, file, 0)
    print(f"{(found - without) / waits:,.0f} instructions for each of {waits} waits (Linux {os.uname().release})")


def _run(disk: str, file: Path, least_ns: int) -> tuple[int, int]:
    """Return the number of waits with a reason, and the cost of the programs that see them."""
    fd = os.open(file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    together = threading.Barrier(2)

    def read() -> None:
        for number in range(_READS):
            together.wait()
            os.pread(fd, 4096, number * 4096 * 16)

    flow = PathFlow(Options(devices=(disk,), waits_ns=least_ns))
    try:
        flow.start(Reader())
        flow.begin()
        with run_statistics():
            threads = [threading.Thread(target=read) for _ in range(2)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            took = sum(program.statistics().run_time_ns for program in flow._running.programs)
        counters = flow.snapshot().counters
        return sum(counts["count"] for group, counts in counters.items() if group.kind.name == "waits"), took
    finally:
        flow.close()
        os.close(fd)


if __name__ == "__main__":
    main()
