# SPDX-License-Identifier: Apache-2.0
"""The tests' kernel modules (`tests/modules`), built against Debian's headers of a kernel.

The compiler comes from packages too, so the machine needs none, and all kernels get the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from tests.lab import apt, cache, roots
from tests.lab.errors import LabError, UsageError
from tests.lab.fetch import Installed, fetch
from tests.lab.matrix import Kernel, host_arch
from tests.lab.packages import Apt, AptError, need_tools, run_tool, say, waiting
from vmlinux.generate import BTF_HEADER, unpacked

SOURCES = Path(__file__).parents[1] / "modules"
_HEADERS = "headers"
_COMPILER = ("CC=x86_64-linux-gnu-gcc-16", "CROSS_COMPILE=x86_64-linux-gnu-")
_ARM64_COMPILER = ("ARCH=arm64", "CC=aarch64-linux-gnu-gcc-16", "CROSS_COMPILE=aarch64-linux-gnu-")
# Only this script sees its mounts, which end with it.
_SCRIPT = """\
set -e
mount --bind "$2" "$1/headers"
mount --bind "$3" "$1/tmp"
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
root=$1
shift 3
exec chroot "$root" /usr/bin/make "$@" 2>&1
"""


def directory(installed: Installed) -> Path:
    """Return the directory for modules of these sources for this kernel."""
    digest = hashlib.sha256(repr(_tools(installed.kernel)).encode())
    for source in sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return cache.directory() / "modules" / f"{installed.release}-{digest.hexdigest()[:8]}"


def _tools(kernel: Kernel) -> tuple[tuple[str, ...], roots.Recipe]:
    """Return make's variables for the compiler, and the root that has it."""
    return (_ARM64_COMPILER, roots.ARM64_BUILDER) if kernel.arch == "arm64" else (_COMPILER, roots.BUILDER)


def sources() -> list[Path]:
    return sorted(path for path in SOURCES.iterdir() if path.name == "Kbuild" or path.suffix in (".c", ".h"))


def build(kernel: Kernel) -> Path:
    """Build the modules for this kernel into the cache, and return their directory."""
    if not kernel.headers:
        raise UsageError(f"no modules are built for {kernel.name}")
    installed = fetch(kernel)
    target = directory(installed)
    if target.is_dir():
        return target
    root = roots.fetch(_tools(kernel)[1], host_arch())
    headers = fetch_headers(installed)
    with cache.exclusive(cache.directory() / "modules.lock", lambda: say("waiting for another build to finish")):
        if not target.is_dir():
            _build(installed, root, headers, target)
    return target


def _build(installed: Installed, root: Path, headers: Path, target: Path) -> None:
    say(f"building modules for {installed.release}")
    target.parent.mkdir(parents=True, exist_ok=True)
    for place in ("headers", "tmp", "dev", "proc"):
        (root / place).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as name:
        work = Path(name, "work")
        work.mkdir()
        for source in sources():
            shutil.copy(source, work)
        tree = f"/headers/usr/src/linux-headers-{installed.release}"
        compiler, _ = _tools(installed.kernel)
        command = [f"-j{os.cpu_count()}", "-C", tree, "M=/tmp/work", *compiler, *_btf_arguments(headers), "modules"]
        # A user is root in a user namespace.
        mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
        done = subprocess.run(
            ["unshare", "--mount", *mapped, "sh", "-c", _SCRIPT, "sh", str(root), str(headers), name, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            check=False,
        )
        built = list(work.glob("*.ko"))
        if done.returncode or not built:
            raise LabError(f"cannot build modules for {installed.release}:\n{done.stdout}{done.stderr}".rstrip())
        result = Path(name, "built")
        result.mkdir()
        for module in built:
            module.rename(result / module.name)
        result.rename(target)


def _btf_arguments(headers: Path) -> list[str]:
    """Return arguments for old packages without resolve_btfids, which only modules with functions for BPF need."""
    found = any(headers.glob("usr/lib/linux-kbuild-*/tools/bpf/resolve_btfids/resolve_btfids"))
    return [] if found else ["RESOLVE_BTFIDS=/bin/true"]


def fetch_headers(installed: Installed) -> Path:
    """Fetch the packages to build against, unpacked next to the kernel."""
    target = installed.directory / _HEADERS
    if target.is_dir():
        return target
    need_tools()
    with cache.exclusive(cache.directory() / "fetch.lock", waiting):
        if not target.is_dir():
            _fetch_headers(installed, target)
    return target


def _fetch_headers(installed: Installed, target: Path) -> None:
    problems: list[str] = []
    # The kernel's own suite comes first: others have at most the same version.
    suites = dict.fromkeys((installed.suite, *installed.kernel.suites))
    for suite in suites:
        for number, mirror in enumerate(apt.mirrors(apt.system_sources(), suite)):
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as name:
                work = Path(name, "unpacked")
                try:
                    for package in installed.kernel.header_names(installed.release):
                        # Build tools are for the building machine.
                        programs = package.startswith("linux-kbuild-")
                        private = Apt(mirror, suite, host_arch() if programs else installed.kernel.arch, number)
                        private.update()
                        run_tool("dpkg-deb", "-x", str(private.download(package, Path(name))), str(work))
                except AptError as error:
                    problems.append(f"{suite}: {error}")
                    continue
                arrange_headers(work, installed)
                work.rename(target)
                return
    reason = "; ".join(problems) or "no Debian mirror for them"
    raise LabError(f"cannot fetch headers of {installed.release}: {reason} (a newer kernel: fetch --newer)")


def arrange_headers(unpacked_packages: Path, installed: Installed) -> None:
    """Make the packages work in another place than their own."""
    tree = unpacked_packages / "usr" / "src" / f"linux-headers-{installed.release}"
    makefile = tree / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", "/headers/usr/src/"))
    # Types of a module refer to the kernel's, which headers of 6.1 lack.
    types = tree / "vmlinux"
    if not types.exists() and "CONFIG_DEBUG_INFO_BTF_MODULES=y" in (tree / ".config").read_text():
        types.write_bytes(btf_of(installed.image.read_bytes()))


def btf_of(image: bytes) -> bytes:
    """Return the raw BTF of a kernel's image."""
    for data in unpacked(image):
        at = data.find(BTF_HEADER)
        if at >= 0:
            return data[at : at + 24 + sum(struct.unpack_from("<2I", data, at + 16))]
    raise LabError("the kernel has no BTF")
