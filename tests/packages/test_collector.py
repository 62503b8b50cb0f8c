# SPDX-License-Identifier: Apache-2.0
"""The configuration of the OpenTelemetry collector, as far as it can be checked without one."""

from __future__ import annotations

from urllib.parse import urlsplit

import yaml

from tests.packages.installed import ROOT
from wptrace.agent.collector import DEFAULT


def test_what_the_agent_sends_goes_through_components_that_are_there() -> None:
    found = yaml.safe_load((ROOT / "contrib" / "otel" / "collector.yaml").read_text())
    listen = found["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert urlsplit(f"//{listen}").port == urlsplit(DEFAULT).port
    pipelines = found["service"]["pipelines"]
    assert set(pipelines) == {"metrics", "traces"}
    for pipeline in pipelines.values():
        for part, names in pipeline.items():
            assert set(names) <= set(found[part])
        # What refuses comes first, so that nothing is lost behind it.
        assert pipeline["processors"][0] == "memory_limiter"
