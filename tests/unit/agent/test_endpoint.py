# SPDX-License-Identifier: Apache-2.0
"""The endpoint with real sockets: requests, requests that are too large, and clients that never read."""

from __future__ import annotations

import gzip
import http.client
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wptrace.agent import endpoint
from wptrace.agent.config import Address
from wptrace.agent.endpoint import Answer, Endpoint
from wptrace.errors import WptraceError

TEXT = "wptrace_x 1\n" * 1000
LARGE = "x" * (32 << 20)


class Served:
    """An endpoint that is served whenever a socket is ready, as in a session."""

    def __init__(self) -> None:
        self.listening = endpoint.listen(Address("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.text = TEXT
        self._answers: dict[str, Answer] = {}
        self.accepted: list[str] = []
        self.failure: WptraceError | None = None
        self.endpoint = Endpoint(self.listening, self._ask)

    def _ask(self, accepted: str) -> Answer:
        self.accepted.append(accepted)
        if self.failure:
            raise self.failure
        if self.text not in self._answers:
            self._answers[self.text] = Answer("text/plain; version=0.0.4", self.text)
        return self._answers[self.text]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def exchange(self, asked: bytes) -> bytes:
        """Send a request and return the whole answer."""
        with self.connect() as peer:
            peer.sendall(asked)
            return self.rest(peer)

    def rest(self, peer: socket.socket) -> bytes:
        found = b""
        peer.setblocking(False)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            self.endpoint.serve()
            try:
                more = peer.recv(1 << 20)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return found
            if not more:
                return found
            found += more
        raise AssertionError("it does not end")

    def serve_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.endpoint.serve()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.endpoint.close()


def get(path: str = "/metrics", *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def test_a_client_of_the_standard_library_reads_it(served: Served) -> None:
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            served.endpoint.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    with closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)) as client:
        for _ in range(3):
            client.request("GET", "/metrics?x=y", headers={"Accept": "text/plain"})
            found = client.getresponse()
            assert (found.status, found.getheader("Content-Type")) == (200, "text/plain; version=0.0.4")
            assert found.read().decode() == TEXT
    over.set()
    thread.join()
    assert served.accepted == ["text/plain"] * 3


def test_it_is_compressed_for_who_says_so(served: Served) -> None:
    head, _, body = served.exchange(get("/metrics", "Accept-Encoding: deflate, gzip")).partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip\r\n" in head
    assert gzip.decompress(body).decode() == TEXT


def test_an_answer_is_compressed_once_for_all(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask: who repeats an answer takes next to no time of the one that traces."""
    lengths: list[int] = []

    def compress(data: bytes, level: int) -> bytes:
        lengths.append(len(data))
        return b"compressed"

    monkeypatch.setattr(gzip, "compress", compress)
    for _ in range(3):
        assert served.exchange(get("/metrics", "Accept-Encoding: gzip")).endswith(b"\r\n\r\ncompressed")
    assert lengths == [len(TEXT)]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (get(method="HEAD"), 200),
        (get("/"), 200),
        (get("/etc/passwd"), 404),
        (get(method="POST"), 405),
        (b"\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01" + b"\0" * 20 + b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 9000, 400),
    ],
)
def test_what_it_answers(served: Served, asked: bytes, code: int) -> None:
    answer = served.exchange(asked)
    assert status(answer) == code
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert (asked.startswith(b"HEAD") and not body) or len(body) == int(head.rpartition(b"Length: ")[2].split()[0])


def test_a_failure_of_the_trace_is_the_answer(served: Served) -> None:
    served.failure = WptraceError("the map is gone")
    answer = served.exchange(get())
    assert (status(answer), answer.endswith(b"\r\n\r\nthe map is gone\n")) == (500, True)


def test_a_request_may_come_in_pieces(served: Served) -> None:
    with served.connect() as peer:
        for at in range(0, len(whole := get()), 2):
            peer.sendall(whole[at : at + 2])
            served.endpoint.serve()
        assert status(served.rest(peer)) == 200


def test_but_not_in_many(served: Served) -> None:
    """Each would wake the agent."""
    with served.connect() as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = 0
        with suppress(ConnectionError):
            while sent < 1000:
                sent += peer.send(b"x")
                served.endpoint.serve()
        assert sent < 100
    assert served.endpoint.due == float("inf")


def test_who_does_not_read_holds_nobody_up_and_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.text = LARGE
    with served.connect() as dead:
        dead.sendall(get())
        served.serve_for(0.2)
        until = served.endpoint.due
        assert time.monotonic() < until <= time.monotonic() + endpoint._PATIENCE_S
        served.text = TEXT
        assert served.exchange(get()).endswith(TEXT.encode())
        served.endpoint.turn(until - 0.001)
        assert served.endpoint.due == until
        served.endpoint.turn(until)
        assert served.endpoint.due == float("inf")
        assert len(served.rest(dead)) < len(LARGE)


def test_there_are_few_connections_however_many_come(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections make room for new ones."""
    monkeypatch.setattr(endpoint, "_ACCEPTED_S", 0.0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ExitStack() as stack:
        idle = []
        for _ in range(100):
            idle.append(stack.enter_context(served.connect()))
            served.endpoint.serve()
        served.serve_for(0.1)
        assert len(list(Path("/proc/self/fd").iterdir())) - before - len(idle) == 16
        assert served.exchange(get()).endswith(TEXT.encode())
        served.endpoint.turn(float("inf"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_flood_is_accepted_slowly(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is replaced before there was time for its request, and nobody is woken for those that wait."""
    now = 1000.0
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(monotonic=lambda: now))
    with ExitStack() as stack:
        first = stack.enter_context(served.connect())
        for _ in range(16):
            stack.enter_context(served.connect())
        served.endpoint.serve()
        served.endpoint.serve()
        assert served.endpoint.due == now + 0.125
        assert not select.select([served.endpoint.fd], [], [], 0)[0]
        first.sendall(get())
        served.endpoint.serve()
        assert status(first.recv(1 << 20)) == 200
        now = served.endpoint.due
        served.endpoint.turn(now)
        served.endpoint.serve()
        assert served.endpoint.due == now + endpoint._PATIENCE_S - 0.125
        last = stack.enter_context(served.connect())
        last.sendall(get())
        served.endpoint.serve()
        served.endpoint.serve()
        assert status(last.recv(1 << 20)) == 200


def test_a_request_that_is_there_comes_before_new_connections(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_ACCEPTED_S", 0.0)
    with ExitStack() as stack:
        oldest, *_ = [stack.enter_context(served.connect()) for _ in range(16)]
        served.endpoint.serve()
        for _ in range(2):
            stack.enter_context(served.connect())
        oldest.sendall(get())
        served.endpoint.serve()
        assert served.accepted == [""]


def test_who_leaves_early_leaves_nothing(served: Served) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for asked in (b"", b"GET", get()):
        with served.connect() as peer:
            peer.sendall(asked)
            served.serve_for(0.02)
        served.serve_for(0.02)
    served.text = LARGE
    with served.connect() as peer:
        peer.sendall(get())
        served.serve_for(0.05)
    served.serve_for(0.05)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert served.endpoint.due == float("inf")


def test_without_descriptors_it_goes_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def accept(self) -> Any:
            raise OSError(24, "Too many open files")

        def fileno(self) -> int:
            return served.listening.fileno()

        def close(self) -> None:
            served.listening.close()

    with served.connect() as peer:
        peer.sendall(get())
        with monkeypatch.context() as full:
            full.setattr(served.endpoint, "_listening", Full())
            before = time.monotonic()
            served.endpoint.serve()
        # Nobody is woken for it again and again.
        assert not select.select([served.endpoint.fd], [], [], 0)[0]
        assert before < served.endpoint.due <= time.monotonic() + endpoint._PAUSE_S
        served.endpoint.turn(served.endpoint.due)
        assert status(served.rest(peer)) == 200


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (Address("127.0.0.1", 0), "address already in use"),
        (Address("192.0.2.1", 9435), "cannot assign requested address"),
        (Address("no.such.host.invalid", 9435), ""),
        (Address("x." * 100, 9435), ""),
    ],
)
def test_where_it_cannot_listen_is_one_sentence(served: Served, address: Address, said: str) -> None:
    wanted = address._replace(port=served.port) if said.startswith("address") else address
    with pytest.raises(WptraceError, match=f"cannot listen at .*: {said}") as caught:
        endpoint.listen(wanted)
    assert caught.value.message.isprintable()


def test_an_address_is_free_again_at_once(served: Served) -> None:
    assert served.exchange(get())
    served.endpoint.close()
    endpoint.listen(Address("127.0.0.1", served.port)).close()


def test_it_moves_to_another_address_and_answers_who_is_connected(served: Served) -> None:
    with served.connect() as peer:
        served.endpoint.serve()
        before = served.port
        moved = endpoint.listen(Address("127.0.0.1", 0))
        served.endpoint.move(moved)
        served.port = moved.getsockname()[1]
        peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert served.rest(peer).startswith(b"HTTP/1.1 200 OK")
    assert served.exchange(b"GET /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
    assert served.endpoint.address.port == served.port != before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", before), timeout=10)


EVERYWHERE = "0.0.0.0"  # noqa: S104 - for a moment


def test_another_host_may_have_the_same_port(served: Served) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(served.connect())]
        served.endpoint.serve()
        # This one is not accepted yet.
        clients.append(stack.enter_context(served.connect()))
        served.endpoint.move(served.endpoint.listen(Address(EVERYWHERE, served.port)))
        for one in clients:
            one.sendall(get())
            assert status(served.rest(one)) == 200
    assert served.endpoint.address == Address(EVERYWHERE, served.port)
    assert status(served.exchange(get())) == 200


@pytest.mark.parametrize("host", [EVERYWHERE, "192.0.2.1"])
def test_where_it_cannot_listen_it_stays(served: Served, host: str) -> None:
    with endpoint.listen(Address("127.0.0.9", served.port)):
        with pytest.raises(WptraceError, match="cannot listen at"):
            served.endpoint.listen(Address(host, served.port))
        assert status(served.exchange(get())) == 200


def test_it_stays_although_its_own_address_has_gone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint.listen(Address("127.0.0.1", 0)) as free:
        chosen = Address("127.0.0.1", free.getsockname()[1])
    served.listening = endpoint.listen(chosen)
    served.port = chosen.port
    served.endpoint.move(served.listening)

    def refuse(address: Address) -> socket.socket:
        raise WptraceError(f"cannot listen at {address}: cannot assign requested address")

    monkeypatch.setattr(endpoint, "listen", refuse)
    with pytest.raises(WptraceError, match="cannot listen at"):
        served.endpoint.listen(chosen._replace(host="192.0.2.1"))
    assert not select.select([served.endpoint.fd], [], [], 0)[0]
    assert status(served.exchange(get())) == 200
