# SPDX-License-Identifier: Apache-2.0
"""Messages of OTLP, decoded by opentelemetry-proto; figures are computed from the values."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.docs.pages import section
from tests.unit.outputs.samples import HOSTILE, KIND, NOON, SECOND, cell, distribution, group, request, sized
from tests.unit.outputs.test_prometheus import PROCESS, READ, key, snapshot, source
from wptrace.flows.io import kinds
from wptrace.flows.io.parts.owners import KINDS as OWNED
from wptrace.flows.size import REQUEST as SIZES
from wptrace.model.distribution import SLOTS, Distribution, bounds
from wptrace.model.report import Event, Segment, Snapshot
from wptrace.model.tally import Tally
from wptrace.outputs import otlp, prometheus
from wptrace.outputs.metrics import Delivery, Fired, Loaded, Owners, Process, Source, label
from wptrace.outputs.otlp import LENGTH, METRICS, OFFSET, OFFSET_NS, SCALE, TRACES, Otlp

metrics_pb2 = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
traces_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

START, NOW = NOON - 60 * SECOND, NOON


def texts(attributes: Any) -> dict[str, Any]:
    """Return attributes as values of their types; each name is there once."""
    found = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
    assert len(found) == len(attributes)
    return found


def decoded(made: Otlp, *snapshots: Snapshot, process: Process = PROCESS, at: int = NOW) -> dict[Any, Any]:
    """Decode metrics and points by name and attributes; no point is there twice."""
    found: dict[Any, Any] = {}
    for message in made.metrics(snapshots, process, at):
        request = metrics_pb2.ExportMetricsServiceRequest.FromString(message.body)
        (resource,) = request.resource_metrics
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "wptrace"
        assert texts(resource.resource.attributes) == made.resource
        seen = 0
        for metric in scope.metrics:
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                key = metric.name, frozenset(texts(point.attributes).items())
                assert key not in found
                assert point.time_unix_nano == at
                found[key] = metric, point
                seen += 1
        assert seen == message.items
    return found


def made(*sources: Source, resource: Mapping[str, str] | None = None) -> Otlp:
    found = Otlp(sources, START)
    found.resource = resource or {}
    return found


def duration(total: Distribution) -> Any:
    """Return the metric and the point of reads that took so long."""
    return decoded(made(source(KIND)), snapshot({group("sda"): {"total": total}}))[key("wptrace.io.duration", **READ)]


# --- Histograms -------------------------------------------------------------------------------------------------------


def edges(point: Any, at: int) -> tuple[float, float]:
    """Return the edges of a bucket as the protocol defines them."""
    base = 2.0 ** (2.0**-point.scale)
    return base ** (point.positive.offset + at), base ** (point.positive.offset + at + 1)


def values(seed: int) -> list[int]:
    rng = random.Random(seed)  # noqa: S311
    return [int(rng.lognormvariate(12, 4)) for _ in range(3000)] + [0, 0, 1, 7, 8, 1 << 30, 1 << 43]


def test_count_sum_and_buckets_are_those_of_the_distribution() -> None:
    found = distribution(values(1))
    metric, point = duration(found)
    assert (metric.unit, metric.WhichOneof("data")) == ("s", "exponential_histogram")
    assert metric.exponential_histogram.aggregation_temporality == 2
    assert (point.start_time_unix_nano, point.count, point.zero_count) == (START, found.count, values(1).count(0))
    assert point.sum == pytest.approx(found.sum / 1e9)
    # The middle of each of our buckets but zero's is in the exported bucket that has its count.
    wanted = [0] * LENGTH
    for low, high, count in found.filled():
        if low:
            middle = low if high - low == 1 or high > 1 << 60 else (low + high) / 2
            (at,) = (at for at in range(LENGTH) if edges(point, at)[0] < middle / 1e9 <= edges(point, at)[1])
            wanted[at] += count
    assert list(point.positive.bucket_counts) == wanted
    assert sum(wanted) + point.zero_count == point.count == len(values(1))


@pytest.mark.parametrize(("unit", "offset", "scale"), [("ns", OFFSET_NS, 1e9), ("bytes", OFFSET, 1.0)])
def test_no_value_is_further_outside_of_its_bucket_than_the_page_says(unit: str, offset: int, scale: float) -> None:
    worst = 0.0
    for slot in range(1, SLOTS - 1):
        low, high = bounds(slot)
        one = distribution([low])
        zeros, found = otlp.buckets(one, unit)
        assert (zeros, sum(found)) == (0, 1)
        base = 2.0 ** (2.0**-SCALE)
        lower, upper = (base ** (offset + found.index(1) + at) * scale for at in (0, 1))
        worst = max(worst, (lower - low) / low, (high - 1 - upper) / (high - 1))
    (said,) = re.findall(r"up to ([0-9.]+) % outside", " ".join(section("agent.md", "## OTLP").split()))
    assert worst <= float(said) / 100 < worst + 0.01


def test_all_histograms_of_a_unit_have_the_same_buckets_so_that_they_can_be_added() -> None:
    """No matter what is in them; the sum of two is the histogram of both."""
    one, other = distribution(values(2)), distribution([5, 1 << 40])
    both = one.copy()
    both.merge(other)
    points = [duration(total)[1] for total in (one, other, both)]
    shapes = {(point.scale, point.positive.offset, len(point.positive.bucket_counts)) for point in points}
    assert shapes == {(SCALE, OFFSET_NS, LENGTH)} == {(3, -240, 344)}
    first, second, third = (point.positive.bucket_counts for point in points)
    assert [a + b for a, b in zip(first, second)] == list(third)


def test_where_each_value_is_known_it_is_in_its_own_bucket() -> None:
    sizes = {0: 2, 1: 1, 512: 1, 4096: 5, 4608: 3, 1 << 30: 1}
    cells = {SIZES.group("sda", "read"): {"total": Tally(sizes)}}
    found = decoded(made(source(SIZES, name="size")), snapshot(cells, sized({SIZES.group("sda", "read"): 999})))
    metric, point = found[key("wptrace.size.value", **READ)]
    assert (metric.unit, point.positive.offset, point.zero_count, point.count) == ("By", OFFSET, 2, 13)
    filled = {edges(point, at): count for at, count in enumerate(point.positive.bucket_counts) if count}
    for size, count in sizes.items():
        if size:
            # Edges are rounded. 4096 is on one, and belongs to the bucket below it.
            at = 8 * math.log2(size)
            place = math.ceil(at) - 1 - OFFSET
            assert filled[edges(point, place)] == count
    assert found[key("wptrace.size.bytes", **READ)][1].as_int == 999


def test_a_cell_that_is_read_while_it_is_written_has_a_count_of_its_buckets() -> None:
    torn = distribution([1000, 2000])
    torn.count += 1
    _, point = duration(torn)
    assert point.count == sum(point.positive.bucket_counts) == 2


def test_stages_are_sum_and_count_and_histograms_if_somebody_asks() -> None:
    cells = {group("sda"): cell([1000, 3000], [5000, 7000])}
    plain = decoded(made(source(KIND)), snapshot(cells))
    metric, point = plain[key("wptrace.io.stage", **READ, stage="queue")]
    assert metric.WhichOneof("data") == "histogram"
    assert (point.count, list(point.bucket_counts), list(point.explicit_bounds)) == (2, [2], [])
    assert point.sum == pytest.approx(4e-6)
    more = made(source(KIND))
    more.stage_histograms = True
    metric, point = decoded(more, snapshot(cells))[key("wptrace.io.stage", **READ, stage="queue")]
    assert (metric.WhichOneof("data"), point.count) == ("exponential_histogram", 2)
    assert point.positive.offset == OFFSET_NS


# --- Series -----------------------------------------------------------------------------------------------------------


def prometheus_name(metric: Any) -> str:
    """Return the name by OpenTelemetry's rules for Prometheus."""
    name = metric.name.replace(".", "_")
    unit = {"s": "seconds", "By": "bytes"}.get(metric.unit, "")
    name += f"_{unit}" if unit and unit not in name.split("_") else ""
    return f"{name}_total" if metric.WhichOneof("data") == "sum" else name


