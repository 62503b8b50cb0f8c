# SPDX-License-Identifier: Apache-2.0
"""The hooks that observe the stages of the path flow, and which of them a start needs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from wptrace.analysis import waits
from wptrace.bpf import trial
from wptrace.bpf.object import BpfObject
from wptrace.bpf.perf import CPU_CLOCK
from wptrace.engine import devices, gone_cgroups
from wptrace.engine.differences import argument, timed_out_bit
from wptrace.engine.hooks import END, START, Hook, Way, probe
from wptrace.flows.io import operations as io_operations
from wptrace.flows.io.kinds import CONTROLLERS, INTERFERENCES, REQUEST_KINDS, REQUEST_STAGES, WRITEBACK_STAGES
from wptrace.flows.io.operations import BY_CALL, BY_FUNCTION, KNOWN, KNOWN_SYNCS, MODULES, SYNCS_BY_FUNCTION
from wptrace.kernel import cpus, mounts
from wptrace.kernel.blockdev import Extent
from wptrace.kernel.mounts import Remote
from wptrace.model.kind import names

_ALL = ("fs", *REQUEST_STAGES, "wakeup", "return")

OPERATION, SYNC, SWITCH, FROZEN, THROTTLE = "operation", "sync", "switch", "frozen", "bio.throttle"
LATE_WORK = "direct.late"
# Hooks at ends of operations.
ENDING = (OPERATION, SYNC, "sync.whole", "sync.aio", "sync_file_range", "pagefault", "swapin")
# Modules of journals, and the file systems that use them.
JOURNALS = {"jbd2": {"ext3", "ext4", "ocfs2"}, "xfs": {"xfs"}, "btrfs": {"btrfs"}}
# The module and a description, by function.
_WAITS = {
    "jbd2_log_wait_commit": ("jbd2", "wait for a commit of ext4's journal", "wait for a commit of ext4's journal"),
    "wait_transaction_locked": (
        "jbd2",
        "wait to change what ext4's journal commits",
        "wait of a change for a commit of ext4's journal",
    ),
    "xfs_log_force_seq": ("xfs", "wait for xfs's log", "wait for xfs's log"),
    "btrfs_sync_log": ("btrfs", "wait for btrfs's log tree", "wait for btrfs's log tree"),
}
JOURNAL_WAITS = {name: module for name, (module, *_) in _WAITS.items()}
# The kernel's entry points for writes, above any wait in a file system.
WRITES = ("vfs_write", "vfs_writev", "do_iter_write", "vfs_iter_write")
# Attached only if records are shown.
_COMMITS = ("journal.commit", "journal.change")
# Hooks that only see operations; all but the first and the switch only add detail.
OPERATIONS = (*ENDING, LATE_WORK, SWITCH, "dirty_limit", FROZEN, THROTTLE, *(f"wait.{function}" for function in _WAITS))

# Optional stages: attached on request; layers, if a traced device is stacked.
_OPTIONAL = {*INTERFERENCES, *CONTROLLERS, *WRITEBACK_STAGES, "layers"}
TICK_NS = 1_000_000
_NO_LAYERS = "stacked devices have no rows, and what their workers send belongs to these"


class _Driver(NamedTuple):
    """A driver with hooks of its own (bpf_src/block/path/drivers.h)."""

    name: str
    module: str
    prefixes: tuple[str, ...]
    """The prefix of the names of its disks."""
    disks: str
    """The disks in words."""
    programs: Mapping[str, tuple[str, ...]]
    """Programs by point, best first."""


_DRIVERS = (
    _Driver("nvme", "nvme_core", ("nvme",), "nvme", {"D": ("nvme_setup_raw_tp",), "S": ("nvme_seen_raw_tp",)}),
    _Driver("scsi", "scsi_mod", ("sd", "sr"), "scsi disks", {"H": ("scsi_start_raw_tp",), "S": ("scsi_seen_raw_tp",)}),
    _Driver("virtio-blk", "virtio_blk", ("vd",), "virtio-blk", {"H": ("virtblk_add_fentry", "virtblk_add_kprobe")}),
)
# The points: a description, the stage that begins or ends there, and the fallback without a hook.
_POINTS = {
    "D": ("set up by", "driver", "queue"),
    "H": ("handed over by", "driver", "device"),
    "S": ("completion seen by", "complete", "device"),
}
_DRIVER_MODULES = {one.module for one in _DRIVERS}
_SEEING = {one.module: one.name for one in _DRIVERS if "S" in one.programs}


def of_drivers(point: str) -> tuple[Hook, ...]:
    """Return the hooks of all drivers for D, H or S."""
    words, stage, whole = _POINTS[point]
    return tuple(
        Hook(
            f"{one.module}.{point.lower()}",
            f"{words} {one.name} ({point})",
            one.programs[point],
            (stage,),
            f"{stage} is part of {whole} on {one.disks}",
            required=False,
            module=one.module,
        )
        for one in _DRIVERS
        if point in one.programs
    )


SEEN_BY_OTHERS = "seen.others"
_NO_HANDLERS, _NO_SOFTIRQS = "handlers are not timed", "softirqs are not timed"
_NO_OPERATIONS = "reads and writes are seen as requests only"

# The program that reads the stack of a task that is switched in, and how it finds waits for a journal.
READS_STACKS = "switch_tp_btf"
BY_STACK = "stack"

# The entry of the interrupt handler that completes a request.
HANDLER = "handler"

# Serves no stage: attached on request only.
KICKS = Hook(
    "signal",
    "an eventfd of the process is written or read",
    (Way(("signal_read_raw_tp",), ("signal_write_raw_tp",)),),
    (),
    "the kicks of a guest are not seen",
    required=False,
)

UNIT_END = Hook("unit.end", "end of a unit of work", ("unit_end",), (), "it is not known when units of work end", END)
UNIT_BEGIN = Hook(
    "unit.begin", "begin of a unit of work", ("unit_begin",), (), "it is not known when units of work begin", START
)

UNIT_LATER = Hook(
    "unit.later",
    "the text of a unit of work becomes known",
    ("unit_named_later",),
    (),
    "units of work without a text at their begin have none",
    required=False,
)

CHILDREN = Hook(
    "children",
    "a process is forked",
    (Way(("fork_raw_tp",), ("task_free_raw_tp",)),),
    (),
    "a process whose parent has ended no longer counts as a child",
    required=False,
)

HOOKS = (
    probe("request.complete", "completion of a request (C)", "complete", _ALL, "no request can be seen", END),
    Hook(
        OPERATION,
        "end of an operation (X), its begin (E)",
        (KNOWN, BY_FUNCTION, BY_CALL),
        ("submit", "fs", "return"),
        _NO_OPERATIONS,
        modules=MODULES,
    ),
    probe(
        SWITCH,
        "task switch (W)",
        "switch",
        ("wakeup", "return", "preempted", *(name for name in CONTROLLERS if name not in ("io_max", "zone"))),
        _NO_OPERATIONS,
    ),
    Hook(
        SYNC,
        "end of a sync (X), its begin (E)",
        (KNOWN_SYNCS, SYNCS_BY_FUNCTION, BY_CALL),
        ("fs", "return"),
        "fsync, fdatasync and msync are not counted as operations",
        required=False,
        modules=MODULES,
    ),
    Hook(
        "sync.whole",
        "end of sync and syncfs (X), its begin (E)",
        (Way(("sys_syncfs_exit", "ksys_sync_exit"), ("sys_syncfs_entry", "ksys_sync_entry")), BY_CALL),
        ("fs", "return"),
        "sync and syncfs are not counted as operations",
        required=False,
    ),
    Hook(
        "sync.aio",
        "end of an fsync of AIO (X), its begin (E)",
        (Way(("aio_fsync_work_exit",), ("aio_fsync_work_entry", "aio_fsync_fentry")),),
        ("submit", "fs", "return"),
        "an fsync of AIO counts as one of the kernel thread that does it",
        required=False,
    ),
    Hook(
        LATE_WORK,
        "a worker finishes an asynchronous direct write",
        (Way(("late_work_exit",), ("late_work_entry",)),),
        ("fs", "return"),
        "the sync at the end of an asynchronous direct write counts as one of the kernel thread that does it",
        required=False,
    ),
    Hook(
        "sync_file_range",
        "end of sync_file_range (X), its begin (E)",
        (Way(("sync_file_range_exit",), ("sync_file_range_entry",)), BY_CALL),
        ("fs", "return"),
        "sync_file_range is not counted as an operation",
        required=False,
    ),
    Hook(
        "pagefault",
        "end of a page fault of a file (X), its begin (E)",
        (Way(("filemap_fault_exit",), ("filemap_fault_entry",)),),
        ("fs", "return"),
        "page faults of mapped files are not counted as operations",
        required=False,
    ),
    Hook(
        "swapin",
        "end of a swap-in (X), its begin (E)",
        (Way(("do_swap_page_exit",), ("do_swap_page_entry",)),),
        ("fs", "return"),
        "swap-ins are not counted as operations",
        required=False,
    ),
    *(
        Hook(
            f"wait.{function}",
            name,
            (
                Way((f"{function}_exit",), (f"{function}_entry",)),
                Way((f"{function}_kretprobe",), (f"{function}_kprobe",)),
                Way((READS_STACKS,), (READS_STACKS,), BY_STACK),
            ),
            ("journal",),
            f"the {without} is part of fs",
            required=False,
            module=module,
        )
        for function, (module, name, without) in _WAITS.items()
    ),
    probe(
        "dirty_limit",
        "pause of a writer in the limit of dirty pages",
        "dirty_limit",
        ("dirty_limit",),
        "the dirty limit is part of fs",
        required=False,
    ),
    Hook(
        FROZEN,
        "write to a frozen file system",
        # Where functions cannot be observed, the operation begins before the wait, which its stack shows.
        (Way((), ("frozen_fentry",)), Way((READS_STACKS,), (READS_STACKS,), BY_STACK)),
        ("fs",),
        "what a frozen file system holds up is part of fs, or not seen",
        required=False,
    ),
    Hook(
        _COMMITS[0],
        "a commit of ext4's journal",
        (Way(("commit_end_raw_tp",), ("commit_number_raw_tp", "commit_start_raw_tp")),),
        ("journal",),
        "what a commit of ext4's journal wrote is not shown",
        required=False,
        module="jbd2",
    ),
    Hook(
        _COMMITS[1],
        "a change that goes into ext4's journal",
        ("handle_raw_tp",),
        ("journal",),
        "which task contributed most to a commit of ext4's journal is not shown",
        required=False,
        module="jbd2",
    ),
    *of_drivers("S"),
    Hook(
        SEEN_BY_OTHERS,
        "completion seen by other drivers (S)",
        (
            "seen_fentry",
            "seen_kprobe",
            Way(("hardirq_exit_tp_btf",), ("hardirq_entry_tp_btf",), HANDLER),
            Way(("hardirq_exit_raw_tp",), ("hardirq_entry_raw_tp",), HANDLER),
        ),
        ("complete",),
        f"complete is part of device on disks that are neither {' nor '.join(_SEEING.values())}",
        required=False,
    ),
    *of_drivers("H"),
    *of_drivers("D"),
    probe(
        "request.issue", "issue of a request (D, on nvme H)", "issue", ("queue", "device"), "queue is part of device"
    ),
    probe(
        "request.requeue",
        "request given back (requeue)",
        "requeue",
        ("queue",),
        "requeues are not counted",
        required=False,
    ),
    probe(
        "bio.split",
        "bio split in two",
        "split",
        ("throttle", "queue"),
        "the parts of a split bio are not traced",
        required=False,
    ),
    probe("bio.queue", "bio queued (Q)", "queue", ("fs", "throttle", "queue"), "no request can be seen", START),
    probe(
        "bio.complete",
        "bio completed without a request of its own",
        "layer",
        ("layers", "submit", "throttle"),
        f"{_NO_LAYERS}; what io_uring could not send at once counts as in flight",
        END,
        required=False,
    ),
    probe("bio.remap", "bio made of another one (L to Q)", "remap", ("layers",), _NO_LAYERS, required=False),
    Hook(
        THROTTLE,
        "bio held back by a cgroup's limit",
        ("throttle_fentry", "throttle_old_fentry"),
        ("throttle", "io_max"),
        "the wait for a limit of io.max is part of fs, and its requests belong to a worker",
        required=False,
    ),
    probe(
        "tag.wait",
        "wait for a tag",
        "tag_wait",
        ("tag",),
        "it is not known which hardware queue had no free tag",
        required=False,
    )._replace(noted=False),
    probe(
        "zone.plug",
        "write that waits for another one to its zone",
        "zone_plug",
        ("zone",),
        "it is not known when a write waits for another one to its zone",
        required=False,
    )._replace(noted=False),
    Hook(
        "page.dirty",
        "page becomes dirty (B)",
        ("dirty_tp_btf", "dirty_page_tp_btf", "dirty_raw_tp", "dirty_page_raw_tp"),
        WRITEBACK_STAGES,
        "the task that wrote what is written back is not known",
        START,
        required=False,
    ),
    probe("hardirq.exit", "exit of an interrupt handler", "hardirq_exit", ("hardirq",), _NO_HANDLERS, END, False),
    probe("hardirq.entry", "entry of an interrupt handler", "hardirq_entry", ("hardirq",), _NO_HANDLERS, START, False),
    probe("softirq.exit", "exit of a softirq", "softirq_exit", ("softirq",), _NO_SOFTIRQS, END, False),
    probe("softirq.entry", "entry of a softirq", "softirq_entry", ("softirq",), _NO_SOFTIRQS, START, False),
    KICKS,
    CHILDREN,
    gone_cgroups.HOOK,
    Hook("tick", "tick of each CPU", ("tick_perf",), ("irq_delay",), "late interrupts are not found", required=False),
)


def configure(obj: BpfObject) -> None:
    """Set facts of this kernel that the programs at these hooks need."""
    obj.rodata.request_is_second = argument("block_rq_issue", "request *") == 1
    obj.rodata.bio_is_second = argument("block_bio_queue", "bio *") == 1
    obj.rodata.without_exchange = not trial.exchanges()
    obj.rodata.dirty_limit_is_object = argument("balance_dirty_pages", "dirty_throttle_control *") == 1
    obj.rodata.page_shift = os.sysconf("SC_PAGE_SIZE").bit_length() - 1
    obj.rodata.uring_hands_event = io_operations.hands_event()
    obj.rodata.timed_out_bit = timed_out_bit()
    obj.progs["tick_perf"].run_on(CPU_CLOCK, TICK_NS, cpus.online())


def file_systems(extents: list[Extent], remotes: Sequence[Remote] = ()) -> set[str]:
    """Return the file systems that are mounted on the wanted devices; all known ones if none is."""
    found = {*devices.file_systems(extents).values(), *(one.kind for one in remotes)}
    return found or io_operations.preparable(mounts.registered())


def seen_by(kinds: set[str]) -> tuple[Hook, ...]:
    """All hooks for these file systems."""
    ways = {OPERATION: io_operations.ways(kinds), SYNC: io_operations.sync_ways(kinds)}
    return tuple(hook._replace(programs=ways.get(hook.id, hook.programs)) for hook in HOOKS)


def of_files(kinds: set[str], emits_records: bool) -> tuple[Hook, ...]:
    """The hooks, without those of journals that are not in use."""
    return tuple(
        hook
        for hook in seen_by(kinds)
        if (emits_records or hook.id not in _COMMITS) and (hook.module not in JOURNALS or JOURNALS[hook.module] & kinds)
    )


def of_requests() -> tuple[Hook, ...]:
    """All hooks of the level `request`."""
    stages = {*names(REQUEST_KINDS)}
    more = {SWITCH: (waits.ASLEEP_ALONE,)}
    found = (
        hook._replace(serves=(*more.get(hook.id, ()), *(stage for stage in hook.serves if stage in stages)))
        for hook in HOOKS
    )
    less = {
        THROTTLE: "the wait for a limit of io.max is not seen, and its requests belong to a worker",
        SWITCH: "it is not seen when tasks sleep for requests",
    }
    return tuple(hook._replace(without=less.get(hook.id, hook.without)) for hook in found if hook.serves)


def needed(hooks: Iterable[Hook], disks: Collection[str] | None, wanted: Collection[str]) -> tuple[Hook, ...]:
    """Hooks of stages that always exist or are wanted, and of drivers of disks in use (None: all drivers)."""
    unused = _OPTIONAL - set(wanted)
    there = None if disks is None else set(map(_module_of, disks))
    return tuple(hook for hook in hooks if not set(hook.serves) <= unused and _serves(hook, there))


def _module_of(disk: str) -> str:
    """The module of a disk's driver; empty if it has no hooks here."""
    return next((one.module for one in _DRIVERS if disk.startswith(one.prefixes)), "")


def _serves(hook: Hook, there: Collection[str] | None) -> bool:
    """Whether the hook may see requests of disks with these drivers; None for any driver."""
    if there is None:
        return True
    if hook.id == SEEN_BY_OTHERS:
        return not _SEEING.keys() >= set(there)
    return hook.module not in _DRIVER_MODULES or hook.module in there
