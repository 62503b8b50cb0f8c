# SPDX-License-Identifier: Apache-2.0
"""`wptrace io`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from wptrace.cli import options as common
from wptrace.cli import recorder, tracing
from wptrace.errors import UsageError, WptraceError
from wptrace.model.units import parse_duration

if TYPE_CHECKING:
    from wptrace.engine.definition.unit import Unit
    from wptrace.engine.workload import Workload
    from wptrace.flows.io.block import BlockFlow
    from wptrace.flows.io.path import PathFlow

SUMMARY = "follow reads and writes through the kernel, stage by stage"

_PATH_ONLY = ("sample", "limit", "stuck", "by", "unit", "program", "statement_text", "waits")
_NEED_OPERATIONS = {"file": "which file it is of", "dir": "which file it is of", "segments": "what it is made of"}
_PATH_SWITCHES = ("interference", "writeback", "neighbours", "children", "segments")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.analysis.statements import TEXTS
    from wptrace.flows.io.options import BY, FILTERS, LEVELS, TOP

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    which.add_argument(
        "--level",
        choices=LEVELS,
        help="what to follow: the path from the system call on; requests alone, with their owners and the tasks that "
        "sleep for them; or the block layer alone, the cheapest (default: path, or request where path would cost too "
        "much)",
    )
    common.add_devices(which, ", or a path on NFS, FUSE and the like")
    common.add_memory(which)
    common.add_filters(which, FILTERS)
    which.add_argument("--children", action="store_true", help="with --pid: also processes that it starts, or started")
    which.add_argument("--interference", action="store_true", help="also time what took the CPU from operations")
    which.add_argument(
        "--writeback", action="store_true", help="also follow what is written back later, by who wrote it"
    )
    which.add_argument("--by", choices=BY, help="also show rows by owner")
    which.add_argument(
        "--unit",
        metavar="NAME|FILE.toml",
        help="with --by unit: what a unit of work is, by name (mariadb) or definition",
    )
    which.add_argument("--program", metavar="PATH", help="with --unit: the file of its program, such as /proc/PID/exe")
    which.add_argument(
        "--statement-text",
        choices=TEXTS,
        help="with --by statement or unit: texts without literals, in full, or a number for each (default: normalised)",
    )
    which.add_argument(
        "--neighbours",
        action="store_true",
        help="also show who used the device while others waited (default: --by cgroup)",
    )
    tracing.add_waits(which)
    tracing.add_segments(which)
    which.add_argument(
        "--times",
        choices=("auto", "kernel", "own"),
        default="auto",
        help="with --level block: the kernel's own time stamps (cheapest), times taken by wptrace (exact), or by disk "
        "(default: auto)",
    )
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--top", metavar="COUNT", help=f"with --by: this many owners, the others in one row (default: {TOP}; 0: all)"
    )
    tracing.add_output(parser, show)
    show.add_argument(
        "--against", metavar="FILE", help="end with what differs from this capture, as wptrace diff shows it"
    )
    show.add_argument(
        "--prometheus",
        metavar="ADDRESS",
        help="also serve metrics to Prometheus at this address, such as 127.0.0.1:9435",
    )
    recorder.add(parser, "an operation", "operation and request")
    parser.set_defaults(workload=None)
    parser.epilog = (
        "With -- COMMAND at the end: run a command, and trace it and all that it starts until it ends. wptrace exits "
        "with its exit code; results go to standard error or to the FILE of -o."
    )


def run(options: argparse.Namespace) -> int:
    events = _require(options)
    if options.level == "block" and options.workload:
        raise UsageError("a command to run needs --level path or request: the block layer does not know what it starts")
    with _workload(options) as workload:
        dumps = recorder.dumps(options)
        if options.level == "block":
            code, _ = tracing.run(options, {"": _block(options, events)}, events, dumps=dumps)
            return code
        # Mistakes in the options are reported first.
        by = _by(options)
        flow = _path(options, events, by)
        why, plan = "", []
        if _may_follow_requests(options, flow):
            from wptrace.flows.io import calls

            plan = [calls.PLAN]
            # To count calls, programs are attached.
            why = "" if options.dry_run else _why_requests()
        if why:
            options.level = "request"
            flow = _path(options, events, by, why)
        while True:
            owners = _owners(options, by)
            code, again = tracing.run(options, {"": flow}, events, plan, workload=workload, owners=owners, dumps=dumps)
            if not again:
                return code
            options.by = again
            by = _by(options)
            flow = _path(options, events, by, why)


def flows(options: argparse.Namespace) -> list[PathFlow | BlockFlow]:
    """Without a run: what the options say of it."""
    events = _require(options)
    if options.level == "block":
        return [_block(options, events)]
    return [_path(options, events, options.by or ("cgroup" if options.neighbours else ""))]


def _require(options: argparse.Namespace) -> common.EventOptions:
    from wptrace.flows.io.options import UNIT
    from wptrace.model.kind import TEXTS

    if options.level != "block":
        if options.statement_text is not None and options.by not in TEXTS:
            raise UsageError("--statement-text needs --by statement or unit: it says how these are shown")
        if options.by == UNIT and options.unit is None:
            raise UsageError("--by unit needs --unit: it says what a unit of work is")
        if options.unit is not None and options.by != UNIT:
            raise UsageError("--unit needs --by unit: it says what a unit of work is")
        if options.program is not None and options.unit is None:
            raise UsageError("--program needs --unit: it is the program of its definition")
    return tracing.require(options)


@contextmanager
def _workload(options: argparse.Namespace) -> Iterator[Workload | None]:
    """The command that stands after `--`, of which the process becomes that of --pid."""
    if options.workload is None:
        yield None
        return
    if options.pid is not None or options.tid is not None:
        raise UsageError("--pid and --tid name another process than the command after --: use one of them")
    if options.count is not None:
        raise UsageError("the trace ends when the command does: use it without COUNT")
    from wptrace.engine.workload import Workload
    from wptrace.kernel.privileges import require_tracing

    require_tracing()
    workload = Workload(options.workload)
    options.pid, options.children = str(workload.pid), True
    try:
        yield workload
    finally:
        workload.close()


def _block(options: argparse.Namespace, events: common.EventOptions) -> BlockFlow:
    from wptrace.engine import filters
    from wptrace.flows.io.block import BlockFlow, Options
    from wptrace.flows.io.options import FILTERS

    accepted = {one.name for one in BlockFlow.filters}
    absent = [one.name for one in FILTERS if one.name not in accepted]
    unknown = [name for name in (*absent, *_PATH_ONLY) if getattr(options, name) is not None]
    unknown += [name for name in _PATH_SWITCHES if getattr(options, name)]
    if unknown:
        name = unknown[0].replace("_", "-")
        which = "path" if unknown[0] in dict(_for_operations(options)) else "path or request"
        raise UsageError(f"--{name} needs --level {which}: the block layer alone does not show it")
    wanted = filters.parse(vars(options), BlockFlow.filters)
    if wanted and options.times == "kernel":
        raise UsageError("--pid needs wptrace's own times: the kernel's stamps do not name a process")
    return BlockFlow(
        Options(
            tuple(options.dev),
            events.slow_ns,
            common.memory(options),
            common.ring(options, events),
            wanted,
            recorder=recorder.size(options),
            recorder_slow_ns=recorder.slow_ns(options),
            times=options.times,
        )
    )


def _for_operations(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Generate the given options that requests alone cannot answer, each with the reason."""
    from wptrace.engine.filters.operation import OF_OPERATIONS

    for name, what in _NEED_OPERATIONS.items():
        if getattr(options, name):
            yield name, f"only an operation says {what}"
    if options.op in OF_OPERATIONS:
        yield "op", f"only an operation is a {options.op}"