def test_names_labels_and_values_are_those_for_prometheus() -> None:
    """All metrics of a flow and of the agent are compared."""
    counters = {kinds.REQUEST.group("sda", "read"): {"bytes": 4096, "merged": 3}}
    cells = {kinds.REQUEST.group("sda", "read"): {"total": distribution([3000]), "queue": distribution([1000])}}
    process = PROCESS._replace(deliveries=[Delivery("metrics", 5, {"queue_full": 7}, 100)])
    current, sources = snapshot(cells, counters), [source(kinds.REQUEST, missing={"a": "b"})]
    text = prometheus.Metrics(sources).text([current], process)
    lines = {line for line in text.splitlines() if not line.startswith("#") and "_bucket" not in line}
    found = decoded(made(*sources), current, process=process)
    assert len(found) > 20
    said = set()
    for metric, point in found.values():
        name, labels = prometheus_name(metric), ",".join(f'{k}="{v}"' for k, v in texts(point.attributes).items())
        braces = f"{{{labels}}}" if labels else ""
        if metric.WhichOneof("data") in ("histogram", "exponential_histogram"):
            said |= {f"{name}_sum{braces} {point.sum}", f"{name}_count{braces} {point.count}"}
        else:
            said.add(f"{name}{braces} {getattr(point, point.WhichOneof('value'))}")
    assert said == lines
    assert 'wptrace_otlp_lost_total{signal="metrics",cause="queue_full"} 7' in said


