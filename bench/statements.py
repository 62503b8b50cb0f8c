# SPDX-License-Identifier: Apache-2.0
"""In a guest whose clock counts instructions: what the statement of an operation costs (docs/owners.md)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from tests.kernel.disks import null_device
from wptrace.bpf.ring import Reader
from wptrace.flows.io.options import COMM, STATEMENT, Options
from wptrace.flows.io.path import PathFlow

_LENGTHS = (0, 8, 56, 280, 1000)
_RUNS = 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, null_device() as disk:
        # So that it is taken for a server.
        program = Path(folder) / "postgres"
        subprocess.run(["clang", "-O2", "-o", program, Path(__file__).with_name("statements.c")], check=True)
        pipe = subprocess.PIPE
        with subprocess.Popen([program, disk.path], stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            untraced = {length: _mean(process.stdin, process.stdout, length) for length in _LENGTHS}
            found = {}
            for by in ("", COMM, STATEMENT):
                flow = PathFlow(Options(devices=(disk.name,), by=by))
                try:
                    flow.start(Reader())
                    flow.begin()
                    for length in _LENGTHS:
                        found[by, length] = _mean(process.stdin, process.stdout, length) - untraced[length]
                    cells = flow.snapshot().cells
                    owners = {group.values[-1] for group in cells if group.kind.name.startswith("owned")}
                finally:
                    flow.close()
                print(f"io{f' --by {by}' if by else ''}: {len(owners)} owners", flush=True)
            process.stdin.close()
    print(f"Instructions added to a direct read and its request (Linux {os.uname().release}):")
    for length in _LENGTHS:
        of = f"a statement of {length} characters" if length else "a server process without one"
        plain, comm, statement = (found[by, length] for by in ("", COMM, STATEMENT))
        print(f"{of}: io {plain:+,.0f}, --by comm {comm - plain:+,.0f}, --by statement {statement - plain:+,.0f}")


def _mean(stdin: IO[str], stdout: IO[str], length: int) -> float:
    """The least of some runs: now and then the kernel does something else."""
    found = []
    for _ in range(_RUNS):
        stdin.write(f"{length}\n")
        stdin.flush()
        found.append(float(stdout.readline()))
    return min(found)


if __name__ == "__main__":
    main()
