# SPDX-License-Identifier: Apache-2.0
"""`wptrace size`."""

from __future__ import annotations

import argparse

from wptrace.cli import options as common

SUMMARY = "count the sizes of requests, and how many are sequential"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_interval(parser)
    parser.add_argument(
        "-d",
        "--dev",
        action="append",
        default=[],
        metavar="DEVICE",
        help="a disk, partition or stack of them: /dev/x, x or MAJ:MIN; repeatable (default: all disks)",
    )
    parser.add_argument("-D", "--per-device", action="store_true", help="a table for each device")
    parser.add_argument("--exact", action="store_true", help="a row for each size, however many there are")
    parser.add_argument("-T", "--timestamps", action="store_true", help="the date with every time of day")
    common.add_output(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be observed and how, and end")


def run(options: argparse.Namespace) -> int:
    from wptrace.engine.run import run as trace
    from wptrace.flows.size import SizeFlow
    from wptrace.kernel.privileges import require_tracing

    seconds, count = common.interval(options)
    flow = SizeFlow(tuple(options.dev))
    require_tracing()
    if options.dry_run:
        print("\n".join(flow.plan()))
        return 0
    with common.stream(options) as stream:
        output = common.output(options, stream, flow.view, per_device=options.per_device, exact=options.exact)
        trace(flow, output, seconds, count, options.stats, stream.fileno())
    return 0
