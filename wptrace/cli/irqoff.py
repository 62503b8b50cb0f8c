# SPDX-License-Identifier: Apache-2.0
"""`wptrace irqoff`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import NS_PER, parse_duration

if TYPE_CHECKING:
    from wptrace.flows.irqoff import IrqoffFlow
    from wptrace.model.report import Event, Output
    from wptrace.outputs.logfile import LogFile

SUMMARY = "find periods in which a CPU runs with interrupts off"

# A period that lasts this long is shown before it ends.
_HUNG_NS = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.flows.irqoff import IrqoffFlow

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    which.add_argument(
        "--min",
        default="10ms",
        metavar="DURATION",
        help="periods of at least this long (default: 10ms, minimum: 1ms)",
    )
    common.add_filters(which, IrqoffFlow.filters)
    which.add_argument(
        "--counter",
        choices=("auto", "cycles", "none"),
        default="auto",
        help="take stacks inside a period, by NMIs of a cycle counter: if that works, always, or never",
    )
    which.add_argument("-d", "--duration", metavar="DURATION", help="end after this long, such as 90s")
    show = parser.add_argument_group("what to show")
    show.add_argument("--log", metavar="FILE", help="also append each period to FILE, which is rotated at 10 MiB")
    common.add_results(show)


def run(options: argparse.Namespace) -> int:
    from wptrace.engine.run import RunOptions
    from wptrace.engine.run import run as trace
    from wptrace.kernel.privileges import require_tracing
    from wptrace.outputs.logfile import LogFile

    seconds, count = _ends(options)
    (flow,) = flows(options)
    path = None if options.log is None else common.named(options.log, "--log")
    if options.capture is not None and path is not None:
        raise UsageError("--log and --capture both write the periods to a file: choose one")
    require_tracing()
    log = None if path is None else LogFile(path)
    with common.stream(options, options.log or options.capture) as stream:
        output, seconds = common.captured(options, flow, _output(options, stream, log), seconds, each=True)
        trace([(flow, output)], RunOptions(seconds, count, options.stats, stream.fileno(), _HUNG_NS))
    return 0


def flows(options: argparse.Namespace) -> list[IrqoffFlow]:
    from wptrace.engine import filters
    from wptrace.flows.irqoff import IrqoffFlow, Options

    wanted = filters.parse(vars(options), IrqoffFlow.filters)
    return [IrqoffFlow(Options(parse_duration(options.min), options.counter, wanted))]


def _ends(options: argparse.Namespace) -> tuple[float | None, int | None]:
    """The interval and how many of them; a duration alone is one interval, which the summary stands for."""
    seconds, count = common.interval(options)
    if options.duration is None:
        return common.paced(options, seconds), count
    duration = parse_duration(options.duration, default_unit="s") / NS_PER["s"]
    if duration <= 0:
        raise UsageError(f"--duration takes a time above 0, not {options.duration}")
    if count is not None:
        raise UsageError("COUNT and --duration both say when to end: leave one of them out")
    seconds = min(common.paced(options, seconds) or duration, duration)
    return seconds, math.ceil(duration / seconds)


def _output(options: argparse.Namespace, stream: TextIO, log: LogFile | None) -> Output:
    from wptrace.flows.irqoff import IrqoffFlow
    from wptrace.outputs.fanout import FanOut
    from wptrace.outputs.json_line import encoded
    from wptrace.outputs.log import LogOutput
    from wptrace.outputs.ndjson import line_of
    from wptrace.outputs.text.periods import Columns

    shown = common.output(options, stream, IrqoffFlow.view, intervals=options.interval is not None)
    if log is None:
        return shown

    def lines(event: Event) -> Iterable[str]:
        # A reader next week wants to know which day it was.
        return [encoded(line_of(event, event.group.fields))] if options.json else Columns(dates=True).lines(event)

    return FanOut(LogOutput(log, lines), shown)
