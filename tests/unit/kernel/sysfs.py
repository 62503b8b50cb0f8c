# SPDX-License-Identifier: Apache-2.0
"""A sysfs of block devices in a folder, with the links that the kernel makes."""

from __future__ import annotations

from pathlib import Path


class Sysfs:
    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("block", "class/block", "dev/block", "devices"):
            (root / folder).mkdir(parents=True)

    def disk(
        self,
        name: str,
        number: str | None,
        *,
        size: int = 1000,
        queue: bool = True,
        iostats: str = "1",
        wbt: str | None = "75000",
        slaves: tuple[str, ...] = (),
    ) -> Path:
        """Add a whole disk. Without `wbt` the kernel has no writeback throttling."""
        folder = self._device(name, number, f"devices/{name}", size)
        (self.root / "block" / name).symlink_to(folder)
        (folder / "queue").mkdir()
        (folder / "queue/iostats").write_text(f"{iostats}\n")
        if wbt is not None:
            (folder / "queue/wbt_lat_usec").write_text(f"{wbt}\n")
        if queue:
            (folder / "mq/0").mkdir(parents=True)
        (folder / "slaves").mkdir()
        (folder / "holders").mkdir()
        for slave in slaves:
            lower = (self.root / "class/block" / slave).resolve()
            (folder / "slaves" / slave).symlink_to(lower)
            (lower / "holders" / name).symlink_to(folder)
        return folder

    def partition(self, name: str, disk: str, number: str, start: int, size: int) -> Path:
        folder = self._device(name, number, f"devices/{disk}/{name}", size)
        (folder / "partition").write_text("1\n")
        (folder / "start").write_text(f"{start}\n")
        (folder / "holders").mkdir()
        return folder

    def _device(self, name: str, number: str | None, path: str, size: int) -> Path:
        folder = self.root / path
        folder.mkdir()
        (folder / "size").write_text(f"{size}\n")
        (folder / "inflight").write_text("       0        0\n")
        (self.root / "class/block" / name).symlink_to(folder)
        if number is not None:
            (folder / "dev").write_text(f"{number}\n")
            (self.root / "dev/block" / number).symlink_to(folder)
        return folder
