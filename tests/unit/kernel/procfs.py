# SPDX-License-Identifier: Apache-2.0
"""A /proc in a folder, in which each open file is on the mount that the test chooses."""

from __future__ import annotations

from pathlib import Path

# No test opens more.
DESCRIPTORS = 256


class Procfs:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self" / "fdinfo").mkdir(parents=True)
        for number in range(DESCRIPTORS):
            (root / "self" / "fdinfo" / str(number)).symlink_to("../each")
        (root / "self" / "ns").mkdir()
        self.namespace("cgroup:[4026531835]")  # the first one of a machine
        self.lines: list[str] = []

    def mount(
        self, number: int, dev: str, point: object, kind: str, source: str, options: str, root: str = "/"
    ) -> None:
        self.lines.append(f"{number} 1 {dev} {root} {point} rw,relatime shared:7 - {kind} {source} {options}")
        (self.root / "self" / "mountinfo").write_text("\n".join(self.lines) + "\n")

    def opens_on(self, mount: int, more: str = "") -> None:
        (self.root / "self" / "each").write_text(f"pos:\t0\nflags:\t012100000\nmnt_id:\t{mount}\n{more}")

    def namespace(self, name: str) -> None:
        link = self.root / "self" / "ns" / "cgroup"
        link.unlink(missing_ok=True)
        link.symlink_to(name)
