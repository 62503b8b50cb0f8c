# SPDX-License-Identifier: Apache-2.0
"""`wptrace io`."""

from __future__ import annotations

import argparse
from typing import TextIO

from wptrace.cli import options as common
from wptrace.engine.results import Output
from wptrace.engine.units import parse_duration
from wptrace.errors import UsageError

SUMMARY = "follow block I/O through the kernel, stage by stage"

_LIVE_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    which.add_argument("--level", choices=("block",), default="block", help="how much of the path (default: block)")
    which.add_argument(
        "-d",
        "--dev",
        action="append",
        default=[],
        metavar="DEVICE",
        help="a disk, partition or stack of them: /dev/x, x or MAJ:MIN; repeatable (default: all disks)",
    )
    which.add_argument("-p", "--pid", metavar="PID", help="only requests that this process makes (direct I/O, reads)")
    which.add_argument(
        "--times",
        choices=("auto", "kernel", "own"),
        default="auto",
        help="the kernel's own time stamps (cheapest), times taken by wptrace (exact), or by disk (default: auto)",
    )
    show = parser.add_argument_group("what to show")
    single = show.add_mutually_exclusive_group()
    single.add_argument("--slow", metavar="DURATION", help="also tell each request that took at least so long (5ms)")
    single.add_argument("--each", action="store_true", help="also tell every request")
    show.add_argument("-D", "--per-device", action="store_true", help="a table for each device")
    show.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    show.add_argument("-T", "--timestamps", action="store_true", help="the date with every time of day")
    common.add_output(show)
    parser.add_argument("--ring-size", default="1M", metavar="SIZE", help="room for requests that are told (1M)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be observed and how, and end")


def run(options: argparse.Namespace) -> int:
    from wptrace.flows.io_block import BlockFlow, Options
    from wptrace.flows.run import run as trace
    from wptrace.kernel.privileges import require_tracing
    from wptrace.kernel.tasks import process

    seconds, count = common.interval(options)
    drawn = (*BlockFlow.stages.names, BlockFlow.stages.total.name)
    if options.hist is not None and options.hist not in drawn:
        raise UsageError(f"there is no stage {options.hist}; there are {', '.join(drawn)}")
    slow_ns = 0 if options.each else None if options.slow is None else parse_duration(options.slow)
    pid = 0 if options.pid is None else process(options.pid)
    if pid and options.times == "kernel":
        raise UsageError("--pid needs times of wptrace's own: the kernel's stamps do not tell whose a request is")
    ring = common.size(options.ring_size)
    flow = BlockFlow(Options(tuple(options.dev), slow_ns=slow_ns, ring_bytes=ring, pid=pid, times=options.times))
    require_tracing()
    if options.dry_run:
        print("\n".join(flow.plan()))
        return 0
    with common.stream(options) as stream:
        live = not options.json and stream.isatty()
        if live and seconds is None:
            seconds = _LIVE_S
        trace(flow, _output(options, stream, live), seconds, count, options.stats, stream.fileno())
    return 0


def _output(options: argparse.Namespace, stream: TextIO, live: bool) -> Output:
    if options.json:
        from wptrace.outputs.ndjson import NdjsonOutput

        return NdjsonOutput(stream)
    from wptrace.outputs.terminal import TerminalOutput, View

    return TerminalOutput(stream, View(live, options.per_device, options.timestamps, options.stats, options.hist))