def test_totals_are_cumulative_and_say_since_when() -> None:
    one = made(source(KIND))
    for at in (NOW, NOW + SECOND):
        found = decoded(one, snapshot({group("sda"): cell([1], [1])}), at=at)
        for metric, point in found.values():
            kind = metric.WhichOneof("data")
            if kind == "gauge":
                assert point.start_time_unix_nano == 0
                continue
            assert getattr(metric, kind).aggregation_temporality == 2
            assert point.start_time_unix_nano == START
            assert kind != "sum" or metric.sum.is_monotonic


def test_the_series_of_an_owner_that_comes_later_says_when_it_began() -> None:
    """A series that exists from the start begins then; one that takes another's place begins with the last export."""
    operation = OWNED["cgroup"][0]

    def current(at: int, **totals: int) -> Snapshot:
        cells = {
            operation.group("sda", "read", f"/{name}"): {"total": distribution([ns])} for name, ns in totals.items()
        }
        return snapshot(cells)._replace(at_ns=at)

    def begins(found: Mapping[Any, Any]) -> dict[str, int]:
        name = "wptrace.io.owner.duration"
        points = (point for (of, _), (_, point) in found.items() if of == name)
        return {texts(point.attributes)["unit"]: point.start_time_unix_nano for point in points}

    one = made(source(operation))
    one.own(Owners(("unit",), lambda owner: (str(owner),), 1))
    first = decoded(one, current(NOW, a=100), at=NOW)
    assert begins(first) == {"/a": START}
    later = current(NOW + SECOND, a=100, b=10_000)
    second = decoded(one, later, at=NOW + SECOND)
    # The series of the others is always there.
    assert begins(second) == {"/b": NOW, "others": START}
    assert begins(decoded(one, later._replace(at_ns=NOW + 2 * SECOND), at=NOW + 2 * SECOND)) == begins(second)
    one.own(None)
    one.restart()
    one.own(Owners(("unit",), lambda owner: (str(owner),), 5))
    assert begins(decoded(one, later, at=NOW + 3 * SECOND)) == {"/a": START, "/b": START}


