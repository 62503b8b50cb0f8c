# SPDX-License-Identifier: Apache-2.0
"""Measures in the guest the cost of following a received packet. bench/instructions.py starts it.

A task sends a datagram through veth into another network namespace and reads it there, again and again. The only CPU
does all of that, and its clock counts instructions.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import rig
from bench.guest import closest
from bench.tools import PACKETS, Tool

Found = dict[str, Any]

PACKETS_SENT = 20_000
_NAMESPACE, _NEAR, _FAR = "wpbench", "wpbench0", "wpbench1"
_FAR_ADDRESS, _PORT, _PAYLOAD = "10.9.0.2", 4242, bytes(18)
_CLONE_NEWNET = 0x40000000


class Link(NamedTuple):
    sender: socket.socket
    reader: socket.socket


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--packets", type=int, default=PACKETS_SENT)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    found: Found = {"kernel": os.uname().release, "packets": options.packets, "tools": []}
    with _veth(), _sockets() as link:
        _send(link, 1000)  # once, for what the first use creates
        found["base"] = _least(link, options)
        print(f"untraced: {found['base']:.0f} instructions a packet", flush=True)
        for tool in PACKETS:
            if not options.only or any(word in tool.name for word in options.only):
                found["tools"].append(_tool(tool, link, found["base"], options))
                options.json.write_text(json.dumps(found))
        found["end"] = _least(link, options)
        print(f"untraced at the end: {found['end']:.0f}", flush=True)
        options.json.write_text(json.dumps(found))
    return 0


def _least(link: Link, options: argparse.Namespace) -> float:
    """Return the cost of a packet from the closest repeats, because the kernel sometimes does something else."""
    return closest([_send(link, options.packets) for _ in range(options.repeats + 1)], options.repeats)[0]


def _tool(tool: Tool, link: Link, base: float, options: argparse.Namespace) -> Found:
    running = rig.Running(tool, ())
    try:
        running.hold()
        added = _least(link, options) - base
        running.go_on()
        running.settle()
    finally:
        said = running.end()
    print(f"{tool.name}: {added:+.0f} instructions a packet; it told {said[-300:]}", flush=True)
    return {"name": tool.name, "tells": tool.shows, "added": added, "said": said[-2000:]}


def _send(link: Link, count: int) -> float:
    """Send and receive packets, and return the instructions for each."""
    send, receive = link.sender.send, link.reader.recv
    begin = time.monotonic_ns()
    for _ in range(count):
        send(_PAYLOAD)
        receive(64)
    return (time.monotonic_ns() - begin) / count


@contextmanager
def _sockets() -> Iterator[Link]:
    """A socket of this namespace and one of the other: a socket stays where it was created."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: Path) -> None:
        with path.open() as namespace:
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"{path} cannot be entered")

    with ExitStack() as stack:
        sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        stack.callback(os.close, own)
        enter(Path("/run/netns", _NAMESPACE))
        try:
            reader = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        finally:
            enter(Path(f"/proc/self/fd/{own}"))
        reader.bind((_FAR_ADDRESS, _PORT))
        reader.settimeout(10)
        sender.connect((_FAR_ADDRESS, _PORT))
        yield Link(sender, reader)


@contextmanager
def _veth() -> Iterator[None]:
    subprocess.run(["modprobe", "veth"], check=True)

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    with ExitStack() as stack:
        ip("netns", "add", _NAMESPACE)
        stack.callback(ip, "netns", "delete", _NAMESPACE)
        ip("link", "add", _NEAR, "type", "veth", "peer", "name", _FAR, "netns", _NAMESPACE)
        ip("addr", "add", "10.9.0.1/24", "dev", _NEAR)
        ip("link", "set", _NEAR, "up")
        ip("-n", _NAMESPACE, "addr", "add", f"{_FAR_ADDRESS}/24", "dev", _FAR)
        # A namespace without a loopback device accepts no packets for itself.
        for device in ("lo", _FAR):
            ip("-n", _NAMESPACE, "link", "set", "up", "dev", device)
        yield


if __name__ == "__main__":
    raise SystemExit(main())
