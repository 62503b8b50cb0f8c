# SPDX-License-Identifier: Apache-2.0
"""`wptrace join`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

if TYPE_CHECKING:
    from wptrace.capture.writer import CaptureOutput

SUMMARY = "join what a guest saw of its disks with what its host did"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "guest",
        nargs="?",
        metavar="GUEST",
        help="what wptrace io --each --capture wrote in the guest; with --live an interval: seconds between reports",
    )
    parser.add_argument(
        "host",
        nargs="?",
        metavar="HOST",
        help="what wptrace host --each --capture wrote on its host meanwhile; with --live a count: end after this many"
        " reports",
    )
    live = parser.add_argument_group("live, on the host")
    live.add_argument(
        "--live",
        metavar="CHANNEL",
        help="trace the hypervisor here, and read what wptrace io --each --capture writes in the guest: from a unix"
        " socket of the hypervisor, or vsock:CID:PORT of the guest",
    )
    live.add_argument(
        "-p",
        "--pid",
        metavar="PID",
        help="the process that runs the guest (default: the only one here that runs a guest)",
    )
    live.add_argument("--ring-size", default="4M", metavar="SIZE", help="size of the ring for records (default: 4M)")
    parser.add_argument(
        "--disk",
        action="append",
        default=[],
        metavar="NAME=IMAGE",
        help="the image of a disk of the guest; repeatable (default: the one with the same requests)",
    )
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="HOST",
        help="the same host's capture of another guest, with --live that one's PID; repeatable: the verdict names who"
        " used the host's device",
    )
    single = parser.add_mutually_exclusive_group()
    single.add_argument(
        "--slow", metavar="DURATION", help="also show each event that took at least this long, such as 5ms"
    )
    single.add_argument("--each", action="store_true", help="also show every event")
    common.add_lines(parser)
    parser.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    parser.add_argument("--capture", metavar="FILE", help="also write all of it to FILE, for wptrace replay")
    common.add_exports(parser)
    common.add_output(parser, stats=False)


def run(options: argparse.Namespace) -> int:
    from wptrace.flows.io.guests.joined import JOINED

    common.require_one_form(options)
    common.require_stage(options.hist, (JOINED,))
    named = dict(_named(one) for one in options.disk)
    if options.live is not None:
        return _live(options, named)
    if options.pid is not None:
        raise UsageError("--pid needs --live: a capture names its process itself")
    if options.guest is None or options.host is None:
        raise UsageError("join takes two captures, of a guest and of its host", hint="wptrace join GUEST HOST")
    return _files(options, named)


def _files(options: argparse.Namespace, named: Mapping[str, str]) -> int:
    from wptrace.tools import join

    others = [options.guest, options.host, *options.beside]
    for written in (options.capture, *(str(path) for _, path in common.exports(options))):
        common.require_apart(written, *others)
    slow_ns = _slow(options)
    found = join.read(Path(options.guest), Path(options.host), named, list(map(Path, options.beside)))
    shown = {"per_device": True, "hist": options.hist or ""}
    with common.stream(options, *others, options.capture) as stream:
        output = common.output(options, stream, "stages", intervals=False, **shown)
        join.show(found, output, _recorder(options, shown, began_ns=found.began_ns), slow_ns)
    return 0


def _live(options: argparse.Namespace, named: Mapping[str, str]) -> int:
    from wptrace.capture.channel import Channel
    from wptrace.cli import host
    from wptrace.engine.run import RunOptions
    from wptrace.engine.run import run as trace
    from wptrace.kernel.privileges import require_tracing
    from wptrace.tools.live import LiveJoin

    options.interval, options.count = options.guest, options.host
    options.guest = options.host = None
    seconds, count = common.interval(options)
    common.exports(options)
    channel = Channel(options.live)
    slow_ns = _slow(options)
    events = common.EventOptions(slow_ns=0, sample=0, limit=0, stuck_ns=None)
    flows = [host.flow(options, events, guest) for guest in host.first_and_others(options)]
    require_tracing()
    shown = {"per_device": True, "hist": options.hist or ""}
    with common.stream(options, options.capture) as stream, ExitStack() as cleanup:
        output = common.output(options, stream, "stages", intervals=seconds is not None, **shown)
        recorder = _recorder(options, shown, seconds is not None)
        cleanup.callback(channel.close)
        live = LiveJoin(channel, named, output, recorder, slow_ns)
        others = [(flow, live.of_other_guest()) for flow in flows[1:]]
        # The other ones end first: what they had is known when this one sums up.
        trace(
            [*others, (flows[0], live)],
            RunOptions(
                common.paced(options, seconds, recorder is not None), count, watch_fd=stream.fileno(), controls=live
            ),
        )
    if live.trouble is not None:
        raise live.trouble
    return 0


def _slow(options: argparse.Namespace) -> int | None:
    every = options.each or ((options.line or options.csv) and options.slow is None)
    return 0 if every else None if options.slow is None else parse_duration(options.slow)


def _recorder(
    options: argparse.Namespace, shown: Mapping[str, Any], intervals: bool = False, began_ns: int | None = None
) -> CaptureOutput | None:
    """The capture of the join, which begins when the guest's did."""
    from wptrace.capture.writer import About, CaptureOutput
    from wptrace.flows.io.guests.joined import JOINED

    if options.capture is None:
        return None
    about = About("stages", (JOINED,), each=True, intervals=intervals, shown=shown, began_ns=began_ns, clocks=False)
    return CaptureOutput(common.named(options.capture, "--capture"), about)


def _named(text: str) -> tuple[str, str]:
    name, equals, image = text.partition("=")
    if not (name and equals and image):
        raise UsageError(f"--disk {text}: it takes a disk of the guest and its image, as vda=/srv/web.img")
    return name, image
