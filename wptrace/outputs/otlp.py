# SPDX-License-Identifier: Apache-2.0
"""Metrics and slow events as messages of OTLP, the protocol of OpenTelemetry.

Messages are made of opentelemetry-proto alone. The SDK of OpenTelemetry aggregates measurements one by one; here
distributions are complete, and its histograms choose scale and offset by the values that they have.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from wptrace import __version__
from wptrace.model import segments
from wptrace.model.distribution import SLOTS, Distribution, bounds
from wptrace.model.kind import ALL, DEVICE, OPERATION
from wptrace.model.report import Event, Snapshot
from wptrace.model.tally import Tally
from wptrace.outputs.export import lanes
from wptrace.outputs.export.extra import load
from wptrace.outputs.metrics import Derived, Family, Labels, Point, Process, Source, plain, scaled
from wptrace.outputs.text.words import printable

METRICS, TRACES = SIGNALS = "metrics", "traces"

SCALE = 3
"""Each power of two has 2**3 buckets, as many as those of a distribution."""
LENGTH = 43 << SCALE
OFFSET_NS = -30 << SCALE
"""Times, in seconds, from 2**-30 s: all histograms of a unit have the same buckets, so that a database can add them."""
OFFSET = -1 << SCALE
"""Anything else, from 1/2."""
# AGGREGATION_TEMPORALITY_CUMULATIVE and SPAN_KIND_INTERNAL of the protocol.
_CUMULATIVE, _INTERNAL = 2, 1
_UNITS = {"seconds": "s", "bytes": "By", "": ""}
# Receivers limit the length of a request.
_MOST_POINTS = 4000
_LONGEST = 1024
_MOST_STACK = 32
# Names by the semantic conventions of OpenTelemetry.
_FIELDS = {"comm": "thread.name", "pid": "process.pid", "tid": "thread.id", "path": "file.path"}
_DIRECTIONS = ("read", "write")
# A span's events: the field that lists them, their name, and the stage in which they were, if the list does not say it.
_HAPPENED = (("waits", "wait", ""), ("throttled_by", "held", "throttle"), ("interference", "interference", ""))


class Message(NamedTuple):
    body: bytes
    items: int
    """Data points, or spans."""


class Otlp(Derived):
    def __init__(self, sources: Sequence[Source], started_ns: int) -> None:
        """`started_ns` is the time of day from which on everything is counted."""
        super().__init__(sources)
        self._started_ns = self._last_ns = started_ns
        self._began: dict[tuple[tuple[str, ...], str, Labels], int] = {}
        """When series began that may restart."""
        self._services = services()
        self.resource: Mapping[str, str] = {}
        """Attributes of everything that is sent."""

    def restart(self) -> None:
        """Restart the series of owners."""
        self._began.clear()
        self._last_ns = self._started_ns

    # --- Metrics ------------------------------------------------------------------------------------------------------

    def metrics(self, snapshots: Sequence[Snapshot], process: Process, at_ns: int) -> Iterator[Message]:
        """All totals at this time of day, in as many requests as they take."""
        if at_ns < self._last_ns:
            self._set_back(self._last_ns - at_ns)
        families = self.families(snapshots, process)
        starts = dict(self._starts(families))
        self._began, self._last_ns = starts, at_ns
        request: Any = None
        into: Any = None
        count = 0
        for family in families:
            metric = None
            for point in family.points:
                if count == _MOST_POINTS:
                    yield Message(request.SerializeToString(), count)
                    request = metric = None
                if request is None:
                    request, into = self._request(METRICS)
                    count = 0
                if metric is None:
                    metric = self._metric(into.metrics.add(), family)
                key = (family.name, family.unit, point.labels)
                self._point(metric, family, point, starts.get(key, self._started_ns), at_ns)
                count += 1
        if request is not None:
            yield Message(request.SerializeToString(), count)

    def _set_back(self, ns: int) -> None:
        """Follow the clock, which was set back: nothing begins after the time for which it is sent."""
        self._started_ns -= ns
        self._last_ns -= ns
        self._began = {key: began - ns for key, began in self._began.items()}

    def _starts(self, families: Iterable[Family]) -> Iterator[tuple[tuple[tuple[str, ...], str, Labels], int]]:
        for family in families:
            for point in family.points:
                if point.restarts:
                    key = (family.name, family.unit, point.labels)
                    yield key, self._began.get(key, self._last_ns)

    def _request(self, signal: str) -> tuple[Any, Any]:
        """A request, and that of it to which metrics or spans are added."""
        if signal == METRICS:
            request = self._services[METRICS].ExportMetricsServiceRequest()
            whole = request.resource_metrics.add()
            into = whole.scope_metrics.add()
        else:
            request = self._services[TRACES].ExportTraceServiceRequest()
            whole = request.resource_spans.add()
            into = whole.scope_spans.add()
        self._annotate(whole.resource.attributes, self.resource)
        into.scope.name, into.scope.version = "wptrace", __version__
        return request, into

    def _metric(self, metric: Any, family: Family) -> Any:
        """The metric's part that has its points."""
        metric.name = ".".join(("wptrace", *family.name))
        metric.unit = _UNITS.get(family.unit, f"{{{family.unit}}}")
        metric.description = family.help
        if family.type == "gauge":
            metric.gauge.SetInParent()
            return metric.gauge
        if family.type == "counter":
            metric.sum.is_monotonic = True
            found = metric.sum
        else:
            found = metric.exponential_histogram if family.type == "histogram" else metric.histogram
        found.aggregation_temporality = _CUMULATIVE
        return found

    def _point(self, metric: Any, family: Family, point: Point, start_ns: int, at_ns: int) -> None:
        made = metric.data_points.add(time_unix_nano=at_ns)
        for name, text in point.labels:
            made.attributes.add(key=name).value.string_value = _text(text)
        if family.type != "gauge":
            made.start_time_unix_nano = start_ns
        value = point.value
        if not isinstance(value, Distribution):
            if isinstance(value, int):
                made.as_int = value
            else:
                made.as_double = value
            return
        made.sum = scaled(value.sum, point.unit)
        if family.type == "summary":
            # A single bucket: a summary of OTLP is for quantiles, and some receivers drop a histogram without any.
            made.count = value.count
            made.bucket_counts.append(value.count)
            return
        made.scale = SCALE
        made.zero_count, counts = buckets(value, point.unit)
        # Receivers refuse a count that is not that of the buckets, and a cell may be read while it is written.
        made.count = made.zero_count + sum(counts)
        made.positive.offset = OFFSET_NS if point.unit == "ns" else OFFSET
        made.positive.bucket_counts.extend(counts)

    # --- Slow events --------------------------------------------------------------------------------------------------

    def spans(self, events: Iterable[tuple[int, Event]]) -> Message:
        """Events of the flows with these numbers, each as a trace of its own: a span with its stages as children."""
        request, into = self._request(TRACES)
        for flow, event in events:
            if event.total_ns >= 0:
                self._event(into.spans, self._sources[flow].name, event)
        return Message(request.SerializeToString(), len(into.spans))

    def _event(self, spans: Any, flow: str, event: Event) -> None:
        kind, trace = event.group.kind, os.urandom(16)
        attributes: dict[str, Any] = {"wptrace.flow": flow, "wptrace.kind": kind.name}
        operation = ""
        for label, value in zip(kind.labels, event.group.values):
            if value is ALL:
                continue
            shown = label.shown(value)
            if label.type == OPERATION:
                operation = shown
                attributes["wptrace.operation"] = shown
                if shown in _DIRECTIONS:
                    attributes["disk.io.direction"] = shown
            else:
                attributes["system.device" if label.type == DEVICE else f"wptrace.{plain(label.name)}"] = shown
        attributes.update(_scalars(event.fields))
        if note := segments.order(event):
            attributes["wptrace.stages"] = note
        whole = self._span(spans, trace, b"", " ".join(filter(None, (operation, kind.noun.one))), event.start_ns)
        whole.end_time_unix_nano = max(event.end_ns, 0)
        self._annotate(whole.attributes, attributes)
        result = event.fields.get("result")
        if event.fields.get("error") or (isinstance(result, int) and result < 0):
            whole.status.code = whole.status.STATUS_CODE_ERROR
        stages: dict[str, Any] = {}
        for part in lanes.segments(event):
            span = self._span(spans, trace, whole.span_id, part.stage, part.begin_ns)
            span.end_time_unix_nano = max(part.end_ns, 0)
            stages.setdefault(part.stage, span)
        for field, name, stage in _HAPPENED:
            for one in event.fields.get(field, ()):
                # How long it lasted is known, but not since when.
                span = stages.get(one.get("stage", stage), whole)
                happened = span.events.add(name=name, time_unix_nano=span.start_time_unix_nano)
                self._annotate(happened.attributes, dict(_scalars(one)))

    def _span(self, spans: Any, trace: bytes, parent: bytes, name: str, begin_ns: int) -> Any:
        return spans.add(
            trace_id=trace,
            span_id=os.urandom(8),
            parent_span_id=parent,
            name=_text(name),
            kind=_INTERNAL,
            start_time_unix_nano=max(begin_ns, 0),
        )

    def _annotate(self, attributes: Any, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            made = attributes.add(key=name).value
            if isinstance(value, bool):
                made.bool_value = value
            elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
                made.int_value = value
            elif isinstance(value, float):
                made.double_value = value
            else:
                made.string_value = _text(printable(str(value)))

    # --- Answers ------------------------------------------------------------------------------------------------------

    def rejected(self, signal: str, answer: bytes) -> tuple[int, str]:
        """Return how many points or spans the receiver has rejected, and why; ValueError if it is no answer of OTLP."""
        service = self._services[signal]
        made = service.ExportMetricsServiceResponse() if signal == METRICS else service.ExportTraceServiceResponse()
        try:
            made.ParseFromString(answer)
        except Exception as error:
            raise ValueError("this is no answer of OTLP") from error
        found = made.partial_success
        count = found.rejected_data_points if signal == METRICS else found.rejected_spans
        return max(count, 0), found.error_message


def services() -> dict[str, Any]:
    """The messages of each signal; WptraceError if the library is missing."""
    found = {}
    for signal, name in ((METRICS, "metrics"), (TRACES, "trace")):
        module = f"opentelemetry.proto.collector.{name}.v1.{name}_service_pb2"
        found[signal] = load(module, "otlp", "[otlp] needs", "opentelemetry-proto")
    return found


def _text(value: str) -> str:
    """A string as messages may have it: names of devices and files may be any bytes."""
    return value[:_LONGEST].encode(errors="replace").decode()


def _scalars(fields: Mapping[str, Any], prefix: str = "wptrace.") -> Iterator[tuple[str, Any]]:
    """Texts, numbers and flags with their names; what has more parts is in captures alone."""
    for name, value in fields.items():
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and value):
            yield _FIELDS.get(name, f"{prefix}{name}") if prefix == "wptrace." else f"{prefix}{name}", value
        elif name == "stack" and isinstance(value, list):
            yield f"{prefix}{name}", " <- ".join(map(str, value[:_MOST_STACK]))
        elif isinstance(value, Mapping) and prefix == "wptrace.":
            yield from _scalars(value, f"{prefix}{name}.")


