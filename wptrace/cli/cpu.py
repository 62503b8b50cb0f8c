# SPDX-License-Identifier: Apache-2.0
"""`wptrace cpu`."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

if TYPE_CHECKING:
    from wptrace.flows.cpu import CpuFlow

SUMMARY = "show how long tasks wait for a CPU, run on it, and who ran instead"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.flows.cpu import CpuFlow

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    common.add_filters(which, CpuFlow.filters)
    show = parser.add_argument_group("what to show")
    show.add_argument("--by", choices=("cpu", "process", "thread", "cgroup"), help="a row for each of them")
    show.add_argument(
        "--top", default="20", metavar="N", help="this many rows, longest waits first (default: 20); JSON has all"
    )
    show.add_argument(
        "--slow", metavar="DURATION", help="also show each wait of at least this long, such as 5ms, and who ran"
    )
    show.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    common.add_results(show)
    parser.add_argument(
        "--ring-size", default="256K", metavar="SIZE", help="size of the ring buffer for waits (default: 256K)"
    )


def run(options: argparse.Namespace) -> int:
    from wptrace.flows.cpu import CpuFlow

    common.interval(options)
    common.require_stage(options.hist, CpuFlow.kinds)
    if not re.fullmatch(r"[0-9]{1,9}", options.top) or not int(options.top):
        raise UsageError(f"--top takes a whole number above 0, not {options.top!r}")
    (flow,) = flows(options)
    return common.trace(
        options,
        flow,
        screen=True,
        all_rows=options.json,
        per_device=options.by is not None,
        hist=options.hist or "",
        top=int(options.top),
    )


def flows(options: argparse.Namespace) -> list[CpuFlow]:
    from wptrace.engine import filters
    from wptrace.flows.cpu import CPU, CpuFlow, Options

    slow_ns = None if options.slow is None else parse_duration(options.slow)
    ring = common.size(options.ring_size)
    return [CpuFlow(Options(options.by or CPU, filters.parse(vars(options), CpuFlow.filters), slow_ns, ring))]
