# SPDX-License-Identifier: Apache-2.0
"""Run the command as an unprivileged user does, and look at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PIPE = subprocess.PIPE
# Much longer than anything takes, unless it hangs.
TIMEOUT = 120

# Root is refused nothing, so the command drops all capabilities first; files stay readable.
UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"] if os.geteuid() == 0 else []
WPTRACE = [*UNPRIVILEGED, sys.executable, "-W", "error", "-m", "wptrace"]
# The command with a flow that needs no kernel, and with the privileges for it.
FAKE = [*UNPRIVILEGED, sys.executable, "-W", "error", "-m", "tests.unit.cli.fake"]


def environment(**variables: str) -> dict[str, str]:
    """Make an environment in which a test does not depend on the user's settings of Python and locale."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "LC_ALL": "C.UTF-8", "TZ": "UTC", **variables}


def run(
    command: list[str], *arguments: str, stdout: Any = PIPE, stderr: Any = PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment(**variables),
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def popen(command: list[str], *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    options.setdefault("env", environment())
    return subprocess.Popen([*command, *arguments], cwd=ROOT, **options)


def begun(*arguments: str, **options: Any) -> tuple[subprocess.Popen[bytes], bytes]:
    """Start a trace of the made-up flow, and return it with the first line that it wrote."""
    process = popen(FAKE, *arguments, stdout=PIPE, stderr=PIPE, **options)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line
    return process, line


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Return the exit code, and what it wrote to both streams."""
    written, errors = process.communicate(timeout=TIMEOUT)
    return process.returncode, written, errors


def sentence(stderr: str) -> str:
    """Return the sentence of an error; fail if there is anything besides that and a hint."""
    lines = stderr.split("\n")
    assert lines.pop() == "", stderr
    assert 1 <= len(lines) <= 2, stderr
    assert lines[0].startswith("wptrace: "), stderr
    assert not lines[0].startswith("wptrace: wptrace"), stderr
    assert all(line.startswith("hint: ") for line in lines[1:]), stderr
    assert all(line.isprintable() for line in lines), stderr
    return lines[0].partition(": ")[2]
