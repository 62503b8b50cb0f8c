# SPDX-License-Identifier: Apache-2.0
"""`wptrace host`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wptrace.cli import options as common
from wptrace.cli import tracing
from wptrace.errors import UsageError

if TYPE_CHECKING:
    from wptrace.flows.io.path import PathFlow
    from wptrace.kernel.guests import Guest

SUMMARY = "follow what QEMU and similar programs read and write for a guest"

# How many guests are listed, and how many traced: each has programs and tables of its own.
_NAMED, _TRACED = 8, 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    who = which.add_mutually_exclusive_group()
    who.add_argument(
        "-p",
        "--pid",
        metavar="PID",
        help="the process that runs the guest (default: the only one here that runs a guest)",
    )
    who.add_argument(
        "--all", action="store_true", help="every process here that runs a guest, each with its own reports"
    )
    which.add_argument("--interference", action="store_true", help="also time what took the CPU from operations")
    tracing.add_segments(which)
    which.add_argument(
        "--kicks", action="store_true", help="also show which threads write and read the eventfds of a guest's kicks"
    )
    show = parser.add_argument_group("what to show")
    tracing.add_output(parser, show)


def run(options: argparse.Namespace) -> int:
    from wptrace.outputs.text.words import printable

    events = tracing.require(options)
    found = _guests(options)
    if len(found) > 1:
        _require_one(options)
    flows = {printable(f"{guest.name} {guest.pid}"): flow(options, events, guest) for guest in found}
    captures = [_named(options.capture, guest) for guest in found] if len(found) > 1 and options.capture else []
    code, _ = tracing.run(options, flows, events, [printable(_shown(guest)) for guest in found], captures)
    return code


def _named(file: str, guest: Guest) -> str:
    """Each has a capture of its own: host.wpt of process 4711 is host-4711.wpt."""
    front, dot, end = file.rpartition(".")
    return f"{front}-{guest.pid}.{end}" if dot and "/" not in end and front else f"{file}-{guest.pid}"


def first_and_others(options: argparse.Namespace) -> list[Guest]:
    """The one that --pid names, or the only one, and those of --beside."""
    from wptrace.kernel import guests, tasks

    found = _guests(options) + [guests.read(tasks.process(pid)) for pid in options.beside]
    if len({guest.pid for guest in found}) < len(found):
        raise UsageError("--beside names other guests than --pid, each once")
    if len(found) > _TRACED:
        raise UsageError(f"{len(found)} guests are more than the {_TRACED} that can be traced at once")
    return found


def _guests(options: argparse.Namespace) -> list[Guest]:
    from wptrace.kernel import guests, tasks

    if options.pid is not None:
        return [guests.read(tasks.process(options.pid))]
    found = [guests.read(pid) for pid in guests.find()]
    if not found:
        raise UsageError(
            "no process here runs a guest: none has /dev/kvm open or the name of a hypervisor", hint="--pid PID"
        )
    every = getattr(options, "all", False)
    if len(found) > (_TRACED if every else 1):
        more = " ..." if len(found) > _NAMED else ""
        raise UsageError(
            f"{len(found)} processes here run guests: {'; '.join(map(_shown, found[:_NAMED]))}{more}",
            hint=f"--pid {found[0].pid} or --all" if not every and "all" in options else f"--pid {found[0].pid}",
        )
    return found


def _require_one(options: argparse.Namespace) -> None:
    """Refuse outputs that have room for one guest only."""
    if common.exports(options):
        raise UsageError("a report or an export is of one guest: there are several", hint="--pid names one")
    if options.line or options.csv:
        raise UsageError("--line and --csv do not distinguish guests: there are several", hint="--pid names one")


def _shown(guest: Guest) -> str:
    images = ", ".join(image.path for image in guest.images)
    return f"{guest.pid} {guest.name}: {images or 'no image of a disk that is known'}"


def flow(options: argparse.Namespace, events: common.EventOptions, guest: Guest) -> PathFlow:
    from wptrace.engine.filters import Filter
    from wptrace.flows.io.options import FILE, TOP, Options
    from wptrace.flows.io.path import PathFlow

    return PathFlow(
        Options(
            filter=Filter(pid=guest.pid),
            slow_ns=events.slow_ns,
            sample=events.sample,
            limit=events.limit,
            interference=getattr(options, "interference", False),
            segments=getattr(options, "segments", False),
            by=FILE,
            top=TOP,
            ring_bytes=common.ring(options, events),
            guest=guest,
            kicks=getattr(options, "kicks", False),
        )
    )