def test_a_trigger_that_a_reload_adds_anew_says_when_it_began() -> None:
    """It begins at 0, which would be a total that goes back."""
    one, fired, runs = made(), [Fired("slow", 3, 0, False)], [Loaded("io", False, 3, 1.5, {"daily": 2})]
    there = PROCESS._replace(triggers=fired, on_trigger=runs)
    gone = PROCESS._replace(triggers=(), on_trigger=())
    new = PROCESS._replace(
        triggers=[Fired("slow", 0, 0, False)], on_trigger=[Loaded("io", False, 0, 0.0, {"daily": 0})]
    )
    for at, process, begin in (
        (NOW, there, START),
        (NOW + 1, gone, None),
        (NOW + 2, new, NOW + 1),
        (NOW + 3, new, NOW + 1),
    ):
        points = decoded(one, process=process, at=at).items()
        counters = [point for (name, _), (metric, point) in points if "trigger" in name and metric.HasField("sum")]
        assert {point.start_time_unix_nano for point in counters} == ({begin} if begin else set())


def test_nothing_begins_after_its_time_where_the_clock_is_set_back() -> None:
    """As at boot, before the time of day is known."""
    one = made(source(KIND))
    process = PROCESS._replace(triggers=[Fired("slow", 3, 0, False)])
    for at in (NOW, START - 3600 * SECOND, START - 3599 * SECOND):
        found = decoded(one, snapshot({group("sda"): cell([1], [1])}), process=process, at=at).values()
        begins = {point.start_time_unix_nano for _, point in found} - {0}
        assert begins == {START if at == NOW else START - 3660 * SECOND}


def test_many_series_are_several_messages_and_each_is_in_one() -> None:
    cells = {group(f"nbd{number}"): cell([1], [1]) for number in range(3000)}
    one = made(source(KIND), resource={"service.name": "x"})
    messages = list(one.metrics([snapshot(cells)], PROCESS, NOW))
    assert len(messages) == 3
    assert all(message.items <= 4000 for message in messages)
    found = decoded(one, snapshot(cells))
    counts = [point.count for (name, _), (_, point) in found.items() if name == "wptrace.io.duration"]
    assert counts == [1] * 3000


@pytest.mark.parametrize("name", [*HOSTILE, 'a"b\\c', "x" * 5000])
def test_names_may_have_anything_in_them(name: str) -> None:
    found = decoded(made(source(KIND)), snapshot({group(name): cell([1], [1])}))
    (device,) = {dict(labels)["device"] for of, labels in found if of == "wptrace.io.duration"}
    assert device == label("device", name)[1].encode(errors="replace").decode()
    event = request()._replace(group=group(name), fields={"path": name, "comm": name})
    (whole, *_) = spans(event)
    assert all(value.isprintable() for value in texts(whole.attributes).values() if isinstance(value, str))


# --- Spans ------------------------------------------------------------------------------------------------------------


def spans(*events: Event, kind: Any = KIND) -> list[Any]:
    message = made(source(kind)).spans((0, event) for event in events)
    (resource,) = traces_pb2.ExportTraceServiceRequest.FromString(message.body).resource_spans
    (scope,) = resource.scope_spans
    assert len(scope.spans) == message.items
    return list(scope.spans)


def test_an_event_is_a_span_with_its_stages_as_children() -> None:
    event = request(queue=1_000_000, device=3_000_000)
    whole, queue, device = spans(event)
    assert (whole.name, queue.name, device.name) == ("write request", "queue", "device")
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (NOON - 4_000_000, NOON)
    assert (queue.start_time_unix_nano, queue.end_time_unix_nano) == (NOON - 4_000_000, NOON - 3_000_000)
    assert (device.start_time_unix_nano, device.end_time_unix_nano) == (NOON - 3_000_000, NOON)
    assert whole.parent_span_id == b""
    assert queue.parent_span_id == device.parent_span_id == whole.span_id
    assert len({whole.span_id, queue.span_id, device.span_id}) == 3
    assert {one.trace_id for one in (whole, queue, device)} == {whole.trace_id}
    assert (len(whole.trace_id), len(whole.span_id)) == (16, 8)
    said = texts(whole.attributes)
    assert (said["system.device"], said["disk.io.direction"]) == ("sda", "write")
    assert (said["wptrace.flow"], said["wptrace.kind"], said["wptrace.operation"]) == ("io", "request", "write")
    assert (said["wptrace.sector"], said["wptrace.rwbs"], said["wptrace.bytes"]) == (123456, "WS", 4096)
    assert whole.status.code == 0


