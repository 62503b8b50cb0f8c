# SPDX-License-Identifier: Apache-2.0
"""Requests to a running agent on this machine: datagrams to an abstract socket with the agent's pid in its name.

Anybody may bind an abstract name, so both sides check the credentials that the kernel passes along: the agent accepts
requests of root and its own user only, and a client accepts an answer from that process only.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import time
from contextlib import suppress
from typing import Callable

from wptrace.engine.session import QuietConsumer
from wptrace.errors import NotPermittedError, WptraceError

_LONGEST = 512
_MOST = 16
"""Requests to handle at a time; others wait."""
_PAUSE_S = 0.05
"""Everybody may send: how long nothing is read then, so that a flood takes little CPU time."""
_PATIENCE_S = 10.0
_CREDENTIALS = struct.Struct("3i")
_YES, _NO = "+", "-"

Answer = Callable[[str], str]
"""Answers a request to fire a trigger; raises WptraceError if it is refused."""


def _name(pid: int) -> str:
    return f"\0wptrace-agent/{pid}"


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return made


def _received(from_: socket.socket) -> tuple[str, int, int, str | bytes | None]:
    """Return text, pid and uid of the sender, and the address for an answer; -1 and None if the kernel does not say."""
    data, more, _, address = from_.recvmsg(_LONGEST, socket.CMSG_SPACE(_CREDENTIALS.size))
    pid = uid = -1
    for level, kind, found in more:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(found) >= _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack_from(found)
    return data.decode(errors="replace"), pid, uid, address


class Control(QuietConsumer):
    """Answers requests. It never blocks: an answer that cannot be sent at once is dropped. `fd` is readable if there
    is something to serve; the turn is at the end of a pause."""

    def __init__(self, answer: Answer) -> None:
        """Raise OSError if the name is already in use."""
        self._answer = answer
        self._socket = _socket()
        self._socket.setblocking(False)
        try:
            self._socket.bind(_name(os.getpid()))
        except OSError:
            self._socket.close()
            raise
        self._poll = select.epoll()
        self._poll.register(self._socket, select.EPOLLIN)

    @property
    def fd(self) -> int:
        return self._poll.fileno()

    def serve(self) -> None:
        self._serve()
        self._poll.modify(self._socket, 0)
        self.due = time.monotonic() + _PAUSE_S

    def turn(self, now: float) -> None:
        self._poll.modify(self._socket, select.EPOLLIN)
        self.due = math.inf

    def _serve(self) -> None:
        for _ in range(_MOST):
            try:
                asked, _pid, uid, address = _received(self._socket)
            except OSError:
                return
            try:
                if uid not in (0, os.geteuid()):
                    raise NotPermittedError("only root and the user of the agent may send it requests")
                said = _YES + self._answer(asked)
            except WptraceError as error:
                said = _NO + error.message
            if address is None:
                # The client has no name, and so gets no answer.
                continue
            with suppress(OSError):
                self._socket.sendto(said.encode(errors="replace")[:_LONGEST], address)

    def close(self) -> None:
        self._poll.close()
        self._socket.close()


def ask(pid: int, words: str) -> str:
    """Ask the agent with this pid and return its answer."""
    with _socket() as asking:
        asking.settimeout(_PATIENCE_S)
        # Let the kernel choose a name for the answer.
        asking.bind("")
        try:
            asking.sendto(words.encode()[:_LONGEST], _name(pid))
            while True:
                said, by, _, _ = _received(asking)
                if by == pid:
                    break
        except TimeoutError:
            raise WptraceError(f"the agent with pid {pid} does not answer") from None
        except OSError as error:
            raise WptraceError(
                f"the agent with pid {pid} cannot be reached: {error.strerror}",
                "it may be in another network namespace, or an earlier version; wptrace dump uses a signal",
            ) from None
    if said[:1] != _YES:
        raise WptraceError(said[1:])
    return said[1:]
