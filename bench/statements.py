# SPDX-License-Identifier: Apache-2.0
"""Counts, in a guest, the instructions that the statement or unit of an operation costs (docs/overhead.md)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from tests.kernel import postgres
from tests.kernel.disks import loop_device, null_device
from tests.kernel.loads import mounted
from wptrace.bpf.ring import Reader
from wptrace.engine.definition.unit import Argument, Unit
from wptrace.flows.io.options import COMM, STATEMENT, UNIT, Options
from wptrace.flows.io.path import PathFlow

_LENGTHS = (0, 8, 56, 280, 1000)
_RUNS = 3
# All of pgbench's rows are in the server's memory.
_BUFFERS = "64MB"
_TRANSACTIONS = 2000


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
            found: dict[tuple[str, int], tuple[float, float]] = {}
            label = Argument(0, text=True)
            begins = Unit("begins", str(program), ("ufn:execute",), ("ufn:never",), label)
            whole = begins._replace(name="whole", end=("uret:execute",))
            for name, unit in {"": None, COMM: None, STATEMENT: None, "begins": begins, "whole": whole}.items():
                by = name if unit is None else UNIT
                flow = PathFlow(Options(devices=(disk.name,), by=by, unit=unit))
                try:
                    flow.start(Reader())
                    flow.begin()
                    for length in _LENGTHS:
                        read, call = _mean(process.stdin, process.stdout, length)
                        found[name, length] = read - untraced[length][0], call - untraced[length][1]
                    cells = flow.snapshot().cells
                    owners = {group.values[-1] for group in cells if group.kind.name.startswith("owned")}
                finally:
                    flow.close()
                print(f"io{f' --by {by}' if by else ''} {name}: {len(owners)} owners", flush=True)
            process.stdin.close()
    print(f"Instructions added to a direct read and its request (Linux {os.uname().release}):")
    for length in _LENGTHS:
        of = f"a statement of {length} characters" if length else "a server process without one"
        plain, comm, statement, whole_unit = (found[name, length][0] for name in ("", COMM, STATEMENT, "whole"))
        more = f"--by statement {statement - plain:+,.0f}, --by unit {whole_unit - plain:+,.0f}"
        print(f"{of}: io {plain:+,.0f}, --by comm {comm - plain:+,.0f}, {more}")
    print("Instructions added to a call that is a unit without I/O:")
    for length in _LENGTHS[1:]:
        begin, both = (found[name, length][1] for name in ("begins", "whole"))
        print(f"a text of {length} characters: where it begins {begin:+,.0f}, with its end at the return {both:+,.0f}")
    _print_in_memory()


def _print_in_memory() -> None:
    """Print what a transaction of pgbench costs that reads from memory alone."""
    with (
        tempfile.TemporaryDirectory() as folder,
        loop_device(Path(folder) / "disk.img", "384M") as disk,
        mounted(disk, "ext4", Path(folder) / "files") as files,
        postgres.server(files / "postgres", 15, shared_buffers=_BUFFERS) as server,
    ):
        server.pgbench("-i", "-q")
        server.sql(["checkpoint"])
        for _ in range(2):  # with the reads of its start and of rows that are not in memory yet
            untraced = _transaction(server)
        print(f"A transaction of pgbench in memory takes {untraced:,.0f} instructions:")
        for by in ("", STATEMENT):
            flow = PathFlow(Options(devices=(disk.name,), by=by))
            try:
                flow.start(Reader())
                flow.begin()
                traced = _transaction(server)
            finally:
                flow.close()
            print(f"io{f' --by {by}' if by else ''}: {traced / untraced - 1:+.2%}")


def _transaction(server: postgres.Postgres) -> float:
    """Return the instructions of one: the least of some runs."""
    return min(server.transaction_ns("-S", "-t", str(_TRANSACTIONS)) for _ in range(_RUNS))


def _mean(stdin: IO[str], stdout: IO[str], length: int) -> tuple[float, float]:
    """Return the cost of a read and of a call: the least of some runs, as the kernel also does other things."""
    found = []
    for _ in range(_RUNS):
        stdin.write(f"{length}\n")
        stdin.flush()
        read, call = stdout.readline().split()
        found.append((float(read), float(call)))
    return min(read for read, _ in found), min(call for _, call in found)


if __name__ == "__main__":
    main()
