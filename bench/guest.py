# SPDX-License-Identifier: Apache-2.0
"""Measures in the guest what each tool adds to a request. bench/instructions.py starts it."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import rig
from bench.instructions import RESOLUTION
from bench.tools import ALL_LOADS, CAPTURE, Tool, chosen

Found = dict[str, Any]

# So many runs more, until some agree.
_MORE = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--load", action="append", default=[], choices=ALL_LOADS, help="these alone; repeatable")
    parser.add_argument("--requests", type=int, default=rig.REQUESTS)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    found: Found = {"kernel": os.uname().release, "requests": options.requests, "base": {}, "tools": []}
    with rig.loads() as (loads, disks):
        wanted = {name for tool in chosen(options.only) for name in tool.loads}
        loads = [load for load in loads if load.name in wanted.intersection(options.load or ALL_LOADS)]
        for load in loads:
            rig.fio(load, options.requests)  # once, for what is made at the first use
            runs = [rig.fio(load, options.requests) for _ in range(options.repeats)]
            found["base"][load.name] = _run(runs)
            _say(f"base {load.name}", found["base"][load.name])
        for tool in chosen(options.only):
            begin = time.monotonic()
            try:
                one = _tool(tool, loads, disks, found["base"], options)
            except (RuntimeError, OSError, AssertionError) as error:
                one = {"name": tool.name, "tells": tool.shows, "failed": str(error)[-400:]}
                print(f"{tool.name}: FAILED: {error}", flush=True)
            one["seconds"] = time.monotonic() - begin
            found["tools"].append(one)
            options.json.write_text(json.dumps(found))
        found["end"] = {}
        for load in loads:
            found["end"][load.name] = _run([rig.fio(load, options.requests)])
            change = found["end"][load.name]["latency"][0] - found["base"][load.name]["latency"][0]
            _say(f"base {load.name} at the end ({change:+.1f})", found["end"][load.name])
        options.json.write_text(json.dumps(found))
    return 0


def _tool(tool: Tool, loads: Sequence[rig.Load], disks: Sequence[str], base: Found, options: Any) -> Found:
    running = rig.Running(tool, disks)
    one: Found = {"name": tool.name, "tells": tool.shows, "peer": tool.peer, "loads": {}}
    try:
        one["idle_per_s"] = running.idle_rate()
        for load in loads:
            if load.name in tool.loads:
                one["loads"][load.name] = _added(tool, running, load, base[load.name], one["idle_per_s"], options)
                _say(f"{tool.name} | {load.name}", one["loads"][load.name])
    finally:
        said = running.end()
        Path(CAPTURE).unlink(missing_ok=True)
    one["said"] = said[-2000:]
    if tool.streams and tool.per_line:
        made = sum(len(each["latency"]) for name, each in one["loads"].items() if name != "none") * options.requests
        reported = (
            json.loads(said.splitlines()[-1])["overhead"]["records"] if tool.captures else said.count(tool.per_line)
        )
        one["untold"] = max(0.0, 1 - reported / made)
    print(f"{tool.name}: idle {one['idle_per_s']:.0f} instructions/s; it told {_reported(said)}", flush=True)
    return one


def _added(tool: Tool, running: rig.Running, load: rig.Load, base: Found, idle_rate: float, options: Any) -> Found:
    runs: list[rig.Run] = []
    reader: list[float] = []
    while not _enough(tool, runs, options.repeats):
        if tool.waits:
            running.hold()
        begin, before = time.monotonic(), running.cpu_ns()
        runs.append(rig.fio(load, options.requests))
        if tool.waits:
            begin = time.monotonic()
            running.go_on()
        if tool.streams:
            running.settle()
            idle = idle_rate * (time.monotonic() - begin)
            reader.append((running.cpu_ns() - before - idle) / options.requests)
    found = _run(runs)
    if tool.waits:
        found["added"] = [value - min(base["latency"]) for value in closest(found["latency"], options.repeats)]
    else:
        # Its reader takes the CPU while requests are under way, so their times mean nothing. The CPU time has the start
        # of fio in it, which is not always the same: the worst run is left out.
        found["added"] = [value - min(base["cpu"]) for value in sorted(found["cpu"])[: options.repeats]]
    found["reader"] = reader
    return found


def _enough(tool: Tool, runs: Sequence[rig.Run], repeats: int) -> bool:
    """Now and then the kernel does something else for some milliseconds. So it is measured until repeats agree."""
    if not tool.waits:
        # It disturbs its load by chance.
        return len(runs) > repeats
    best = closest([run.latency for run in runs], repeats)
    return len(runs) >= repeats + _MORE or (len(runs) >= repeats and best[-1] - best[0] <= RESOLUTION)


def closest(values: Sequence[float], count: int) -> list[float]:
    """So many of them that differ least."""
    found = sorted(values)
    groups = [found[at : at + count] for at in range(max(len(found) - count, 0) + 1)]
    return min(groups, key=lambda group: group[-1] - group[0] if group else 0)


def _run(runs: Sequence[rig.Run]) -> Found:
    return {"cpu": [run.cpu for run in runs], "latency": [run.latency for run in runs]}


def _reported(said: str) -> str:
    """So that a tool that saw nothing is noticed."""
    lines = said.splitlines()
    try:
        summary = json.loads(lines[-1])
        counts = {name: summary[name] for name in ("requests", "operations", "loss") if summary.get(name)}
        return json.dumps(counts)[:300] + f" in {len(lines)} lines"
    except (ValueError, IndexError, TypeError, KeyError):
        return f"{len(lines)} lines, {len(said)} bytes"


def _say(name: str, found: Found) -> None:
    parts = [
        f"{key} {' '.join(f'{value:+.1f}' if 'added' in key else f'{value:.1f}' for value in values)}"
        for key, values in found.items()
        if values
    ]
    print(f"{name:<45} {'  '.join(parts)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
