# SPDX-License-Identifier: Apache-2.0
"""A server of MariaDB from Debian's packages, in a root of its own as in a container, and a client of its protocol."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel import rooted
from tests.kernel.trace import PATIENCE, wait_until
from tests.lab import peers

_SETTINGS = (
    "--no-defaults",
    "--datadir=/mnt/data",
    "--socket=/mnt/socket",
    "--skip-networking",
    "--skip-grant-tables",
    "--tmpdir=/mnt",
    "--innodb-stats-persistent=0",
    # What is read twice is asked of the kernel twice, and by the thread that needs it.
    "--innodb-buffer-pool-size=6M",
    "--innodb-read-ahead-threshold=0",
    "--innodb-use-native-aio=0",
    "--innodb-buffer-pool-dump-at-shutdown=0",
    "--innodb-buffer-pool-load-at-startup=0",
)
_CAPABILITIES = 0x200 | 0x8000  # CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION
_UTF8, _LARGEST = 33, 1 << 24
_QUERY, _PREPARE, _EXECUTE = 3, 22, 23
_OK, _ERROR, _END = 0, 0xFF, 0xFE


class Client:
    """A connection. Commands are answered one after another."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(str(path))
        self._stream = self._socket.makefile("rb")
        self._receive()
        hello = struct.pack("<IIB23x", _CAPABILITIES, _LARGEST, _UTF8) + b"root\0\0"
        self._send(hello, 1)
        assert self._receive()[0] == _OK

    def query(self, text: str) -> list[list[str]]:
        """Send a query by the text protocol and return its rows."""
        self._send(bytes([_QUERY]) + text.encode())
        return [_texts(row) for row in self._rows()]

    def prepare(self, text: str) -> int:
        """Without results that are used, and parameters that are numbers."""
        self._send(bytes([_PREPARE]) + text.encode())
        first = self._receive()
        assert first[0] == _OK, first
        number, columns, parameters = struct.unpack_from("<IHH", first, 1)
        for count in (parameters, columns):
            for _ in range(count + 1 if count else 0):
                self._receive()
        return int(number)

    def execute(self, number: int, value: int) -> int:
        """Execute a prepared statement by the binary protocol and return the number of rows."""
        call = struct.pack("<BIBIBBHq", _EXECUTE, number, 0, 1, 0, 1, 8, value)  # MYSQL_TYPE_LONGLONG
        self._send(call)
        return len(self._rows())

    def status(self, name: str) -> int:
        ((_, value),) = self.query(f"show global status like '{name}'")
        return int(value)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _rows(self) -> list[bytes]:
        first = self._receive()
        assert first[0] != _ERROR, first
        if first[0] == _OK:
            return []
        self._until_end()
        return self._until_end()

    def _until_end(self) -> list[bytes]:
        found = []
        while (packet := self._receive())[0] != _END or len(packet) >= 9:
            assert packet[0] != _ERROR, packet
            found.append(packet)
        return found

    def _send(self, payload: bytes, number: int = 0) -> None:
        self._socket.sendall(len(payload).to_bytes(3, "little") + bytes([number]) + payload)

    def _receive(self) -> bytes:
        head = self._stream.read(4)
        assert len(head) == 4, "the server has ended"
        return self._stream.read(int.from_bytes(head[:3], "little"))


def _texts(row: bytes) -> list[str]:
    """The values of a row, each shorter than 251 bytes."""
    found = []
    while row:
        size = row[0] + 1
        found.append(row[1:size].decode())
        row = row[size:]
    return found


@contextmanager
def server(folder: Path, version: str) -> Iterator[tuple[Path, int]]:
    """Its socket and its process."""
    folder.mkdir()
    os.chown(folder, rooted.NOBODY, rooted.NOBODY)
    root = peers.fetch(peers.MARIADB[version])
    # Without tables of its own it does, as nobody asks for rights.
    data = folder / "data"
    data.mkdir()
    os.chown(data, rooted.NOBODY, rooted.NOBODY)
    words = rooted.words(root, folder, "/usr/sbin/mariadbd", *_SETTINGS)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: (folder / "socket").exists() or process.poll() is not None, "the server")
            assert process.poll() is None, "the server has ended"
            yield folder / "socket", process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
