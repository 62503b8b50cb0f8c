# SPDX-License-Identifier: Apache-2.0
"""`wptrace replay`."""

from __future__ import annotations

import argparse
import re
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from wptrace.cli import options as common
from wptrace.errors import UsageError, WptraceError
from wptrace.model.units import parse_duration

if TYPE_CHECKING:
    from wptrace.capture.reader import Capture, Head
    from wptrace.capture.selection import Selection
    from wptrace.model.report import Output
    from wptrace.outputs.text.output import TextOutput
    from wptrace.tools.replay import Wanted

SUMMARY = "show what a command wrote with --capture"

_TIME = re.compile(
    r"(?:([0-9]{4}-[0-9]{2}-[0-9]{2}|today|yesterday)[T ] *)?([0-9]{1,2}:[0-9]{2})(?::([0-9]{2})(\.[0-9]{1,9})?)?"
)
_DAYS_AGO = {"today": 0, "yesterday": 1}
_FACTOR = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,6})?")
_SLOWEST = 0.001
_NEVER_NS = 1 << 63
# The number of neighbours that a live trace shows.
_TOP = 20
_VIEWS = ("stages", "turns", "faults", "periods", "sizes", "stacks", "objects")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the file and the options that select a part of it."""
    from wptrace.capture.selection import QUESTIONS

    parser.add_argument(
        "capture_file", metavar="FILE", help="what a command wrote with --capture, or a directory of such files"
    )
    which = parser.add_argument_group("which part of it")
    for one in QUESTIONS:
        flags = {"dev": ("-d", "--dev"), "pid": ("-p", "--pid")}.get(one.name, (f"--{one.name}",))
        action = "append" if one.repeatable else common.Once
        which.add_argument(*flags, action=action, metavar=one.metavar, help=one.words)
    since = "from this time on: 14:03, 'yesterday 14:03', or a duration after the start, such as 30s"
    which.add_argument("--since", action=common.Once, metavar="TIME", help=since)
    which.add_argument("--until", action=common.Once, metavar="TIME", help="up to this time")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from wptrace.outputs.export import FORMATS

    add_selection(parser)
    show = parser.add_argument_group("what to show")
    single = show.add_mutually_exclusive_group()
    single.add_argument("--slow", metavar="DURATION", help="show the events that took at least this long, such as 5ms")
    single.add_argument("--summary", action="store_true", help="show no events")
    show.add_argument("--sample", metavar="1/N", help="show one in N events, in addition to those of --slow")
    common.add_lines(show)
    show.add_argument("-D", "--per-device", action="store_true", help="a table for each device")
    show.add_argument("--by", metavar="LABEL", help="rows by this label, if the capture has it or was made with --each")
    show.add_argument(
        "--neighbours",
        action="store_true",
        help="show who used the device while others waited: exact for a capture with --each, else as the kernel "
        "counted it",
    )
    show.add_argument("--top", metavar="COUNT", help="at most this many rows, where they are ranked; 0: all")
    show.add_argument("--exact", action="store_true", help="a row for each size, however many there are")
    show.add_argument("--folded", choices=("time", "count"), help="a line for each stack, for flame graphs")
    show.add_argument("--hist", metavar="STAGE", help="draw the histogram of a stage in the summary")
    show.add_argument("--live", action="store_true", help="show it on the live screen, at the pace of the recording")
    show.add_argument("--speed", metavar="FACTOR", help="with --live: replay this many times as fast (10, 0.5)")
    common.add_exports(show)
    show.add_argument(
        "--to", choices=FORMATS, help="write the file of -o in this format, and show nothing", metavar="FORMAT"
    )
    common.add_output(show)


def run(options: argparse.Namespace) -> int:
    from wptrace.capture.reader import Capture
    from wptrace.outputs.lines import LineOutput
    from wptrace.tools.replay import Wanted, replay

    _require_one_form(options)
    speed = _speed(options)
    sample = 0 if options.sample is None else common.sample(options.sample)
    # If --sample is alone, no operation is slow.
    slow_ns = parse_duration(options.slow) if options.slow is not None else _NEVER_NS if sample else 0
    with closing(Capture(Path(options.capture_file))) as capture:
        head = capture.head
        selection = _selection(options, head)
        _require(options, head)
        owners = _neighbours(options, head)
        top = None if options.top is None else common.number(options.top, "--top")
        since_ns, until_ns = _times(options, head)
        wanted = Wanted(
            selection,
            slow_ns,
            since_ns,
            until_ns,
            singles=_shows_events(options, head),
            intervals=head.intervals or options.live or bool(common.exports(options) or options.to),
            sample=sample,
            neighbours=owners,
            by=_by(options, head),
            counted=options.neighbours and not owners,
            top=_TOP if top is None else top,
            owners=top or 0,
        )
        if options.to:
            with closing(_file(options, head)) as written:
                replay(capture, written, wanted)
            return _checked(capture)
        with common.stream(options, options.capture_file) as stream:
            output = _output(options, stream, head)
            shown = common.as_text(output)
            if shown is not None and shown.live:
                _live(capture, output, shown, wanted, speed)
            else:
                with closing(output):
                    replay(capture, output, wanted, lambda: isinstance(output, LineOutput) and output.gone)
    return _checked(capture)


def _shows_events(options: argparse.Namespace, head: Head) -> bool:
    """A dump has every event, which no one reads as text: it shows those that are selected."""
    if options.summary or options.folded:
        return False
    asked = options.slow is not None or options.sample or options.json or options.line or options.csv or options.to
    return not head.of_events or bool(asked or common.exports(options))


def _checked(capture: Capture) -> int:
    """Report damage by the exit code, after everything readable was shown."""
    if capture.damaged:
        left = "one frame of it was" if capture.damaged == 1 else f"{capture.damaged:,} frames of it were"
        raise WptraceError(f"{capture.head.start.file} is damaged: {left} left out")
    return 0


def _live(capture: Capture, output: Output, shown: TextOutput, wanted: Wanted, speed: float) -> None:
    """End as a live trace does: with a summary so far, and the terminal restored."""
    from wptrace.engine.signals import Stop
    from wptrace.tools.pace import ReplayPace
    from wptrace.tools.replay import replay

    with Stop() as stop, ExitStack() as cleanup:
        cleanup.callback(output.close)
        replay(capture, output, wanted, pace=ReplayPace(speed, shown.controls, lambda: shown.paused, stop))


def _speed(options: argparse.Namespace) -> float:
    """The speed, as a multiple of real time."""
    if options.speed is None:
        return 1.0
    if not options.live:
        raise UsageError("--speed needs --live: it says how fast the live screen goes")
    speed = float(options.speed) if _FACTOR.fullmatch(options.speed) else 0.0
    if not _SLOWEST <= speed <= 1 / _SLOWEST:
        raise UsageError(f"--speed takes a factor between {_SLOWEST} and {1 / _SLOWEST:.0f}, not {options.speed!r}")
    return speed


def _require_one_form(options: argparse.Namespace) -> None:
    common.require_one_form(options)
    if options.live:
        for name in ("json", "line", "csv", "folded", "to"):
            if getattr(options, name):
                raise UsageError(f"--live shows a screen, which --{name} does not: choose one")
    for name in ("json", "line", "csv", "hist"):
        if options.folded and getattr(options, name):
            raise UsageError(f"--folded and --{name} cannot be used together: choose one")
    if options.summary and options.sample is not None:
        raise UsageError("--summary shows no events, but --sample does: choose one")
    if options.to is None:
        return
    if options.output is None:
        raise UsageError(f"--to {options.to} needs the name of a file: -o FILE")
    for name in ("json", "line", "csv", "folded"):
        if getattr(options, name):
            raise UsageError(f"--to {options.to} shows nothing, but --{name} does: choose one")


def _file(options: argparse.Namespace, head: Head) -> Output:
    """Return the outputs of --to, and of the others beside it."""
    from wptrace.outputs import export
    from wptrace.outputs.registry import Wanted

    common.require_apart(options.output, options.capture_file)
    how = Wanted(**_shown(options, head), statistics=options.stats, verbose=bool(options.verbose))
    made = export.make(options.to, common.named(options.output, "-o"), head.view, how)
    return common.exported(options, made, head.view, how)


def _selection(options: argparse.Namespace, head: Head) -> Selection:
    from wptrace.capture.selection import QUESTIONS, Selection

    found = {}
    for one in QUESTIONS:
        given = getattr(options, one.name)
        if given is None:
            continue
        values = tuple(given) if one.repeatable else (given,)
        for value in values:
            if one.number and not re.fullmatch(r"[0-9]{1,10}", value):
                raise UsageError(f"--{one.name} takes a number, not {value!r}")
        found[one.name] = values
    return Selection(found, head.start.filters.get("by"))


def _require(options: argparse.Namespace, head: Head) -> None:
    """Refuse options for what the capture does not have."""
    from wptrace.tools import owned

    filters = head.start.filters
    if head.view not in _VIEWS:
        raise WptraceError(f"the capture is of a kind of trace that this version does not know: {head.view}")
    labels = [label.name for kind in head.start.kinds if kind.nested for label in kind.labels]
    if (
        options.by is not None
        and labels != [options.by]
        and (head.of_events or filters.get("by") != options.by)
        and not (_by(options, head) or _neighbours(options, head))
    ):
        has = f"its rows are by {filters['by']}" if "by" in filters else "the capture was made without --by"
        has = "the records of the recorder do not have it" if head.of_events else has
        has = f"its rows are by {' and '.join(labels)}" if labels else has
        others = ", ".join(owned.answered(head))
        raise UsageError(
            f"--by {options.by} cannot be answered: {has}", f"from its events, --by can be {others}" if others else None
        )
    if options.folded and head.view != "stacks":
        raise UsageError("--folded needs a capture of wptrace stacks")
    if options.exact and head.view != "sizes":
        raise UsageError("--exact needs a capture of wptrace size")
    common.require_stage(options.hist, head.start.kinds)


def _neighbours(options: argparse.Namespace, head: Head) -> str:
    """Return the owners for which neighbours are computed from events; empty if unwanted or counted in the kernel."""
    from wptrace.tools import replayed_neighbours

    return replayed_neighbours.owners(head, options.by) if options.neighbours else ""


def _by(options: argparse.Namespace, head: Head) -> str:
    """Return the owners for which rows are computed from events; empty if unwanted or if the capture has them."""
    from wptrace.tools import owned

    chosen = str(head.start.filters.get("by", ""))
    by = options.by or chosen
    if not by or not owned.answers(head, by):
        return ""
    has_rows = by == chosen and not head.of_events and owned.have_rows(head, _selection(options, head))
    return "" if has_rows else by


def _output(options: argparse.Namespace, stream: TextIO, head: Head) -> Output:
    shown = _shown(options, head)
    if options.folded:
        return common.folded(options, stream, head.view, bool(shown.get("per_device")))
    return common.output(options, stream, head.view, **shown)


def _shown(options: argparse.Namespace, head: Head) -> dict[str, Any]:
    """Return the wanted parts of tables: as the command had them, unless they are given here."""
    shown = {**head.shown, "intervals": head.intervals or options.live, "live": options.live}
    if options.per_device:
        shown["per_device"] = True
    if options.exact:
        shown["exact"] = True
    if options.hist is not None:
        shown["hist"] = options.hist
    if options.top is not None:
        shown["top"] = common.number(options.top, "--top")
    elif options.json:
        shown["top"] = 0
    return shown


def _times(options: argparse.Namespace, head: Head) -> tuple[int | None, int | None]:
    given = (("--since", options.since), ("--until", options.until))
    since_ns = None if options.since is None else moment(options.since, head, "--since")
    until_ns = None if options.until is None else moment(options.until, head, "--until", since_ns)
    if since_ns is not None and until_ns is not None and since_ns > until_ns:
        raise UsageError(f"--since {options.since} is later than --until {options.until}")
    for (option, text), at_ns in zip(given, (since_ns, until_ns)):
        if at_ns is not None and at_ns > time.time_ns():
            raise UsageError(f"{option} {text} is in the future: the capture begins {_shown_time(head.began_ns)}")
    return since_ns, until_ns


def _shown_time(ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ns // 1_000_000_000))


def moment(text: str, head: Head, option: str, since_ns: int | None = None) -> int:
    """A time in nanoseconds since 1970.

    A time of day without a date is of the day of the capture; of a folder, which may have many days, it is the last
    one that has come. The end of a stretch is of the day of its begin, or of the next one.
    """
    found = _TIME.fullmatch(text.strip())
    if found is None:
        try:
            return head.began_ns + parse_duration(text)
        except UsageError:
            raise _not_a_time(text, option) from None
    date, minute, seconds, part = found.groups()
    now = time.time()
    try:
        clock = time.strptime(f"{minute}:{seconds or '00'}", "%H:%M:%S")
        if date in _DAYS_AGO:
            at = _on_day(time.localtime(now), clock, -_DAYS_AGO[date])
        elif date:
            at = _on_day(time.strptime(date, "%Y-%m-%d"), clock)
        elif since_ns is not None:
            day = time.localtime(since_ns // 1_000_000_000)
            at = _on_day(day, clock)
            if at < since_ns // 1_000_000_000 and _on_day(day, clock, 1) <= now:
                at = _on_day(day, clock, 1)
        elif Path(head.start.file).is_dir():
            at = _on_day(time.localtime(now), clock)
            if at > now:
                at = _on_day(time.localtime(now), clock, -1)
        else:
            at = _on_day(time.localtime(head.began_ns // 1_000_000_000), clock)
    except (ValueError, OverflowError):
        raise _not_a_time(text, option) from None
    return at * 1_000_000_000 + (int(f"{part[1:]:0<9}") if part else 0)


def _on_day(day: time.struct_time, clock: time.struct_time, days: int = 0) -> int:
    """A time of a day, or of one some days later, as seconds since 1970. A day may have 23 or 25 hours."""
    date = (day.tm_year, day.tm_mon, day.tm_mday + days)
    return int(time.mktime((*date, clock.tm_hour, clock.tm_min, clock.tm_sec, 0, 0, -1)))


def _not_a_time(text: str, option: str) -> UsageError:
    return UsageError(f"{option} takes a time such as 14:03:05, 'yesterday 14:00' or 30s, not {text!r}")
