# SPDX-License-Identifier: Apache-2.0
"""What a trigger waits for: `io.read.total.p99 > 50ms for 30s`, checked against what is traced before it is traced."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from wptrace.analysis import owners
from wptrace.engine.definition.faults import did_you_mean
from wptrace.engine.flow import Flow
from wptrace.errors import UsageError
from wptrace.model.distribution import Distribution
from wptrace.model.kind import CPU, DEVICE, OPERATION, Group, Kind
from wptrace.model.report import Snapshot, added_up
from wptrace.model.units import NS_PER, duration, parse_bytes, parse_duration, size

OPERATIONS = (
    *("read", "write", "sync", "pagefault", "swapin"),
    *("flush", "discard", "zeroes", "zone", "other"),
)
"""Of files, and of devices."""
_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
MEAN, MOST, RATE = "mean", "max", "rate"
_STATISTICS = (*_PERCENTILES, MEAN, MOST, RATE)
_BOOKS = ("finished", "failed", "lost")
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"\s*([\w-]+(?:\.[\w-]+)+)\s*(>=|<=|>|<)\s*(\S+)(?:\s+for\s+(\S+))?\s*", re.ASCII)
_HOW = "FLOW.OPERATION.STAGE.STATISTIC > VALUE for TIME"
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")
_LONGEST_S = 86_400.0


class Condition(NamedTuple):
    text: str
    flow: int
    """The number of the flow."""
    kind: Kind | None
    """None: a book."""
    operation: str
    """Empty: all of them together."""
    what: str
    """A stage or another metric, a counter, or what of a book."""
    statistic: str
    compare: Callable[[Any, Any], bool]
    limit: float
    for_s: float

    @property
    def of_cells(self) -> bool:
        """Distributions alone tell it."""
        return self.kind is not None and self.what in self.kind

    def values(self, now: Snapshot, earlier: Snapshot) -> dict[str, float]:
        """Between two snapshots, by device where the kind has one; without what nothing happened to."""
        seconds = (now.at_ns - earlier.at_ns) / 1e9
        if self.kind is None:
            grown = sum(
                _of_book(book, self.what) - _of_book(earlier.books[name], self.what) for name, book in now.books.items()
            )
            return {"": grown / seconds}
        if not self.of_cells:
            counts: dict[str, int] = {}
            for group, found in now.counters.items():
                if self._is_of(group):
                    grown = found.get(self.what, 0) - earlier.counters.get(group, {}).get(self.what, 0)
                    counts[_place(group)] = counts.get(_place(group), 0) + grown
            return {place: count / seconds for place, count in counts.items()}
        found_at: dict[str, list[Distribution]] = {}
        for group, stages in now.cells.items():
            before = earlier.cells.get(group, {})
            if not self._is_of(group) or self.what not in stages or stages is before:
                continue
            recent = stages[self.what].delta(before[self.what]) if self.what in before else stages[self.what]
            if recent.count:
                found_at.setdefault(_place(group), []).append(recent)
        return {place: self._of(added_up(found), seconds) for place, found in found_at.items()}

    def _of(self, found: Distribution, seconds: float) -> float:
        if self.statistic in _PERCENTILES:
            return found.percentile(_PERCENTILES[self.statistic])
        return {MEAN: found.mean, MOST: found.max, RATE: found.count / seconds}[self.statistic]

    def _is_of(self, group: Group) -> bool:
        if group.kind is not self.kind:
            return False
        return not self.operation or group.values[_operation_at(group.kind)] == self.operation

    def holds(self, value: float) -> bool:
        return bool(self.compare(value, self.limit))

    def shown(self, value: float) -> str:
        """With its unit."""
        if self.kind is not None and self.statistic != RATE:
            unit = self.kind[self.what].unit
            return duration(value) if unit == "ns" else size(value) if unit == "bytes" else f"{value:.6g}"
        return f"{size(value)}/s" if self.what == "bytes" else f"{value:.6g}/s"


def _of_book(book: Any, what: str) -> int:
    return int(book.lost_total if what == "lost" else getattr(book, what))


def _place(group: Group) -> str:
    """Where it is."""
    first = group.kind.labels[:1]
    return first[0].shown(group.values[0]) if first and first[0].type in (DEVICE, CPU) else ""


def _operation_at(kind: Kind) -> int:
    return next((at for at, label in enumerate(kind.labels) if label.type == OPERATION), -1)


def parse(text: str, flows: Sequence[Flow]) -> Condition:
    """Raises a UsageError that says what of it there is not."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise UsageError(f"a condition is {_HOW}, such as io.read.total.p99 > 50ms for 30s")
    path, sign, value, time = form.groups()
    name, *words = path.split(".")
    names = [flow.name for flow in flows]
    if name not in names:
        raise UsageError(f"no flow {name} is traced{did_you_mean(name, names)}; there is {', '.join(names)}")
    flow = names.index(name)
    kind, operation, what, statistic = _what(flows[flow], words)
    for_s = _seconds(time) if time else 0.0
    limit = _limit(value, kind, what, statistic)
    return Condition(" ".join(text.split()), flow, kind, operation, what, statistic, _COMPARISONS[sign], limit, for_s)


