# SPDX-License-Identifier: Apache-2.0
"""Instructions that tracing adds to a request, in a guest whose clock counts them: the same on every machine."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab import peers

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT / "build" / "bench"
RESOLUTION = 50.0
"""Runs that differ by no more agree: interrupts of the clock fall where they fall."""
_READERS = 0.05
"""So far may a reader be off: it looks at its ring when it gets to it, and how much there is then differs."""
_LIMIT_S = 5400
_number = itertools.count()

Found = dict[str, Any]


def measure(kernel: str, only: Sequence[str], requests: int, repeats: int) -> Found:
    """All tools in one boot."""
    peers.fetch(peers.ALL)  # the guest has no network
    words = [word for name in only for word in ("--only", name)]
    return _guest(kernel, "bench.guest", [*words, "--requests", str(requests), "--repeats", str(repeats)])


def breakdown(kernel: str, only: Sequence[str], requests: int) -> Found:
    words = [word for name in only for word in ("--only", name)]
    return _guest(kernel, "bench.breakdown", [*words, "--requests", str(requests)])


def packets(kernel: str, only: Sequence[str]) -> Found:
    """Instructions added by following a received packet."""
    peers.fetch(peers.ALL)
    return _guest(kernel, "bench.packets", [word for name in only for word in ("--only", name)])


def _guest(kernel: str, module: str, words: Sequence[str]) -> Found:
    SHARED.mkdir(parents=True, exist_ok=True)
    output = SHARED / f"{module.rpartition('.')[2]}-{os.getpid()}-{next(_number)}.json"
    output.unlink(missing_ok=True)
    lab = [sys.executable, "-m", "tests.lab", "run", "--kernel", kernel, "--icount=off", "--timeout", str(_LIMIT_S)]
    inside = [sys.executable, "-m", module, "--json", str(output), *words]
    # What was measured before a guest died is of use.
    subprocess.run([*lab, "--share", str(SHARED), "--", *inside], cwd=ROOT, check=False)
    if not output.exists():
        raise SystemExit(f"bench: the guest of {kernel} measured nothing")
    found: Found = json.loads(output.read_text())
    return found


def figures(run: Found) -> dict[tuple[str, str], Found]:
    """Return by tool and load what it adds to a request, what its reader takes, and how far repeats are apart."""
    found = {}
    for tool in run["tools"]:
        for load, one in tool.get("loads", {}).items():
            values = one["added"]
            found[tool["name"], load] = {
                "added": sum(values) / len(values),
                "reader": sum(one["reader"]) / len(one["reader"]) if one["reader"] else 0.0,
                "spread": max(values) - min(values),
                "reader_spread": max(one["reader"]) - min(one["reader"]) if one["reader"] else 0.0,
            }
    return found


def disagreements(run: Found) -> list[str]:
    """Repeats, and the runs without a tool before and after all others, that differ by more than the resolution."""
    found = []
    for (tool, load), one in figures(run).items():
        if one["spread"] > RESOLUTION:
            found.append(f"{tool}, {load}: repeats differ by {one['spread']:.0f} instructions")
        if load != "none" and one["reader_spread"] > max(RESOLUTION, _READERS * one["reader"]):
            found.append(f"{tool}, {load}: its reader differs by {one['reader_spread']:.0f} instructions")
    for load, base in run["base"].items():
        values = base["latency"] + run.get("end", {}).get(load, {}).get("latency", [])
        if max(values) - min(values) > RESOLUTION:
            found.append(f"untraced, {load}: runs differ by {max(values) - min(values):.0f} instructions")
    return found


def differences(first: Found, second: Found) -> list[str]:
    """Two boots."""
    a, b = figures(first), figures(second)
    found = []
    for key in a.keys() & b.keys():
        change = abs(a[key]["added"] - b[key]["added"])
        if change > RESOLUTION:
            found.append(f"{', '.join(key)}: {a[key]['added']:.0f} and {b[key]['added']:.0f} instructions")
    return sorted(found)
