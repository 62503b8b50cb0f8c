# SPDX-License-Identifier: Apache-2.0
"""Options and runs of commands that show single events: `wptrace io`, `wptrace host` and `wptrace flow`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Callable

from wptrace.cli import options as common
from wptrace.errors import UsageError

if TYPE_CHECKING:
    from wptrace.cli.diff import Against
    from wptrace.engine.dumps import DumpOptions
    from wptrace.engine.flow import Flow
    from wptrace.engine.session import Session
    from wptrace.engine.workload import Workload


def add_output(parser: argparse.ArgumentParser, show: argparse._ArgumentGroup) -> None:
    common.add_event_options(show)
    common.add_lines(show)
    common.add_capture(show)
    common.add_exports(show)
    show.add_argument("-D", "--per-device", action="store_true", help="a table for each device")
    show.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    common.add_output(show)
    common.add_costs(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be observed and how, then exit")


def add_segments(which: argparse._ArgumentGroup) -> None:
    which.add_argument(
        "--segments", action="store_true", help="events show when they were in which stage, and each of their requests"
    )


def add_waits(which: argparse._ArgumentGroup) -> None:
    which.add_argument(
        "--waits",
        metavar="DURATION",
        help="name what operations waited for, for waits of at least this long (default: 1ms; 0: all waits)",
    )


def require(options: argparse.Namespace) -> common.EventOptions:
    """Check the options of the output before anything is looked up."""
    common.interval(options)
    common.require_one_form(options)
    common.require_captured_alone(options)
    events = common.event_options(options)
    if options.segments and events.slow_ns is None and not events.sample:
        raise UsageError("--segments shows parts of events: it needs --slow, --each or --sample", hint="--slow 5ms")
    common.budget(options)
    common.exports(options)
    if getattr(options, "against", None) is not None and (options.line or options.csv):
        raise UsageError("--against ends with a comparison, which --line and --csv cannot show: choose one")
    return events


def run(
    options: argparse.Namespace,
    flows: Mapping[str, Flow],
    events: common.EventOptions,
    plan: Sequence[str] = (),
    captures: Sequence[str] = (),
    workload: Workload | None = None,
    owners: tuple[str, ...] = (),
    dumps: DumpOptions | None = None,
) -> tuple[int, str]:
    """Flows by their titles; one alone needs none. `plan` is what a dry run says besides.

    Of several, each has one of `captures`, where there is to be any. With a workload the exit code is that one's. Of
    `owners` the user may want the next one, and what is returned besides is by whom a trace should begin anew.
    """
    from wptrace.engine.flow import DeviceFlow
    from wptrace.engine.run import RunOptions
    from wptrace.engine.run import run as trace
    from wptrace.kernel.privileges import require_tracing
    from wptrace.outputs.fanout import FanOut

    seconds, count = common.interval(options)
    several, first = len(flows) > 1, next(iter(flows.values()))
    common.require_stage(options.hist, [kind for flow in flows.values() for kind in flow.kinds])
    require_tracing()
    if options.dry_run and isinstance(first, DeviceFlow):
        print("\n".join([*plan, *first.plan()]))
        return 0, ""
    with common.stream(options, *(captures or [options.capture])) as stream:
        # A screen has room for one.
        live, seconds = (False, seconds) if several else common.live(options, stream, seconds)
        if not live or options.capture is not None or common.exports(options):
            owners = ()
        shown = {"per_device": options.per_device, "hist": options.hist or "", "recorder": dumps is not None}
        against = None if getattr(options, "against", None) is None else _against(options, first)
        if against is not None and seconds is None:
            seconds = common.COLUMN_S
        outputs = [
            common.output(options, stream, flow.view, live=live, title=title if several else "", owners=owners, **shown)
            for title, flow in flows.items()
        ]
        said: set[str] = set()
        for one in filter(None, map(common.as_text, outputs)):
            one.said = said
        keys = None if several else common.controls(outputs[0])
        for at, (flow, file) in enumerate(zip(flows.values(), captures)):
            own = argparse.Namespace(**{**vars(options), "capture": file})
            outputs[at], seconds = common.captured(own, flow, outputs[at], seconds, events.every, **shown)
        if not several:
            outputs[0], seconds = common.captured(options, first, outputs[0], seconds, events.every, **shown)
        text = common.as_text(outputs[0])
        if dumps is not None and text is not None:
            dumps = dumps._replace(asked=text.take_dump, say=text.note)
        if against is not None:
            outputs[0] = FanOut(outputs[0], against.output)
        run_options = RunOptions(
            seconds,
            count,
            options.stats,
            stream.fileno(),
            events.stuck_ns,
            common.budget(options),
            keys,
            live,
            workload,
            dumps,
            _serve(options),
        )
        trace(list(zip(flows.values(), outputs)), run_options)
        again = "" if text is None else text.next_owner
        if against is not None and not again:
            against.write(options, stream)
    return 0 if workload is None else workload.exit_code(), again


def _serve(options: argparse.Namespace) -> Callable[[Session], Callable[[], None]] | None:
    """Bind the metrics address before anything is attached, so that a failure costs nothing."""
    wanted = getattr(options, "prometheus", None)
    if wanted is None:
        return None
    from wptrace.agent.config import address
    from wptrace.agent.endpoint import at, listen
    from wptrace.agent.scrape import serving

    try:
        listening = listen(address(wanted))
    except UsageError as error:
        raise UsageError(f"--prometheus takes {error.message}") from None
    print(f"wptrace: metrics at http://{at(listening)}/metrics", file=sys.stderr, flush=True)
    return serving(listening)


def _against(options: argparse.Namespace, flow: Flow) -> Against:
    from wptrace.cli.diff import Against

    found = Against(options.against)
    found.require(flow.name)
    return found
