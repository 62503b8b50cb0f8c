# SPDX-License-Identifier: Apache-2.0
"""A memory barrier on every CPU, for what programs in the kernel write without any."""

from __future__ import annotations

import ctypes
import os

_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(os.uname().machine)
_GLOBAL = 1  # MEMBARRIER_CMD_GLOBAL: as synchronize_rcu(), so programs that ran are over as well


def everywhere() -> None:
    """What any CPU wrote before is seen by this one afterwards. A kernel without it gets the time of a system call."""
    if _MEMBARRIER is not None:
        ctypes.CDLL(None).syscall(_MEMBARRIER, _GLOBAL, 0, 0)
