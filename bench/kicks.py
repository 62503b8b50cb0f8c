# SPDX-License-Identifier: Apache-2.0
"""Counts, in a guest, the instructions that `wptrace host --kicks` adds to calls of all, and of the traced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

_CALLS = 20_000
_TRACED = f"""
import os, time
def each(call):
    begin = time.monotonic_ns()
    for _ in range({_CALLS}):
        call()
    return (time.monotonic_ns() - begin) / {_CALLS}
kick, one = os.eventfd(0), bytes([1] + [0] * 7)
def use():
    os.write(kick, one)
    os.read(kick, 8)
while True:
    input()
    print(each(os.getppid), each(use) / 2, flush=True)
"""


def main() -> None:
    """Let two processes do the same, and trace one of them."""
    words = [sys.executable, "-c", _TRACED]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(words, **pipes) as traced, subprocess.Popen(words, **pipes) as other:  # type: ignore[call-overload]
        for one in (traced, other):
            each(one)  # once, for what the first use creates
        before = [each(one) for one in (traced, other)]
        command = [sys.executable, "-m", "wptrace", "host", "--pid", str(traced.pid), "--kicks", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as tracer:
            assert tracer.stdout is not None
            tracer.stdout.readline()
            found = [each(one) for one in (traced, other)]
            tracer.send_signal(signal.SIGINT)
            summary = json.loads(tracer.stdout.read().splitlines()[-1])
        for one in (traced, other):
            one.kill()
    counted = sum(one["count"] for one in summary["eventfds"])
    assert counted == 2 * _CALLS, counted
    what = ("a call", "a use of an eventfd")
    names = [f"{one} of {whose}" for whose in ("what is traced", "others") for one in what]
    sums = [(old, new) for pair in zip(before, found) for old, new in zip(*pair)]
    for name, (old, new) in zip(names, sums):
        print(f"{name}: {old:,.0f} instructions, {new - old:+,.0f} with --kicks (Linux {os.uname().release})")


def each(one: subprocess.Popen[str]) -> list[float]:
    assert one.stdin is not None
    assert one.stdout is not None
    print(file=one.stdin)
    return [float(word) for word in one.stdout.readline().split()]


if __name__ == "__main__":
    main()
