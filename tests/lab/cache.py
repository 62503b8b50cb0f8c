# SPDX-License-Identifier: Apache-2.0
"""The lab's cache of kernels, and the locks by which several labs share a machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tests.lab.errors import LabError

GUESTS_AT_ONCE = 3


def directory() -> Path:
    named = os.environ.get("WPTRACE_LAB_CACHE")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wptrace" / "lab"


@contextlib.contextmanager
def exclusive(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file; `waiting` is called once if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not _try_lock(file):
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def guest_slot(waiting: Callable[[], None]) -> Iterator[int]:
    """Hold one of the machine's few slots for guests, because more guests only slow each other down."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(_slot_file(number)) for number in range(GUESTS_AT_ONCE)]
        reported = False
        while True:
            for number, file in enumerate(files):
                if _try_lock(file):
                    yield number
                    return
            if not reported:
                waiting()
                reported = True
            time.sleep(0.2)


def _slot_file(number: int) -> IO[str]:
    path = Path(tempfile.gettempdir()) / f"wptrace-lab-slot-{number}"
    try:
        # Without O_CREAT first: in a sticky directory the kernel refuses it on another user's file.
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise LabError(f"cannot open the lock {path}: {error.strerror}") from error
    return os.fdopen(descriptor)


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
