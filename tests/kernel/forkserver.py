# SPDX-License-Identifier: Apache-2.0
"""Starts of the command in guests, where the interpreter and its imports take a third of each.

A process that has imported the package, and done nothing else, forks for each start. On the running kernel, and if a
test starts the command in an environment of its own or through another command, it starts as for users.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
_LONGEST = 1 << 16


class Started:
    """A stand-in for `subprocess.Popen`, for tests that wait for a command and read its output."""

    def __init__(self, words: Sequence[str]) -> None:
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe(), os.pipe()]
        given = [theirs.fileno(), *(written for _, written in pipes)]
        try:
            socket.send_fds(_server()[1], ["\0".join(words).encode()], given)
        finally:
            theirs.close()
            for _, written in pipes:
                os.close(written)
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes)
        self.returncode: int | None = None
        self.pid = int(self._status.recv(_LONGEST))

    def poll(self) -> int | None:
        self._heard(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._heard(timeout):
            raise subprocess.TimeoutExpired(f"wptrace, process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _heard(self, timeout: float | None) -> bool:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.recv(_LONGEST))
            self._status.close()
        return self.returncode is not None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@lru_cache(maxsize=1)
def _server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the server, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernel.forkserver", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
    return process, ours


def _serve(asked: socket.socket) -> None:
    with selectors.DefaultSelector() as waiting:
        waiting.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not asked:
                    waiting.unregister(key.fileobj)
                    _send_exit_code(key.fd, *key.data)
                    continue
                words, fds, _, _ = socket.recv_fds(asked, _LONGEST, 3)
                if not words:
                    return
                pid, ended = _start(words.decode().split("\0"), fds[1:])
                status = socket.socket(fileno=fds[0])
                status.send(b"%d" % pid)
                waiting.register(ended, selectors.EVENT_READ, (pid, status))
                for fd in fds[1:]:
                    os.close(fd)


def _start(words: Sequence[str], outputs: Sequence[int]) -> tuple[int, int]:
    pid = os.fork()
    if not pid:
        _become(words, outputs)
    return pid, os.pidfd_open(pid)


def _send_exit_code(ended: int, pid: int, status: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(ended)
    with status:
        status.send(b"%d" % code)


def _become(words: Sequence[str], outputs: Sequence[int]) -> NoReturn:
    """Run the command in this process as `python3 -m wptrace` would: with standard streams, and no other open file."""
    from wptrace.cli.main import run

    code: object = 1
    try:
        for number, fd in enumerate(outputs, 1):
            os.dup2(fd, number)
        # The server's own streams were made for files that can seek.
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # Never free objects of the server: the numbers of its sockets belong to other files now.
        gc.freeze()
        sys.argv[:] = ["wptrace", *words]
        run()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _import_all() -> None:
    import wptrace

    for module in pkgutil.walk_packages(wptrace.__path__, "wptrace."):
        if not module.name.endswith(("__main__", "build_libbpf")):
            importlib.import_module(module.name)


if __name__ == "__main__":
    # The entry point does the same.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _import_all()
    _serve(socket.socket(fileno=int(sys.argv[1])))
