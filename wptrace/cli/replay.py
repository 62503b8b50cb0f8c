# SPDX-License-Identifier: Apache-2.0
"""`wptrace replay`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from wptrace.cli import options as common
from wptrace.model.results import Output
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
        output = _output(options, stream)
        output.start(found.start())
        for batch in found.requests():
            for request in batch:
                if request.total_ns >= slow_ns:
                    output.request(request)
        output.close()
    return 0


def _output(options: argparse.Namespace, stream: TextIO) -> Output:
    if options.json:
        from wptrace.outputs.ndjson import NdjsonOutput

        return NdjsonOutput(stream)
    from wptrace.outputs.text.terminal import TerminalOutput, View

    return TerminalOutput(stream, View(False, True, options.timestamps, False, None))
