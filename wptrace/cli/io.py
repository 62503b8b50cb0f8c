# SPDX-License-Identifier: Apache-2.0
"""`wptrace io`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

if TYPE_CHECKING:
    from wptrace.flows.io.block import BlockFlow
    from wptrace.flows.io.path import PathFlow

SUMMARY = "follow reads and writes through the kernel, stage by stage"

_LIVE_S = 1.0
# What a person can take in; --each and --sample have no limit unless one is named.
_SLOW_LIMIT = 1000
_PATH_ONLY = ("sample", "limit", "stuck", "capture")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.flows.io.path import PathFlow

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    which.add_argument(
        "--level",
        choices=("path", "block"),
        default="path",
        help="how much of the way: from the system call on, or the block layer alone, the cheapest (default: path)",
    )
    which.add_argument(
        "-d",
        "--dev",
        action="append",
        default=[],
        metavar="DEVICE",
        help="a disk, partition or stack of them: /dev/x, x or MAJ:MIN; repeatable (default: all disks)",
    )
    common.add_filters(which, PathFlow.filters)
    which.add_argument("--interference", action="store_true", help="also time what took the CPU from operations")
    which.add_argument("--writeback", action="store_true", help="also follow what is written back later, and for whom")
    which.add_argument(
        "--times",
        choices=("auto", "kernel", "own"),
        default="auto",
        help="with --level block: the kernel's own time stamps (cheapest), times taken by wptrace (exact), or by disk "
        "(default: auto)",
    )
    show = parser.add_argument_group("what to show")
    single = show.add_mutually_exclusive_group()
    single.add_argument("--slow", metavar="DURATION", help="also tell each one that took at least so long (5ms)")
    single.add_argument("--each", action="store_true", help="also tell every one")
    show.add_argument("--sample", metavar="1/N", help="also tell one in N, whatever it took")
    show.add_argument(
        "--limit",
        metavar="COUNT",
        help=f"tell so many a second at most, count the others (default: {_SLOW_LIMIT} with --slow, else 0 for all)",
    )
    show.add_argument("--capture", metavar="FILE", help="write what would be told to FILE, for wptrace replay")
    show.add_argument("--stuck", metavar="DURATION", help="list what has been in flight for at least so long")
    show.add_argument("-D", "--per-device", action="store_true", help="a table for each device")
    show.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    show.add_argument("-T", "--timestamps", action="store_true", help="the date with every time of day")
    common.add_output(show)
    parser.add_argument(
        "--budget", metavar="PERCENT", help="do less before the tracing costs more of the busy CPU time (5%%, 0.5%%)"
    )
    parser.add_argument(
        "--ring-size", default="4M", metavar="SIZE", help="room for what is told one by one (default: 4M)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be observed and how, and end")


def run(options: argparse.Namespace) -> int:
    from wptrace.engine.run import run as trace
    from wptrace.kernel.privileges import require_tracing
    from wptrace.model.kind import TOTAL, names

    seconds, count = common.interval(options)
    stuck_ns = None if options.stuck is None else parse_duration(options.stuck)
    budget = None if options.budget is None else common.percent(options.budget, "--budget")
    flow = _block(options) if options.level == "block" else _path(options)
    drawn = (*names(flow.kinds), TOTAL)
    if options.hist is not None and options.hist not in drawn:
        raise UsageError(f"there is no stage {options.hist}; there are {', '.join(drawn)}")
    require_tracing()
    if options.dry_run:
        print("\n".join(flow.plan()))
        return 0
    with common.stream(options, options.capture) as stream:
        live = not options.json and stream.isatty()
        if live and seconds is None:
            seconds = _LIVE_S
        output = common.output(
            options, stream, flow.view, live=live, per_device=options.per_device, hist=options.hist or ""
        )
        trace(flow, output, seconds, count, options.stats, stream.fileno(), stuck_ns, budget)
    return 0


def _block(options: argparse.Namespace) -> BlockFlow:
    from wptrace.engine import filters
    from wptrace.flows.io.block import BlockFlow, Options
    from wptrace.flows.io.path import PathFlow

    taken = {one.name for one in BlockFlow.filters}
    absent = [one.name for one in PathFlow.filters if one.name not in taken]
    unknown = [name for name in (*absent, *_PATH_ONLY) if getattr(options, name) is not None]
    unknown += [name for name in ("interference", "writeback") if getattr(options, name)]
    if unknown:
        raise UsageError(f"--{unknown[0]} needs --level path: the block layer alone does not tell it")
    wanted = filters.parse(vars(options), BlockFlow.filters)
    if wanted and options.times == "kernel":
        raise UsageError("--pid needs times of wptrace's own: the kernel's stamps do not tell whose a request is")
    ring = common.size(options.ring_size)
    return BlockFlow(Options(tuple(options.dev), _slow(options), ring, wanted, options.times))


def _path(options: argparse.Namespace) -> PathFlow:
    from wptrace.engine import filters
    from wptrace.flows.io.path import Options, PathFlow

    if options.times != "auto":
        raise UsageError("--times needs --level block: the whole path always takes its own times")
    limit = common.number(options.limit, "--limit") if options.limit is not None else None
    if limit is None:
        limit = _SLOW_LIMIT if options.slow is not None and options.sample is None else 0
    wanted = Options(
        devices=tuple(options.dev),
        filter=filters.parse(vars(options), PathFlow.filters),
        slow_ns=_slow(options),
        sample=common.sample(options.sample) if options.sample is not None else 0,
        limit=limit,
        interference=options.interference,
        writeback=options.writeback,
        ring_bytes=common.size(options.ring_size),
        capture=None if options.capture is None else common.named(options.capture, "--capture"),
    )
    if wanted.capture is not None and not wanted.telling:
        raise UsageError("--capture takes what is told one by one: name --each, --slow or --sample as well")
    return PathFlow(wanted)


def _slow(options: argparse.Namespace) -> int | None:
    return 0 if options.each else None if options.slow is None else parse_duration(options.slow)
