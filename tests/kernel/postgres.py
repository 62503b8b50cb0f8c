# SPDX-License-Identifier: Apache-2.0
"""A server of PostgreSQL from Debian's packages, in a root of its own as in a container, with its files on a disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

from tests.kernel import rooted
from tests.kernel.trace import PATIENCE, wait_until
from tests.lab import peers

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_directories": "/mnt",
    # What is read twice is asked of the kernel twice, and nothing is written but by who is asked to.
    "shared_buffers": "1MB",
    "max_connections": "10",
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "jit": "off",
    "min_parallel_table_scan_size": "0",
    "parallel_setup_cost": "0",
    "shared_preload_libraries": "pg_stat_statements",
}

_END = "(that was all)"


def _psql(user: str) -> list[str]:
    return ["psql", "-X", "-q", "-A", "-t", "-h", "/mnt", "-U", user, "-d", "postgres"]


class Postgres:
    def __init__(self, folder: Path, version: int) -> None:
        self._folder, self.version = folder, version
        self.script = folder / "script.sql"
        """In its root in /mnt."""
        self._root = peers.fetch(peers.POSTGRES[version])
        (self._bin,) = (f"/{path.relative_to(self._root)}" for path in self._root.glob("usr/lib/postgresql/*/bin"))

    def words(self, tool: str, *arguments: str) -> list[str]:
        return rooted.words(self._root, self._folder, f"{self._bin}/{tool}", *arguments)

    def run(self, tool: str, *arguments: str) -> str:
        done = subprocess.run(self.words(tool, *arguments), capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pgbench(self, *arguments: str) -> str:
        return self.run("pgbench", "-h", "/mnt", "-U", "postgres", *arguments, "postgres")

    def transaction_ns(self, *arguments: str) -> float:
        """Return the time of a transaction of pgbench, of prepared statements."""
        said = self.pgbench("-n", "-M", "prepared", *arguments)
        (rate,) = re.findall(r"^tps = ([0-9.]+) \(without", said, re.M)
        return 1e9 / float(rate)

    def execute(self, statement: str, protocol: str, times: int = 1) -> None:
        """By a protocol as pgbench calls it."""
        self.script.write_text(f"{statement};\n")
        self.pgbench("-n", "-M", protocol, "-f", f"/mnt/{self.script.name}", "-t", str(times))

    @contextmanager
    def session(self, user: str = "postgres") -> Iterator[Callable[[str], list[str]]]:
        """A connection that takes statements one after another, and gives the lines of each."""
        words, pipe = self.words(*_psql(user)), subprocess.PIPE
        with subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
            to, lines = process.stdin, process.stdout
            assert to is not None
            assert lines is not None

            def ask(statement: str) -> list[str]:
                to.write(f"{statement};\n\\echo {_END}\n")
                to.flush()
                found = []
                while (line := lines.readline().rstrip("\n")) != _END:
                    assert process.poll() is None, "psql has ended"
                    found.append(line)
                return found

            yield ask
            to.close()
            process.wait(PATIENCE)

    def sql(self, statements: Sequence[str], user: str = "postgres") -> list[list[str]]:
        """One after another by one connection, each as it stands; their rows."""
        words = (word for one in statements for word in ("-c", one))
        found = self.run(*_psql(user), *words)
        return [line.split("|") for line in found.splitlines()]


@contextmanager
def server(folder: Path, version: int, **settings: str) -> Iterator[Postgres]:
    folder.mkdir()
    os.chown(folder, rooted.NOBODY, rooted.NOBODY)
    found = Postgres(folder, version)
    found.run("initdb", "-D", "/mnt/data", "-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
    words = [word for name, value in {**_SETTINGS, **settings}.items() for word in ("-c", f"{name}={value}")]
    with subprocess.Popen(found.words("postgres", "-D", "/mnt/data", *words), stderr=subprocess.DEVNULL) as process:
        try:
            pid = folder / "data" / "postmaster.pid"

            def is_ready() -> bool:
                assert process.poll() is None, "the server has ended"
                return pid.exists() and "ready" in pid.read_text()

            wait_until(is_ready, "the server")
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
