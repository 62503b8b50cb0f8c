# SPDX-License-Identifier: Apache-2.0
"""The stages of the path flow and the hooks that observe them."""

from __future__ import annotations

from wptrace.engine.stages import Point, Stage, StageTable
from wptrace.flows.base import Hook
from wptrace.flows.io_operations import BY_CALL, BY_FUNCTION, KNOWN, MODULES

_U = Point("U", "operation submitted")
_E = Point("E", "operation entered the file")
_Q = Point("Q", "bio queued")
_G = Point("G", "request allocated")
_D = Point("D", "issued to the driver")
_H = Point("H", "handed to the device")
_S = Point("S", "completion seen by the CPU")
_C = Point("C", "completed")
_W = Point("W", "task runs again")
_X = Point("X", "operation leaves the file")

REQUEST_STAGES = ("throttle", "queue", "driver", "device", "complete")
_ALL = ("fs", *REQUEST_STAGES, "wakeup", "return")
NOISE = ("preempted", "hardirq", "softirq", "irq_delay")


def _tracepoint(
    name: str, programs: str, serves: tuple[str, ...], without: str, required: bool = True, module: str = ""
) -> Hook:
    return Hook(name, (f"{programs}_tp_btf", f"{programs}_raw_tp"), serves, without, required, module)


# What has no other use than to see operations; the last one only adds to them.
OPERATIONS = ("end of an operation (X), its begin (E)", "task switch (W)", "bio held back by a cgroup's limit")

# Few operations wait for these: a row, or a part of a story, is shown where there is one.
SPARSE = ("submit",)
SEEN_BY_OTHERS = "completion seen by other drivers (S)"
_NO_OPERATIONS = "reads and writes cannot be told from requests"

# The entry of the interrupt handler in which a request completes.
_HANDLER = ("hardirq_exit_raw_tp", "hardirq_entry_raw_tp")

STAGES = StageTable(
    (
        Stage(
            "submit",
            _U,
            _E,
            "an asynchronous operation waits for a worker of io_uring, or for one that it is linked to",
            "io_uring's workers are busy, or their operations cannot be done without waiting: see io-wq",
        ),
        Stage(
            "fs",
            _E,
            _Q,
            "page cache, block mapping, allocation, locks, journal, or the wait for I/O that another task began",
            "the file system holds the operation up: locks, the journal, allocation, or somebody else's read",
        ),
        Stage(
            "throttle",
            _Q,
            _G,
            "the bio waits for a request: limits of a cgroup, writeback throttling, free tags",
            "a limit or too few tags hold requests back: look at io.max, io.cost, wbt_lat_usec and nr_requests",
        ),
        Stage(
            "queue",
            _G,
            _D,
            "the request waits in the plug and the I/O scheduler",
            "the scheduler holds requests back, or the device takes no more: look at the queue depth",
        ),
        Stage(
            "driver",
            _D,
            _H,
            "the driver prepares the command: DMA mapping, tables of memory",
            "the CPU or the IOMMU is slow to prepare commands",
        ),
        Stage(
            "device",
            _H,
            _S,
            "the device works on it",
            "the disk, the fabric or the hypervisor is slow",
        ),
        Stage(
            "complete",
            _S,
            _C,
            "the completion is handled: interrupt, softirq or another CPU",
            "interrupts or softirqs of the completing CPU are late: see --interference",
        ),
        Stage(
            "wakeup",
            _C,
            _W,
            "the end of the I/O is handled and the task waits for a CPU",
            "the waiter's CPU is busy, or the end of the I/O is handled by a worker: see --interference",
        ),
        Stage(
            "return",
            _W,
            _X,
            "data is copied to the caller, page cache work",
            "large copies, or the page cache is busy",
        ),
        Stage(
            "preempted",
            _E,
            _X,
            "another task took the CPU while the operation could have run",
            "the CPUs are overcommitted",
            partition=False,
        ),
        Stage(
            "hardirq",
            _E,
            _X,
            "interrupt handlers ran on the operation's CPU meanwhile",
            "interrupts hit the CPUs that do I/O",
            partition=False,
        ),
        Stage(
            "softirq",
            _E,
            _X,
            "softirqs ran on the operation's CPU meanwhile",
            "network or timers hit the CPUs that do I/O",
            partition=False,
        ),
        Stage(
            "irq_delay",
            _H,
            _S,
            "the completing CPU took no interrupts when the request's one may have been due",
            "something keeps interrupts off on the completing CPU",
            partition=False,
        ),
    )
)

HOOKS = (
    _tracepoint("completion of a request (C)", "complete", _ALL, "no request can be seen"),
    Hook(
        OPERATIONS[0],
        (KNOWN, BY_FUNCTION, BY_CALL),
        ("submit", "fs", "return"),
        _NO_OPERATIONS,
        modules=MODULES,
    ),
    _tracepoint(OPERATIONS[1], "switch", ("wakeup", "return", "preempted"), _NO_OPERATIONS),
    Hook(
        "completion seen by nvme (S)",
        ("nvme_seen_raw_tp",),
        ("complete",),
        "complete is part of device on nvme",
        required=False,
        module="nvme_core",
    ),
    Hook(
        "completion seen by scsi (S)",
        ("scsi_seen_raw_tp",),
        ("complete",),
        "complete is part of device on scsi disks",
        required=False,
        module="scsi_mod",
    ),
    Hook(
        SEEN_BY_OTHERS,
        ("seen_fentry", "seen_kprobe", ("hardirq_exit_tp_btf", "hardirq_entry_tp_btf"), _HANDLER),
        ("complete",),
        "complete is part of device on disks that are neither nvme nor scsi",
        required=False,
    ),
    Hook(
        "handed over by scsi (H)",
        ("scsi_start_raw_tp",),
        ("driver",),
        "driver is part of device on scsi disks",
        required=False,
        module="scsi_mod",
    ),
    Hook(
        "handed over by virtio-blk (H)",
        ("virtblk_add_fentry", "virtblk_add_kprobe"),
        ("driver",),
        "driver is part of device on virtio-blk",
        required=False,
        module="virtio_blk",
    ),
    Hook(
        "set up by nvme (D)",
        ("nvme_setup_raw_tp",),
        ("driver",),
        "driver is part of queue on nvme",
        required=False,
        module="nvme_core",
    ),
    _tracepoint("issue of a request (D, on nvme H)", "issue", ("queue", "device"), "queue is part of device"),
    _tracepoint(
        "bio split in two", "split", ("throttle", "queue"), "the parts of a split bio are not traced", required=False
    ),
    _tracepoint("bio queued (Q)", "queue", ("fs", "throttle", "queue"), "no request can be seen"),
    Hook(
        OPERATIONS[2],
        ("throttle_fentry", "throttle_old_fentry"),
        ("throttle",),
        "the wait for a limit of io.max is part of fs, and its requests belong to a worker",
        required=False,
    ),
    _tracepoint("exit of an interrupt handler", "hardirq_exit", ("hardirq",), "handlers are not timed", False),
    _tracepoint("entry of an interrupt handler", "hardirq_entry", ("hardirq",), "handlers are not timed", False),
    _tracepoint("exit of a softirq", "softirq_exit", ("softirq",), "softirqs are not timed", False),
    _tracepoint("entry of a softirq", "softirq_entry", ("softirq",), "softirqs are not timed", False),
    Hook("tick of each CPU", ("tick_perf",), ("irq_delay",), "late interrupts are not found", required=False),
)
