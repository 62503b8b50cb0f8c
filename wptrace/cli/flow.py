# SPDX-License-Identifier: Apache-2.0
"""`wptrace flow`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wptrace.cli import options as common
from wptrace.cli import recorder, tracing
from wptrace.errors import UsageError, WptraceError

if TYPE_CHECKING:
    from wptrace.engine.definition.definition import Definition
    from wptrace.engine.definition.flow import DefinedFlow
    from wptrace.engine.definition.kernel import Kernel

SUMMARY = "follow what a definition names: packets, pages, tasks, requests"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("definition", nargs="?", metavar="NAME|FILE.toml", help="a name that --list shows, or a file")
    add_tracing(parser)
    look = parser.add_argument_group("instead of tracing").add_mutually_exclusive_group()
    look.add_argument("--list", action="store_true", help="list the definitions that come with wptrace")
    look.add_argument("--check", action="store_true", help="show how each point will be observed here, or all errors")
    look.add_argument("--explain", action="store_true", help="the same, with the program of each point")
    parser.add_argument("--btf", metavar="FILE", help="with --check and --explain: use the types of another kernel")


def add_tracing(parser: argparse.ArgumentParser, names: Sequence[str] = ()) -> None:
    """All that a trace of definitions takes; a short name of several has their `names`."""
    from wptrace.engine.definition.flow import ROWS, SLOTS, DefinedFlow

    common.add_interval(parser)
    which = parser.add_argument_group("what to trace")
    if names:
        which.add_argument(
            "--what",
            action="append",
            choices=names,
            help=f"which of these definitions; repeatable (default: {' and '.join(names[:2])})",
        )
    common.add_filters(which, DefinedFlow.filters)
    if not names:
        which.add_argument(
            "--program", metavar="PATH", help="the program of all points in programs, such as /proc/PID/exe"
        )
    which.add_argument(
        "--slots",
        default=str(SLOTS),
        metavar="COUNT",
        help=f"how many objects may be in flight at once (default: {SLOTS})",
    )
    which.add_argument("--rows", default=str(ROWS), metavar="COUNT", help=f"how many rows of labels (default: {ROWS})")
    show = parser.add_argument_group("what to show")
    common.add_event_options(show)
    common.add_lines(show)
    show.add_argument(
        "--by", action="append", metavar="LABEL", help="rows by this label alone; repeatable (default: all labels)"
    )
    show.add_argument("--total", action="store_true", help="one row, whatever the labels")
    show.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    common.add_results(show)
    common.add_costs(parser)
    recorder.add(parser, "one", "object")
    parser.set_defaults(per_device=True, dry_run=False)


def run(options: argparse.Namespace) -> int:
    if options.list:
        return _list()
    if options.definition is None:
        raise UsageError("name a definition", hint="wptrace flow --list")
    if options.btf is not None and not (options.check or options.explain):
        raise UsageError("--btf goes with --check or --explain: only this kernel can be traced")
    if options.check or options.explain:
        with _all_faults():
            return _check(options, _definition(options))
    return _trace(options, [_definition(options)])


def flows(options: argparse.Namespace) -> list[DefinedFlow]:
    """Without a run: what the options say of them."""
    if options.definition is None:
        raise UsageError("name a definition", hint="wptrace flow --list")
    return _flows(options, common.event_options(options), [_definition(options)])


def _definition(options: argparse.Namespace) -> Definition:
    from wptrace.engine.definition import shipped
    from wptrace.engine.definition.definition import IN_PROGRAMS

    found = shipped.find(options.definition)
    if options.program is None:
        return found
    if not any(target.kind in IN_PROGRAMS for point in found.points for target in point.targets):
        raise UsageError(f"--program goes with points in programs, and {found.name} has none")
    if ":" in options.program:
        raise UsageError("--program takes a path without a colon")
    return found.in_program(options.program)


def short(*names: str) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """Make a command that is a short name of several definitions; the first two are what people want first."""

    return partial(add_tracing, names=names), partial(_run_short, names=names)


def _run_short(options: argparse.Namespace, names: Sequence[str]) -> int:
    from wptrace.engine.definition import shipped

    wanted = dict.fromkeys(options.what or names[:2])
    if len(wanted) > 1 and (options.line or options.csv):
        form = "--line" if options.line else "--csv"
        raise UsageError(f"{form} has the columns of one definition, but several were named", hint=f"--what {names[0]}")
    return _trace(options, [shipped.find(name) for name in wanted])


def _trace(options: argparse.Namespace, definitions: Sequence[Definition]) -> int:
    from wptrace.kernel.privileges import require_tracing

    common.interval(options)
    common.require_one_form(options)
    common.require_captured_alone(options)
    events = common.event_options(options)
    common.budget(options)
    if options.capture is not None and len(definitions) > 1:
        raise UsageError("--capture takes one flow, but several were named", "--what names one")
    if common.exports(options) and len(definitions) > 1:
        raise UsageError("a report or an export takes one definition, but several were named", hint="--what names one")
    if options.recorder is not None and len(definitions) > 1:
        raise UsageError("--recorder takes one flow, but several were named", "--what names one")
    dumps = recorder.dumps(options)
    require_tracing()
    flows = {flow.name: flow for flow in _flows(options, events, definitions)}
    code, _ = tracing.run(options, flows, events, dumps=dumps)
    return code


def _flows(
    options: argparse.Namespace, events: common.EventOptions, definitions: Sequence[Definition]
) -> list[DefinedFlow]:
    from wptrace.engine import filters
    from wptrace.engine.definition.flow import DefinedFlow, Options
    from wptrace.engine.definition.programs import resolve_here

    if options.total and options.by:
        raise UsageError("--total makes one row, --by LABEL one for each value: use one of them")
    wanted = Options(
        slow_ns=events.slow_ns,
        sample=events.sample,
        limit=events.limit,
        listing=events.stuck_ns is not None,
        shedding=options.budget is not None,
        by=() if options.total else None if options.by is None else tuple(options.by),
        filter=filters.parse(vars(options), DefinedFlow.filters),
        slots=common.number(options.slots, "--slots"),
        rows=common.number(options.rows, "--rows"),
        ring_bytes=common.ring(options, events),
        recorder=recorder.size(options),
        recorder_slow_ns=recorder.slow_ns(options),
    )
    found = [resolve_here(one) for one in definitions]
    labels = [{label.name for label in one.labels} for one in found]
    # With several flows, a label has to be one of any of them.
    known = set().union(*labels) if len(found) > 1 else set()
    return [
        DefinedFlow(
            one,
            wanted._replace(by=wanted.by and tuple(name for name in wanted.by if name in mine or name not in known)),
        )
        for one, mine in zip(found, labels)
    ]


# --- Without tracing --------------------------------------------------------------------------------------------------


def _list() -> int:
    from wptrace.engine.definition import shipped

    for name in shipped.names():
        print(f"{name:<12} {shipped.find(name).about}".rstrip())
    return 0


@contextmanager
def _all_faults() -> Iterator[None]:
    """Print all faults of a definition, of which an error has the first alone."""
    from wptrace.engine.definition.faults import DefinitionError
    from wptrace.outputs.text.words import printable

    try:
        yield
    except DefinitionError as error:
        *others, last = error.faults
        for fault in others:
            print(printable(f"wptrace: {error.file}: {fault}"), file=sys.stderr)
        raise DefinitionError(error.file, [last]) from None


def _check(options: argparse.Namespace, definition: Definition) -> int:
    from wptrace.engine.definition import check
    from wptrace.engine.definition.check import explain
    from wptrace.engine.definition.faults import DefinitionError
    from wptrace.engine.definition.resolution import resolve
    from wptrace.outputs.text.words import printable

    kernel = _kernel(options.btf)
    report = check.check(definition, kernel)
    lines = check.lines(report._replace(faults=()))
    if not report.works:
        print("\n".join(map(printable, lines[1:])))
        raise DefinitionError(definition.file, report.faults)
    if options.btf is None:
        try:
            lines += _tried(definition)
        except WptraceError:
            print("\n".join(map(printable, lines[1:])))
            raise
    if options.explain:
        lines += explain(resolve(definition, kernel))
    print("\n".join(map(printable, lines)))
    return 0


def _tried(definition: Definition) -> list[str]:
    """Return the notes of a start: types alone do not tell which programs a kernel takes."""
    from wptrace.bpf.ring import Reader
    from wptrace.engine.definition.flow import DefinedFlow, Options
    from wptrace.engine.definition.programs import resolve_here
    from wptrace.errors import NotPermittedError
    from wptrace.kernel.privileges import require_tracing

    try:
        require_tracing()
    except NotPermittedError as error:
        return [f"  note: by its types alone, no program was loaded: {error.message}"]
    flow = DefinedFlow(resolve_here(definition), Options())
    try:
        return [f"  note: {note}" for note in flow.start(Reader()).notes]
    finally:
        flow.close()


def _kernel(btf: str | None) -> Kernel:
    from wptrace.engine.definition.kernel import RunningKernel, from_file

    return RunningKernel() if btf is None else from_file(Path(btf))
