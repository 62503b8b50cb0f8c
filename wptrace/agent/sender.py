# SPDX-License-Identifier: Apache-2.0
"""Sends messages to a collector in a thread of its own, from a queue of so many bytes.

The collector is not trusted, and tracing never waits for it: an answer has a time limit and a largest size, redirects
are not followed, and when the queue is full the oldest message makes room.
"""

from __future__ import annotations

import gzip
import http.client
import math
import random
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Callable, NamedTuple

from wptrace import __version__
from wptrace.agent.collector import Target
from wptrace.outputs.metrics import Delivery
from wptrace.outputs.otlp import Message

QUEUE_FULL, REFUSED, REJECTED, LIMIT, ENDED = CAUSES = "queue_full", "refused", "rejected", "limit", "ended"
"""Why something is lost: no room, refused as a whole, or in part, more at once than are sent, or it was too late."""
# The status codes after which the protocol says to try again.
_BUSY = (429, 502, 503, 504)
_LONGEST_ANSWER = 1 << 16
_MOST_OF_A_MESSAGE = 200
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONGEST_ASKED_S = 1.0, 60.0, 300.0
# The journal hears of the same trouble once in so long.
_SAID_S = 60.0
_TYPE = "application/x-protobuf"
_NOUNS = {"metrics": "data points", "traces": "spans"}


class _Waiting(NamedTuple):
    body: bytes
    compressed: bool
    items: int


class RefusedError(Exception):
    """The collector did not take a message, and would not the next time."""


class LaterError(Exception):
    """The collector did not take a message, but may do so later."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


class Sender:
    """A sender of one signal. The tracing thread calls all but `_run` and what that calls, and is never blocked."""

    def __init__(
        self, signal: str, rejected: Callable[[str, bytes], tuple[int, str]], say: Callable[[str], None]
    ) -> None:
        """`rejected` reads an answer: how many were left out, and why; ValueError if it is no answer."""
        self._signal, self._rejected, self._say = signal, rejected, say
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._target: Target | None = None
        self._most = 0
        self._queue: deque[_Waiting] = deque()
        self._bytes = 0
        self._under_way = False
        """The first of the queue is being sent."""
        self._until = math.inf
        self._sent = 0
        self._lost = {cause: 0 for cause in CAUSES if cause != LIMIT or signal == "traces"}
        self._troubled = False
        self._said: dict[str, tuple[float, int]] = {}
        """By kind of trouble: the last report in the journal, and how many items had it since."""

    # --- The tracing thread -------------------------------------------------------------------------------------------

    def send_to(self, target: Target | None, most: int) -> None:
        """Send what waits, and what comes, to this target; without one nothing is sent any more."""
        with self._changed:
            self._target, self._most = target, most
            if target is None:
                self._drop_all()
            while self._bytes > most and self._drop_oldest():
                pass
            self._changed.notify()

    def push(self, message: Message) -> None:
        with self._changed:
            target = self._target
        if target is None or not message.items:
            return
        body = gzip.compress(message.body, 1) if target.compressed else message.body
        with self._changed:
            while self._bytes + len(body) > self._most and self._drop_oldest():
                pass
            if self._bytes + len(body) > self._most:
                self._lost[QUEUE_FULL] += message.items
                return
            self._queue.append(_Waiting(body, target.compressed, message.items))
            self._bytes += len(body)
            self._changed.notify()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"otlp {self._signal}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # There may be too many; the next message tries again.
                self._trouble("waits", f"{self._signal} are not sent: {error}", 0)
            else:
                self._thread = thread

    def lose(self, cause: str, count: int) -> None:
        with self._changed:
            self._lost[cause] += count

    @property
    def delivery(self) -> Delivery:
        with self._changed:
            return Delivery(self._signal, self._sent, dict(self._lost), self._bytes)

    def _drop_oldest(self) -> bool:
        at = int(self._under_way)
        if len(self._queue) <= at:
            return False
        gone = self._queue[at]
        del self._queue[at]
        self._bytes -= len(gone.body)
        self._lost[QUEUE_FULL] += gone.items
        return True

    def _drop_all(self) -> int:
        count = sum(one.items for one in self._queue)
        self._lost[ENDED] += count
        self._queue.clear()
        self._bytes = 0
        return count

    def finish(self, until: float) -> None:
        """Send what waits, without a pause, until then by the monotonic clock."""
        with self._changed:
            self._until = until
            self._changed.notify()

    def close(self) -> None:
        """Wait until the time that `finish` gave; without it, not at all."""
        if self._until == math.inf:
            self.finish(0.0)
        if self._thread is not None:
            self._thread.join(max(self._until - time.monotonic(), 0))
        with self._changed:
            self._target = None
            left = self._drop_all()
        if left:
            self._say(f"{left:,} {_NOUNS[self._signal]} were not sent before the end")

    # --- The thread that sends ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            with self._changed:
                while not self._queue and self._until == math.inf:
                    self._changed.wait()
                target = self._target
                if not self._queue or target is None or time.monotonic() >= self._until:
                    return
                one, self._under_way = self._queue[0], True
            try:
                rejected, why = self._post(target, one)
            except LaterError as error:
                words = f"{target.endpoint} does not accept {self._signal}: {error}; they are queued"
                self._troubled = self._trouble("waits", words, 0) or self._troubled
                with self._changed:
                    self._under_way = False
                    if self._until < math.inf:
                        return
                    asked = pause_s * random.uniform(0.5, 1.5) if error.after_s is None else error.after_s  # noqa: S311
                    self._rest(target, asked)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            except RefusedError as error:
                self._done(one, {REFUSED: one.items})
                self._trouble("refuses", f"{target.endpoint} refuses {self._signal}: {error}", one.items)
                continue
            pause_s = _FIRST_PAUSE_S
            self._done(one, {REJECTED: rejected})
            if rejected or why:
                self._trouble(
                    "rejects", f"{target.endpoint} rejects some {self._signal}: {why or 'no reason'}", rejected
                )
            if self._troubled:
                self._troubled = False
                self._say(f"{target.endpoint} accepts {self._signal} again")

    def _rest(self, target: Target, seconds: float) -> None:
        """Wait with the lock held, unless there is another target or an end."""
        until = time.monotonic() + seconds
        while self._target is target and self._until == math.inf and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)

    def _done(self, one: _Waiting, lost: Mapping[str, int]) -> None:
        with self._changed:
            self._under_way = False
            if self._queue and self._queue[0] is one:
                self._queue.popleft()
                self._bytes -= len(one.body)
                self._sent += one.items - sum(lost.values())
                for cause, count in lost.items():
                    self._lost[cause] += count

    def _trouble(self, kind: str, words: str, count: int) -> bool:
        """Tell the journal, but seldom; return whether it was told."""
        now = time.monotonic()
        at, before = self._said.get(kind, (-_SAID_S, 0))
        if now - at < _SAID_S:
            self._said[kind] = at, before + count
            return False
        self._said[kind] = now, 0
        whole = before + count
        self._say(f"{words} ({whole:,} {_NOUNS[self._signal]})" if whole else words)
        return True

    def _post(self, target: Target, one: _Waiting) -> tuple[int, str]:
        """Post data. Return how many items were rejected, and why; raise LaterError or RefusedError."""
        code, after, answer = _exchange(target, one)
        if code in _BUSY:
            raise LaterError(f"it answers {code}", _seconds(after))
        if not 200 <= code < 300:
            raise RefusedError(f"it answers {code}" + (", and redirects are not followed" if 300 <= code < 400 else ""))
        try:
            rejected, why = self._rejected(self._signal, answer)
        except ValueError:
            raise RefusedError(f"it answers {code}, but not by OTLP") from None
        return min(rejected, one.items), why[:_MOST_OF_A_MESSAGE]


class _Connection(http.client.HTTPConnection):
    """A connection that another thread can end, whatever it is doing."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.endpoint.host, target.endpoint.port, timeout=target.timeout_s)
        self._tls = target.endpoint.tls
        self.line: socket.socket | None = None
        self.is_late = False

    def connect(self) -> None:
        self.line = socket.create_connection((self.host, self.port), self.timeout)
        if self._tls:
            context = ssl.create_default_context()
            encrypted = context.wrap_socket(self.line, server_hostname=self.host, do_handshake_on_connect=False)
            self.line = encrypted
            self._require_time()
            encrypted.do_handshake()
        self._require_time()
        self.sock = self.line

    def _require_time(self) -> None:
        """Names are looked up and addresses tried without a line that could be ended."""
        if self.is_late:
            raise TimeoutError

    def abort(self) -> None:
        self.is_late = True
        if self.line is not None:
            with suppress(OSError):
                # The shutdown() of an encrypted socket would also change what its reader looks at.
                socket.socket.shutdown(self.line, socket.SHUT_RDWR)


