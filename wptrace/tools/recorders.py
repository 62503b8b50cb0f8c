# SPDX-License-Identifier: Apache-2.0
"""Running traces with a flight recorder, and the signal that makes them write a dump."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from wptrace.errors import NotPermittedError, WptraceError
from wptrace.kernel import procfs

PROC = Path("/proc")


def running(proc: Path = PROC) -> dict[int, str]:
    """Return the folders for dumps by pid."""
    found = {}
    for folder, words in _expecting(proc):
        # The agent's file says whether it has one.
        if _is_agent(words) or any(word.partition("=")[0] == "--recorder" for word in words):
            with suppress(OSError):
                found[int(folder.name)] = _folder(folder, words)
    return found


def agents(proc: Path = PROC) -> list[int]:
    """The processes of running agents."""
    return sorted(int(folder.name) for folder, words in _expecting(proc) if _is_agent(words))


def _expecting(proc: Path) -> Iterator[tuple[Path, list[str]]]:
    """Commands such as `python3 /usr/bin/wptrace io` that expect the signal, with their words."""
    for folder in proc.iterdir():
        # The process may end at any moment, or belong to another user.
        with suppress(OSError, ValueError):
            if not folder.name.isdigit():
                continue
            words = (folder / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
            if "wptrace" in (Path(word).name for word in words[:4]) and _expects(folder):
                yield folder, words


def _is_agent(words: Sequence[str]) -> bool:
    return "agent" in words[1:5]


def _expects(folder: Path) -> bool:
    """Whether the process handles the signal; it would end one that does not."""
    return bool(int(procfs.field(folder / "status", "SigCgt"), 16) >> (signal.SIGUSR2 - 1) & 1)


def _folder(folder: Path, words: Sequence[str]) -> str:
    if _is_agent(words):
        return "the folder of its configuration"
    named = "."
    for word, following in zip(words, [*words[1:], ""]):
        option, equals, value = word.partition("=")
        if option == "--dump-dir":
            named = value if equals else following
    return os.path.normpath(Path(os.readlink(folder / "cwd"), named))  # noqa: PTH115


def ask(pid: int) -> None:
    """Ask a process for a dump, after a check with a pidfd that the pid has not been reused."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        raise WptraceError(f"process {pid} has ended") from None
    try:
        if pid not in running():
            raise WptraceError(f"process {pid} has ended")
        signal.pidfd_send_signal(held, signal.SIGUSR2)
    except PermissionError:
        raise NotPermittedError(f"process {pid} belongs to another user", "run it as root") from None
    finally:
        os.close(held)
