# SPDX-License-Identifier: Apache-2.0
"""`wptrace replay`."""

from __future__ import annotations

import argparse
from pathlib import Path

from wptrace.cli import options as common
from wptrace.model.units import parse_duration

SUMMARY = "tell what wptrace io --capture wrote to a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what wptrace io --capture wrote")
    parser.add_argument("--slow", metavar="DURATION", help="only those that took at least so long (5ms)")
    parser.add_argument("-T", "--timestamps", action="store_true", help="the date with every time of day")
    parser.add_argument("-j", "--json", action="store_true", help="one JSON object a line")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of the terminal")


def run(options: argparse.Namespace) -> int:
    from wptrace.flows.io.capture import replay

    slow_ns = 0 if options.slow is None else parse_duration(options.slow)
    with replay(Path(options.file)) as found, common.stream(options, options.file) as stream:
        output = common.output(options, stream, "stages", per_device=True)
        output.start(found.start())
        for batch in found.events():
            for event in batch:
                if event.total_ns >= slow_ns:
                    output.event(event)
        output.close()
    return 0
