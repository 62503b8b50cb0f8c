# SPDX-License-Identifier: Apache-2.0
"""VictoriaMetrics, which receives metrics by OTLP."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.lab import peers

PATIENCE = 60.0


class Victoria:
    def __init__(self, address: str) -> None:
        self._address = address
        self.otlp = f"http://{address}/opentelemetry"
        """The endpoint for a sender."""

    def get(self, path: str, **parameters: str) -> bytes:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self._address}/{path}?{query}", timeout=PATIENCE) as answer:
            return bytes(answer.read())

    def ask(self, query: str) -> list[Any]:
        """Return series with their last values, including those that have just arrived."""
        self.get("internal/force_flush")
        return list(json.loads(self.get("api/v1/query", query=query, nocache="1"))["data"]["result"])

    def value(self, query: str) -> float:
        """Return the value of the only series; -1 until there is one."""
        found = self.ask(query)
        return float(found[0]["value"][1]) if len(found) == 1 else -1

    def names(self) -> set[str]:
        self.get("internal/force_flush")
        return set(json.loads(self.get("api/v1/label/__name__/values"))["data"])


@contextmanager
def victoria(folder: Path, address: str = "") -> Iterator[Victoria]:
    """Run a server at an address, else at a free one. It is killed at the end, as in a crash."""
    address = address or peers.free_address()
    options = [
        f"-httpListenAddr={address}",
        f"-storageDataPath={folder / 'victoria'}",
        "-opentelemetry.usePrometheusNaming",
        "-search.latencyOffset=0s",
    ]
    process = subprocess.Popen(
        peers.command("victoria-metrics", *options, recipe=peers.VICTORIA),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    made = Victoria(address)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                made.get("health")
                break
            assert process.poll() is None
            assert time.monotonic() < until, "VictoriaMetrics does not answer"
            time.sleep(0.05)
        yield made
    finally:
        process.kill()
        process.wait(PATIENCE)
