# SPDX-License-Identifier: Apache-2.0
"""The collector that metrics and spans are sent to: from the configuration, and from OpenTelemetry's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from wptrace.engine.definition.faults import quoted
from wptrace.errors import UsageError
from wptrace.outputs.otlp import SIGNALS

DEFAULT = "http://127.0.0.1:4318"
_OTLP = "OTEL_EXPORTER_OTLP_"
_PROTOCOL = "http/protobuf"
_DEFAULT_TIMEOUT_MS, _LONGEST_TIMEOUT_MS = 10_000, 600_000
_LONGEST_URL, _LONGEST_LIST, _MOST_PAIRS = 2048, 8192, 64
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
# Headers that the request sets itself.
_OWN_HEADERS = {"host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection"}


class Endpoint(NamedTuple):
    tls: bool
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"

    def below(self, path: str) -> Endpoint:
        return self._replace(path=f"{self.path.rstrip('/')}/{path}")


class Target(NamedTuple):
    """The destination of one signal, and how to send it."""

    endpoint: Endpoint
    headers: tuple[tuple[str, str], ...]
    timeout_s: float
    compressed: bool


class Collector(NamedTuple):
    targets: Mapping[str, Target]
    """Targets by signal; a signal that is not sent has none."""
    resource: Mapping[str, str]
    """Attributes of the resource that somebody has chosen."""


def endpoint(text: str) -> Endpoint:
    """Parse an address such as http://127.0.0.1:4318."""
    said = "a URL such as http://127.0.0.1:4318"
    if len(text) > _LONGEST_URL or not re.fullmatch(r"[!-~]+", text):
        raise UsageError(f"{said} without spaces, of up to {_LONGEST_URL:,} characters")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{said}: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"{said}: wptrace sends OTLP over HTTP only, not over gRPC")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"{said}, without a password: {_OTLP}HEADERS may have one")
    if not host or port == 0 or parts.query or parts.fragment:
        raise UsageError(f"{said}, with a host, and without ? and #")
    return Endpoint(parts.scheme == "https", host, port or (443 if parts.scheme == "https" else 80), parts.path)


def collector(base: Endpoint | None, environment: Mapping[str, str]) -> Collector:
    """The endpoint of the configuration comes first, then the variables of a signal, then those of both."""
    variables = _Variables(environment)
    targets = {}
    for signal in SIGNALS:
        protocol = variables.of(signal, "PROTOCOL")[1] or _PROTOCOL
        if protocol != _PROTOCOL:
            raise UsageError(f"{_OTLP}PROTOCOL is {quoted(protocol)}: wptrace sends only {_PROTOCOL}")
        name = f"OTEL_{signal.upper()}_EXPORTER"
        exporter = environment.get(name) or "otlp"
        if exporter not in ("otlp", "none"):
            raise UsageError(f"{name} is {quoted(exporter)}: wptrace knows otlp and none")
        if exporter == "otlp":
            targets[signal] = Target(
                variables.endpoint(signal) if base is None else base.below(f"v1/{signal}"),
                variables.headers(signal),
                variables.timeout_s(signal),
                variables.compressed(signal),
            )
    return Collector(targets, _resource(environment))


class _Variables:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def of(self, signal: str, name: str) -> tuple[str, str]:
        """The variable that counts, and its value; an empty one does not count."""
        for variable in (f"{_OTLP}{signal.upper()}_{name}", f"{_OTLP}{name}"):
            if value := self._environment.get(variable, ""):
                return variable, value
        return f"{_OTLP}{name}", ""

    def endpoint(self, signal: str) -> Endpoint:
        variable, value = self.of(signal, "ENDPOINT")
        try:
            found = endpoint(value or DEFAULT)
        except UsageError as error:
            raise UsageError(f"{variable} must be {error.message}") from None
        if variable == f"{_OTLP}ENDPOINT":
            return found.below(f"v1/{signal}")
        # The endpoint of a signal is already complete.
        return found._replace(path=found.path or "/")

    def headers(self, signal: str) -> tuple[tuple[str, str], ...]:
        variable, value = self.of(signal, "HEADERS")
        found = _pairs(variable, value)
        for name, text in found.items():
            # Values are secrets: they are not shown.
            if not _TOKEN.fullmatch(name) or name.lower() in _OWN_HEADERS:
                raise UsageError(f"{variable} has the header {quoted(name)}, which cannot be set")
            if not re.fullmatch(r"[\t\x20-\x7e]*", text):
                raise UsageError(f"{variable} has characters in the value of {name} that a header cannot have")
        return tuple(found.items())

    def timeout_s(self, signal: str) -> float:
        variable, value = self.of(signal, "TIMEOUT")
        if not value:
            return _DEFAULT_TIMEOUT_MS / 1e3
        if not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) or not 1 <= int(value) <= _LONGEST_TIMEOUT_MS:
            raise UsageError(f"{variable} is {quoted(value)}: it must be milliseconds, from 1 to {_LONGEST_TIMEOUT_MS}")
        return int(value) / 1e3

    def compressed(self, signal: str) -> bool:
        variable, value = self.of(signal, "COMPRESSION")
        if value not in ("", "gzip", "none"):
            raise UsageError(f"{variable} is {quoted(value)}: it must be gzip or none")
        return value != "none"


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    found = _pairs("OTEL_RESOURCE_ATTRIBUTES", environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := environment.get("OTEL_SERVICE_NAME", ""):
        found["service.name"] = name
    return found


def _pairs(variable: str, text: str) -> dict[str, str]:
    """Parse NAME=VALUE,NAME=VALUE with values encoded as in a URL."""
    if len(text) > _LONGEST_LIST or text.count(",") >= _MOST_PAIRS:
        raise UsageError(f"{variable} is longer than {_LONGEST_LIST:,} characters or {_MOST_PAIRS} pairs")
    found = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, sign, value = pair.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"{variable} must be NAME=VALUE,NAME=VALUE and so on")
        found[unquote(name.strip())] = unquote(value.strip())
    return found
