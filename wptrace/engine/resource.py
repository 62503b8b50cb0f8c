# SPDX-License-Identifier: Apache-2.0
"""This machine and this command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from wptrace import __version__
from wptrace.model.report import Resource

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def here() -> Resource:
    name = os.uname()
    return Resource(name.nodename, name.machine, _boot(), __version__, ("wptrace", *sys.argv[1:]))


def _boot() -> str:
    try:
        return _BOOT.read_text(errors="replace").strip()
    except OSError:
        return ""