def _may_follow_requests(options: argparse.Namespace, flow: PathFlow) -> bool:
    """Whether nobody asked for a level, and requests alone answer what was asked."""
    return not (options.level or flow.is_remote or any(_for_operations(options)))


def _why_requests() -> str:
    """Count system calls, and return why to follow requests alone; empty where there is no need to, or no way."""
    from wptrace.flows.io import calls

    # The start reports what the kernel does not permit.
    with suppress(WptraceError):
        if calls.are_all_that_is_left() and (price := calls.price()).is_high:
            return price.words
    return ""


def _by(options: argparse.Namespace) -> str:
    """Return the kind of owners that have rows; a screen shows processes."""
    from wptrace.flows.io.options import CGROUP, PROCESS

    is_live = options.output is None and common.is_live(options, sys.stdout)
    return options.by or (CGROUP if options.neighbours else PROCESS if is_live else "")


def _owners(options: argparse.Namespace, by: str) -> tuple[str, ...]:
    """The owners that a key leads to, the present one first."""
    from wptrace.flows.io.options import BY, CGROUP, COMM, DEVICE, DIR, FILE, PROCESS, THREAD
    from wptrace.model.kind import TEXTS

    order = [PROCESS, CGROUP, FILE, THREAD, COMM, DIR]
    # Statements and units are for who has such a program.
    absent = {DEVICE if options.neighbours else "", *(one for one in TEXTS if one != by)}
    order += [one for one in BY if one not in order and one not in absent]
    at = order.index(by) if by else 0
    return (*order[at:], *order[:at]) if by else ()


def _unit(options: argparse.Namespace) -> Unit:
    from wptrace.engine.definition import unit

    found = unit.find(options.unit)
    return found if options.program is None else found._replace(program=options.program)


def _path(options: argparse.Namespace, events: common.EventOptions, by: str, why: str = "") -> PathFlow:
    from wptrace.analysis.statements import NORMALISED
    from wptrace.engine import filters
    from wptrace.flows.io.options import DEVICE, FILTERS, TOP, UNIT, WAITS_NS, Options
    from wptrace.flows.io.path import PathFlow

    if options.times != "auto":
        raise UsageError("--times needs --level block: the whole path always takes its own times")
    if options.top is not None and not by:
        raise UsageError("--top needs --by: it says how many owners are shown")
    if options.neighbours and by == DEVICE:
        raise UsageError(
            "--neighbours shows who had a device, and --by device names no owner", hint="--by cgroup or process"
        )
    if options.children and options.pid is None:
        raise UsageError("--children needs --pid: it adds the children of that process")
    if options.level == "request":
        for name, why in _for_operations(options):
            value = f" {options.op}" if name == "op" else ""
            raise UsageError(f"--{name}{value} needs --level path: {why}")
    wanted = Options(
        devices=tuple(options.dev),
        filter=filters.parse(vars(options), FILTERS),
        slow_ns=events.slow_ns,
        sample=events.sample,
        limit=events.limit,
        children=options.children,
        command=tuple(options.workload or ()),
        waits_ns=WAITS_NS if options.waits is None else parse_duration(options.waits),
        interference=options.interference,
        writeback=options.writeback,
        by=by,
        statement_text=options.statement_text or NORMALISED,
        unit=_unit(options) if by == UNIT else None,
        neighbours=options.neighbours,
        segments=options.segments,
        top=TOP if options.top is None else common.number(options.top, "--top"),
        recorder=recorder.size(options),
        recorder_slow_ns=recorder.slow_ns(options),
        memory=common.memory(options),
        ring_bytes=common.ring(options, events),
    )
    if options.level != "request":
        return PathFlow(wanted)
    from wptrace.flows.io.request import RequestFlow

    return RequestFlow(wanted, why)
