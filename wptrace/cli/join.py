# SPDX-License-Identifier: Apache-2.0
"""`wptrace join`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

SUMMARY = "join what a guest saw of its disks with what its host did"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("guest", metavar="GUEST", help="what wptrace io --each --capture wrote in the guest")
    parser.add_argument("host", metavar="HOST", help="what wptrace host --each --capture wrote on its host meanwhile")
    parser.add_argument(
        "--disk",
        action="append",
        default=[],
        metavar="NAME=IMAGE",
        help="which image a disk of the guest is; repeatable (default: the one with the same requests)",
    )
    single = parser.add_mutually_exclusive_group()
    single.add_argument("--slow", metavar="DURATION", help="also show each one that took at least this long (5ms)")
    single.add_argument("--each", action="store_true", help="also show every one")
    common.add_lines(parser)
    parser.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    parser.add_argument("--capture", metavar="FILE", help="also write all of it to FILE, for wptrace replay")
    common.add_exports(parser)
    common.add_output(parser, stats=False)


def run(options: argparse.Namespace) -> int:
    from wptrace.capture.writer import CaptureOutput
    from wptrace.flows.io.joined import JOINED
    from wptrace.tools import join

    common.require_one_form(options)
    common.require_stage(options.hist, (JOINED,))
    common.exports(options)
    common.require_apart(options.capture, options.guest, options.host)
    every = options.each or ((options.line or options.csv) and options.slow is None)
    slow_ns = 0 if every else None if options.slow is None else parse_duration(options.slow)
    named = dict(_named(one) for one in options.disk)
    found = join.read(Path(options.guest), Path(options.host), named)
    shown = {"per_device": True, "hist": options.hist or ""}
    with common.stream(options, options.guest, options.host, options.capture) as stream:
        output = common.output(options, stream, "stages", intervals=False, **shown)
        recorder = None
        if options.capture is not None:
            about = join.about(found, [Path(sys.argv[0]).name, *sys.argv[1:]], shown)
            recorder = CaptureOutput(common.named(options.capture, "--capture"), about)
        join.tell(found, output, recorder, slow_ns)
    return 0


def _named(text: str) -> tuple[str, str]:
    name, equals, image = text.partition("=")
    if not (name and equals and image):
        raise UsageError(f"--disk {text}: it takes a disk of the guest and its image, as vda=/srv/web.img")
    return name, image
