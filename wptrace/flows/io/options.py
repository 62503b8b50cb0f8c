# SPDX-License-Identifier: Apache-2.0
"""Options of `wptrace io`, with all that the command line needs to know of them and no further imports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wptrace.analysis.statements import NORMALISED
from wptrace.engine.filters import Filter, cgroup, file, operation, task
from wptrace.model.budget import EACH, Saving, times_of

if TYPE_CHECKING:
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

# By whom there may be rows (`--by`), and for how many owners (`--top`).
PROCESS, THREAD, COMM, CGROUP, FILE, DIR, DEVICE = "process", "thread", "comm", "cgroup", "file", "dir", "device"
CALL, STATEMENT = "call", "statement"
BY = (PROCESS, THREAD, COMM, CGROUP, FILE, DIR, DEVICE, CALL, STATEMENT)
TOP = 20

PATH, REQUEST, BLOCK = "path", "request", "block"
LEVELS = (PATH, REQUEST, BLOCK)
OWNED = (PATH, REQUEST)
"""Levels that know whose a request is."""

WAITS_NS = 1_000_000
"""Waits of at least so long have a reason, unless another threshold is asked for."""

# Savings to keep a budget, in this order (docs/budget.md).
INTERFERENCE = Saving("interference", "interference")
FS = Saving("fs", "operations and page-cache hits")
SAMPLE = times_of("requests")
SAVINGS = (INTERFERENCE, EACH, FS, SAMPLE)


# What `--recorder 30s` has room for; at a higher rate its window is shorter.
RECORDER_RATE, RECORD_BYTES = 20_000, 104
RECORDER_SMALLEST, RECORDER_LARGEST = 1 << 20, 1 << 32
# Where a size was named, records are as old as they may be.
LONGEST_NS = 1 << 62


class RecorderSize(NamedTuple):
    window_ns: int
    bytes: int

    @classmethod
    def of_time(cls, window_ns: int) -> RecorderSize:
        return cls(window_ns, window_ns * RECORDER_RATE * RECORD_BYTES // 1_000_000_000)


class Options(NamedTuple):
    devices: tuple[str, ...] = ()
    """As the user named them; none means all disks."""
    filter: Filter = Filter()
    slow_ns: int | None = None
    """Operations, and requests that nobody waits for, that took at least this long are shown one by one."""
    sample: int = 0
    """One in this many is shown as well."""
    records_later: bool = False
    """Records may be turned on while it runs (`PathFlow.emit_records`)."""
    limit: int = 0
    """How many are shown per second at most; 0 for all."""
    children: bool = False
    """With --pid: what that process started as well."""
    command: tuple[str, ...] = ()
    """The command to run and follow; its process becomes --pid."""
    waits_ns: int | None = WAITS_NS
    """Sleeps of at least so long inside of an operation have a reason; None: none has."""
    interference: bool = False
    writeback: bool = False
    """Follow pages that are written back from the task that made them dirty."""
    by: str = ""
    """Rows by owner as well."""
    top: int = 0
    """Of so many owners, the largest ones; 0: all."""
    segments: bool = False
    """Single ones tell each stretch of a stage, and each of their requests."""
    statement_text: str = NORMALISED
    """By statement: what is shown of one."""
    neighbours: bool = False
    """Who had the device while others waited for it, by the same owners."""
    spare: int = 0
    """So many rows for devices that come later, and the programs of every file system; 0: as many rows as a little
    memory allows, and the programs of what is mounted."""
    owner_rows: int = 0
    """The size of the table in the kernel; 0: as many as the memory for them allows."""
    ring_bytes: int = 1 << 22
    guest: Guest | None = None
    """Told are those of the images of its disks alone."""
    recorder: RecorderSize | None = None
    """Keep the most recent operations in the kernel's memory, for so long or in so many bytes."""
    recorder_slow_ns: int | None = None
    """Who dumps the recorder hears of operations that took as long."""
    kicks: bool = False
    """Which threads write and read the eventfds of the process."""

    @property
    def emits_records(self) -> bool:
        """At any time."""
        return self.slow_ns is not None or self.sample > 0 or self.records_later
