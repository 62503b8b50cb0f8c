# SPDX-License-Identifier: Apache-2.0
"""`wptrace size`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wptrace.cli import options as common

if TYPE_CHECKING:
    from wptrace.flows.size import SizeFlow

SUMMARY = "count the sizes of requests, and how many are sequential"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    common.add_devices(which)
    common.add_memory(which)
    parser.add_argument("-D", "--per-device", action="store_true", help="a table for each device")
    parser.add_argument("--exact", action="store_true", help="a row for each size, however many there are")
    common.add_results(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be observed and how, then exit")


def run(options: argparse.Namespace) -> int:
    common.interval(options)
    (flow,) = flows(options)
    plan = flow.plan if options.dry_run else None
    return common.trace(options, flow, plan=plan, per_device=options.per_device, exact=options.exact)


def flows(options: argparse.Namespace) -> list[SizeFlow]:
    from wptrace.flows.size import SizeFlow

    return [SizeFlow(tuple(options.dev), common.memory(options))]