def _exchange(target: Target, one: _Waiting) -> tuple[int, str, bytes]:
    """The code of the answer, when to come again, and its body."""
    connection = _Connection(target)
    # A timeout of the socket is for each read: who sends a byte a second would never end.
    timer = threading.Timer(target.timeout_s, connection.abort)
    timer.daemon = True
    try:
        timer.start()
        headers = {**dict(target.headers), "Content-Type": _TYPE, "User-Agent": f"wptrace/{__version__}"}
        if one.compressed:
            headers["Content-Encoding"] = "gzip"
        connection.request("POST", target.endpoint.path, one.body, headers)
        answer = connection.getresponse()
        body = answer.read(_LONGEST_ANSWER + 1)
        if connection.is_late:
            raise TimeoutError
        if answer.length and len(body) <= _LONGEST_ANSWER:
            raise LaterError("its answer is shorter than announced")
        if len(body) > _LONGEST_ANSWER and 200 <= answer.status < 300:
            raise RefusedError(f"its answer has more than {_LONGEST_ANSWER:,} bytes")
        return answer.status, answer.getheader("Retry-After", ""), body
    except (OSError, http.client.HTTPException, ValueError, RuntimeError) as error:
        if connection.is_late or isinstance(error, TimeoutError):
            raise LaterError(f"no answer within {target.timeout_s:g} s") from None
        raise LaterError(_reason(error)) from None
    finally:
        timer.cancel()
        connection.close()
        if connection.line is not None:
            connection.line.close()


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException) and not isinstance(error, ConnectionError):
        return "its answer is not HTTP/1.1 (a gRPC port?)"
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return f"{said[:1].lower()}{said[1:_MOST_OF_A_MESSAGE]}"


def _seconds(text: str) -> float | None:
    """The time that Retry-After asks for, within bounds: seconds or a date."""
    if re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        found = float(text)
    else:
        try:
            at = parsedate_to_datetime(text)
        except (TypeError, ValueError, IndexError, OverflowError):
            return None
        at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
        found = (at - datetime.now(timezone.utc)).total_seconds()
    return min(max(found, _FIRST_PAUSE_S), _LONGEST_ASKED_S)
