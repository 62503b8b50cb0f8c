# SPDX-License-Identifier: Apache-2.0
"""Metrics as text for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group
from wptrace.model.report import Event, Snapshot
from wptrace.model.tally import Tally
from wptrace.outputs.metrics import Derived, Family, Labels, Process, Source, scaled

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Powers of two: 1 us to 69 s, and of anything else from 512 to 32 Mi.
_EDGES_NS = [1 << at for at in range(10, 37)]
_EDGES = [1 << at for at in range(9, 26)]
# The fields of an event in an exemplar, with their longest values; all together may have 128 characters there.
_EXEMPLAR = {"comm": 32, "pid": 10, "sector": 20}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics(Derived):
    def __init__(self, sources: Sequence[Source], stage_histograms: bool = False) -> None:
        super().__init__(sources, stage_histograms)
        self._texts: dict[Labels, str] = {}
        """Labels of the last text."""
        self._exemplars: dict[Group, dict[int, str]] = {}
        """The last event in each bucket of the total."""

    def event(self, flow: int, event: Event) -> None:
        """Keep an event as an exemplar of the flow with this number."""
        if event.group.kind.owner_place is not None or event.group.kind.total.unit != "ns":
            return
        labels = ",".join(
            _label(name, str(event.fields[name])[:most]) for name, most in _EXEMPLAR.items() if name in event.fields
        )
        text = f" # {{{labels}}} {event.total_ns / 1e9} {event.end_ns / 1e9:.3f}"
        at = bisect_left(_EDGES_NS, event.total_ns + 1)
        self._exemplars.setdefault(self.group(flow, event.group), {})[at] = text

    def text(self, snapshots: Sequence[Snapshot], process: Process, openmetrics: bool = False) -> str:
        lines: list[str] = []
        before, self._texts = self._texts, {}
        for family in self.families(snapshots, process):
            name = _name(family)
            # OpenMetrics has the suffix in samples alone.
            of_family = name.removesuffix("_total") if openmetrics else name
            lines += [f"# HELP {of_family} {_escaped(family.help)}", f"# TYPE {of_family} {family.type}"]
            for point in family.points:
                text = self._texts.get(point.labels) or before.get(point.labels)
                if text is None:
                    text = ",".join(_label(*one) for one in point.labels)
                self._texts[point.labels] = text
                if not isinstance(point.value, Distribution):
                    lines.append(f"{name}{{{text}}} {point.value}" if text else f"{name} {point.value}")
                    continue
                if family.type == "histogram":
                    exemplars = self._exemplars.get(point.group, {}) if openmetrics and point.group else {}
                    lines += _buckets(name, text, point.value, point.unit, exemplars)
                lines.append(f"{name}_sum{{{text}}} {scaled(point.value.sum, point.unit)}")
                lines.append(f"{name}_count{{{text}}} {point.value.count}")
        lines += ["# EOF", ""] if openmetrics else [""]
        return "\n".join(lines)


def _name(family: Family) -> str:
    unit = f"_{family.unit}" if family.unit and family.unit != family.name[-1] else ""
    return f"wptrace_{'_'.join(family.name)}{unit}{'_total' if family.type == 'counter' else ''}"


def _label(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPES)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _buckets(name: str, labels: str, found: Distribution, unit: str, exemplars: Mapping[int, str]) -> list[str]:
    edges = _EDGES_NS if unit == "ns" else _EDGES
    texts = _TEXTS_NS if unit == "ns" else _TEXTS
    counts = [0] * (len(edges) + 1)
    for highest, count in _highest(found):
        counts[bisect_left(edges, highest)] += count
    prefix = f'{name}_bucket{{{labels},le="'
    lines = [f'{prefix}{edge}"}} {count}' for edge, count in zip(texts, accumulate(counts))]
    lines.append(f'{prefix}+Inf"}} {found.count}')
    for at, text in exemplars.items():
        lines[at] += text
    return lines


def _highest(found: Distribution) -> Iterable[tuple[int, int]]:
    """The highest value of each bucket, and how many are there; where each value is known, that one."""
    if isinstance(found, Tally):
        return found.counts.items()
    return ((high - 1, count) for _, high, count in found.filled())


_TEXTS_NS = [repr(edge / 1e9) for edge in _EDGES_NS]
_TEXTS = [f"{edge}.0" for edge in _EDGES]
