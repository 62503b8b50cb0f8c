# SPDX-License-Identifier: Apache-2.0
"""`wptrace iopf`."""

from __future__ import annotations

import argparse

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

SUMMARY = "time the I/O page faults of devices that use a process's addresses"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    which.add_argument(
        "-d",
        "--dev",
        action="append",
        default=[],
        metavar="DEVICE",
        help="a device by its name in sysfs, such as 0000:75:00.0; repeatable (default: all)",
    )
    which.add_argument(
        "--pasid", action="append", default=[], metavar="PASID", help="an address space by its number; repeatable"
    )
    show = parser.add_argument_group("what to show")
    show.add_argument("--hist", default="total", metavar="STAGE", help="whose histogram the summary draws (total)")
    show.add_argument(
        "--stuck", default="1s", metavar="DURATION", help="tell faults without an answer for so long (1s)"
    )
    show.add_argument("-T", "--timestamps", action="store_true", help="the date with every time of day")
    common.add_output(show)


def run(options: argparse.Namespace) -> int:
    from wptrace.engine.run import run as trace
    from wptrace.flows.iopf import IopfFlow, Options
    from wptrace.kernel.privileges import require_tracing
    from wptrace.model.kind import TOTAL, names

    seconds, count = common.interval(options)
    drawn = (*names(IopfFlow.kinds), TOTAL)
    if options.hist not in drawn:
        raise UsageError(f"there is no stage {options.hist}; there are {', '.join(drawn)}")
    stuck_ns = parse_duration(options.stuck)
    flow = IopfFlow(Options(tuple(options.dev), tuple(map(_pasid, options.pasid))))
    require_tracing()
    with common.stream(options) as stream:
        output = common.output(options, stream, flow.view, hist=options.hist)
        trace(flow, output, seconds, count, options.stats, stream.fileno(), stuck_ns)
    return 0


def _pasid(text: str) -> int:
    # It has 20 bits.
    if not text.isascii() or not text.isdecimal() or len(text) > 7 or int(text) >= 1 << 20:
        raise UsageError(f"{text!r} is not a PASID: it is a number below {1 << 20}")
    return int(text)
