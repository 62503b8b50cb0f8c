# SPDX-License-Identifier: Apache-2.0
"""An OTLP collector: a real HTTP server with scripted answers that keeps what it accepts."""

from __future__ import annotations

import gzip
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.peers import free_address

PATIENCE = 60.0


class Answer(NamedTuple):
    code: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}
    raw: bytes | None = None
    """Written instead of HTTP."""
    drips: bool = False
    """A byte now and then, until the client has gone."""


class Request(NamedTuple):
    path: str
    headers: Any
    """Headers by case-insensitive name."""
    body: bytes
    """The body as it was sent."""
    code: int
    """The code of the answer."""

    @property
    def message(self) -> bytes:
        return gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body


class Collector:
    def __init__(self, answers: Sequence[Answer] = (), certificate: Path | None = None) -> None:
        """Answer each request with the next answer, then with an empty 200. With a certificate, use https."""
        self._answers = list(answers)
        self.requests: list[Request] = []
        self.gone: list[int] = []
        """Bytes that each client took before it left an endless answer."""
        self._lock = threading.Lock()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                collector._serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # Do the handshake in the thread of the connection.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def _serve(self, client: Any) -> None:
        body = client.rfile.read(int(client.headers["Content-Length"]))
        with self._lock:
            answer = self._answers.pop(0) if self._answers else Answer()
            code = 0 if answer.raw is not None or answer.drips else answer.code
            self.requests.append(Request(client.path, client.headers, body, code))
        client.close_connection = True
        if answer.drips:
            self._drip(client)
            return
        if answer.raw is not None:
            client.wfile.write(answer.raw)
            return
        client.send_response(answer.code)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            client.send_header(name, value)
        client.end_headers()
        # The client may have closed the connection.
        try:
            client.wfile.write(answer.body)
        except OSError:
            self.gone.append(0)

    def _drip(self, client: Any) -> None:
        sent = 0
        try:
            client.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                client.wfile.write(b"x")
                sent += 1
                time.sleep(0.05)
        except OSError:
            self.gone.append(sent)

    def wait_for(self, count: int, path: str = "") -> list[Request]:
        """Wait for this many requests of the path, and return them."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with self._lock:
                found = [one for one in self.requests if one.path.endswith(path)]
            if len(found) >= count:
                return found
            time.sleep(0.01)
        raise AssertionError(f"{len(found)} requests have come in {PATIENCE:.0f} s, not {count}")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def collecting(*answers: Answer, certificate: Path | None = None) -> Iterator[Collector]:
    made = Collector(answers, certificate)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def silent() -> Iterator[tuple[str, socket.socket]]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", server


def nobody() -> str:
    """Return an address without a listener."""
    return f"http://{free_address()}"


def points(messages: Sequence[bytes], name: str) -> list[tuple[dict[str, str], Any]]:
    """Return attributes and points of a metric, in order."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    found = []
    for message in messages:
        for resource in ExportMetricsServiceRequest.FromString(message).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                if metric.name == name:
                    for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
                        found.append(({one.key: one.value.string_value for one in point.attributes}, point))
    return found
