# SPDX-License-Identifier: Apache-2.0
"""`wptrace progs`."""

from __future__ import annotations

import argparse

from wptrace.cli import options as common

SUMMARY = "list the BPF programs and maps on this machine and what they cost"

_INTERVAL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_interval(parser)
    common.add_output(parser, stats=False)


def run(options: argparse.Namespace) -> int:
    from wptrace.kernel.privileges import require_admin, require_tracing
    from wptrace.outputs.progs import ProgsJson, ProgsOutput
    from wptrace.tools.progs import Output, watch

    seconds, count = common.interval(options)
    require_tracing()
    require_admin("the list of BPF programs")
    with common.stream(options) as stream:
        live = not options.json and stream.isatty()
        if seconds is None and count is None and not live:
            count = 1
        output: Output = ProgsJson(stream) if options.json else ProgsOutput(stream, live, options.timestamps)
        watch(output, seconds or _INTERVAL_S, count, stream.fileno())
    return 0
