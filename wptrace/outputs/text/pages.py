# SPDX-License-Identifier: Apache-2.0
"""Pages of a live screen beside its tables: rows, one of them, stories, help; and the line of keys."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from wptrace.model import units
from wptrace.model.kind import TOTAL, Group, Kind
from wptrace.model.report import BYTES, Event, Report
from wptrace.outputs.text import histogram, screen_state, tables, words
from wptrace.outputs.text.screen_state import ScreenState
from wptrace.outputs.text.view import View
from wptrace.outputs.text.words import columns, ends, head, padded, printable

HELP = (
    "q          end, with the summary",
    "? h        this help; Down goes on, any other key closes it",
    "p Space    pause: the screen stands still, counting goes on",
    "b          group by other labels: each alone, none, all",
    "o          a new trace with rows by process, cgroup, file, thread, ...",
    "D          write what the flight recorder has to a file (--recorder)",
    "d          devices apart, or added up",
    "s          sort by time, count, bytes, mean, p99, max; then as it was",
    "< >        an interval back, and forward; Esc: the last one",
    "/          only rows with these letters: Enter keeps, Esc drops them",
    "Up Down    the list of rows, to choose one; also PgUp PgDn Home End",
    "Enter      stages and histogram of that row; Left Right: of a stage",
    "Tab        the stories so far, newest last; Up Down scroll",
    "Esc        back",
    "Ctrl-L     redraw",
)
CHOSEN, OTHER = "> ", "  "
_HELP_WIDTH = 100
# The width of what a row has behind its name.
_FIGURES = 49
_NAME, _WIDEST = 24, 60
# If there is no room for all of the keys, the last ones are left out.
_KEYS = {
    screen_state.TABLES: "?:help q:quit Tab:stories Enter:rows o:owners b:group d:apart s:sort <:back p:pause /:filter",
    screen_state.ROWS: "?:help q:quit Esc:back Enter:look Up/Down:choose s:sort /:filter <:back p:pause",
    screen_state.ROW: "?:help q:quit Esc:back Left/Right:stage Up/Down:scroll <:back p:pause",
    screen_state.STORIES: "?:help q:quit Esc:back Up/Down:scroll p:pause",
}
_NO_STORIES = "There are no stories yet: --slow, --each and --sample select them."


def rows(report: Report, state: ScreenState, width: int, height: int) -> list[str]:
    """A line for each, around the chosen one."""
    room = min(max(width - _FIGURES - len(OTHER), _NAME), _WIDEST)
    title = f"{OTHER}{padded('rows', room)} {'count':>9} {'bytes':>9} {'mean':>8} {'p99':>8} {'max':>8}"
    if not state.rows:
        return [title, "", "  no rows"][:height]
    at = state.rows.index(state.chosen) if state.chosen in state.rows else 0
    shown = max(height - 2, 1)
    first = min(max(at - shown // 2, 0), max(len(state.rows) - shown, 0))
    lines = [title]
    for group in state.rows[first : first + shown]:
        total = report.cells[group][TOTAL]
        line = CHOSEN if group == state.chosen else OTHER
        line += padded(ends(name(group), room), room)
        line += f" {total.count:>9,} {units.size(report.counter(group, BYTES)) if group.kind.sized else '':>9}"
        lines.append(line + words.durations(total.mean, total.percentile(99), total.max))
    if len(state.rows) > shown:
        lines.append(f"  rows {first + 1:,} to {first + shown:,} of {len(state.rows):,}")
    return lines[:height]


def name(group: Group) -> str:
    """Return a name with the last word of its kind: there is no room for `page-cache` and `block`."""
    return f"{words.group(group)} {group.kind.noun.plural.rpartition(' ')[2]}".strip()


def row(report: Report, state: ScreenState, style: tables.Style, height: int) -> list[str]:
    """Its stages, and the histogram of one of them."""
    group = state.chosen
    if group is None:
        return []
    if group not in report.cells:
        return [f"{name(group)}: nothing in this interval"]
    found = report.only([group]).rows
    stage = state.stage if state.stage in [one.metric for one in found] else TOTAL
    drawn = next(one.distribution for one in found if one.metric == stage)
    bars = [f"{stage}, {drawn.count:,} in this interval:", *histogram.rows(drawn, style.width)]
    lines = [*tables.one(group, found, report, style), "", *bars]
    if len(lines) > height:
        busy = [one for one in found if one.distribution.sum or one.metric in (stage, TOTAL)]
        idle = len(found) - len(busy)
        left_out = [f"  (without {idle} that took no time)"] if idle else []
        lines = [*tables.one(group, busy, report, style), *left_out, "", *bars]
    return _window(lines, state, height)


def stories(events: Sequence[Event], view: View, state: ScreenState, width: int, height: int) -> list[str]:
    """Return as many of the newest stories as fit."""
    if not events:
        return [_NO_STORIES]
    lines: list[str] = []
    for event in reversed(events):
        lines = [*view.event(event, width, False), *lines]
        if len(lines) > height + state.scroll:
            break
    state.scroll = min(state.scroll, max(len(lines) - height, 0))
    last = len(lines) - state.scroll
    shown = lines[max(last - height, 0) : last]
    return ["(older ones: Up)", *shown[1:]] if last > height else shown


def _window(lines: Sequence[str], state: ScreenState, height: int) -> list[str]:
    state.scroll = min(state.scroll, max(len(lines) - height, 0))
    shown = list(lines[state.scroll : state.scroll + height])
    below = len(lines) - state.scroll - height
    return [*shown[:-1], f"({below + 1:,} more lines: Down)"] if below > 0 else shown


def help_lines(kinds: Sequence[Kind]) -> list[str]:
    """Keys, and each stage of what is traced."""
    stages = {stage.name: stage for kind in kinds for stage in kind.stages}
    lines = [f"{stage.name:<10} {stage.description}; long: {stage.meaning}" for stage in stages.values()]
    return [*HELP, *(["", "stages; - in their figures: not observed here, or never passed", *lines] if lines else [])]


def help_over(lines: Sequence[str], text: Sequence[str], state: ScreenState, width: int, height: int) -> list[str]:
    """Draw the help in a frame over the upper lines of the screen."""
    inner = max(min(_HELP_WIDTH, width - 4), 1)
    folded = [part for line in text for part in textwrap.wrap(line, inner, subsequent_indent=" " * 11) or [""]]
    shown = max(height - 2, 1)
    state.help_scroll = min(state.help_scroll, max(len(folded) - shown, 0))
    below = len(folded) - state.help_scroll - shown
    folded = folded[state.help_scroll : state.help_scroll + shown]
    if below > 0:
        folded[-1] = f"({below + 1} more lines: Down)"
    frame = "+" + "-" * (inner + 2) + "+"
    box = [frame, *(f"| {padded(head(line, inner), inner)} |" for line in folded), frame]
    return [*box, *lines[len(box) :]][: max(height, 1)]


def status(state: ScreenState, width: int) -> str:
    """Return the changed settings, and the keys that there is room for."""
    if state.typing:
        return head(f"filter: {printable(state.needle)}_  (Enter keeps it, Esc drops it)", width)
    found = []
    if state.message:
        found.append(f"({state.message})")
    if state.paused:
        found.append("PAUSED")
    if state.back:
        found.append(f"{state.back} BACK  >:forward")
    if state.grouping:
        found.append(f"by {state.grouping}")
    if state.order:
        found.append(f"sorted by {state.order}")
    if state.needle:
        found.append(f"only '{printable(state.needle)}' ({state.hidden:,} rows left out)")
    shown = "  ".join(found)
    for key in _KEYS[state.page].split(" "):
        longer = f"{shown}{'  ' if shown == '  '.join(found) and found else ' ' if shown else ''}{key}"
        if columns(longer) > width:
            break
        shown = longer
    return head(shown, width)
