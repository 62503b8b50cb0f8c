# SPDX-License-Identifier: Apache-2.0
"""Reasons why the task of an operation waits, by the functions in its stack (docs/waits.md).

The kernel leaves out functions of the scheduler and of most locks, so a stack begins with who takes the lock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from wptrace.kernel.symbols import UNKNOWN


class Reason(NamedTuple):
    name: str
    meaning: str
    advice: str
    functions: tuple[str, ...] = ()
    """Any of these is somewhere in the stack. `*` matches any part of a name."""
    innermost: tuple[str, ...] = ()
    """Or one of these is the innermost function."""
    within: tuple[str, ...] = ()
    """And one of these is in the stack as well."""

    def has(self, function: str) -> bool:
        """Whether a wait in this function has this reason, whatever else is in the stack."""
        return bool(_pattern((*self.functions, *self.innermost)).fullmatch(function))


class WaitStack(NamedTuple):
    """The stack of a sleep."""

    reason: str
    functions: tuple[str, ...]
    """The innermost first; none where the reason is known without."""


DIRTY_LIMIT = "dirty limit"
SEVERAL = "several"
"""Waits of stacks that found no place of their own."""
NOT_KNOWN = "unknown"
"""All waits, where no program may read a stack."""

REASONS = (
    Reason(
        "freeze",
        "the file system is frozen",
        "who froze it: a snapshot or a backup (fsfreeze, LVM)",
        ("percpu_rwsem_wait", "__percpu_down_read", "freeze_*"),
    ),
    Reason(
        "memory",
        "no memory was free: the task reclaims or compacts it, or waits for those who do",
        "memory.high and memory.max of the cgroup (memory.pressure), or free memory of the machine",
        (
            "try_to_free_pages",
            "try_to_free_mem_cgroup_pages",
            "__alloc_pages_direct_*",
            "try_to_compact_pages",
            "reclaim_throttle",
            "throttle_direct_reclaim",
            "__mem_cgroup_handle_over_high",
            "mem_cgroup_handle_over_high",
            "mem_cgroup_out_of_memory",
            "out_of_memory",
        ),
    ),
    Reason(
        DIRTY_LIMIT,
        "more pages are dirty than the limit allows: writers wait until some are written back",
        "vm.dirty_bytes and vm.dirty_ratio, memory.high and memory.max of the cgroup, and how fast the disk writes",
        ("balance_dirty_pages*",),
    ),
    Reason(
        "quota",
        "the quota of a user, group, project or subvolume is looked up or written",
        "quotas of the file system: who writes them, and whether they are needed",
        ("dquot_*", "xfs_qm_*", "xfs_trans_dqresv", "btrfs_qgroup_*"),
    ),
    Reason(
        "journal space",
        "the journal or log is full: older changes have to be written to their place first",
        "the size of the journal or log, and how fast the disk takes what is in it",
        (
            "__jbd2_log_wait_for_space",
            "jbd2_log_do_checkpoint",
            "xlog_grant_head_wait",
            "xlog_grant_head_check",
            "xfs_log_reserve",
            "xfs_log_regrant",
            "xlog_state_get_iclog_space",
            "wait_current_trans",
        ),
        ("add_transaction_credits",),
    ),
    Reason(
        "journal commit",
        "a commit of the file system's journal or log is under way",
        "who syncs, how much is changed meanwhile, and the disk that the journal is on",
        (
            "jbd2_log_wait_commit",
            "jbd2_complete_transaction",
            "wait_transaction_locked",
            "wait_transaction_switching",
            "do_get_write_access",
            "jbd2_journal_force_commit*",
            "xfs_log_force*",
            "xlog_wait*",
            "xlog_force_lsn",
            "btrfs_sync_log",
            "btrfs_commit_transaction*",
            "btrfs_wait_for_commit",
            "wait_for_commit",
        ),
    ),
    Reason(
        "FUSE server",
        "the process that serves the file system has not answered yet",
        "that process: what it waits for, and how many threads it has",
        ("request_wait_answer", "fuse_*", "__fuse_*"),
    ),
    Reason(
        "NFS call",
        "the NFS server has not answered yet",
        "the server and the network: nfsiostat, wptrace flow rpc",
        ("rpc_*", "__rpc_*", "nfs_*", "nfs3_*", "nfs4_*"),
    ),
    Reason(
        "direct I/O",
        "direct I/O of the same file is under way",
        "who writes the file with O_DIRECT and through the page cache at once",
        ("__inode_dio_wait", "inode_dio_wait*"),
    ),
    Reason(
        "stacked device",
        "a stacked device (dm, md) accepts no more",
        "the state of the array or of the mapping: a resync, a snapshot, a suspended table",
        ("md_write_start", "md_handle_request", "raid5_*", "wait_barrier*", "dm_*", "__dm_*"),
    ),
    Reason(
        "request",
        "no request was free, or a limit held back what is read ahead",
        "the number of tags (queue/nr_requests) and limits of cgroups (io.max, io.cost)",
        ("blk_mq_get_tag", "rq_qos_wait", "__rq_qos_throttle", "__bio_queue_enter", "blk_queue_enter"),
    ),
    Reason(
        "stable page",
        "the page is being written back, and must not change meanwhile",
        "why its pages must be stable (checksums, dm-integrity, btrfs), and how fast the disk writes",
        ("folio_wait_stable", "wait_for_stable_page", "folio_wait_writeback*", "wait_on_page_writeback*"),
        within=("*_write_begin", "*buffered_write", "generic_perform_write", "prepare_pages", "*page_mkwrite"),
    ),
    Reason(
        "mmap_lock",
        "another thread changes the address space of the process, or one of its page faults takes long",
        "who calls mmap, munmap or mprotect in this process, and page faults of its threads",
        ("mmap_read_lock*", "lock_mm_and_find_vma"),
        ("do_user_addr_fault", "do_page_fault", "exc_page_fault", "__get_user_pages*", "internal_get_user_pages_fast"),
    ),
    Reason(
        "writeback",
        "pages that are being written back must be on the disk first",
        "how much is dirty when it is synced, and how fast the disk writes",
        (
            "folio_wait_writeback*",
            "wait_on_page_writeback*",
            "__filemap_fdatawait_range",
            "filemap_fdatawait*",
            "wb_wait_for_completion",
            "wait_sb_inodes",
            "writeback_inodes_sb*",
            "sync_inodes_sb",
            "btrfs_wait_ordered_range",
            "btrfs_start_ordered_extent*",
            "congestion_wait",
            "wait_iff_congested",
        ),
    ),
    Reason(
        "block allocation",
        "the file system looks for free blocks, or another task changes the map of the file",
        "how full and how fragmented the file system is; preallocation (fallocate)",
        (
            "ext4_mb_*",
            "xfs_alloc_*",
            "xfs_bmapi_*",
            "xfs_ilock_for_iomap",
            "btrfs_reserve_extent",
            "btrfs_reserve_metadata_bytes",
            "btrfs_reserve_data_bytes",
            "__reserve_bytes",
        ),
        ("ext4_map_blocks", "ext4_da_*", "xfs_map_blocks", "xfs_iomap_*", "xfs_trans_alloc*", "*_iomap_begin"),
    ),
    Reason(
        "metadata",
        "another task reads or holds a block with extents, an inode or a bitmap",
        "metadata that does not fit into memory, and who else works on it",
        (
            "__wait_on_buffer",
            "xfs_buf_*",
            "read_extent_buffer_pages*",
            "btrfs_tree_lock*",
            "btrfs_tree_read_lock*",
            "__btrfs_tree_*",
            "ext4_read_*",
            "ext4_wait_block_bitmap",
        ),
        ("*_update_time", "ext4_mark_inode_dirty*", "__ext4_mark_inode_dirty"),
    ),
    Reason(
        "lock of a page",
        "another task reads or writes the page, or holds its lock for something else",
        "who else works on the same part of the file: --slow shows the operations of both",
        (
            "__folio_lock*",
            "__lock_page*",
            "folio_wait_bit*",
            "folio_put_wait_locked",
            "wait_on_page_bit*",
            "filemap_update_page",
            "put_and_wait_on_page_locked",
        ),
    ),
    Reason(
        "lock of the file",
        "another operation holds the lock of the file (i_rwsem)",
        "who else writes the same file; direct I/O over written blocks and separate files need no exclusive lock",
        ("xfs_ilock*", "btrfs_inode_lock"),
        (
            "*_write_iter",
            "*_read_iter",
            "*_sync_file",
            "*_fsync*",
            "xfs_file_*",
            "iomap_*",
            "btrfs_*write*",
            "ext4_dio_*",
            "generic_file_*",
        ),
    ),
)
SLEEPS = (
    Reason(
        "memory",
        "no memory was free: the task writes pages to get some, or swaps",
        "memory.high and memory.max of the cgroup (memory.pressure), or free memory of the machine",
        ("try_to_free_pages", "try_to_free_mem_cgroup_pages", "shrink_*", "reclaim_throttle", "balance_pgdat"),
    ),
    Reason(
        "swap-in",
        "memory of the process was in swap",
        "free memory, and what is swapped (vm.swappiness, memory.swap.max)",
        ("do_swap_page", "swapin_readahead", "swap_read_folio", "shmem_swapin*"),
    ),
    Reason(
        "request",
        "no request was free, or a limit held it back",
        "the number of tags (queue/nr_requests) and limits of cgroups (io.max, io.cost)",
        (
            "blk_mq_get_tag",
            "rq_qos_wait",
            "__rq_qos_throttle",
            "ioc_rqos_throttle",
            "__bio_queue_enter",
            "blk_queue_enter",
        ),
    ),
    Reason(
        "AIO events",
        "the program waits for its asynchronous I/O to complete",
        "the queue depth of the program",
        ("read_events", "do_io_getevents"),
    ),
    Reason(
        "io_uring events",
        "the program waits for its asynchronous I/O to complete",
        "the queue depth of the program",
        ("io_cqring_wait*",),
    ),
    Reason(
        "journal commit",
        "the file system's journal or log is written",
        "what syncs, and how much is changed meanwhile",
        ("jbd2_*", "xlog_*", "xfs_log_*", "btrfs_commit_transaction*", "btrfs_sync_log", "write_all_supers"),
    ),
    Reason(
        "sync",
        "what is dirty has to be on the disk: fsync, fdatasync, sync or O_SYNC",
        "how often the program syncs, and how fast the disk writes",
        (
            "vfs_fsync*",
            "*_sync_file",
            "*_file_fsync",
            "blkdev_fsync",
            "do_fsync",
            "file_write_and_wait_range",
            "ksys_sync*",
            "sync_filesystem",
            "generic_write_sync",
            "iomap_dio_complete",
        ),
    ),
    Reason(
        "page fault",
        "a page of a mapped file is read",
        "what the program maps and does not have in memory",
        ("filemap_fault", "__do_fault", "handle_mm_fault", "do_user_addr_fault", "exc_page_fault", "do_page_fault"),
    ),
    Reason(
        "direct I/O",
        "the program reads or writes past the page cache",
        "the disk: each of these calls lasts as long as its requests",
        (
            "*_direct_IO*",
            "*iomap_dio_rw*",
            "*_dio_*",
            "dio_await_*",
            "blkdev_read_iter",
            "blkdev_write_iter",
            "do_blockdev_direct_IO",
            "*_dio_rw",
        ),
        within=(
            "*direct_IO*",
            "*dio*",
        ),
    ),
    Reason(
        "metadata",
        "extents, inodes, bitmaps or directories are read",
        "metadata that does not fit into memory",
        (
            "__wait_on_buffer",
            "__bread*",
            "bh_read*",
            "ext4_bread*",
            "ext4_read_*",
            "ext4_sb_bread*",
            "ext4_find_extent",
            "__ext4_get_inode_loc*",
            "ext4_getblk*",
            "xfs_buf_*",
            "read_extent_buffer_pages*",
            "btrfs_read_*",
        ),
    ),
    Reason(
        "buffered read",
        "a page that the program reads is not in the page cache",
        "readahead (blockdev --getra), and how random the reads are",
        (
            "filemap_read",
            "generic_file_buffered_read",
            "generic_file_read_iter",
            "filemap_get_pages",
            "filemap_update_page",
            "do_read_cache_folio",
            "do_read_cache_page",
            "filemap_splice_read",
            "generic_file_splice_read",
        ),
    ),
    Reason(
        "write of a part of a page",
        "the rest of the page has to be read first",
        "writes of whole pages need no read",
        ("*_write_begin", "iomap_write_begin*", "generic_perform_write", "*buffered_write*"),
    ),
    Reason(
        "writeback",
        "dirty pages are written back",
        "what is dirty, and how fast the disk writes",
        (
            "wb_workfn",
            "wb_writeback",
            "writeback_sb_inodes",
            "do_writepages",
            "folio_wait_writeback*",
            "wait_on_page_writeback*",
        ),
    ),
    Reason(
        "flush",
        "the cache of the device is flushed, or blocks are discarded or zeroed",
        "how often the cache is flushed",
        ("blkdev_issue_flush*", "blkdev_issue_discard*", "blkdev_issue_zeroout*", "submit_bio_wait"),
    ),
)
"""Why tasks sleep for requests of their own, where no operation says what they do."""
WORK = (
    Reason(
        "spinning for a lock",
        "a lock is held by a task on another CPU, and expected to be free soon",
        "who else works on the same file or file system: perf lock contention",
        innermost=("*spin_lock_slowpath", "queued_*_lock_slowpath", "*_spin_on_owner", "osq_lock", "*_optimistic_spin"),
    ),
    Reason(
        "checksum",
        "checksums of data or metadata are computed",
        "what has checksums: btrfs, dm-integrity, metadata of ext4 and xfs",
        ("crc32*", "*_crc32c*", "chksum_*", "xxh64*", "sha256*", "blake2b*", "btrfs_csum_*"),
    ),
    Reason(
        "compression",
        "data are compressed or unpacked",
        "compression of the file system, or of the disk that is memory (zram)",
        ("zstd_*", "ZSTD_*", "FSE_*", "HUF_*", "lzo*", "LZ4*", "zlib_*", "btrfs_compress_*", "zram_*"),
    ),
    Reason(
        "encryption",
        "data are encrypted or decrypted",
        "fscrypt or dm-crypt, and whether the CPU has instructions for its cipher",
        ("fscrypt_*", "crypto_*", "skcipher_*", "aes*", "xts_*", "*_aesni*"),
    ),
    Reason(
        "page faults of the buffer",
        "the program's buffer has no memory yet, or is shared and gets a copy",
        "buffers that were used before, or MAP_POPULATE; huge pages need fewer faults",
        ("handle_mm_fault", "exc_page_fault", "do_user_addr_fault", "do_page_fault"),
        within=("vfs_*", "*_read_iter", "*_write_iter", "__x64_sys_p*", "__arm64_sys_p*"),
    ),
    Reason(
        "copying",
        "data are copied between the page cache and the program",
        "O_DIRECT or mmap do not copy; how much each call reads or writes",
        (
            "copy_*_to_iter",
            "copy_*_from_iter*",
            "_copy_to_iter",
            "_copy_from_iter*",
            "copy_user_*",
            "copyin",
            "copyout",
            "iov_iter_copy_from_user_atomic",
            "rep_movs_alternative",
            "fault_in_*",
            "iov_iter_fault_in_*",
        ),
    ),
    Reason(
        "memory",
        "memory is allocated, cleared, charged to a cgroup or reclaimed",
        "free memory of the machine and of the cgroup, and its fragmentation",
        (
            "alloc_pages*",
            "__alloc_pages*",
            "__alloc_frozen_pages*",
            "folio_alloc*",
            "filemap_alloc_folio*",
            "__page_cache_alloc*",
            "get_page_from_freelist",
            "clear_page*",
            "try_to_free_*",
            "try_to_compact_pages",
            "shrink_*",
            "*mem_cgroup_charge*",
            "kmem_cache_alloc*",
            "folio_add_lru*",
            "lru_cache_add*",
        ),
    ),
    Reason(
        "block allocation",
        "the file system looks for free blocks",
        "how full and how fragmented the file system is; preallocation (fallocate)",
        (
            "ext4_mb_*",
            "ext4_da_*",
            "ext4_map_blocks",
            "xfs_alloc_*",
            "xfs_bmapi_*",
            "xfs_bmap_*",
            "btrfs_reserve_*",
            "btrfs_find_free_*",
            "find_free_extent*",
            "*_iomap_begin",
        ),
    ),
    Reason(
        "journal",
        "changes are handed to the journal or log",
        "how much metadata each operation changes",
        ("jbd2_*", "start_this_handle", "ext4_journal_*", "__ext4_journal_*", "xlog_*", "xfs_log_*", "xfs_trans_*"),
    ),
    Reason(
        "metadata",
        "extents, inodes and bitmaps are looked up or changed",
        "how many extents the file has (filefrag), and how large the directory is",
        ("ext4_ext_*", "ext4_es_*", "*_mark_inode_dirty*", "*_update_time", "file_*time*", "xfs_buf_*", "btrfs_s*"),
    ),
    Reason(
        "page cache",
        "pages are looked up, put into the page cache, or marked",
        "how much each call reads or writes, and the size of folios",
        (
            "filemap_*",
            "__filemap_*",
            "pagecache_*",
            "grab_cache_page_*",
            "find_get_*",
            "xas_*",
            "xa_*",
            "folio_*",
            "__folio_*",
            "mark_page_accessed",
            "*_write_begin",
            "*_write_end",
            "page_cache_*",
        ),
    ),
)
BY_NAME = {reason.name: reason for reason in REASONS}
WORK_BY_NAME = {reason.name: reason for reason in WORK}
"""Work on a CPU has reasons of its own."""

# Programs of BPF lie between the functions that they observe, and faults of a buffer in the middle.
_ASIDE = ("bpf_", "__bpf_", "asm_exc_page_fault")
# The functions with which all stacks of system calls end; 5.10 shows a kretprobe as the function behind it.
_ENTRIES = ("do_syscall_64", "el0_svc", "el0_svc_common", "elfcorehdr_read")
_INTERRUPT = re.compile(r"(asm_)?sysvec_\w+|(asm_)?common_interrupt|(__)?irq_exit_rcu|el1h_64_irq\w*|el1_interrupt")
# The function that takes a lock is what matters; some kernels have these in the stack, others leave them out.
_LOCKS = re.compile(r"rwsem_down_(read|write)_slowpath|down_(read|write)\w*|_*mutex_lock\w*|schedule\w*")


def cleaned(stack: Sequence[str]) -> tuple[str, ...]:
    """Without what belongs to tracing, and how it came into the kernel."""
    kept = [name for name in takewhile(lambda name: name not in _ENTRIES, stack) if not name.startswith(_ASIDE)]
    return tuple(name for name, inner in zip(kept, (None, *kept)) if name != inner)


def plain(function: str) -> str:
    """Without what the compiler puts behind the name of a copy or a part of it."""
    return function.partition(".")[0]


@cache
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in names) or r"(?!)")


def reason_of(stack: Sequence[str], reasons: Sequence[Reason] = REASONS) -> str:
    """Return the reason by the names of functions, innermost first; if none is known, the innermost function."""
    names = [name for name in map(plain, stack) if not _LOCKS.fullmatch(name)]
    for reason in reasons:
        if _matches(reason, names):
            return reason.name
    return f"unknown ({names[0] if names else UNKNOWN})"


def work_of(stack: Sequence[str]) -> str:
    """The work of a task that a tick interrupted; interrupts are not part of it."""
    interrupts = [at for at, name in enumerate(stack) if _INTERRUPT.fullmatch(name)]
    return reason_of(stack[interrupts[-1] + 1 :] if interrupts else stack, WORK)


def _matches(reason: Reason, names: Sequence[str]) -> bool:
    if names and _pattern(reason.innermost).fullmatch(names[0]):
        return True
    of, within = _pattern(reason.functions), _pattern(reason.within)
    return any(map(of.fullmatch, names)) and (not reason.within or any(map(within.fullmatch, names)))
