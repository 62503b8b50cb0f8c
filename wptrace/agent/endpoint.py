# SPDX-License-Identifier: Apache-2.0
"""An HTTP endpoint for text, served between two reads of the rings.

Clients are not trusted, and nothing waits for them: there are few connections at a time, each with one short request,
one answer and a timeout of a few seconds, and a new connection replaces the oldest one. They are accepted so slowly
that a flood of them takes little CPU time, and leaves each the time for its request.
"""

from __future__ import annotations

import errno
import gzip
import math
import select
import socket
import time
from collections import deque
from contextlib import suppress
from functools import cached_property
from typing import Callable

from wptrace.agent.config import Address
from wptrace.engine.session import QuietConsumer
from wptrace.errors import WptraceError

_MOST = 16
# So many connections are accepted in this time: the oldest of _MOST is at least this old when it is replaced.
_ACCEPTED_S = 0.125
_LONGEST_REQUEST = 8192
_MOST_PIECES = 32
"""A request in more pieces would cost a wakeup for each."""
_PATIENCE_S = 10.0
# Without descriptors or memory a connection cannot be accepted, but stays ready: it is looked at again later.
_FULL, _PAUSE_S = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM), 1.0
# Smaller answers are not worth compressing.
_COMPRESSED = 1400
_READY = "GET /metrics has the metrics of wptrace agent.\n"
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


class Answer:
    """A text of this type; whoever it is for, it is encoded and compressed once."""

    def __init__(self, type: str, text: str) -> None:  # noqa: A002
        self.type, self.body = type, text.encode(errors="replace")

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.body, 1)


Ask = Callable[[str], Answer]
"""Makes the answer for a client that accepts these content types."""


class _Connection:
    def __init__(self, peer: socket.socket, until: float) -> None:
        self.socket, self.until = peer, until
        self.asked = b""
        self.pieces = 0
        self.left: list[memoryview] | None = None
        """What is still to be sent."""


