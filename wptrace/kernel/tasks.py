# SPDX-License-Identifier: Apache-2.0
"""Processes and threads by /proc."""

from __future__ import annotations

import re
from pathlib import Path

from wptrace.errors import UsageError

PROC = Path("/proc")


def process(text: str, proc: Path = PROC) -> int:
    """The id of a living process, from what the user wrote."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        raise UsageError(f"{text!r} is not a process id")
    status = proc / text / "status"
    try:
        lines = status.read_text(errors="replace").splitlines()
    except OSError:
        raise UsageError(f"there is no process {text}", hint="ps -e lists the processes") from None
    # /proc/TID answers for every thread as well; the filter compares thread group ids.
    leader = next((line.split()[1] for line in lines if line.startswith("Tgid:")), text)
    if leader != text:
        raise UsageError(f"{text} is a thread of process {leader}", hint=f"name the process: --pid {leader}")
    return int(text)
