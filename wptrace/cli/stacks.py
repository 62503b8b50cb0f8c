# SPDX-License-Identifier: Apache-2.0
"""`wptrace stacks`."""

from __future__ import annotations

import argparse
import re
from functools import partial

from wptrace.cli import options as common
from wptrace.errors import UsageError
from wptrace.model.units import parse_duration

SUMMARY = "show which stacks start block I/O, how much, and how long it takes"

_TOP = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.flows.stacks import StacksFlow

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    common.add_devices(which)
    common.add_filters(which, StacksFlow.filters)
    which.add_argument(
        "--min", metavar="DURATION", help="charge stacks only with I/O that took at least this long, such as 5ms"
    )
    which.add_argument("--user", action="store_true", help="also the stack of the process, below that of the kernel")
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--top", metavar="N", help=f"this many stacks, by their time; 0 shows all (default: {_TOP}, all as JSON)"
    )
    show.add_argument("--folded", choices=("time", "count"), help="a line for each stack, for flame graphs: ns or I/Os")
    show.add_argument("-D", "--per-device", action="store_true", help="separate stacks for each device")
    common.add_results(show)
    parser.add_argument("--dry-run", action="store_true", help="say what would be observed and how, then exit")


def run(options: argparse.Namespace) -> int:
    from wptrace.engine import filters
    from wptrace.flows.stacks import Options, StacksFlow

    common.interval(options)
    if options.folded and options.json:
        raise UsageError("--folded and --json are two output formats: choose one")
    if options.top is not None and not re.fullmatch(r"[0-9]{1,9}", options.top):
        raise UsageError(f"{options.top!r} is not a number of stacks")
    min_ns = 0 if options.min is None else parse_duration(options.min)
    wanted = filters.parse(vars(options), StacksFlow.filters)
    flow = StacksFlow(Options(tuple(options.dev), wanted, min_ns, options.user))
    folded = partial(common.folded, options, view=flow.view, per_device=options.per_device)
    return common.trace(
        options,
        flow,
        folded if options.folded else None,
        flow.plan if options.dry_run else None,
        all_rows=options.json and options.top is None,
        per_device=options.per_device,
        top=_TOP if options.top is None else int(options.top),
    )