def listen(address: Address) -> socket.socket:
    """Open the socket before anything is attached, so that a failure costs nothing."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    except (OSError, UnicodeError) as error:
        raise _refused(address, error) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(_MOST)
    except OSError as error:
        made.close()
        raise _refused(address, error) from None
    return made


def at(listening: socket.socket) -> Address:
    """The address with its real port, in case the kernel chose one."""
    return Address(*listening.getsockname()[:2])


def _refused(address: Address, error: Exception) -> WptraceError:
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return WptraceError(f"cannot listen at {address}: {said[:1].lower()}{said[1:]}", "name another address")


class Endpoint(QuietConsumer):
    """A consumer whose turn is when a connection times out. `fd` is readable if there is something to serve."""

    def __init__(self, listening: socket.socket, ask: Ask) -> None:
        self._listening, self._ask = listening, ask
        self._poll = select.epoll()
        self._poll.register(listening, select.EPOLLIN)
        self._connections: dict[int, _Connection] = {}
        """Oldest first."""
        self._accept_again = math.inf
        self._accepted = deque([-math.inf] * _MOST, _MOST)
        """When the last ones were accepted."""

    def listen(self, address: Address) -> socket.socket:
        """Open a socket to move to."""
        # Whoever waits to be accepted would be refused when this one ends.
        self.serve()
        before = self.address
        if address.port != before.port:
            return listen(address)
        # This one would be in its way: 0.0.0.0 includes 127.0.0.1.
        self._listening.shutdown(socket.SHUT_RDWR)
        try:
            return listen(address)
        except WptraceError:
            try:
                self.move(listen(before))
            except WptraceError:
                # Its address may have gone meanwhile; this socket still has it.
                self._listening.listen(_MOST)
            raise

    def move(self, listening: socket.socket) -> None:
        """Listen at another address; open connections still get their answer."""
        self._poll.unregister(self._listening)
        self._listening.close()
        self._listening = listening
        self._poll.register(listening, select.EPOLLIN)
        self._accept_again = math.inf

    @property
    def fd(self) -> int:
        return self._poll.fileno()

    @property
    def address(self) -> Address:
        return at(self._listening)

    def serve(self) -> None:
        """Do everything that does not block."""
        ready = [fd for fd, _ in self._poll.poll(0)]
        for fd in ready:
            if fd in self._connections:
                self._go_on(self._connections[fd])
        # New ones come last: they may replace one whose request is there.
        if self._listening.fileno() in ready:
            self._accept()
        self._look_at_clock()

    def turn(self, now: float) -> None:
        if now >= self._accept_again:
            self._poll.modify(self._listening, select.EPOLLIN)
            self._accept_again = math.inf
        for one in list(self._connections.values()):
            if one.until <= now:
                self._drop(one)
        self._look_at_clock()

    def _look_at_clock(self) -> None:
        self.due = min([self._accept_again, *(one.until for one in self._connections.values())])

    def _accept(self) -> None:
        while True:
            now = time.monotonic()
            if now < self._accepted[0] + _ACCEPTED_S:
                self._pause(self._accepted[0] + _ACCEPTED_S)
                return
            try:
                peer, _ = self._listening.accept()
            except OSError as error:
                # That was the last, the client has left, or there are too many open files.
                if error.errno in _FULL:
                    self._pause(now + _PAUSE_S)
                return
            self._accepted.append(now)
            if len(self._connections) == _MOST:
                self._drop(next(iter(self._connections.values())))
            peer.setblocking(False)
            self._connections[peer.fileno()] = _Connection(peer, now + _PATIENCE_S)
            self._poll.register(peer, select.EPOLLIN)

    def _pause(self, until: float) -> None:
        self._poll.modify(self._listening, 0)
        self._accept_again = until

    def _go_on(self, one: _Connection) -> None:
        try:
            if one.left is None:
                self._read(one)
            if one.left is not None:
                self._write(one)
        except BlockingIOError:
            return
        except OSError:
            self._drop(one)

    def _read(self, one: _Connection) -> None:
        more = one.socket.recv(_LONGEST_REQUEST)
        one.asked += more
        one.pieces += 1
        whole = b"\r\n\r\n" in one.asked or len(one.asked) > _LONGEST_REQUEST
        if not more or (one.pieces == _MOST_PIECES and not whole):
            self._drop(one)
        elif whole:
            one.left = self._answer(one.asked)
            one.asked = b""
            self._poll.modify(one.socket, select.EPOLLOUT)

    def _write(self, one: _Connection) -> None:
        while one.left:
            one.left[0] = one.left[0][one.socket.send(one.left[0]) :]
            if not one.left[0]:
                del one.left[0]
        with suppress(OSError):
            one.socket.shutdown(socket.SHUT_RDWR)
        self._drop(one)

    def _drop(self, one: _Connection) -> None:
        self._connections.pop(one.socket.fileno(), None)
        with suppress(OSError, ValueError):
            self._poll.unregister(one.socket)
        one.socket.close()

    def _answer(self, asked: bytes) -> list[memoryview]:
        head, end, _ = asked.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path, _, version = rest.partition(" ")
        if not end or not version.startswith("HTTP/1."):
            return _response(400, Answer("text/plain", "This is not an HTTP/1 request.\n"))
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if method not in ("GET", "HEAD"):
            return _response(405, Answer("text/plain", "GET /metrics\n"))
        path = path.partition("?")[0]
        if path not in ("/metrics", "/"):
            return _response(404, Answer("text/plain", "Metrics are at /metrics.\n"))
        code, answer = 200, Answer("text/plain; charset=utf-8", _READY)
        if path == "/metrics":
            try:
                answer = self._ask(headers.get("accept", ""))
            except WptraceError as error:
                code, answer = 500, Answer("text/plain; charset=utf-8", f"{error.message}\n")
        return _response(code, answer, "gzip" in headers.get("accept-encoding", ""), method == "HEAD")

    def close(self) -> None:
        for one in list(self._connections.values()):
            self._drop(one)
        self._poll.close()
        self._listening.close()


def _response(code: int, answer: Answer, may_be_compressed: bool = False, head_alone: bool = False) -> list[memoryview]:
    lines, body = [f"HTTP/1.1 {code} {_WORDS[code]}", f"Content-Type: {answer.type}"], answer.body
    if may_be_compressed and len(body) > _COMPRESSED:
        body = answer.compressed
        lines.append("Content-Encoding: gzip")
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    # The body is not copied: slow clients share it.
    return [memoryview(part) for part in ("\r\n".join(lines).encode(), b"" if head_alone else body) if part]
