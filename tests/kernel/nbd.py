# SPDX-License-Identifier: Apache-2.0
"""A network block device of the kernel and its server, nbdkit with a disk in memory."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kernel.disks import Disk
from tests.kernel.patience import joined
from tests.kernel.trace import PATIENCE, wait_until
from tests.lab import peers

# linux/nbd.h
_SET_SOCKET, _SET_BLOCK_SIZE, _DO_IT, _CLEAR_SOCKET, _SET_BLOCKS, _DISCONNECT, _SET_FLAGS = (
    0xAB00 + number for number in (0, 1, 3, 4, 7, 8, 10)
)
_BLOCK = 4096
# Flags of the handshake: fixed newstyle, no zeroes; and the option that ends the negotiation.
_MODERN, _EXPORT = 3, 1


def load() -> None:
    """Load the module so that it never looks for partitions, because a later scan would read as well."""
    subprocess.run(["modprobe", "nbd", "nbds_max=1", "max_part=0"], check=True)


@contextmanager
def server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Serve 64 MiB at a socket in the folder; at its end the server writes its counts to `stats` there."""
    (parts,) = peers.fetch(peers.NBD).glob("usr/lib/*/nbdkit")
    words = ["--foreground", "--unix", str(folder / "socket"), "--filter", f"{parts}/filters/nbdkit-stats-filter.so"]
    words += [f"{parts}/plugins/nbdkit-memory-plugin.so", "64M", f"statsfile={folder / 'stats'}"]
    process = subprocess.Popen(peers.command("nbdkit", *words, recipe=peers.NBD))
    try:
        wait_until((folder / "socket").exists, "the server")
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop the server, so that requests stay in flight."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def served(folder: Path) -> dict[str, int]:
    reported = re.findall(r"^(\w+): (\d+) ops", (folder / "stats").read_text(), re.MULTILINE)
    return {name: int(count) for name, count in reported}


@contextmanager
def connected(folder: Path) -> Iterator[Disk]:
    """Connect the device until the server is gone or the block ends."""
    load()
    with socket.socket(socket.AF_UNIX) as peer, Path("/dev/nbd0").open("r+b", buffering=0) as device:
        peer.connect(str(folder / "socket"))
        size, flags = _negotiated(peer)
        for what, number in (
            (_SET_BLOCK_SIZE, _BLOCK),
            (_SET_BLOCKS, size // _BLOCK),
            (_SET_FLAGS, flags),
            (_SET_SOCKET, peer.fileno()),
        ):
            fcntl.ioctl(device, what, number)

        def serve() -> None:
            with suppress(OSError):
                fcntl.ioctl(device, _DO_IT)
            # Fail the requests that were not answered.
            fcntl.ioctl(device, _CLEAR_SOCKET)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        disk = Disk("nbd0")
        wait_until(lambda: Path("/sys/block/nbd0/pid").exists(), "the device")
        try:
            yield disk
        finally:
            for end in (lambda: fcntl.ioctl(device, _DISCONNECT), lambda: peer.shutdown(socket.SHUT_RDWR)):
                # The server may have disconnected first.
                with suppress(OSError):
                    end()
            joined(thread)


def _negotiated(peer: socket.socket) -> tuple[int, int]:
    """Return the size of the disk and the flags of the server."""
    assert peer.recv(18, socket.MSG_WAITALL)[:16] == b"NBDMAGICIHAVEOPT"
    peer.sendall(struct.pack(">I8sII", _MODERN, b"IHAVEOPT", _EXPORT, 0))
    size, flags = struct.unpack(">QH", peer.recv(10, socket.MSG_WAITALL))
    return size, flags
