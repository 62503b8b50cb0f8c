# SPDX-License-Identifier: Apache-2.0
"""The shipped definitions for servers, with the servers of Debian 12, against their own counts and logs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kernel import postgres, rooted
from tests.kernel.patience import said
from tests.kernel.trace import PATIENCE, FlowTrace, Line, lossless, wait_until
from tests.lab import peers, roots

# Each test starts a server and the command.
pytestmark = pytest.mark.one_kernel

_NGINX = """
daemon off;
worker_processes 2;
pid /mnt/pid;
error_log /mnt/error.log;
events {}
http {
    access_log /mnt/access.log;
    client_body_temp_path /mnt/body;
    proxy_temp_path /mnt/proxy;
    fastcgi_temp_path /mnt/fastcgi;
    uwsgi_temp_path /mnt/uwsgi;
    scgi_temp_path /mnt/scgi;
    server {
        listen unix:/mnt/socket;
        location / { root /mnt/files; }
        location /far/ { proxy_pass http://unix:/mnt/socket:/; }
    }
}
"""


@contextmanager
def server(folder: Path, recipe: roots.Recipe, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with a socket in the folder."""
    os.chown(folder, rooted.NOBODY, rooted.NOBODY)
    words = rooted.words(peers.fetch(recipe), folder, *command)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(folder / "socket") or process.poll() is not None, "the server")
            assert process.poll() is None, "the server has ended"
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def _listens(path: Path) -> bool:
    """The socket is there before anybody listens."""
    with socket.socket(socket.AF_UNIX) as client, suppress(FileNotFoundError, ConnectionRefusedError):
        client.connect(str(path))
        return True
    return False


@contextmanager
def connected(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(folder / "socket"))
        yield client


def counts(summary: Line, stage: str, label: str = "") -> dict[str | int, int]:
    rows = (row for row in summary["rows"] if row["stage"] == stage)
    return {row["labels"][label] if label else "": row["count"] for row in rows}


def test_commands_of_redis(tmp_path: Path) -> None:
    def told(client: socket.socket, *command: str) -> bytes:
        words = "".join(f"${len(word)}\r\n{word}\r\n" for word in command)
        client.sendall(f"*{len(command)}\r\n{words}".encode())
        return client.recv(1 << 16)

    command = ["/usr/bin/redis-server", "--port", "0", "--unixsocket", "/mnt/socket", "--save", "", "--dir", "/mnt"]
    with server(tmp_path, peers.REDIS, *command) as process, connected(tmp_path) as client:
        assert told(client, "PING") == b"+PONG\r\n"
        told(client, "CONFIG", "RESETSTAT")
        with FlowTrace("redis", f"--program=/proc/{process.pid}/exe") as trace:
            for number in range(20):
                assert told(client, "set", f"key{number}", "value") == b"+OK\r\n"
            for number in range(30):
                assert told(client, "get", f"key{number}")
            # Calls from a script are part of it.
            assert told(client, "eval", "for i = 1, 5 do redis.call('get', 'key1') end", "0") == b"$-1\r\n"
            assert told(client, "nonsense").startswith(b"-ERR")
        stats = told(client, "INFO", "commandstats").decode()
    calls = {name: int(count) for name, count in re.findall(r"cmdstat_(\w+):calls=(\d+)", stats)}
    assert (calls["set"], calls["get"], calls["eval"]) == (20, 35, 1)
    summary = trace.summary
    assert counts(summary, "total", "command") == {"set": 20, "get": 30, "eval": 1, "": 1}
    assert sum(counts(summary, "check", "command").values()) == 52
    assert (
        counts(summary, "execute", "command")
        == counts(summary, "finish", "command")
        == {"set": 20, "get": 30, "eval": 1}
    )
    assert lossless(summary)


def test_requests_of_nginx(tmp_path: Path) -> None:
    def get(path: str) -> bytes:
        with connected(tmp_path) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return b"".join(iter(lambda: client.recv(1 << 16), b""))

    (tmp_path / "nginx.conf").write_text(_NGINX)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file").write_text("content")
    with server(tmp_path, peers.NGINX, "/usr/sbin/nginx", "-e", "/mnt/error.log", "-c", "/mnt/nginx.conf") as process:
        with FlowTrace("nginx", f"--program=/proc/{process.pid}/exe") as trace:
            for _ in range(20):
                assert get("/file").endswith(b"content")
            for _ in range(10):
                assert get("/far/file").endswith(b"content")
            assert b" 404 " in get("/none")
            # Everything that was answered is freed by now.
            process.send_signal(signal.SIGQUIT)
            process.wait(PATIENCE)
        logged = (tmp_path / "access.log").read_text().splitlines()
    # nginx is its own upstream for /far.
    assert len(logged) == 20 + 2 * 10 + 1
    assert counts(trace.summary, "total") == counts(trace.summary, "headers") == {"": len(logged)}
    assert counts(trace.summary, "content") == {"": len(logged)}
    assert counts(trace.summary, "upstream") == {"": 10}
    assert lossless(trace.summary)


def test_statements_of_postgresql(tmp_path: Path) -> None:
    with postgres.server(tmp_path / "postgres", 15) as database:
        pid = (tmp_path / "postgres" / "data" / "postmaster.pid").read_text().split()[0]
        database.sql(
            ["create extension pg_stat_statements", "create table rows as select generate_series(1, 100) as id"]
        )
        database.sql(["select pg_stat_statements_reset()"])
        with FlowTrace("postgres", f"--program=/proc/{pid}/exe") as trace:
            database.sql(["select count(*) from rows"] * 12 + ["update rows set id = id + 1"] * 3)
        counted = database.sql(["select query, calls from pg_stat_statements where query like '% rows%'"])
    assert {query: int(calls) for query, calls in counted} == {
        "select count(*) from rows": 12,
        "update rows set id = id + $1": 3,
    }
    summary = trace.summary
    for stage in ("total", "parse", "rewrite", "plan", "execute", "commit"):
        assert counts(summary, stage, "statement") == {"select count(*)": 12, "update rows set": 3}, stage
    assert lossless(summary)


_COLLECTOR = """
import gc, sys
gc.disable()
for line in sys.stdin:
    for generation in line.split():
        gc.collect(int(generation))
    print(*(one["collections"] for one in gc.get_stats()), flush=True)
"""


def test_garbage_collections_of_python() -> None:
    def counted(generations: str) -> list[int]:
        assert process.stdin is not None
        process.stdin.write(generations + "\n")
        process.stdin.flush()
        return [int(word) for word in said(process).split()]

    # That of the system has static probes.
    command = ["/usr/bin/python3", "-c", _COLLECTOR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        before = counted("")
        with FlowTrace("python", f"--program=/proc/{process.pid}/exe") as trace:
            after = counted("0 1 2 0 0 1")
        assert process.stdin is not None
        process.stdin.close()
    assert [now - then for then, now in zip(before, after)] == [3, 2, 1]
    assert counts(trace.summary, "total", "generation") == {0: 3, 1: 2, 2: 1}
    assert lossless(trace.summary)
