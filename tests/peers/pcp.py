# SPDX-License-Identifier: Apache-2.0
"""Performance Co-Pilot's pmcd, whose openmetrics agent scrapes metrics."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import peers

PATIENCE = 60.0
# In a mount namespace of its own, because the root is shared. The agent's Python finds libraries by ldconfig's cache.
_INSIDE = """
root=$0; folder=$1; shift
for place in run tmp var/log var/lib/pcp/config; do mount -t tmpfs none "$root/$place"; done
mkdir -p "$root/run/pcp" "$root/var/log/pcp/pmcd" "$root/var/lib/pcp/config/pmda" "$root/mnt"
mount --rbind /dev "$root/dev"
mount --bind "$folder" "$root/mnt"
touch "$root/etc/ld.so.cache"
chroot "$root" /sbin/ldconfig -C /run/cache
mount --bind "$root/run/cache" "$root/etc/ld.so.cache"
export PCP_CONF=/etc/pcp.conf PCP_VAR_DIR=/var/lib/pcp PCP_PMDAS_DIR=/var/lib/pcp/pmdas
exec chroot "$root" "$@"
"""
_AGENT = "python3 /usr/lib/pcp/pmdas/openmetrics/pmdaopenmetrics.python -c /mnt/sources -l /mnt/agent.log -u root"
_METRIC = re.compile(r"^openmetrics\.wptrace\.(?P<name>\w+)\n(?P<values>(?: .*\n)*)", re.M)
_VALUE = re.compile(r'^ {4}inst \[\d+ or "\d+ (?P<labels>.*)"\] value (?P<value>\S+)$', re.M)


class Pcp:
    def __init__(self, root: Path, address: str) -> None:
        self._command = ["chroot", str(root), "/usr/bin/pminfo", "-h", address, "-f", "openmetrics.wptrace"]

    def values(self, metric: str) -> dict[str, float]:
        """Return the values of a metric by the labels of the series: `device:sda operation:read`."""
        # New metrics get their names when all are listed. An error until there is one.
        done = subprocess.run(self._command, capture_output=True, text=True, timeout=PATIENCE)
        found = {one["name"]: one["values"] for one in _METRIC.finditer(done.stdout)}
        return {one["labels"]: float(one["value"]) for one in _VALUE.finditer(found.get(metric, ""))}


@contextmanager
def pcp(folder: Path, target: str) -> Iterator[Pcp]:
    """Scrape an address whenever it is asked."""
    root = peers.fetch(peers.PCP)
    address = peers.free_address()
    made = folder / "pcp"
    (made / "sources").mkdir(parents=True)
    (made / "sources" / "wptrace.url").write_text(f"http://{target}/metrics\n")
    (made / "pmcd.conf").write_text(f"openmetrics 144 pipe binary notready {_AGENT}\n")
    (made / "names").write_text("root {\n    openmetrics 144:*:*\n}\n")
    words = ["/usr/lib/pcp/bin/pmcd", "-f", "-A", "-U", "root", "-i", "127.0.0.1", "-p", address.rpartition(":")[2]]
    words += ["-c", "/mnt/pmcd.conf", "-n", "/mnt/names", "-s", "/run/pcp/pmcd.socket", "-l", "/mnt/pmcd.log"]
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _INSIDE, str(root), str(made), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Pcp(root, address)
    finally:
        process.terminate()
        process.wait(PATIENCE)
