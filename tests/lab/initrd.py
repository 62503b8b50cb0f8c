# SPDX-License-Identifier: Apache-2.0
"""The guest's initial RAM disk: a static busybox, the modules for the root file system, the init script.

Two cpio archives, one after the other: the first only depends on the kernel and is kept in the cache, the second has
what differs between runs.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.fetch import Installed

MODULES = [
    "virtio_pci",
    "virtio_mmio",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "nvme",
]
_VERSION = 2
"""Part of the cached file's name: raise it when the first archive changes."""


def cpio(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """A "newc" archive of (name, mode, content)."""
    parts: list[bytes] = []
    for number, (name, mode, content) in enumerate((*entries, ("TRAILER!!!", 0, b""))):
        path = name.encode() + b"\0"
        fields = (number + 1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        parts += [_padded(header), _padded(content)]
    return b"".join(parts)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def directory(name: str) -> tuple[str, int, bytes]:
    return name, stat.S_IFDIR | 0o755, b""


def script(name: str, content: bytes) -> tuple[str, int, bytes]:
    return name, stat.S_IFREG | 0o755, content


def module_name(path: str) -> str:
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def load_order(modules_dep: str, wanted: Iterable[str]) -> list[str]:
    """Return the paths of the wanted modules and their dependencies, each after those that it needs.

    A wanted module that is not in modules.dep is built into the kernel.
    """
    needs: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for line in modules_dep.splitlines():
        path, _, rest = line.partition(":")
        paths[module_name(path)] = path
        # depmod lists the deepest dependency last.
        needs[path] = rest.split()[::-1]
    order: dict[str, None] = {}
    for name in wanted:
        path = paths.get(name.replace("-", "_"), "")
        if path:
            order.update(dict.fromkeys([*needs[path], path]))
    return list(order)


def kernel_archive(installed: Installed, root: Path) -> Path:
    """Return the first archive, and build it if it is not there; busybox comes from the guest's root file system."""
    target = installed.directory / f"initrd-{_VERSION}.cpio"
    if not target.is_file():
        entries = [
            directory("lab"),
            script("lab/busybox", _busybox(root).read_bytes()),
            directory("modules"),
        ]
        order = load_order((installed.modules / "modules.dep").read_text(), MODULES)
        for path in order:
            content = _uncompressed(installed.modules / path)
            entries.append(script(f"modules/{module_name(path)}.ko", content))
        names = "".join(f"{module_name(path)}.ko\n" for path in order)
        entries.append(script("modules/order", names.encode()))
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
            file.write(cpio(entries))
        os.replace(file.name, target)  # noqa: PTH105 (two labs may do this at once)
    return target


def settings_text(settings: Mapping[str, str]) -> bytes:
    """Shell assignments; single quotes keep every character as it is."""
    return "".join("{}='{}'\n".format(name, value.replace("'", "'\\''")) for name, value in settings.items()).encode(
        "utf-8", "surrogateescape"
    )


def write(target: Path, installed: Installed, root: Path, settings: Mapping[str, str], command: bytes) -> None:
    init = (Path(__file__).parent / "init.sh").read_bytes()
    run_archive = cpio(
        [
            script("init", b"#!/lab/busybox sh\n" + init),
            script("lab/init", init),
            script("lab/settings", settings_text(settings)),
            script("lab/command", command),
        ]
    )
    with target.open("wb") as file:
        with kernel_archive(installed, root).open("rb") as first:
            shutil.copyfileobj(first, file)
        file.write(run_archive)


def _busybox(root: Path) -> Path:
    # Static, because the initial RAM disk has no libraries.
    for path in (root / "bin/busybox", root / "usr/bin/busybox"):
        if path.is_file():
            return path
    raise LabError("busybox is not there: install the package busybox-static")


def _uncompressed(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", str(path)], stdout=subprocess.PIPE, check=True).stdout
    return path.read_bytes()
