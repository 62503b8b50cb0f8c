# SPDX-License-Identifier: Apache-2.0
"""`wptrace join`."""

from __future__ import annotations

import argparse
from pathlib import Path

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

SUMMARY = "join what a guest saw of its disks with what its host did"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("guest", metavar="GUEST", help="what wptrace io --each --json wrote in the guest")
    parser.add_argument("host", metavar="HOST", help="what wptrace host --each --json wrote on its host meanwhile")
    parser.add_argument(
        "--disk",
        action="append",
        default=[],
        metavar="NAME=IMAGE",
        help="which image a disk of the guest is; repeatable (default: the one of which the same was asked)",
    )
    single = parser.add_mutually_exclusive_group()
    single.add_argument("--slow", metavar="DURATION", help="also show each one that took at least this long (5ms)")
    single.add_argument("--each", action="store_true", help="also show every one")
    common.add_lines(parser)
    parser.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    common.add_output(parser, stats=False)


def run(options: argparse.Namespace) -> int:
    from wptrace.flows.io import lines
    from wptrace.flows.io.joined import JOINED, Join

    common.require_one_form(options)
    common.require_stage(options.hist, (JOINED,))
    every = options.each or ((options.line or options.csv) and options.slow is None)
    slow_ns = 0 if every else None if options.slow is None else parse_duration(options.slow)
    named = dict(_named(one) for one in options.disk)
    join = Join(lines.read(Path(options.guest)), lines.read(Path(options.host)), named)
    with common.stream(options, options.guest, options.host) as stream:
        output = common.output(options, stream, "stages", per_device=True, hist=options.hist or "")
        output.start(join.start())
        for event in join.events:
            if slow_ns is not None and event.total_ns >= slow_ns:
                output.event(event)
        output.summary(join.summary())
        output.close()
    return 0


def _named(text: str) -> tuple[str, str]:
    name, equals, image = text.partition("=")
    if not (name and equals and image):
        raise UsageError(f"--disk {text}: it takes a disk of the guest and its image, as vda=/srv/web.img")
    return name, image
