# SPDX-License-Identifier: Apache-2.0
"""Metrics and spans sent by OTLP, as other programs read them.

VictoriaMetrics stores metrics under the names of the text for Prometheus; rotel, a collector, forwards everything.
"""

from __future__ import annotations

import random
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.collector import PATIENCE, Collector, Request, collecting
from tests.lab import peers
from tests.peers.victoria import Victoria, victoria
from tests.unit.agent.test_sender import wait_until
from tests.unit.outputs.samples import NOON, SECOND, cell, distribution, request, sized
from tests.unit.outputs.test_prometheus import PROCESS, snapshot, source
from wptrace.agent.collector import collector, endpoint
from wptrace.agent.sender import Sender
from wptrace.flows.io import kinds
from wptrace.flows.size import REQUEST as SIZES
from wptrace.model.kind import TOTAL
from wptrace.model.report import Snapshot
from wptrace.model.tally import Tally
from wptrace.outputs import prometheus
from wptrace.outputs.otlp import METRICS, TRACES, Otlp

READ = 'device="sda",operation="read",kind="request"'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victoria]:
    with victoria(tmp_path_factory.mktemp("victoria")) as found:
        yield found


def send(server: Victoria, made: Otlp, *snapshots: Snapshot) -> None:
    said: list[str] = []
    sender = Sender(METRICS, made.rejected, said.append)
    sender.send_to(collector(endpoint(server.otlp), {}).targets[METRICS], 1 << 20)
    messages = list(made.metrics(snapshots, PROCESS, time.time_ns()))
    for message in messages:
        sender.push(message)
    wait_until(lambda: sender.delivery.sent == sum(message.items for message in messages), "all are taken")
    sender.close()
    assert said == []


def test_a_server_has_the_names_counts_and_quantiles(server: Victoria) -> None:
    rng = random.Random(3)  # noqa: S311
    values = sorted(int(rng.lognormvariate(14, 1.5)) for _ in range(5000))
    group = kinds.REQUEST.group("sda", "read")
    current = snapshot(
        {group: {**cell([1000, 3000], [5000, 7000]), TOTAL: distribution(values)}}, sized({group: 20_480_000})
    )
    sizes = snapshot({SIZES.group("sda", "read"): {TOTAL: Tally({4096: 5, 8192: 4})}})
    sources = [source(kinds.REQUEST), source(SIZES, name="size")]
    made = Otlp(sources, time.time_ns() - 60 * SECOND)
    made.stage_histograms = True
    made.resource = {"service.name": "wptrace", "service.instance.id": "db1"}
    send(server, made, current, sizes)
    text = prometheus.Metrics(sources, stage_histograms=True).text([current, sizes], PROCESS)
    # A family without a series is not sent.
    wanted = set(re.findall(r"^(wptrace_\w+)(?:\{.*\})? [^ ]+$", text, re.M))
    assert server.names() == wanted
    count = f"wptrace_io_duration_seconds_count{{{READ},service_instance_id='db1'}}"
    wait_until(lambda: server.value(count) > 0, "what was sent")
    assert server.value(count) == len(values)
    assert server.value(f"wptrace_io_duration_seconds_sum{{{READ}}}") == pytest.approx(sum(values) / 1e9)
    assert server.value(f"wptrace_io_bytes_total{{{READ}}}") == 20_480_000
    assert server.value(f'wptrace_io_stage_seconds_count{{{READ},stage="device"}}') == 2
    assert server.value(f"wptrace_size_value_bytes_count{{{READ}}}") == 9
    for percent in (50, 90, 99):
        exact = values[len(values) * percent // 100 - 1] / 1e9
        found = server.value(f"histogram_quantile({percent / 100}, wptrace_io_duration_seconds_bucket{{{READ}}})")
        assert found == pytest.approx(exact, rel=0.15)


# --- rotel ------------------------------------------------------------------------------------------------------------


@contextmanager
def rotel(folder: Path, behind: Collector) -> Iterator[str]:
    """The endpoint of a rotel that forwards everything to another collector."""
    program = Path(pytest.importorskip("rotel").__file__).with_name("rotel-agent")
    ports = {name: peers.free_address() for name in ("http", "grpc")}
    options = [f"--otlp-{name}-endpoint={address}" for name, address in ports.items()]
    options += ["--exporter=otlp", "--otlp-exporter-protocol=http", f"--otlp-exporter-endpoint={behind.url}"]
    options += [f"--pid-file={folder / 'pid'}", f"--log-file={folder / 'log'}"]
    process = subprocess.Popen([program, "start", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{ports['http']}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_a_collector_passes_all_of_it_on(tmp_path: Path) -> None:
    """Each point arrives, and each span with its attributes, events and parent."""
    made = Otlp([source(kinds.REQUEST)], NOON)
    made.resource = {"service.name": "wptrace"}
    group = kinds.REQUEST.group("sda", "read")
    wait = {"stage": "device", "reason": "page", "ns": 700, "count": 2, "stack": ["a", "b"]}
    event = request(queue=1_000_000, device=3_000_000)
    event = event._replace(fields={**event.fields, "comm": "fio", "pid": 7, "waits": [wait]})
    current = snapshot({group: {**cell([1000], [5000]), TOTAL: distribution([0, 1, 1 << 20, 1 << 41])}})
    spans = made.spans([(0, event)] * 100)
    (metrics,) = made.metrics([current], PROCESS, time.time_ns())
    said: list[str] = []
    with collecting() as behind, rotel(tmp_path, behind) as url:
        senders = {signal: Sender(signal, made.rejected, said.append) for signal in (METRICS, TRACES)}
        for signal, target in collector(endpoint(url), {}).targets.items():
            senders[signal].send_to(target, 1 << 20)
        senders[METRICS].push(metrics)
        senders[TRACES].push(spans)
        of_metrics = behind.wait_for(1, "/v1/metrics")
        of_spans = behind.wait_for(1, "/v1/traces")
        wait_until(lambda: senders[TRACES].delivery.sent == spans.items == 300, "all spans are taken")
        for sender in senders.values():
            sender.close()
    assert points_of(of_metrics) == points_of([metrics])
    assert spans_of(of_spans) == spans_of([spans])


def points_of(messages: Iterable[Any]) -> list[bytes]:
    """Return each point with its metric's name, as bytes that are the same for the same contents."""
    found = []
    for one in messages:
        whole = metrics_service_pb2.ExportMetricsServiceRequest.FromString(bytes_of(one))
        for metric in (metric for resource in whole.resource_metrics for metric in resource.scope_metrics[0].metrics):
            for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
                found.append(f"{metric.name} {metric.unit} ".encode() + point.SerializeToString(deterministic=True))
    assert found
    return sorted(found)


def spans_of(messages: Iterable[Any]) -> list[bytes]:
    found = []
    for one in messages:
        whole = trace_service_pb2.ExportTraceServiceRequest.FromString(bytes_of(one))
        found += [span for resource in whole.resource_spans for span in resource.scope_spans[0].spans]
    assert found
    return sorted(span.SerializeToString(deterministic=True) for span in found)


def bytes_of(one: Any) -> bytes:
    return bytes(one.message if isinstance(one, Request) else one.body)
