# SPDX-License-Identifier: Apache-2.0
"""In the guest: what following a received packet costs. bench/instructions.py starts it.

The kernel's pktgen sends datagrams through veth into another network namespace as fast as it can, where IP drops
them. One CPU does all of that, and its clock counts instructions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import rig
from bench.guest import closest
from bench.tools import PACKETS, Tool

Found = dict[str, Any]

PACKETS_SENT = 20_000
_PKTGEN = Path("/proc/net/pktgen")
_NAMESPACE, _NEAR, _FAR = "wpbench", "wpbench0", "wpbench1"
_RESULT = re.compile(r"Result: OK: (\d+)\([^)]*\) usec, (\d+) ")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--packets", type=int, default=PACKETS_SENT)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    found: Found = {"kernel": os.uname().release, "packets": options.packets, "tools": []}
    with _veth():
        _send(1000)  # once, for what is made at the first use
        found["base"] = _least(options)
        print(f"untraced: {found['base']:.0f} instructions a packet", flush=True)
        for tool in PACKETS:
            if not options.only or any(word in tool.name for word in options.only):
                found["tools"].append(_tool(tool, found["base"], options))
                options.json.write_text(json.dumps(found))
        found["end"] = _least(options)
        print(f"untraced at the end: {found['end']:.0f}", flush=True)
        options.json.write_text(json.dumps(found))
    return 0


def _least(options: argparse.Namespace) -> float:
    """Now and then the kernel does something else."""
    return closest([_send(options.packets) for _ in range(options.repeats + 1)], options.repeats)[0]


def _tool(tool: Tool, base: float, options: argparse.Namespace) -> Found:
    running = rig.Running(tool, ())
    try:
        running.hold()
        added = _least(options) - base
        running.go_on()
        running.settle()
    finally:
        said = running.end()
    print(f"{tool.name}: {added:+.0f} instructions a packet; it told {said[-300:]}", flush=True)
    return {"name": tool.name, "tells": tool.tells, "added": added, "said": said[-2000:]}


def _send(count: int) -> float:
    """Instructions a packet."""
    (_PKTGEN / _NEAR).write_text(f"count {count}\n")
    (_PKTGEN / "pgctrl").write_text("start\n")
    done = _RESULT.search((_PKTGEN / _NEAR).read_text())
    if done is None or int(done[2]) != count:
        raise RuntimeError("pktgen did not send what it was told")
    return int(done[1]) * 1000 / count


@contextmanager
def _veth() -> Iterator[None]:
    for module in ("veth", "pktgen"):
        subprocess.run(["modprobe", module], check=True)

    def ip(*words: str) -> str:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

    with ExitStack() as stack:
        ip("netns", "add", _NAMESPACE)
        stack.callback(ip, "netns", "delete", _NAMESPACE)
        ip("link", "add", _NEAR, "type", "veth", "peer", "name", _FAR, "netns", _NAMESPACE)
        ip("addr", "add", "10.9.0.1/24", "dev", _NEAR)
        ip("link", "set", _NEAR, "up")
        up = "link", "set", "up", "dev"
        for words in (("addr", "add", "10.9.0.2/24", "dev", _FAR), (*up, _FAR)):
            ip("-n", _NAMESPACE, *words)
        (far,) = json.loads(ip("-j", "-n", _NAMESPACE, "link", "show", _FAR))
        thread = _PKTGEN / "kpktgend_0"
        thread.write_text(f"add_device {_NEAR}\n")
        stack.callback(thread.write_text, "rem_device_all\n")
        for line in (
            "pkt_size 60",
            "delay 0",
            "dst 10.9.0.2",
            "src_min 10.9.0.1",
            "src_max 10.9.0.1",
            "udp_dst_min 9",
            "udp_dst_max 9",
            f"dst_mac {far['address']}",
        ):
            (_PKTGEN / _NEAR).write_text(f"{line}\n")
        yield


if __name__ == "__main__":
    raise SystemExit(main())
