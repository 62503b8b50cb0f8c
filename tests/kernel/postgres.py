# SPDX-License-Identifier: Apache-2.0
"""A server of PostgreSQL from Debian's packages, in a root of its own as in a container, with its files on a disk."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

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


class Postgres:
    def __init__(self, folder: Path, version: int) -> None:
        self._folder = folder
        self._root = peers.fetch(peers.POSTGRES[version])
        (self._bin,) = (f"/{path.relative_to(self._root)}" for path in self._root.glob("usr/lib/postgresql/*/bin"))

    def words(self, tool: str, *arguments: str) -> list[str]:
        return rooted.words(self._root, self._folder, f"{self._bin}/{tool}", *arguments)

    def run(self, tool: str, *arguments: str) -> str:
        done = subprocess.run(self.words(tool, *arguments), capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sql(self, statements: Sequence[str]) -> list[list[str]]:
        """One after another by one connection, each as it stands; their rows."""
        words = (word for one in statements for word in ("-c", one))
        found = self.run("psql", "-X", "-q", "-A", "-t", "-h", "/mnt", "-U", "postgres", *words)
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
