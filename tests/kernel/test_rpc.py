# SPDX-License-Identifier: Apache-2.0
"""`wptrace flow rpc` against the NFS client's own counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kernel import nfs
from tests.kernel.trace import FlowTrace, Line, wait_until
from tests.thorough import only_all

pytestmark = [
    pytest.mark.guest,
    # A server waits for clients of its former life before it serves, on each kernel again.
    only_all,
]

FILES = 10


def _work(folder: Path) -> None:
    for number in range(FILES):
        file = folder / str(number)
        with file.open("wb") as out:
            out.write(bytes(10_000))
            out.flush()
            os.fsync(out.fileno())
        file.chmod(0o600)
        assert not (folder / f"none{number}").exists()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    for number in range(FILES):
        assert len((folder / str(number)).read_bytes()) == 10_000
        (folder / str(number)).unlink()


def _settled(folder: Path) -> nfs.Calls:
    """Wait until the counts settle: close() does not wait for its calls."""
    seen = [nfs.calls(folder)]

    def same() -> bool:
        seen.append(nfs.calls(folder))
        return seen[-1] == seen[-2]

    wait_until(same, "the client to come to rest")
    return seen[-1]


def _by_procedure(summary: Line, stage: str) -> dict[str, int]:
    rows = [row for row in summary["rows"] if row["stage"] == stage]
    return {row["labels"]["procedure"]: row["count"] for row in rows}


def test_calls_of_nfs(tmp_path: Path) -> None:
    served, folder = Path("/dev/shm/wptest-nfs"), tmp_path / "mounted"  # noqa: S108
    for one in (served, folder):
        one.mkdir()
    with nfs.mounted(served, folder):
        # Opened once, so that the server's grace period is over.
        (folder / "first").write_text("x")
        before = _settled(folder)
        with FlowTrace("rpc") as trace:
            _work(folder)
            grown = _settled(folder).since(before)
    summary = trace.summary
    assert grown.made["WRITE"] >= FILES
    assert grown.failed["LOOKUP"] + grown.failed["OPEN"] > 0
    requests = summary["requests"]
    assert (requests["lost"], requests["in_flight"]) == (0, 0)
    if not Path("/sys/kernel/btf/sunrpc").exists():
        # Without types of modules, which came with 5.11, a call cannot be identified.
        assert requests["finished"] == grown.whole
        return
    # The server calls the client as well, to recall a delegation.
    theirs = {name: count for name, count in _by_procedure(summary, "total").items() if name in grown.made}
    assert theirs == dict(grown.made)
    assert sum(theirs.values()) == grown.whole
    sent = {name: count for name, count in _by_procedure(summary, "sent").items() if name in grown.made}
    assert sent == dict(grown.sent)
    assert requests["failed"] == sum(grown.failed.values())
