# SPDX-License-Identifier: Apache-2.0
"""`wptrace size`."""

from __future__ import annotations

import argparse
from typing import TextIO

from wptrace.cli import options as common
from wptrace.model.results import Output

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
        trace(flow, _output(options, stream), seconds, count, options.stats, stream.fileno())
    return 0


def _output(options: argparse.Namespace, stream: TextIO) -> Output:
    if options.json:
        from wptrace.outputs.ndjson import NdjsonOutput

        return NdjsonOutput(stream)
    from wptrace.outputs.text.size import SizeOutput, View

    return SizeOutput(stream, View(options.per_device, options.timestamps, options.stats, options.exact))