def test_two_events_are_two_traces() -> None:
    found = spans(request(), request())
    assert len({span.trace_id for span in found}) == 2
    assert len({span.span_id for span in found}) == 6


def test_who_and_which_file_it_was_is_said_by_the_names_of_the_conventions() -> None:
    fields = {"comm": "fio", "pid": 7, "tid": 8, "path": "/a b", "error": -5, "flush": {"before_ns": 3}, "deep": [{}]}
    (whole, *_) = spans(request()._replace(fields=fields))
    said = texts(whole.attributes)
    assert (said["thread.name"], said["process.pid"], said["thread.id"], said["file.path"]) == ("fio", 7, 8, "/a b")
    assert (said["wptrace.error"], said["wptrace.flush.before_ns"]) == (-5, 3)
    assert "wptrace.deep" not in said
    assert whole.status.code == 2


def test_waits_are_events_of_their_stage() -> None:
    stack = ["io_schedule", "folio_wait"]
    wait = {"stage": "device", "reason": "page", "ns": 700, "count": 2, "stack": stack}
    interference = {"kind": "softirq", "name": "NET_RX", "pid": None, "cpu": 1, "ns": 5, "count": 1}
    fields = {"waits": [wait], "interference": [interference]}
    whole, queue, device = spans(request()._replace(fields=fields))
    (happened,) = device.events
    assert (happened.name, happened.time_unix_nano) == ("wait", device.start_time_unix_nano)
    said = texts(happened.attributes)
    assert (said["wptrace.reason"], said["wptrace.ns"], said["wptrace.count"]) == ("page", 700, 2)
    assert said["wptrace.stack"] == "io_schedule <- folio_wait"
    (other,) = whole.events
    assert (other.name, texts(other.attributes)["wptrace.name"]) == ("interference", "NET_RX")
    assert not queue.events


def test_where_the_order_of_stages_is_not_known_a_span_says_so() -> None:
    event = request()._replace(fields={"requests": 2})
    assert texts(spans(event)[0].attributes)["wptrace.stages"] == "in order of stages, not of time"
    known = event._replace(segments=[Segment("device", 0, 3_000_000), Segment("queue", 3_000_000, 4_000_000)])
    whole, first, second = spans(known)
    assert "wptrace.stages" not in texts(whole.attributes)
    assert (first.name, second.name) == ("device", "queue")


def test_forged_times_make_no_invalid_span() -> None:
    assert spans(request()._replace(total_ns=-1)) == []
    (whole, *_) = spans(request()._replace(end_ns=5, total_ns=10, stages={}))
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (0, 5)


# --- Answers ----------------------------------------------------------------------------------------------------------


def test_what_a_receiver_leaves_out_is_read_of_its_answer() -> None:
    one = made(source(KIND))
    answer = metrics_pb2.ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points, answer.partial_success.error_message = 3, "too old"
    assert one.rejected(METRICS, answer.SerializeToString()) == (3, "too old")
    of_traces = traces_pb2.ExportTraceServiceResponse()
    of_traces.partial_success.rejected_spans = 2
    assert one.rejected(TRACES, of_traces.SerializeToString()) == (2, "")
    assert one.rejected(TRACES, b"") == (0, "")
    for garbage in (b"<html>", b"\xff\xff\xff", b"\x0a\x05"):
        with pytest.raises(ValueError, match="no answer of OTLP"):
            one.rejected(METRICS, garbage)
