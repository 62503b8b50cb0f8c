# SPDX-License-Identifier: Apache-2.0
"""The stages of the path flow."""

from __future__ import annotations

from wptrace.model.stages import Point, Stage, StageTable

_U = Point("U", "operation submitted")
_E = Point("E", "operation entered the file")
_L = Point("L", "bio queued to a device made of others")
_Q = Point("Q", "bio queued")
_G = Point("G", "request allocated")
_D = Point("D", "issued to the driver")
_H = Point("H", "handed to the device")
_S = Point("S", "completion seen by the CPU")
_C = Point("C", "completed")
_W = Point("W", "task runs again")
_X = Point("X", "operation leaves the file")
_B = Point("B", "page became dirty")

REQUEST_STAGES = ("throttle", "queue", "driver", "device", "complete")
WRITEBACK_STAGES = ("dirty", "writeback")
CONTROLLERS = ("io_max", "io_cost", "io_latency", "wbt", "tag", "unknown")
NOISE = ("preempted", "hardirq", "softirq", "irq_delay")

# Few operations wait for these: a row, or a part of a story, is shown where there is one.
SPARSE = ("submit", "journal", "layers", "unattributed")

STAGES = StageTable(
    (
        Stage(
            "submit",
            _U,
            _E,
            "an asynchronous operation waits for a worker of io_uring, or for one that it is linked to",
            "io_uring's workers are busy, or their operations cannot be done without waiting: see io-wq",
            rare=True,
        ),
        Stage(
            "fs",
            _E,
            _Q,
            "page cache, block mapping, allocation, locks, or the wait for I/O that another task began",
            "the file system holds the operation up: locks, allocation, or somebody else's read",
        ),
        Stage(
            "journal",
            _E,
            _Q,
            "the wait for a commit of the file system's journal or log",
            "commits are large, or the disk is slow to write them: --slow tells who had put most into one",
            rare=True,
        ),
        Stage(
            "layers",
            _L,
            _Q,
            "devices made of others (dm, md) have the bio, before and after the requests that they make of it",
            "encryption, parity, a delay or the work queue of such a device takes the time: see its own rows",
            rare=True,
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
        Stage(
            "io_max",
            _Q,
            _G,
            "the limit of a cgroup in io.max held it",
            "the cgroup may not have more: look at io.max of it and of those above it",
            partition=False,
        ),
        Stage(
            "io_cost",
            _Q,
            _G,
            "the share of a cgroup by io.cost was used up",
            "others have a right to the device: look at io.weight, io.cost.model and io.cost.qos",
            partition=False,
        ),
        Stage(
            "io_latency",
            _Q,
            _G,
            "it was held for the latency that another cgroup was promised in io.latency",
            "another cgroup is protected: look at io.latency of its neighbours",
            partition=False,
        ),
        Stage(
            "wbt",
            _Q,
            _G,
            "writeback throttling held a write so that reads are quick",
            "writes are more than the device takes in time: look at queue/wbt_lat_usec",
            partition=False,
        ),
        Stage(
            "tag",
            _Q,
            _G,
            "no tag was free, so there was no request for it",
            "more is asked of the device than it takes: look at queue/nr_requests and the queue depth",
            partition=False,
        ),
        Stage(
            "unknown",
            _Q,
            _G,
            "something held it, and this kernel does not tell what",
            "a limit or too few tags hold requests back: look at io.cost, io.latency, wbt_lat_usec and nr_requests",
            partition=False,
        ),
        Stage(
            "dirty",
            _B,
            _Q,
            "the data lies in the page cache until the kernel writes it back, or somebody has it written",
            "the writers are faster than writeback, or nothing asks for it: look at vm.dirty_* and fsync",
            partition=False,
            apart=True,
        ),
        Stage(
            "writeback",
            _Q,
            _C,
            "the data is on its way to the device and back",
            "the device or what lies before it is slow: see the rows of requests",
            partition=False,
            apart=True,
        ),
    )
)