def _what(flow: Flow, words: Sequence[str]) -> tuple[Kind | None, str, str, str]:
    if len(words) < 2:
        raise UsageError(f"{flow.name} is followed by what is measured and a statistic: {_HOW}")
    *before, what, statistic = words
    if statistic not in _STATISTICS:
        hint = did_you_mean(statistic, _STATISTICS)
        raise UsageError(f"there is no statistic {statistic}{hint}; there are {', '.join(_STATISTICS)}")
    if not before and what in _BOOKS:
        if statistic != RATE:
            raise UsageError(f"{flow.name}.{what} is a count, of which there is {flow.name}.{what}.rate")
        return None, "", what, statistic
    # Their rows are those of others, by owner.
    kinds = [kind for kind in flow.kinds if owners.place(kind) is None]
    by_name = {kind.name: kind for kind in reversed(kinds)}
    if before and before[0] in by_name:
        kinds = [by_name[before[0]]]
        before = before[1:]
    operation = before[0] if before else ""
    if len(before) > 1 or (operation and operation not in OPERATIONS):
        words_there = (*by_name, *OPERATIONS)
        odd = before[-1]
        raise UsageError(f"{flow.name} has no kind and no operation {odd}{did_you_mean(odd, words_there)}")
    if operation:
        kinds = [kind for kind in kinds if _operation_at(kind) >= 0]
    for kind in kinds:
        counters = [field.name for field in kind.counters]
        if what in kind or (what in counters and statistic == RATE):
            return kind, operation, what, statistic
        if what in counters:
            raise UsageError(f"{what} is a count, of which there is the rate: {what}.rate")
    there = list(dict.fromkeys(name for kind in kinds for name in (*(row.name for row in kind.rows), *_names(kind))))
    raise UsageError(f"{flow.name} measures no {what}{did_you_mean(what, there)}; there is {', '.join(there)}")


def _names(kind: Kind) -> list[str]:
    return [field.name for field in kind.counters]


def _limit(text: str, kind: Kind | None, what: str, statistic: str) -> float:
    unit = "" if kind is None or what not in kind or statistic == RATE else kind[what].unit
    if unit == "ns":
        return float(parse_duration(text))
    found = parse_bytes(text) if unit == "bytes" or what == "bytes" else None
    if found is None and _NUMBER.fullmatch(text):
        return float(text)
    if found is None:
        raise UsageError(f"{what}.{statistic} is compared with a number, not {text}")
    return float(found)


def _seconds(text: str) -> float:
    found = parse_duration(text) / NS_PER["s"]
    if not 1 <= found <= _LONGEST_S:
        raise UsageError(f"a condition holds for 1s to 24h, as windows are of 1 s, not {text}")
    return found
