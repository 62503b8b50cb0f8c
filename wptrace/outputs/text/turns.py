# SPDX-License-Identifier: Apache-2.0
"""Tasks that waited for a CPU and tasks that had one, as text."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.kind import CPU
from wptrace.model.report import Event, Report, Start
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header, histogram, words
from wptrace.outputs.text.view import View
from wptrace.outputs.text.words import bar, head, padded, printable

_WORST = 10
_BAR = 20
_NAME = 28
# The widths of what a row has behind the name: its waits and what it ran, and where there is room other stages'
# medians.
_FIGURES = 58
_MEDIANS = 20
_LEAST_NAME = 12
# Above this share of wait the verdict says what may be the reason.
_CONTENDED = 0.1

Stages = dict[str, Distribution]


class TurnsView(View):
    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._worst: list[Event] = []

    def begin(self, start: Start) -> Iterator[str]:
        self._by = str(start.filters.get("by", ""))
        yield from super().begin(start)

    def add(self, event: Event) -> None:
        self._worst = nlargest(_WORST, [*self._worst, event], key=lambda one: one.total_ns)

    def event(self, event: Event, width: int, whole: bool) -> Iterator[str]:
        yield self._wait(event)

    def _wait(self, event: Event) -> str:
        shown = event.fields
        line = f"{clock_time(event.end_ns, self.wanted.dates)}  {words.task(shown)} waited"
        line += f" {units.duration(event.total_ns)} for cpu{shown['cpu']}"
        if shown["sleep_ns"]:
            line += f" after {units.duration(shown['sleep_ns'])} of sleep"
        instead = shown.get("instead")
        if instead is None:
            return line
        if not instead["tid"]:
            return f"{line}, which was idle for {units.duration(instead['run_ns'])} of that"
        return f"{line}; {words.task(instead)} had it for {units.duration(instead['run_ns'])}"

    def closing(self, report: Report, width: int) -> Iterator[str]:
        if self._worst:
            yield from ["", "worst waits:", *(f"  {self._wait(event)}" for event in self._worst)]
        stages = self._whole(report)
        if self.wanted.hist in stages:
            yield from ["", f"{self.wanted.hist}:", *histogram.rows(stages[self.wanted.hist], width)]
        if "run" in self.kinds[0]:
            yield from ["", self._verdict(stages)]

    def _verdict(self, stages: Stages) -> str:
        if not stages or not stages["total"].sum:
            return "verdict: no task left a CPU"
        wait = stages["wait"]
        share = wait.sum / stages["total"].sum
        said = f"verdict: of the time that tasks wanted a CPU, they waited {share:.1%}"
        said += f" (mean {units.duration(wait.mean)}, p99 {units.duration(wait.percentile(99))})"
        return f"{said}: {self.kinds[0]['wait'].meaning}" if share >= _CONTENDED else said

    def report(self, report: Report, width: int) -> Iterator[str]:
        yield header.one_book(report, self.style(width), self.kinds[0])
        whole = report.everywhere()
        if whole.rows:
            yield ""
            yield f"  {'stage':<12} {'count':>11} {'mean':>8} {'p50':>8} {'p99':>8} {'max':>8} {'share':>6}"
            for row in whole.rows:
                found = row.distribution
                share = f"{row.share:.1%}" if row.group.kind[row.metric].part else ""
                line = f"  {row.metric:<12} {found.count:>11,}{words.durations(found.mean, *_spread(found))} {share:>6}"
                yield f"{line}  {bar(row.share, min(_BAR, max(width - len(line) - 2, 0)))}".rstrip()
        if self.wanted.per_device:
            yield from self._rows(report, width)

    def _whole(self, report: Report) -> Stages:
        return next((dict(found) for found in report.everywhere().cells.values()), {})

    def _rows(self, report: Report, width: int) -> Iterator[str]:
        """Generate the rows, those that waited most first; CPUs are in their own order."""
        rows = report.cells
        names = list(rows)
        if self.kinds[0].labels[0].type != CPU:
            names = sorted(rows, key=lambda group: (-rows[group]["wait"].sum, group.shown))
        if not names:
            return
        yield ""
        medians = width >= _FIGURES + _MEDIANS + _NAME
        room = _NAME if medians else min(max(width - _FIGURES, _LEAST_NAME), _NAME)
        title = f"  {padded(self._by, room)} {self.kinds[0].noun.plural:>9} {'has CPU':>8} {'waits':>7}"
        title += f" | {'wait p50':>8} {'p99':>8} {'max':>8}"
        yield f"{title} | {'run p50':>8} {'off p50':>8}" if medians else title
        for name in names[: self.wanted.top or None]:
            found = rows[name]
            line = f"  {padded(head(printable(name.shown), room), room)} {found['total'].count:>9,}"
            for stage, of_stage in (("run", 8), ("wait", 7)):
                known = report.duration_ns and stage in found
                part = f"{found[stage].sum / report.duration_ns:.1%}" if known else ""
                line += f" {part:>{of_stage}}"
            wait, run, off = (found.get(stage, Distribution()) for stage in ("wait", "run", "off"))
            line += f" |{words.durations(*_spread(wait))}"
            yield f"{line} |{_median(run)}{_median(off)}" if medians else line
        if 0 < self.wanted.top < len(names):
            yield f"  and {len(names) - self.wanted.top:,} more"


def _spread(found: Distribution) -> tuple[float, ...]:
    return found.percentile(50), found.percentile(99), found.max


def _median(found: Distribution) -> str:
    return f" {units.duration(found.percentile(50)) if found.count else '-':>8}"


VIEW = TurnsView
