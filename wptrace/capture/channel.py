# SPDX-License-Identifier: Apache-2.0
"""Channels that a capture goes through while it is made: a port of virtio-serial, a pipe, vsock, a unix socket.

A guest writes to one, its host reads. Nobody is waited for without an end, but for the guest itself.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from pathlib import Path

from wptrace.errors import UsageError, WptraceError

PATIENCE_S = 10.0
"""A reader that takes nothing for so long is gone."""

_LOOKS_S = 0.05
_VSOCK = re.compile(r"vsock:(?:([0-9]{1,10}):)?([0-9]{1,10})")
_WORD = 1 << 32
_PIECE = 1 << 18


# --- In the guest -----------------------------------------------------------------------------------------------------


def to_write(path: Path) -> int:
    """A connection, where the name is one of vsock; -1 for what is opened as a file."""
    return _connected(path) if str(path).startswith("vsock:") else -1


def write(fd: int, data: memoryview) -> int:
    """Write and return how many bytes were taken. A file takes them at once; a channel may have to be waited for."""
    end = 0.0
    while True:
        try:
            return os.write(fd, data)
        except BlockingIOError:
            now = time.monotonic()
            end = end or now + PATIENCE_S
            if now > end:
                raise TimeoutError(0, "nobody reads it") from None
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll((end - now) * 1000)):
                # A port whose host has not come yet says so at once.
                time.sleep(_LOOKS_S)


def _connected(path: Path) -> int:
    cid, port = _vsock(str(path))
    if cid is None:
        raise UsageError(f"{path} names no machine: use vsock:2:{port} for the host")
    try:
        return _to(socket.AF_VSOCK, (cid, port))
    except OSError as error:
        raise WptraceError(f"{path} cannot be written: {error.strerror or error}") from None


def _guest_of(name: str) -> tuple[int | None, int] | None:
    """The guest's number and the port that is listened at; None where it is none of vsock."""
    if not name.startswith("vsock:"):
        return None
    cid, port = _vsock(name)
    if cid in (None, 0, socket.VMADDR_CID_HOST):
        raise UsageError(f"{name} names no guest: use vsock:CID:{port} with the CID of the guest")
    return cid, port


def _to(family: int, address: object) -> int:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(address)  # type: ignore[arg-type]
        connection.setblocking(False)
        return connection.detach()


def _vsock(name: str) -> tuple[int | None, int]:
    found = _VSOCK.fullmatch(name)
    if found is None or int(found[2]) >= _WORD or int(found[1] or 0) >= _WORD:
        raise UsageError(f"{name} is not a channel: vsock:CID:PORT is one on a host, vsock:2:PORT in its guest")
    return None if found[1] is None else int(found[1]), int(found[2])


# --- On its host ------------------------------------------------------------------------------------------------------


class Channel:
    """Open the guest's side: connect to a socket that is there; where there is none, let the guest connect."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._vsock = _guest_of(name)
        if self._vsock is None and Path(name).is_file():
            raise UsageError(f"{name} is a file, not a channel: use wptrace join GUEST HOST for files")
        self.ended = False
        """Nothing more comes."""
        self._made: Path | None = None
        self._listener: socket.socket | None = None
        self._fd = -1

    def open(self) -> None:
        """Open the channel, so that the guest can write."""
        try:
            if self._vsock is not None:
                self._listen(socket.AF_VSOCK, (socket.VMADDR_CID_ANY, self._vsock[1]))
            elif not Path(self.name).exists():
                self._listen(socket.AF_UNIX, self.name)
                self._made = Path(self.name)
            elif Path(self.name).is_socket():
                self._fd = _to(socket.AF_UNIX, self.name)
            else:
                self._fd = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            self.close()
            raise WptraceError(f"{self.name} cannot be read: {error.strerror or error}") from None

    def _listen(self, family: int, address: object) -> None:
        before = os.umask(0o077)
        try:
            self._listener = socket.socket(family, socket.SOCK_STREAM)
            self._listener.bind(address)  # type: ignore[arg-type]
            self._listener.listen(1)
            self._listener.setblocking(False)
        finally:
            os.umask(before)

    @property
    def fd(self) -> int:
        """Readable when something came; negative at its end."""
        if self.ended:
            return -1
        return self._listener.fileno() if self._listener is not None else self._fd

    def read(self) -> bytes:
        """Return what came, which may be nothing yet."""
        try:
            if self._listener is not None:
                self._accept(self._listener)
                return b""
            data = os.read(self._fd, _PIECE)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.ended = not data
        return data

    def _accept(self, listener: socket.socket) -> None:
        """Accept one guest, once. Any other machine that reaches the port is turned away."""
        connection, peer = listener.accept()
        if self._vsock is not None and peer[0] != self._vsock[0]:
            connection.close()
            return
        connection.setblocking(False)
        self._fd = connection.detach()
        self._stop_listening()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._made is not None:
            self._made.unlink(missing_ok=True)
            self._made = None

    def close(self) -> None:
        self._stop_listening()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.ended = True
