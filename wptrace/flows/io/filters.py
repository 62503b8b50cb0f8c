# SPDX-License-Identifier: Apache-2.0
"""The filters of the path flow, apart from it: the command's options need them alone, and so does the block layer."""

from __future__ import annotations

from wptrace.engine.filters.cgroup import IN_CGROUP
from wptrace.engine.filters.file import DIR, FILE
from wptrace.engine.filters.operation import OP, SIZE
from wptrace.engine.filters.task import COMM, PID, TID

FILTERS = (PID, TID, COMM, IN_CGROUP, FILE, DIR, OP, SIZE)
