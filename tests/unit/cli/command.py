# SPDX-License-Identifier: Apache-2.0
"""Runs the command as a user does, without privileges, and looks at how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
# Much longer than anything takes: only what hangs gets there.
TIMEOUT = 120

# As root nothing is refused, so the command gives all capabilities up first; files stay readable.
UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"] if os.geteuid() == 0 else []
WPTRACE = [*UNPRIVILEGED, sys.executable, "-W", "error", "-m", "wptrace"]
# The same with a flow that needs no kernel, and the privileges to run it.
FAKE = [*UNPRIVILEGED, sys.executable, "-W", "error", "-m", "tests.unit.cli.fake"]


def environment(**variables: str) -> dict[str, str]:
    """A test's outcome must not depend on who runs it: no settings of Python (unbuffered output), one locale."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", **variables}


def run(command: list[str], *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def popen(command: list[str], *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    options.setdefault("env", environment())
    return subprocess.Popen([*command, *arguments], cwd=ROOT, **options)


def sentence(stderr: str) -> str:
    """The one sentence of an error; fails for anything besides it and a hint."""
    lines = stderr.split("\n")
    assert lines.pop() == "", stderr
    assert 1 <= len(lines) <= 2, stderr
    assert lines[0].startswith("wptrace: "), stderr
    assert not lines[0].startswith("wptrace: wptrace"), stderr
    assert all(line.startswith("hint: ") for line in lines[1:]), stderr
    assert all(line.isprintable() for line in lines), stderr
    return lines[0].partition(": ")[2]
