# SPDX-License-Identifier: Apache-2.0
"""Who waited for a CPU and who had one, as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import nlargest
from itertools import groupby
from typing import Any, NamedTuple, TextIO

from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.results import Group, Report, Request, Start, rows_of, without_device
from wptrace.model.stages import StageTable
from wptrace.outputs.text import histogram
from wptrace.outputs.text.live import Live, can_be_live
from wptrace.outputs.text.plain import PlainOutput
from wptrace.outputs.text.words import bar, head, introduction, padded, printable

_WORST = 10
# Of the waits that are told, on a live screen.
_LAST_WAITS = 5
_BAR = 20
_NAME = 28
_WIDTH = 100
# Above this share of wait the verdict says what may be the reason.
_CONTENDED = 0.1

Stages = dict[str, Distribution]


class View(NamedTuple):
    """How the user wants it."""

    by: str
    """What a row is about; empty for a table of all alone."""
    top: int
    """That many rows."""
    dates: bool
    statistics: bool
    hist: str | None
    live: bool = False


class CpuOutput(PlainOutput):
    def __init__(self, stream: TextIO, view: View) -> None:
        super().__init__(stream, view.statistics)
        self._view = view
        self._table: StageTable | None = None
        self._worst: list[Request] = []
        self._introduction: list[str] = []
        self._latest: Report | None = None
        self._recent: deque[Request] = deque(maxlen=_LAST_WAITS)
        self._live = Live(stream, self._screen, self._introduce) if view.live and can_be_live(stream) else None

    def start(self, start: Start) -> None:
        self._table = start.stages
        self._introduction = list(introduction(start))
        self._introduce()
        if self._live is not None:
            self._live.start()

    def _introduce(self) -> None:
        self._print(self._introduction)

    def request(self, request: Request) -> None:
        self._worst = nlargest(_WORST, [*self._worst, request], key=lambda one: one.total_ns)
        if self._live is None:
            self._print([self._wait(request)])
        else:
            self._recent.append(request)

    def interval(self, report: Report) -> None:
        if self._live is None:
            super().interval(report)
        else:
            self._latest = report
            self._live.draw()

    def _screen(self) -> list[str]:
        shown = [] if self._latest is None else list(self._report(self._latest))
        return [*shown, "", *map(self._wait, self._recent)] if self._recent else shown

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        super().close()

    def _wait(self, request: Request) -> str:
        told = request.fields
        line = f"{clock_time(request.end_ns, self._view.dates)}  {_task(told)} waited"
        line += f" {units.duration(request.total_ns)} for cpu{told['cpu']}"
        if told["sleep_ns"]:
            line += f" after {units.duration(told['sleep_ns'])} of sleep"
        instead = told.get("instead")
        if instead is None:
            return line
        if not instead["tid"]:
            return f"{line}, which was idle for {units.duration(instead['run_ns'])} of that"
        return f"{line}; {_task(instead)} had it for {units.duration(instead['run_ns'])}"

    def summary(self, report: Report) -> None:
        self.close()
        super().summary(report)
        lines: list[str] = []
        if self._worst:
            lines += ["", "worst waits:", *(f"  {self._wait(request)}" for request in self._worst)]
        stages = self._whole(report)
        if self._view.hist is not None and stages:
            lines += ["", f"{self._view.hist}:", *histogram.rows(stages[self._view.hist], _WIDTH)]
        self._print([*lines, "", self._verdict(stages)])

    def _verdict(self, stages: Stages) -> str:
        if self._table is None or not stages or not stages["total"].sum:
            return "verdict: no task left a CPU"
        wait = stages["wait"]
        share = wait.sum / stages["total"].sum
        said = f"verdict: of the time that tasks wanted a CPU, they waited {share:.1%}"
        said += f" (mean {units.duration(wait.mean)}, p99 {units.duration(wait.percentile(99))})"
        return f"{said}: {self._table['wait'].meaning}" if share >= _CONTENDED else said

    def lines(self, report: Report) -> Iterator[str]:
        book = report.accounting
        time = clock_time(report.ts_ns, self._view.dates).partition(".")[0]
        yield (
            f"{time}  {book.finished:,} turn{'' if book.finished == 1 else 's'} in"
            f" {units.duration(report.duration_ns)}, {book.in_flight:,} in flight"
        )
        stages = self._whole(report)
        if stages and self._table is not None:
            yield ""
            yield f"  {'stage':<12} {'count':>11} {'mean':>8} {'p50':>8} {'p99':>8} {'max':>8} {'share':>6}"
            for row in rows_of(_merged(report), self._table):
                found = row.distribution
                share = "" if self._table[row.stage].outside else f"{row.share:.1%}"
                line = f"  {row.stage:<12} {found.count:>11,}{_figures(found, 50, 99)} {share:>6}"
                yield f"{line}  {bar(row.share, _BAR)}".rstrip()
        if self._view.by:
            yield from self._rows(report)

    def _whole(self, report: Report) -> Stages:
        return next(iter(_merged(report).values()), {})

    def _rows(self, report: Report) -> Iterator[str]:
        """Whoever waited most comes first; CPUs have an order of their own."""
        rows = {
            group.dev: {row.stage: row.distribution for row in rows}
            for group, rows in groupby(report.rows, key=lambda row: row.group)
        }
        names = sorted(rows, key=lambda name: (-rows[name]["wait"].sum, name))
        if self._view.by == "cpu":
            names = sorted(rows, key=lambda name: int(name[len("cpu") :]))
        if not names:
            return
        yield ""
        title = f"  {padded(self._view.by, _NAME)} {'turns':>9} {'has CPU':>8} {'waits':>7}"
        yield f"{title} | {'wait p50':>8} {'p99':>8} {'max':>8} | {'run p50':>8} {'off p50':>8}"
        for name in names[: self._view.top]:
            found = rows[name]
            line = f"  {padded(head(printable(name), _NAME), _NAME)} {found['total'].count:>9,}"
            for stage, width in (("run", 8), ("wait", 7)):
                part = f"{found[stage].sum / report.duration_ns:.1%}" if report.duration_ns else ""
                line += f" {part:>{width}}"
            wait, run, off = (found.get(stage, Distribution()) for stage in ("wait", "run", "off"))
            line += f" |{_figures(wait, 50, 99, mean=False)} |{_median(run)}{_median(off)}"
            yield line
        if len(names) > self._view.top:
            yield f"  and {len(names) - self._view.top:,} more"


def _merged(report: Report) -> dict[Group, Stages]:
    cells: dict[Group, Stages] = {}
    for row in report.rows:
        cells.setdefault(row.group, {})[row.stage] = row.distribution
    return without_device(cells.items())


def _task(fields: Any) -> str:
    return f"{printable(fields['comm'])}[{fields['pid']}/{fields['tid']}]"


def _figures(found: Distribution, *percents: float, mean: bool = True) -> str:
    values = [*([found.mean] if mean else []), *map(found.percentile, percents), found.max]
    return "".join(f" {units.duration(value):>8}" for value in values)


def _median(found: Distribution) -> str:
    return f" {units.duration(found.percentile(50)) if found.count else '-':>8}"
