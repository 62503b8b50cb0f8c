# SPDX-License-Identifier: Apache-2.0
"""Tools to compare with: packages of Debian sid in the cache, run in place by their own loader.

`python3 -m tests.lab.peers` fetches them. A guest sees the cache, because its root file system is this machine's.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from tests.lab import roots
from tests.lab.errors import LabError
from tests.lab.matrix import host_arch

# Tools of older suites do not know the newest kernels.
RECIPE = roots.Recipe(name="peers-", suites=("sid",), packages=("base-files", "libbpf-tools"))
# Only the benchmark needs these, because bpftrace brings a compiler.
ALL = roots.Recipe(
    name="peers-all-", suites=("sid",), packages=("base-files", "libbpf-tools", "bpftrace", "blktrace", "libaio1t64")
)
# A server of network block devices.
NBD = roots.Recipe(name="peers-nbd-", suites=("sid",), packages=("base-files", "nbdkit"))
# Offers vsock to a guest by vhost-user, if the kernel has no vhost for it.
VSOCK = roots.Recipe(name="peers-vsock-", suites=("sid",), packages=("base-files", "vhost-device-vsock"))
# Servers for `wptrace io --by statement`, by version. They run in a root of their own, because a program that is
# started through a loader has the loader as its executable.
POSTGRES = {
    version: roots.Recipe(
        name="peers-postgres-", suites=(suite,), packages=("base-files", "dash", f"postgresql-{version}")
    )
    for version, suite in ((13, "bullseye"), (15, "bookworm"), (17, "trixie"), (18, "sid"))
}
# Servers whose functions definitions name.
REDIS = roots.Recipe(name="peers-redis-", suites=("bookworm",), packages=("base-files", "dash", "redis-server"))
NGINX = roots.Recipe(name="peers-nginx-", suites=("bookworm",), packages=("base-files", "dash", "nginx"))
# A server that works on units that a definition names, by version.
MARIADB = {
    version: roots.Recipe(name="peers-mariadb-", suites=(suite,), packages=("base-files", "dash", "mariadb-server"))
    for version, suite in (("10.5", "bullseye"), ("10.11", "bookworm"), ("11.8", "trixie"))
}
# Scrapes the metrics.
PROMETHEUS = roots.Recipe(name="peers-prometheus-", suites=("sid",), packages=("base-files", "prometheus"))
# Gets alerts from Prometheus.
ALERTMANAGER = roots.Recipe(
    name="peers-alertmanager-", suites=("sid",), packages=("base-files", "prometheus-alertmanager")
)

# Receives OTLP, which Debian's Prometheus is built without.
VICTORIA = roots.Recipe(name="peers-victoria-", suites=("sid",), packages=("base-files", "victoria-metrics"))
# Scrapes the metrics as well, with an agent in Python.
PCP = roots.Recipe(
    name="peers-pcp-", suites=("bookworm",), packages=("base-files", "dash", "libc-bin", "pcp", "python3-requests")
)


def fetch(recipe: roots.Recipe = RECIPE) -> Path:
    """Fetch the packages into the cache, once."""
    return roots.fetch(recipe, host_arch())


def command(tool: str, *arguments: str, recipe: roots.Recipe = RECIPE) -> list[str]:
    """Return the command line of a tool such as `biolatency-libbpf`, without a chroot, so that it sees this system."""
    root = fetch(recipe)
    binaries = [path for folder in ("sbin", "bin") for path in (root / "usr" / folder).glob(tool)]
    loaders = sorted(path for path in (root / "usr").glob("lib*/ld-linux-*.so.*"))
    if not binaries or not loaders:
        raise LabError(f"the packages {', '.join(recipe.packages)} have no {tool}")
    libraries = root / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
    return [str(loaders[0]), "--library-path", str(libraries), str(binaries[0]), *arguments]


def free_address() -> str:
    """Return an address of this machine where a server can listen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


if __name__ == "__main__":
    try:
        for recipe in (
            RECIPE,
            NBD,
            VSOCK,
            POSTGRES[15],
            MARIADB["10.11"],
            REDIS,
            NGINX,
            PROMETHEUS,
            ALERTMANAGER,
            VICTORIA,
        ):
            print(fetch(recipe))
    except LabError as error:
        sys.exit(f"peers: {error}")
