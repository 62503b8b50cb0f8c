# SPDX-License-Identifier: Apache-2.0
"""The program of `loads.hog`: NAME BURST_US GAP_US. It runs from a line on standard input until the end of that."""

from __future__ import annotations

import os
import select
import sys
import time


def main(name: str, burst_us: int, gap_us: int) -> None:
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123 - pathlib is slow to import on an emulated CPU
        comm.write(name)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    print("ready", flush=True)
    sys.stdin.readline()
    bursts = []
    while not select.select([sys.stdin], [], [], gap_us / 1e6)[0]:
        start = now = time.monotonic_ns()
        while now < start + burst_us * 1000:
            now = time.monotonic_ns()
        bursts.append((start, now))
    for start, end in bursts:
        print(start, end)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
