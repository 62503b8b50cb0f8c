# SPDX-License-Identifier: Apache-2.0
"""Options of `wptrace io`, with all that the command line needs to know of them and no further imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wptrace.analysis.statements import NORMALISED
from wptrace.engine.filters import Filter, cgroup, file, operation, task
from wptrace.model.budget import EACH, Saving, times_of

if TYPE_CHECKING:
    from wptrace.engine.definition.unit import Unit
    from wptrace.engine.recorder_size import RecorderSize
    from wptrace.kernel.guests import Guest

FILTERS = (
    task.PID,
    task.TID,
    task.COMM,
    cgroup.IN_CGROUP,
    file.FILE,
    file.DIR,
    operation.OP,
    operation.SIZE,
)

# Owners for rows (`--by`), and how many to show (`--top`).
PROCESS, THREAD, COMM, CGROUP, FILE, DIR, DEVICE = "process", "thread", "comm", "cgroup", "file", "dir", "device"
CALL, STATEMENT, UNIT = "call", "statement", "unit"
BY = (PROCESS, THREAD, COMM, CGROUP, FILE, DIR, DEVICE, CALL, STATEMENT, UNIT)
TOP = 20

PATH, REQUEST, BLOCK = "path", "request", "block"
LEVELS = (PATH, REQUEST, BLOCK)
OWNED = (PATH, REQUEST)
"""Levels that know the owner of a request."""

WAITS_NS = 1_000_000
"""The default threshold from which on a wait is given a reason."""

# Savings to keep a budget, in the order in which they are made (docs/budget.md).
INTERFERENCE = Saving("interference", "interference")
FS = Saving("fs", "operations and page-cache hits")
SAMPLE = times_of("requests")
SAVINGS = (INTERFERENCE, EACH, FS, SAMPLE)


class Options(NamedTuple):
    devices: tuple[str, ...] = ()
    """Devices by the names that the user gave; none means all disks."""
    filter: Filter = Filter()
    slow_ns: int | None = None
    """Show operations, and requests that nobody waits for, that took at least this long."""
    sample: int = 0
    """Show one in this many as well."""
    records_later: bool = False
    """Records may be turned on while the trace runs (`PathFlow.emit_records`)."""
    limit: int = 0
    """How many to show per second at most; 0 for all."""
    children: bool = False
    """With --pid: follow processes that it started as well."""
    command: tuple[str, ...] = ()
    """The command to run and follow; its process becomes --pid."""
    waits_ns: int | None = WAITS_NS
    """Give sleeps of at least this length within an operation a reason; None: none."""
    interference: bool = False
    writeback: bool = False
    """Follow pages that are written back from the task that made them dirty."""
    by: str = ""
    """Rows by owner, in addition."""
    top: int = 0
    """The number of owners to show, the largest first; 0: all."""
    segments: bool = False
    """Events have each period of a stage, and each of their requests."""
    statement_text: str = NORMALISED
    """How to show statements and units."""
    unit: Unit | None = None
    """The definition of units of work, for rows by these."""
    neighbours: bool = False
    """Report which owners had the device while others waited for it."""
    spare: int = 0
    """The number of rows for devices that appear later, with the programs of every file system; 0: as many rows as a
    small memory limit allows, and only the programs of mounted file systems."""
    owner_rows: int = 0
    """The size of the table in the kernel; 0: as large as the memory limit allows."""
    memory: int | None = None
    """The bytes that all maps may take; None: half of what is free."""
    ring_bytes: int = 1 << 22
    guest: Guest | None = None
    """Show only operations on the disk images of this guest."""
    recorder: RecorderSize | None = None
    """Keep the most recent operations in the kernel's memory, for so long or in so many bytes."""
    recorder_slow_ns: int | None = None
    """The threshold at which slow operations are reported to the recorder's dumps."""
    kicks: bool = False
    """Record which threads write and read the eventfds of the process."""

    @property
    def emits_records(self) -> bool:
        """Whether it emits records, now or later."""
        return self.slow_ns is not None or self.sample > 0 or self.records_later
