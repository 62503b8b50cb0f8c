# SPDX-License-Identifier: Apache-2.0
"""`wptrace io -- COMMAND`: a command that starts once the trace has begun, and whose end ends the trace."""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress

from wptrace.errors import UsageError, WptraceError

# A signal of the terminal reaches the command by itself and is not forwarded.
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)
# The exit code of a command that a signal ended, as in a shell.
_BY_SIGNAL = 128


class Workload:
    """A child that waits at a pipe until `begin`, so that its process is known before anything is attached."""

    grace_s = 1.0
    """The time that the command has to end after a signal; then the trace ends without it."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        if shutil.which(words[0]) is None:
            # Checked before programs are loaded.
            raise UsageError(f"there is no command {words[0]!r} to run", "a command and its arguments stand after --")
        gate, self._gate = os.pipe2(os.O_CLOEXEC)
        self._failure, failure = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if not self.pid:
            os.close(self._gate)
            _run(words, gate, failure)
        os.close(gate)
        os.close(failure)
        self.fd = os.pidfd_open(self.pid)
        """Readable once it has ended."""

    def begin(self) -> None:
        # A signal during the load may have ended it.
        with suppress(BrokenPipeError):
            os.write(self._gate, b"\n")

    @property
    def ended(self) -> bool:
        return bool(select.select([self.fd], [], [], 0)[0])

    def signal(self, number: int) -> None:
        if number in _FORWARDED:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.fd, number)

    def exit_code(self) -> int:
        """Its exit code, or that of its signal."""
        if not self.ended:
            raise WptraceError(f"{self.words[0]} still runs, as process {self.pid}")
        failed = os.read(self._failure, 64)
        if failed:
            raise WptraceError(f"{self.words[0]} cannot be run: {os.strerror(int(failed))}")
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return status if status >= 0 else _BY_SIGNAL - status

    def close(self) -> None:
        """End a command that has not begun."""
        os.close(self._gate)
        os.close(self._failure)
        os.close(self.fd)


def _run(words: Sequence[str], gate: int, failure: int) -> None:
    """Run in the child; does not return."""
    try:
        # wptrace's signal handlers stay until the command has replaced it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        # Python ignores these, and an ignored signal stays so across exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if os.read(gate, 1):
            os.execvp(words[0], list(words))  # noqa: S606
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    finally:
        os._exit(127)
