# SPDX-License-Identifier: Apache-2.0
"""Conditions of triggers, such as `io.read.total.p99 > 50ms for 30s`, checked against the flows before these start."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from wptrace.agent.pressure import measured
from wptrace.analysis.verdict import Rules
from wptrace.engine.definition.faults import did_you_mean
from wptrace.engine.flow import Flow
from wptrace.errors import UsageError
from wptrace.model.distribution import Distribution
from wptrace.model.kind import CPU, DEVICE, OPERATION, Group, Kind
from wptrace.model.report import InFlight, Snapshot, added_up
from wptrace.model.units import NS_PER, duration, parse_bytes, parse_duration, parse_share, size

OPERATIONS = (
    *("read", "write", "sync", "pagefault", "swapin"),
    *("flush", "discard", "zeroes", "zone", "other"),
)
"""Operations on files, and on devices."""
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
_FORM = re.compile(r"\s*([\w-]+(?:\.[\w-]+)+)\s*(?:(>=|<=|>|<)\s*(\S+)\s*)?(?:\bfor\s+(\S+))?\s*", re.ASCII)
_HOW = "FLOW.OPERATION.STAGE.STATISTIC > VALUE for TIME"
_TIMES = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)x")
STUCK, VERDICT, PRESSURE = "stuck", "verdict", "pressure"
"""Conditions without a metric: the age of what is in flight, a finding of the verdict, and the kernel's pressure stall
information (Documentation/accounting/psi.rst)."""
_PRESSURES, _WHOSE = ("io", "memory", "cpu"), ("some", "full")
# Every verdict has a finding by one of these rules.
_ALWAYS = ("idle", "largest")
_VERDICT_S = 10.0
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")
_LONGEST_S = 86_400.0


class Condition(NamedTuple):
    text: str
    flow: int
    """The index of the flow."""
    kind: Kind | None
    """None for a counter of the book."""
    operation: str
    """Empty for all operations together."""
    what: str
    """A stage or another metric, a counter, or a field of the book."""
    statistic: str
    compare: Callable[[Any, Any], bool]
    limit: float
    for_s: float
    sort: str = ""
    """STUCK, VERDICT for a period of `for_s`, or PRESSURE; empty for a figure of a window."""
    times: bool = False
    """The limit is a multiple of the usual value."""

    @property
    def of_cells(self) -> bool:
        """Whether distributions alone are enough to check it."""
        return self.kind is not None and self.what in self.kind

    def values(self, now: Snapshot, earlier: Snapshot) -> dict[str, float]:
        """The values between two snapshots, by device where the kind has one.

        An idle device has rates, which are 0, and nothing else."""
        seconds = (now.at_ns - earlier.at_ns) / 1e9
        if self.kind is None:
            grown = sum(
                _of_book(book, self.what) - _of_book(earlier.books[name], self.what) for name, book in now.books.items()
            )
            return {"": grown / seconds}
        if not self.of_cells:
            counts: Counter[str] = Counter()
            for group, found in now.counters.items():
                if self._is_of(group):
                    grown = found.get(self.what, 0) - earlier.counters.get(group, {}).get(self.what, 0)
                    counts[_place(group)] += grown
            return {place: count / seconds for place, count in counts.items()}
        found_at: dict[str, list[Distribution]] = {}
        for group, stages in now.cells.items():
            before = earlier.cells.get(group, {})
            if not self._is_of(group) or self.what not in stages or (stages is before and self.statistic != RATE):
                continue
            recent = stages[self.what].delta(before[self.what]) if self.what in before else stages[self.what]
            if recent.count or self.statistic == RATE:
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

    def holds(self, value: float, usual: float = 1.0) -> bool:
        return bool(self.compare(value, self.limit * usual if self.times else self.limit))

    def shown(self, value: float) -> str:
        """The value with its unit; empty if there is none."""
        if self.sort == VERDICT:
            return ""
        if self.sort == PRESSURE:
            return f"{value * 100:.3g}%"
        if self.sort == STUCK:
            return duration(value)
        if self.kind is not None and self.statistic != RATE:
            unit = self.kind[self.what].unit
            return duration(value) if unit == "ns" else size(value) if unit == "bytes" else f"{value:.6g}"
        return f"{size(value)}/s" if self.what == "bytes" else f"{value:.6g}/s"


def _of_book(book: Any, what: str) -> int:
    return int(book.lost_total if what == "lost" else getattr(book, what))


def _place(group: Group) -> str:
    """The device that a group is about."""
    first = group.kind.labels[:1]
    return first[0].shown(group.values[0]) if first and first[0].type in (DEVICE, CPU) else ""


def _operation_at(kind: Kind) -> int:
    return next((at for at, label in enumerate(kind.labels) if label.type == OPERATION), -1)


def oldest(found: Sequence[InFlight]) -> dict[str, float]:
    """The age of the oldest object in flight, by device."""
    ages: dict[str, float] = {}
    for one in found:
        place = _place(one.group)
        ages[place] = max(ages.get(place, 0.0), float(one.age_ns))
    return ages


def parse(text: str, flows: Sequence[Flow]) -> Condition:
    """Parse a condition; raise UsageError if the flows do not have what it names."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise UsageError(f"a condition is {_HOW}, such as io.read.total.p99 > 50ms for 30s")
    path, sign, value, time = form.groups()
    name, *words = path.split(".")
    for_s = _seconds(time) if time else 0.0
    text = " ".join(text.split())
    if words[0] == VERDICT:
        flow = _flow(name, flows)
        if sign is not None:
            raise UsageError(f"a finding has no value: write {name}.{VERDICT}.RULE for TIME")
        rule = _rule(flows[flow], words[1:])
        return Condition(text, flow, None, "", rule, "", operator.ge, 1.0, for_s or _VERDICT_S, VERDICT)
    if sign is None:
        raise UsageError(f"{path} needs a value to compare with: {_HOW}")
    compare = _COMPARISONS[sign]
    if name == PRESSURE:
        what = _pressure(words)
        limit = parse_share(value)
        if sign not in (">", ">=") or limit is None or limit >= 1:
            raise UsageError(f"pressure is compared with a share of the time by >, such as {name}.io.some > 10%")
        return Condition(text, 0, None, "", what, "", compare, limit, for_s, PRESSURE)
    flow = _flow(name, flows)
    if words == [STUCK]:
        if sign not in (">", ">="):
            raise UsageError(f"stuck is compared with a time in flight by >, such as {name}.{STUCK} > 30s")
        if type(flows[flow]).in_flight is Flow.in_flight:
            raise UsageError(f"{name} does not track what is in flight; io does, at the levels path and request")
        return Condition(text, flow, None, "", STUCK, "", compare, float(parse_duration(value)), for_s, STUCK)
    kind, operation, what, statistic = _what(flows[flow], words)
    times = _TIMES.fullmatch(value)
    if times is not None and sign not in (">", ">="):
        raise UsageError(f"a multiple of the usual value is compared by >, not {sign}")
    limit = _limit(value, kind, what, statistic) if times is None else float(times.group(1))
    return Condition(text, flow, kind, operation, what, statistic, compare, limit, for_s, "", times is not None)


