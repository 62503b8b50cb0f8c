# SPDX-License-Identifier: Apache-2.0
"""The address of the collector, from the configuration and OpenTelemetry's variables."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from wptrace.agent.collector import Collector, collector, endpoint
from wptrace.errors import UsageError

E = "OTEL_EXPORTER_OTLP_"


def read(text: str = "", **variables: str) -> Collector:
    return collector(endpoint(text) if text else None, variables)


def urls(found: Collector) -> dict[str, str]:
    return {signal: str(target.endpoint) for signal, target in found.targets.items()}


def both(base: str) -> dict[str, str]:
    return {signal: f"{base}/v1/{signal}" for signal in ("metrics", "traces")}


@pytest.mark.parametrize(
    ("text", "variables", "wanted"),
    [
        ("", {}, both("http://127.0.0.1:4318")),
        ("http://collector:4318", {}, both("http://collector:4318")),
        ("https://[::1]/otlp/", {}, both("https://[::1]:443/otlp")),
        ("", {f"{E}ENDPOINT": "http://a:1/x"}, both("http://a:1/x")),
        ("", {f"{E}ENDPOINT": ""}, both("http://127.0.0.1:4318")),
        # The configuration file has precedence.
        ("http://b:2", {f"{E}ENDPOINT": "http://a:1", f"{E}METRICS_ENDPOINT": "http://c:3"}, both("http://b:2")),
        # The address for a signal is used as it is.
        (
            "",
            {f"{E}ENDPOINT": "http://a:1", f"{E}METRICS_ENDPOINT": "http://c:3/api/v1/otlp/v1/metrics"},
            {"metrics": "http://c:3/api/v1/otlp/v1/metrics", "traces": "http://a:1/v1/traces"},
        ),
        (
            "",
            {f"{E}TRACES_ENDPOINT": "http://c:3"},
            {"metrics": "http://127.0.0.1:4318/v1/metrics", "traces": "http://c:3/"},
        ),
        ("", {"OTEL_TRACES_EXPORTER": "none"}, {"metrics": "http://127.0.0.1:4318/v1/metrics"}),
    ],
)
def test_where_each_signal_goes(text: str, variables: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    assert urls(read(text, **variables)) == wanted


def test_variables_of_a_signal_come_before_those_of_both() -> None:
    found = read(
        **{
            f"{E}HEADERS": "api-key=a%20b, x=1",
            f"{E}TRACES_HEADERS": "y=2",
            f"{E}TIMEOUT": "2500",
            f"{E}METRICS_TIMEOUT": "100",
            f"{E}COMPRESSION": "none",
            f"{E}TRACES_COMPRESSION": "gzip",
        }
    ).targets
    assert found["metrics"][1:] == ((("api-key", "a b"), ("x", "1")), 0.1, False)
    assert found["traces"][1:] == ((("y", "2"),), 2.5, True)
    assert read().targets["metrics"][1:] == ((), 10.0, True)


def test_attributes_of_the_resource() -> None:
    pairs = "service.name=a,deployment.environment.name=prod%2C eu"
    assert read(OTEL_RESOURCE_ATTRIBUTES=pairs).resource == {
        "service.name": "a",
        "deployment.environment.name": "prod, eu",
    }
    assert read(OTEL_RESOURCE_ATTRIBUTES=pairs, OTEL_SERVICE_NAME="b").resource["service.name"] == "b"
    assert read().resource == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.1:4318", "wptrace sends OTLP over HTTP only, not over gRPC"),
        ("grpc://a:4317", "wptrace sends OTLP over HTTP only, not over gRPC"),
        ("//a:4317", "wptrace sends OTLP over HTTP only, not over gRPC"),
        ("http://user:secret@a:1", "without a password: OTEL_EXPORTER_OTLP_HEADERS may have one"),
        ("http://", "with a host, and without"),
        ("http://a:0", "with a host, and without"),
        ("http://a:99999", "Port out of range"),
        ("http://a:x", "Port could not be cast"),
        ("http://[::1", "Invalid IPv6 URL"),
        ("http://a/?x=1", "without ? and #"),
        ("http://a/#x", "without ? and #"),
        ("http://a b", "without spaces"),
        ("http://a\n", "without spaces"),
        (f"http://{'a' * 2048}", "of up to 2,048 characters"),
    ],
)
def test_what_is_no_endpoint(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        endpoint(text)
    assert error.value.message.startswith("a URL such as http://127.0.0.1:4318")
    assert said in error.value.message
    assert "secret" not in error.value.message


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (f"{E}ENDPOINT", "a:1", "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL such as"),
        (f"{E}TRACES_ENDPOINT", "grpc://a", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must be a URL such as"),
        (f"{E}PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL is grpc: wptrace sends only http/protobuf"),
        (f"{E}METRICS_PROTOCOL", "http/json", "is http/json: wptrace sends only http/protobuf"),
        (f"{E}TIMEOUT", "10s", "OTEL_EXPORTER_OTLP_TIMEOUT is 10s: it must be milliseconds, from 1 to 600000"),
        (f"{E}TIMEOUT", "0", "is 0: it must be milliseconds"),
        (f"{E}TIMEOUT", "600001", "is 600001: it must be milliseconds"),
        (f"{E}COMPRESSION", "zstd", "OTEL_EXPORTER_OTLP_COMPRESSION is zstd: it must be gzip or none"),
        (f"{E}HEADERS", "secret", "OTEL_EXPORTER_OTLP_HEADERS must be NAME=VALUE"),
        (f"{E}HEADERS", "a=secret%0d%0aHost: x", "has characters in the value of a that a header cannot have"),
        (f"{E}HEADERS", "a b=secret", "has the header a b, which cannot be set"),
        (f"{E}HEADERS", "Content-Length=7", "has the header Content-Length, which cannot be set"),
        (f"{E}HEADERS", f"a={'x' * 8192}", "is longer than 8,192 characters or 64 pairs"),
        (f"{E}HEADERS", "a=1," * 64, "is longer than 8,192 characters or 64 pairs"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a", "OTEL_RESOURCE_ATTRIBUTES must be NAME=VALUE"),
        ("OTEL_METRICS_EXPORTER", "prometheus", "OTEL_METRICS_EXPORTER is prometheus: wptrace knows otlp and none"),
    ],
)
def test_variables_that_are_wrong_are_named_and_secrets_are_not_shown(variable: str, value: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(**{variable: value})
    assert said in error.value.message
    assert "secret" not in error.value.message
