# SPDX-License-Identifier: Apache-2.0
"""`wptrace cpu`."""

from __future__ import annotations

import argparse

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

SUMMARY = "tell how long tasks wait for a CPU, run on it, and who ran instead"

_LIVE_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.flows.cpu import CpuFlow

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    common.add_filters(which, CpuFlow.filters)
    show = parser.add_argument_group("what to show")
    show.add_argument("--by", choices=("cpu", "process", "thread", "cgroup"), help="a row for each of them")
    show.add_argument("--top", default="20", metavar="N", help="that many rows, longest waits first (20); JSON has all")
    show.add_argument("--slow", metavar="DURATION", help="also tell each wait of at least so long (5ms), and who ran")
    show.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    show.add_argument("-T", "--timestamps", action="store_true", help="the date with every time of day")
    common.add_output(show)
    parser.add_argument("--ring-size", default="256K", metavar="SIZE", help="room for waits that are told (256K)")


def run(options: argparse.Namespace) -> int:
    from wptrace.engine import filters
    from wptrace.engine.run import run as trace
    from wptrace.flows.cpu import CPU, CpuFlow, Options
    from wptrace.kernel.privileges import require_tracing
    from wptrace.model.kind import TOTAL, names

    seconds, count = common.interval(options)
    drawn = (*names(CpuFlow.kinds), TOTAL)
    if options.hist is not None and options.hist not in drawn:
        raise UsageError(f"there is no stage {options.hist}; there are {', '.join(drawn)}")
    if not options.top.isdecimal() or not int(options.top):
        raise UsageError(f"--top takes a whole number above 0, not {options.top!r}")
    slow_ns = None if options.slow is None else parse_duration(options.slow)
    ring = common.size(options.ring_size)
    wanted = filters.parse(vars(options), CpuFlow.filters)
    flow = CpuFlow(Options(options.by or CPU, wanted, slow_ns, ring))
    require_tracing()
    with common.stream(options) as stream:
        live = not options.json and stream.isatty()
        if live and seconds is None:
            seconds = _LIVE_S
        output = common.output(
            options,
            stream,
            flow.view,
            live=live,
            per_device=options.by is not None,
            top=0 if options.json else int(options.top),
            hist=options.hist or "",
        )
        trace(flow, output, seconds, count, options.stats, stream.fileno())
    return 0