def _flow(name: str, flows: Sequence[Flow]) -> int:
    names = [flow.name for flow in flows]
    if name not in names:
        raise UsageError(f"no flow {name} is traced{did_you_mean(name, names)}; there is {', '.join(names)}")
    return names.index(name)


def _rule(flow: Flow, words: Sequence[str]) -> str:
    rules = flow.rules if flow.verdict_kinds else Rules((), ())
    names = [name for rule in (*rules.first, *rules.more) if (name := rule.__name__) not in _ALWAYS]
    if not names:
        raise UsageError(f"{flow.name} has no verdict")
    if len(words) != 1 or words[0] not in names:
        odd = ".".join(words)
        raise UsageError(f"the verdict has no finding {odd}{did_you_mean(odd, names)}; it has {', '.join(names)}")
    return words[0]


def _pressure(words: Sequence[str]) -> str:
    """Check a file below /proc/pressure and one of its lines."""
    if len(words) != 2 or words[0] not in _PRESSURES or words[1] not in _WHOSE:
        raise UsageError(f"pressure is that of {', '.join(_PRESSURES)}, of {' or '.join(_WHOSE)}: pressure.io.some")
    if not measured(words[0], words[1]):
        raise UsageError(f"this kernel does not measure {words[0]} pressure ({words[1]})", "boot it with psi=1")
    return ".".join(words)


def _what(flow: Flow, words: Sequence[str]) -> tuple[Kind | None, str, str, str]:
    if len(words) < 2:
        raise UsageError(f"{flow.name} needs a metric and a statistic: {_HOW}")
    *before, what, statistic = words
    if statistic not in _STATISTICS:
        hint = did_you_mean(statistic, _STATISTICS)
        raise UsageError(f"there is no statistic {statistic}{hint}; there are {', '.join(_STATISTICS)}")
    if not before and what in _BOOKS:
        if statistic != RATE:
            raise UsageError(f"{flow.name}.{what} is a count: use {flow.name}.{what}.rate")
        return None, "", what, statistic
    # Kinds of rows by owner count the same objects again.
    kinds = [kind for kind in flow.kinds if kind.owner_place is None]
    by_name = {kind.name: kind for kind in reversed(kinds)}
    if before and before[0] in by_name:
        kinds = [by_name[before[0]]]
        before = before[1:]
    operation = before[0] if before else ""
    if len(before) > 1 or (operation and operation not in OPERATIONS):
        words_there = (*by_name, *OPERATIONS)
        odd = before[-1]
        raise UsageError(f"{flow.name} has no kind or operation {odd}{did_you_mean(odd, words_there)}")
    if operation:
        kinds = [kind for kind in kinds if _operation_at(kind) >= 0]
    for kind in kinds:
        counters = _names(kind)
        if what in kind or (what in counters and statistic == RATE):
            return kind, operation, what, statistic
        if what in counters:
            raise UsageError(f"{what} is a count: use {what}.rate")
    there = list(dict.fromkeys(name for kind in kinds for name in (*(row.name for row in kind.rows), *_names(kind))))
    raise UsageError(f"{flow.name} has no metric {what}{did_you_mean(what, there)}; it has {', '.join(there)}")


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
        raise UsageError(f"a condition holds for 1s to 24h, not {text}")
    return found
