# SPDX-License-Identifier: Apache-2.0
"""By whom there may be rows, and for how many owners: what `--by` and `--top` say."""

from __future__ import annotations

PROCESS, THREAD, COMM, CGROUP, FILE, DIR, DEVICE = "process", "thread", "comm", "cgroup", "file", "dir", "device"
CALL = "call"
BY = (PROCESS, THREAD, COMM, CGROUP, FILE, DIR, DEVICE, CALL)
TOP = 20
