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
    from wptrace.model.report import Event, Output
    from wptrace.outputs.logfile import LogFile

SUMMARY = "find periods in which a CPU runs with interrupts off"

# A period that lasts so long is told before it ends.
_HUNG_NS = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    which.add_argument(
        "--min", default="10ms", metavar="DURATION", help="periods of at least so long (10ms; 1ms or more)"
    )
    which.add_argument("--cpu", metavar="LIST", help="only these CPUs, such as 0-3,8 (default: all)")
    which.add_argument(
        "--counter",
        choices=("auto", "cycles", "none"),
        default="auto",
        help="stacks from inside a period, by NMIs of a counter of cycles: where it works, by all means, or not at all",
    )
    which.add_argument("-d", "--duration", metavar="DURATION", help="end after so long (1m, 90s)")
    show = parser.add_argument_group("what to show")
    show.add_argument("--log", metavar="FILE", help="also append each period to FILE, which is rotated at 10 MiB")
    show.add_argument("-T", "--timestamps", action="store_true", help="the date with every time of day")
    common.add_output(show)


def run(options: argparse.Namespace) -> int:
    from wptrace.engine.run import run as trace
    from wptrace.flows.irqoff import IrqoffFlow, Options
    from wptrace.kernel.privileges import require_tracing
    from wptrace.outputs.logfile import LogFile

    seconds, count = _ends(options)
    flow = IrqoffFlow(Options(parse_duration(options.min), options.counter, _cpus(options.cpu)))
    require_tracing()
    log = LogFile(common.named(options.log, "--log")) if options.log is not None else None
    with common.stream(options, options.log) as stream:
        trace(flow, _output(options, stream, log), seconds, count, options.stats, stream.fileno(), _HUNG_NS)
    return 0


def _ends(options: argparse.Namespace) -> tuple[float | None, int | None]:
    """The interval and how many of them; a duration alone is one interval, which the summary stands for."""
    seconds, count = common.interval(options)
    if options.duration is None:
        return seconds, count
    duration = parse_duration(options.duration, default_unit="s") / NS_PER["s"]
    if duration <= 0:
        raise UsageError(f"a duration of {options.duration} is none")
    if count is not None:
        raise UsageError("COUNT and --duration both say when to end: leave one of them out")
    return (duration, 1) if seconds is None else (seconds, math.ceil(duration / seconds))


def _cpus(text: str | None) -> tuple[int, ...]:
    from wptrace.kernel.cpus import ranges

    if text is None:
        return ()
    try:
        found = tuple(dict.fromkeys(ranges(text)))
    except ValueError:
        found = ()
    if not found:
        raise UsageError(f"{text!r} is not a list of CPUs such as 0-3,8")
    return found


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
        # Whoever opens it next week wants to know which day it was.
        return [encoded(line_of(event, event.group.fields))] if options.json else Columns(dates=True).lines(event)

    return FanOut(LogOutput(log, lines), shown)
