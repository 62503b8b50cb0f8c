# SPDX-License-Identifier: Apache-2.0
"""The cost that each step of `--budget` leaves: run time and runs of the programs for a request, under fio.

It reads from the device: sudo .venv/bin/python bench/budget.py DEVICE [ROUNDS]
"""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import time

from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.flows.io.options import Options
from wptrace.flows.io.parts.shed import PathShedder
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import REQUESTS

SECONDS = 1.0


def counted(flow: PathFlow, shedder: PathShedder) -> tuple[int, int, int]:
    ran = [program.statistics() for program in shedder.programs()]
    finished = flow.snapshot().books[REQUESTS].finished
    return sum(one.run_time_ns for one in ran), sum(one.run_count for one in ran), finished


def measured(flow: PathFlow, shedder: PathShedder, reader: Reader) -> tuple[float, float]:
    """Return nanoseconds and runs for a request."""
    before = counted(flow, shedder)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        reader.drain()
        flow.events()
        time.sleep(0.005)
    spent, runs, requests = (now - then for now, then in zip(counted(flow, shedder), before))
    return (spent / requests, runs / requests) if requests else (0.0, 0.0)


def main() -> None:
    device, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    logging.basicConfig(level=logging.CRITICAL)
    load = [
        "fio", "--name=load", f"--filename={device}", "--rw=randread", "--bs=4k", "--direct=1", "--ioengine=psync",
        "--norandommap", "--time_based", "--runtime=1d", "--size=32M",
    ]  # fmt: skip
    flow = PathFlow(Options((device,), interference=True, slow_ns=0))
    reader = Reader()
    results: dict[str, list[tuple[float, float]]] = {}
    with run_statistics(), subprocess.Popen(load, stdout=subprocess.DEVNULL) as fio:
        try:
            flow.start(reader)
            flow.begin()
            shedder = flow.shedder()
            time.sleep(SECONDS)
            for _ in range(rounds):
                results.setdefault("everything", []).append(measured(flow, shedder, reader))
                for step in shedder.steps:
                    shedder.shed(step)
                    name = f"{step.kind} 1/{step.one_in}" if step.one_in else str(step.kind)
                    results.setdefault(name, []).append(measured(flow, shedder, reader))
                for step in reversed(shedder.steps):
                    shedder.restore(step)
            flow.stop()
        finally:
            fio.terminate()
            flow.close()
    for name, found in results.items():
        spent, runs = (statistics.median(column) for column in zip(*found))
        print(f"{name:14} {spent:6.0f} ns, {runs:4.1f} runs a request")


if __name__ == "__main__":
    main()
