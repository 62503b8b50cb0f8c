# SPDX-License-Identifier: Apache-2.0
"""Devices of any bus by sysfs."""

from __future__ import annotations

from pathlib import Path

from wptrace.errors import UsageError

SYS = Path("/sys")


def named(name: str, sys: Path = SYS) -> str:
    """The name, if it is that of a device: another one would be waited for in vain."""
    # "" and ".." are folders as well.
    known = name not in ("", ".", "..") and "/" not in name
    if known and ((sys / "devices" / name).is_dir() or any(sys.glob(f"bus/*/devices/{_literal(name)}"))):
        return name
    raise UsageError(f"there is no device {name or repr(name)}", hint="ls /sys/bus/*/devices lists the devices")


def _literal(name: str) -> str:
    """As a pattern that matches nothing else."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
