# SPDX-License-Identifier: Apache-2.0
"""The hooks that observe the stages of the path flow, and which of them a start needs."""

from __future__ import annotations

from collections.abc import Collection

from wptrace.engine import devices
from wptrace.engine.flow import Hook
from wptrace.flows.io import operations as io_operations
from wptrace.flows.io.kinds import REQUEST_STAGES, WRITEBACK_STAGES
from wptrace.flows.io.operations import BY_CALL, BY_FUNCTION, KNOWN, KNOWN_SYNCS, MODULES, SYNCS_BY_FUNCTION
from wptrace.kernel import mounts
from wptrace.kernel.blockdev import Extent

_ALL = ("fs", *REQUEST_STAGES, "wakeup", "return")


def _tracepoint(
    name: str, programs: str, serves: tuple[str, ...], without: str, required: bool = True, module: str = ""
) -> Hook:
    return Hook(name, (f"{programs}_tp_btf", f"{programs}_raw_tp"), serves, without, required, module)


SYNCS = "end of a sync (X), its begin (E)"
# What has no other use than to see operations; all but the first two only add to them.
OPERATIONS = (
    "end of an operation (X), its begin (E)",
    "task switch (W)",
    SYNCS,
    "end of sync_file_range (X), its begin (E)",
    "end of a page fault of a file (X), its begin (E)",
    "end of a swap-in (X), its begin (E)",
    "bio held back by a cgroup's limit",
    "wait for a commit of ext4's journal",
    "wait to change what ext4's journal commits",
    "wait for xfs's log",
    "wait for btrfs's log tree",
)
# Modules of journals, and the file systems that have one of them.
JOURNALS = {"jbd2": {"ext3", "ext4", "ocfs2"}, "xfs": {"xfs"}, "btrfs": {"btrfs"}}
# They are attached only where single ones are told.
COMMITS = ("a commit of ext4's journal", "a change that goes into ext4's journal")

# Attached only if a traced device is made of others.
LAYERS = ("bio made of another one (L to Q)", "bio completed without a request of its own")
_NO_LAYERS = "devices made of others have no rows, and what their workers send belongs to these"

SEEN_BY_OTHERS = "completion seen by other drivers (S)"
_NO_OPERATIONS = "reads and writes cannot be told from requests"

# The entry of the interrupt handler in which a request completes.
_HANDLER = ("hardirq_exit_raw_tp", "hardirq_entry_raw_tp")

