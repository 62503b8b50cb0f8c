# SPDX-License-Identifier: Apache-2.0
"""What to look at next, by what a verdict found."""

from __future__ import annotations

from wptrace.model.stages import StageTable

STAGES = {
    "fs": "what the file system waits for: locks of the file, block allocation (perf trace, perf lock)",
    "journal": "who changes the file system meanwhile: --slow tells of each commit how large it was and who had put"
    " most into it; how often it is synced, and the disk or file that the journal is on",
    "throttle": "what holds requests back: io.max and io.cost of the cgroup, writeback throttling"
    " (queue/wbt_lat_usec), the number of tags (queue/nr_requests)",
    "queue": "the I/O scheduler (queue/scheduler) and the queue depth: more is asked of the device than it takes",
    "driver": "the CPU time of the driver: DMA mapping (an IOMMU in strict mode), software encryption or checksums",
    "device": "the disk itself: its vendor's figures at this queue depth, its health (smartctl), who else uses it; in a"
    " guest, the host's disk",
    "complete": "CPUs with interrupts off or busy with softirqs, and where the device's interrupts go"
    " (/proc/interrupts); --interference names who",
    "wakeup": "the run queue of the waiter's CPU: who runs there, and with what priority; --interference names who",
    "return": "what happens after the wakeup: the copy to user space, page cache work, more system time of the caller",
    "unattributed": "wptrace doctor: a hook is missing here, or the path is not known",
}
OTHERS = {
    "idle": "whether the filters let through what you look for, and whether it does I/O at all",
    "cached": "the program itself: no device was waited for; to see one, read what is not in memory, or use direct I/O",
    "unmeasured": "wptrace doctor: by what each stage is observed here",
}


def advice(rule: str, stage: str, table: StageTable) -> str:
    """A stage that is not known here, of some other flow, has what its table says of it."""
    return OTHERS.get(rule) or STAGES.get(stage) or table[stage].meaning
