# SPDX-License-Identifier: Apache-2.0
"""Measures, in the guest, what each hook of `wptrace io` adds, by elimination. bench/instructions.py starts it.

Each hook is attached alone, and each is left out of all the others. A flow that lacks a hook follows less, so the parts
do not add up to the whole; both figures together show where the cost is.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

from bench import rig
from bench.tools import ALL_LOADS, OWN_TIMES
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.flows.io import block as io_block
from wptrace.flows.io import options as io_options
from wptrace.flows.io import path as io_path

Found = dict[str, Any]
Flow = Union[io_path.PathFlow, io_block.BlockFlow]
_FEW = 500


class Mode(NamedTuple):
    name: str
    flow: type[Flow]
    options: dict[str, Any]
    loads: tuple[str, ...] = ALL_LOADS


MODES = (
    Mode("io", io_path.PathFlow, {}),
    Mode("io --interference", io_path.PathFlow, {"interference": True}),
    Mode("io --slow 1s", io_path.PathFlow, {"slow_ns": 10**9}),
    Mode(OWN_TIMES, io_block.BlockFlow, {"times": "own"}, ("inline", "late")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--requests", type=int, default=rig.REQUESTS)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    found: Found = {"kernel": os.uname().release, "requests": options.requests, "modes": []}
    with rig.loads() as (loads, disks):
        base = {}
        for load in loads:
            rig.fio(load, options.requests)
            base[load.name] = rig.fio(load, options.requests).latency
        print(f"{'':<60}" + "".join(f"{load.name:>10}" for load in loads), flush=True)
        _say("untraced", base, loads, "")
        for mode in MODES:
            if not options.only or mode.name in options.only:
                found["modes"].append(_mode(mode, loads, disks, base, options.requests))
                options.json.write_text(json.dumps(found))
    return 0


def _mode(mode: Mode, loads: Sequence[rig.Load], disks: Sequence[str], base: dict[str, float], requests: int) -> Found:
    loads = [load for load in loads if load.name in mode.loads]

    def added(keep: Collection[str] | None, tracing: bool = True) -> dict[str, float]:
        flow = mode.flow(_options(mode, disks))
        try:
            flow.start(Reader())
            flow.begin()
            running = flow._running
            if keep is not None:
                for program in running.programs:
                    if program.name not in keep:
                        program.close()
            if not tracing:
                running.obj.bss.tracing = running.obj.bss.operating = False
            return {load.name: rig.fio(load, requests).latency - base[load.name] for load in loads}
        finally:
            flow.close()

    flow = mode.flow(_options(mode, disks))
    try:
        flow.start(Reader())
        flow.begin()
        attempts = flow._running.attempts
        hooks = {hook.name: attempts.chosen[hook.id].programs for hook in attempts.hooks if hook.id in attempts.chosen}
        with run_statistics():
            for load in loads:
                rig.fio(load, _FEW)
            ran = {program.name for program in flow._running.programs if program.statistics().run_count}
    finally:
        flow.close()
    every = {program for programs in hooks.values() for program in programs}
    whole = added(None)
    found: Found = {"name": mode.name, "whole": whole, "hooks": []}
    # What these loads do not reach costs nothing, and need not be measured one by one.
    found["unreached"] = [hook for hook, programs in hooks.items() if not ran & set(programs)]
    print(f"\n{mode.name}", flush=True)
    _say("all hooks", whole, loads)
    if mode.flow is io_path.PathFlow:
        found["off"] = added(None, tracing=False)
        _say("all hooks, told to trace nothing", found["off"], loads)
    for hook, programs in hooks.items():
        if hook in found["unreached"]:
            continue
        alone = added(programs)
        _say(f"{hook}: alone ({', '.join(programs)})", alone, loads)
        rest = added(every - set(programs))
        without = {name: whole[name] - rest[name] for name in rest}
        _say(f"{hook}: less without it", without, loads)
        found["hooks"].append({"hook": hook, "programs": programs, "alone": alone, "without": without})
    return found


def _options(mode: Mode, disks: Sequence[str]) -> Any:
    kind = io_options.Options if mode.flow is io_path.PathFlow else io_block.Options
    return kind(devices=tuple(disks), **mode.options)


def _say(name: str, figures: dict[str, float], loads: Sequence[rig.Load], sign: str = "+") -> None:
    print(f"{name[:88]:<90}" + "".join(f"{figures[load.name]:>{sign}10.0f}" for load in loads), flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