HOOKS = (
    _tracepoint("completion of a request (C)", "complete", _ALL, "no request can be seen"),
    Hook(
        OPERATIONS[0],
        (KNOWN, BY_FUNCTION, BY_CALL),
        ("submit", "fs", "return"),
        _NO_OPERATIONS,
        modules=MODULES,
    ),
    _tracepoint(
        OPERATIONS[1],
        "switch",
        ("wakeup", "return", "preempted", "io_cost", "io_latency", "wbt", "tag", "unknown"),
        _NO_OPERATIONS,
    ),
    Hook(
        SYNCS,
        (KNOWN_SYNCS, SYNCS_BY_FUNCTION, BY_CALL),
        ("fs", "return"),
        "fsync, fdatasync and msync are no operations",
        required=False,
        modules=MODULES,
    ),
    Hook(
        OPERATIONS[3],
        (("sync_file_range_exit", "sync_file_range_entry"), BY_CALL),
        ("fs", "return"),
        "sync_file_range is no operation",
        required=False,
    ),
    Hook(
        OPERATIONS[4],
        (("filemap_fault_exit", "filemap_fault_entry"),),
        ("fs", "return"),
        "page faults of mapped files are no operations",
        required=False,
    ),
    Hook(
        OPERATIONS[5],
        (("do_swap_page_exit", "do_swap_page_entry"),),
        ("fs", "return"),
        "swap-ins are no operations",
        required=False,
    ),
    *(
        Hook(
            name,
            ((f"{function}_exit", f"{function}_entry"), (f"{function}_kretprobe", f"{function}_kprobe")),
            ("journal",),
            f"{without} is part of fs",
            required=False,
            module=module,
        )
        for name, function, module, without in (
            (OPERATIONS[7], "jbd2_log_wait_commit", "jbd2", "the wait for a commit of ext4's journal"),
            (OPERATIONS[8], "wait_transaction_locked", "jbd2", "the wait of a change for a commit of ext4's journal"),
            (OPERATIONS[9], "xfs_log_force_seq", "xfs", "the wait for xfs's log"),
            (OPERATIONS[10], "btrfs_sync_log", "btrfs", "the wait for btrfs's log tree"),
        )
    ),
    Hook(
        COMMITS[0],
        (("commit_end_raw_tp", "commit_number_raw_tp", "commit_start_raw_tp"),),
        ("journal",),
        "what a commit of ext4's journal wrote is not told",
        required=False,
        module="jbd2",
    ),
    Hook(
        COMMITS[1],
        ("handle_raw_tp",),
        ("journal",),
        "who had put most into a commit of ext4's journal is not told",
        required=False,
        module="jbd2",
    ),
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
    _tracepoint("request given back (requeue)", "requeue", ("queue",), "requeues are not counted", required=False),
    _tracepoint(
        "bio split in two", "split", ("throttle", "queue"), "the parts of a split bio are not traced", required=False
    ),
    _tracepoint("bio queued (Q)", "queue", ("fs", "throttle", "queue"), "no request can be seen"),
    _tracepoint(
        LAYERS[1],
        "layer",
        ("layers", "submit"),
        f"{_NO_LAYERS}; what io_uring could not send at once counts as in flight",
        required=False,
    ),
    _tracepoint(LAYERS[0], "remap", ("layers",), _NO_LAYERS, required=False),
    Hook(
        OPERATIONS[6],
        ("throttle_fentry", "throttle_old_fentry"),
        ("throttle", "io_max"),
        "the wait for a limit of io.max is part of fs, and its requests belong to a worker",
        required=False,
    ),
    Hook(
        "page becomes dirty (B)",
        ("dirty_tp_btf", "dirty_page_tp_btf", "dirty_raw_tp", "dirty_page_raw_tp"),
        WRITEBACK_STAGES,
        "nobody tells who wrote what is written back",
        required=False,
    ),
    _tracepoint("exit of an interrupt handler", "hardirq_exit", ("hardirq",), "handlers are not timed", False),
    _tracepoint("entry of an interrupt handler", "hardirq_entry", ("hardirq",), "handlers are not timed", False),
    _tracepoint("exit of a softirq", "softirq_exit", ("softirq",), "softirqs are not timed", False),
    _tracepoint("entry of a softirq", "softirq_entry", ("softirq",), "softirqs are not timed", False),
    Hook("tick of each CPU", ("tick_perf",), ("irq_delay",), "late interrupts are not found", required=False),
)

# They end a wait, and no operation.
WAITS = {name for hook in HOOKS if hook.module in JOURNALS for way in hook.ways for name in way}
_DRIVERS = {"nvme": "nvme_core", "sd": "scsi_mod", "sr": "scsi_mod", "vd": "virtio_blk"}


def file_systems(extents: list[Extent]) -> set[str]:
    """What is mounted on the wanted devices. Where nothing is, all that may be mounted later is prepared for."""
    return devices.file_systems(extents) or io_operations.preparable(mounts.registered())


def seen_by(kinds: set[str]) -> tuple[Hook, ...]:
    """All hooks where these file systems are in use."""
    ways = {OPERATIONS[0]: io_operations.ways(kinds), SYNCS: io_operations.sync_ways(kinds)}
    return tuple(hook._replace(programs=ways.get(hook.name, hook.programs)) for hook in HOOKS)


def needed(kinds: set[str], disks: Collection[str] | None, unused: Collection[str], telling: bool) -> tuple[Hook, ...]:
    """Those that serve more than unused stages, and what is in use: file systems, drivers of disks (None: all)."""
    drivers = None if disks is None else set(map(_driver, disks))
    return tuple(
        hook
        for hook in seen_by(kinds)
        if not set(hook.serves) <= set(unused)
        and (telling or hook.name not in COMMITS)
        and _serves(hook, drivers)
        and (hook.module not in JOURNALS or JOURNALS[hook.module] & kinds)
    )


def _driver(disk: str) -> str:
    """The module whose hooks see the disk's requests."""
    return next((module for prefix, module in _DRIVERS.items() if disk.startswith(prefix)), "")


def _serves(hook: Hook, drivers: Collection[str] | None) -> bool:
    """Whether the hook may see a request of disks with these drivers; None means whichever there will be."""
    if drivers is None:
        return True
    if hook.name == SEEN_BY_OTHERS:
        return not {"nvme_core", "scsi_mod"} >= set(drivers)
    return hook.module not in _DRIVERS.values() or hook.module in drivers
