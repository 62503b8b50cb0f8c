# SPDX-License-Identifier: Apache-2.0
"""Metrics that are sent by OTLP, as VictoriaMetrics takes them: under the names of the text for Prometheus."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator

import pytest

from tests.peers.victoria import Victoria, victoria
from tests.unit.agent.test_sender import wait_until
from tests.unit.outputs.samples import SECOND, cell, distribution, sized
from tests.unit.outputs.test_prometheus import PROCESS, snapshot, source
from wptrace.agent.collector import collector, endpoint
from wptrace.agent.sender import Sender
from wptrace.flows.io import kinds
from wptrace.flows.size import REQUEST as SIZES
from wptrace.model.kind import TOTAL
from wptrace.model.report import Snapshot
from wptrace.model.tally import Tally
from wptrace.outputs import prometheus
from wptrace.outputs.otlp import METRICS, Otlp

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
