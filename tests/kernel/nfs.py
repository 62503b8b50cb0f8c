# SPDX-License-Identifier: Apache-2.0
"""The kernel's own NFS server on loopback, and the counters of its client.

No daemon has to answer the server's upcalls, because its caches are filled beforehand.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.kernel.disks import mounting

_SERVER, _CACHES = Path("/proc/fs/nfsd"), Path("/proc/net/rpc")
_CLIENT = "wptest"
# insecure_port, async, nosubtreecheck and fsid
_FLAGS = 0x2 | 0x10 | 0x400 | 0x2000
_NEVER = (1 << 31) - 1
_OPERATION = re.compile(r"^\s*(\w+): (\d+) (\d+) .* (\d+)$", re.MULTILINE)


class Calls(NamedTuple):
    """Calls of the client: by procedure, and in all."""

    made: Counter[str]
    sent: Counter[str]
    failed: Counter[str]
    whole: int
    """All calls of all mounts, by another counter."""

    def since(self, before: Calls) -> Calls:
        return Calls(
            self.made - before.made, self.sent - before.sent, self.failed - before.failed, self.whole - before.whole
        )


@contextmanager
def mounted(folder: Path, at: Path) -> Iterator[None]:
    """Mount a folder of a tmpfs or a disk by NFS."""
    for module in ("nfsd", "nfsv4"):
        subprocess.run(["modprobe", module], check=True)
    if not (_SERVER / "threads").exists():
        subprocess.run(["mount", "-t", "nfsd", "nfsd", str(_SERVER)], check=True)
    for cache, line in (
        ("auth.unix.ip", f"nfsd 127.0.0.1 {_NEVER} {_CLIENT}"),
        ("nfsd.export", f"{_CLIENT} {folder} {_NEVER} {_FLAGS} 65534 65534 0"),
        ("nfsd.fh", f"{_CLIENT} 1 \\x00000000 {_NEVER} {folder}"),
    ):
        (_CACHES / cache / "channel").write_text(f"{line}\n")
    for name, text in (
        # Version 3 needs rpcbind and a lock manager.
        ("versions", "-2 -3 +4"),
        # The minimum: no file can be opened before the grace period ends.
        ("nfsv4gracetime", "10"),
        # The maximum, because the client renews its lease whatever else it does.
        ("nfsv4leasetime", "3600"),
        ("portlist", "tcp 2049"),
        ("threads", "2"),
    ):
        (_SERVER / name).write_text(f"{text}\n")
    try:
        options = "addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.2,proto=tcp"
        with mounting(at, "-i", "-t", "nfs4", "-o", options, "127.0.0.1:/"):
            yield
    finally:
        (_SERVER / "threads").write_text("0\n")


def calls(at: Path) -> Calls:
    """Return the operations that the client has counted for the mount."""
    (ours,) = (one for one in Path("/proc/self/mountstats").read_text().split("\ndevice ") if f" on {at} " in one)
    found = _OPERATION.findall(ours.partition("per-op statistics")[2])
    whole = re.search(r"^rpc (\d+)", (_CACHES / "nfs").read_text(), re.MULTILINE)
    assert found
    assert whole
    made, sent, failed = (Counter({one[0]: int(one[column]) for one in found}) for column in (1, 2, 3))
    return Calls(made, sent, failed, int(whole[1]))
