# SPDX-License-Identifier: Apache-2.0
"""`wptrace iopf`."""

from __future__ import annotations

import argparse

from wptrace.cli import options as common
from wptrace.model.units import parse_duration

SUMMARY = "time the I/O page faults of devices that use a process's addresses"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.flows.iopf import IopfFlow

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    common.add_filters(which, IopfFlow.filters)
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--hist", default="total", metavar="STAGE", help="draw the histogram of this stage (default: total)"
    )
    show.add_argument(
        "--stuck", default="1s", metavar="DURATION", help="show faults without an answer for this long (default: 1s)"
    )
    common.add_results(show)


def run(options: argparse.Namespace) -> int:
    from wptrace.engine import filters
    from wptrace.flows.iopf import IopfFlow

    common.interval(options)
    common.require_stage(options.hist, IopfFlow.kinds)
    stuck_ns = parse_duration(options.stuck)
    flow = IopfFlow(filters.parse(vars(options), IopfFlow.filters))
    return common.trace(options, flow, stuck_ns=stuck_ns, hist=options.hist)