def buckets(found: Distribution, unit: str) -> tuple[int, list[int]]:
    """The count of zeros, and those of LENGTH buckets: each bucket of ours is where its middle lies."""
    counts = [0] * LENGTH
    if isinstance(found, Tally):
        for value, count in found.counts.items():
            if value > 0:
                counts[_place(value, unit)] += count
        return found.counts.get(0, 0), counts
    filled = found.buckets
    for slot, place in enumerate(_places(unit), 1):
        if filled[slot]:
            counts[place] += filled[slot]
    return filled[0], counts


@lru_cache(maxsize=8)
def _places(unit: str) -> list[int]:
    """Return the exported bucket of each bucket of a distribution except that of 0."""
    found = []
    for slot in range(1, SLOTS):
        low, high = bounds(slot)
        # The first buckets have one value each, the last has no end.
        alone = high - low == 1 or slot == SLOTS - 1
        found.append(_place(low if alone else (low + high) / 2, unit))
    return found


def _place(value: float, unit: str) -> int:
    """The bucket of a value. An edge belongs to the bucket below it."""
    offset = OFFSET_NS if unit == "ns" else OFFSET
    at = math.ceil(math.log2(scaled(value, unit)) * (1 << SCALE)) - 1 - offset
    return min(max(at, 0), LENGTH - 1)
