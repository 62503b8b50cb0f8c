# SPDX-License-Identifier: Apache-2.0
"""Reasons of waits, by stacks that kernels had under loads with a known reason."""

from __future__ import annotations

import pytest

from tests.unit.docs.pages import section, tables
from wptrace.flows.io.wait_reasons import BY_NAME, REASONS, SLEEPS, WORK, WORK_BY_NAME, cleaned, reason_of, work_of

_SYSTEM_CALL = "vfs_write <- __x64_sys_pwrite64 <- do_syscall_64 <- entry_SYSCALL_64_after_hwframe"
# 5.10, 6.12 and 6.18, with ext4, xfs and btrfs on a device of 5 or 10 ms.
SEEN = {
    "freeze": [f"percpu_rwsem_wait <- __percpu_down_read <- {_SYSTEM_CALL}"],
    "memory": [
        "mem_cgroup_handle_over_high <- try_charge_memcg <- __mem_cgroup_charge <- filemap_add_folio <- "
        "__filemap_get_folio <- ext4_da_write_begin <- generic_perform_write <- ext4_buffered_write_iter",
    ],
    "journal commit": [
        "jbd2_log_wait_commit <- bpf_trampoline_6442510457 <- jbd2_log_wait_commit <- ext4_sync_file <- do_fsync",
        "jbd2_log_wait_commit <- elfcorehdr_read",
        "wait_transaction_locked <- elfcorehdr_read",
        "wait_transaction_locked <- add_transaction_credits <- start_this_handle <- jbd2__journal_start",
        "do_get_write_access <- jbd2_journal_get_write_access <- __ext4_journal_get_write_access <- "
        "ext4_reserve_inode_write <- __ext4_mark_inode_dirty <- ext4_dirty_inode <- __mark_inode_dirty <- "
        "generic_update_time <- file_modified <- ext4_buffered_write_iter",
        "do_get_write_access <- jbd2_journal_get_write_access <- __ext4_journal_get_write_access <- "
        "ext4_mb_mark_context <- ext4_mb_mark_diskspace_used <- ext4_mb_new_blocks <- ext4_ext_map_blocks",
        "__flush_workqueue <- xlog_cil_push_now.isra.0 <- xlog_cil_force_seq <- xfs_log_force_seq <- xfs_file_fsync",
        "xlog_wait_on_iclog <- xfs_log_force_seq <- xfs_file_fsync <- do_fsync <- __x64_sys_fsync",
        "xlog_force_lsn <- xfs_log_force_seq <- bpf_trampoline_6442510457 <- xfs_log_force_seq <- xfs_file_fsync",
        "wait_log_commit <- btrfs_sync_log <- btrfs_sync_file <- do_fsync <- __x64_sys_fsync",
    ],
    "journal space": [
        "add_transaction_credits <- start_this_handle <- jbd2__journal_start <- __ext4_journal_start_sb",
        "jbd2_log_wait_commit <- __jbd2_log_wait_for_space <- add_transaction_credits <- start_this_handle",
        "jbd2_log_do_checkpoint <- __jbd2_log_wait_for_space <- add_transaction_credits <- start_this_handle",
        "xlog_grant_head_wait <- xlog_grant_head_check <- xfs_log_reserve <- xfs_trans_reserve <- xfs_trans_alloc <- "
        "xfs_vn_update_time",
    ],
    "quota": [
        "do_get_write_access <- jbd2_journal_get_write_access <- __ext4_journal_get_write_access <- "
        "ext4_quota_write <- qtree_write_dquot <- v2_write_dquot <- dquot_commit <- ext4_write_dquot",
    ],
    "stable page": [
        "folio_wait_bit_common <- folio_wait_writeback <- prepare_pages.constprop.0 <- btrfs_buffered_write <- "
        "btrfs_do_write_iter <- btrfs_file_write_iter",
    ],
    "writeback": [
        "folio_wait_bit_common <- folio_wait_writeback <- __filemap_fdatawait_range <- file_write_and_wait_range <- "
        "ext4_sync_file",
        "folio_wait_bit <- folio_wait_writeback <- __filemap_fdatawait_range <- file_write_and_wait_range",
        "wb_wait_for_completion <- sync_inodes_sb <- iterate_supers <- ksys_sync",
        "btrfs_start_ordered_extent <- btrfs_wait_ordered_range <- btrfs_sync_file",
    ],
    "block allocation": [
        "rwsem_down_write_slowpath <- ext4_da_get_block_prep <- ext4_block_write_begin <- ext4_da_write_begin",
        "ext4_da_get_block_prep <- ext4_block_write_begin <- ext4_da_write_begin <- generic_perform_write",
        "ext4_mb_initialize_context <- ext4_mb_new_blocks <- ext4_ext_map_blocks <- ext4_map_blocks",
        "xfs_ilock_for_iomap <- xfs_buffered_write_iomap_begin <- iomap_iter <- iomap_file_buffered_write",
        "xfs_map_blocks <- iomap_writepages <- xfs_vm_writepages <- do_writepages",
        "xfs_trans_alloc_inode <- xfs_iomap_write_unwritten <- xfs_dio_write_end_io <- iomap_dio_complete",
    ],
    "metadata": [
        "btrfs_tree_read_lock_nested <- btrfs_read_lock_root_node <- btrfs_search_slot <- btrfs_lookup_csums_list",
        "xfs_vn_update_time <- kiocb_modified <- xfs_file_write_checks <- xfs_file_buffered_write",
    ],
    "lock of a page": [
        "wait_on_page_bit_common <- generic_file_buffered_read <- new_sync_read <- vfs_read",
        "folio_wait_bit_common <- filemap_get_pages <- filemap_read <- ext4_file_read_iter <- vfs_read",
        "folio_wait_bit_common <- mpage_prepare_extent_to_map <- ext4_do_writepages <- ext4_writepages",
        "wait_on_page_bit_common <- pagecache_get_page <- grab_cache_page_write_begin <- ext4_da_write_begin",
        "folio_wait_bit_common <- __filemap_get_folio <- iomap_write_begin <- iomap_file_buffered_write",
    ],
    "lock of the file": [
        f"ext4_buffered_write_iter <- bpf_trampoline_109521778808 <- ext4_file_write_iter <- {_SYSTEM_CALL}",
        f"rwsem_down_write_slowpath <- ext4_buffered_write_iter <- new_sync_write <- {_SYSTEM_CALL}",
        "xfs_ilock <- xfs_file_buffered_write <- xfs_file_write_iter <- vfs_write",
        "xfs_ilock <- xfs_file_buffered_read <- xfs_file_read_iter <- vfs_read",
        "btrfs_inode_lock <- btrfs_buffered_write <- btrfs_do_write_iter <- btrfs_file_write_iter",
    ],
}
_CASES = [(name, stack) for name, stacks in SEEN.items() for stack in stacks]


@pytest.mark.parametrize(("name", "stack"), _CASES)
def test_stacks_that_were_seen(name: str, stack: str) -> None:
    assert reason_of(cleaned(stack.split(" <- "))) == name


# 6.18 and 6.12, where a task had a request of its own.
SLEEPING = {
    "direct I/O": [
        "blk_io_schedule <- __blkdev_direct_IO_simple <- blkdev_direct_IO <- blkdev_read_iter <- vfs_read",
        "blk_io_schedule <- __iomap_dio_rw <- iomap_dio_rw <- ext4_file_read_iter <- vfs_read",
    ],
    "AIO events": ["read_events <- do_io_getevents <- __x64_sys_io_getevents"],
    "io_uring events": ["io_cqring_wait <- __do_sys_io_uring_enter"],
    "buffered read": ["folio_wait_bit_common <- filemap_get_pages <- filemap_read <- ext4_file_read_iter <- vfs_read"],
    "page fault": ["folio_wait_bit_common <- filemap_fault <- __do_fault <- handle_mm_fault <- exc_page_fault"],
    "sync": ["folio_wait_bit_common <- folio_wait_writeback <- __filemap_fdatawait_range <- ext4_sync_file"],
    "flush": ["submit_bio_wait <- blkdev_issue_flush <- some_file_system"],
    "metadata": ["__wait_on_buffer <- ext4_read_bh <- __read_extent_tree_block <- ext4_find_extent <- ext4_map_blocks"],
    "request": ["blk_mq_get_tag <- __blk_mq_alloc_requests <- blk_mq_submit_bio <- blkdev_direct_IO <- vfs_read"],
    "journal commit": ["__wait_on_buffer <- jbd2_journal_commit_transaction <- kjournald2 <- kthread"],
    "unknown (some_lock)": ["some_lock <- vfs_read"],
}


@pytest.mark.parametrize(("name", "stack"), [(name, stack) for name, stacks in SLEEPING.items() for stack in stacks])
def test_stacks_of_tasks_with_a_request(name: str, stack: str) -> None:
    assert reason_of(cleaned(stack.split(" <- ")), SLEEPS) == name


def test_what_no_reason_explains_has_its_function() -> None:
    assert reason_of(["down_write", "some_new_lock", "vfs_write"]) == "unknown (some_new_lock)"
    assert reason_of(["0xffffffff81000010", "vfs_write"]) == "unknown (0xffffffff81000010)"
    assert reason_of([]) == "unknown ([unknown])"
    # Only whole names count.
    assert reason_of(["not_out_of_memory"]) == "unknown (not_out_of_memory)"


def test_a_stack_is_without_tracing_and_without_what_all_have() -> None:
    stack = f"jbd2_log_wait_commit <- bpf_trampoline_1 <- jbd2_log_wait_commit <- bpf_prog_80c_x <- {_SYSTEM_CALL}"
    assert cleaned(stack.split(" <- ")) == ("jbd2_log_wait_commit", "vfs_write", "__x64_sys_pwrite64")


def test_the_page_has_the_reasons() -> None:
    (rows,) = tables(section("waits.md", "## Reasons"))
    assert rows == [[reason.name, reason.meaning, reason.advice] for reason in REASONS]
    assert len(BY_NAME) == len(REASONS)
    (rows,) = tables(section("waits.md", "## With `--level request`"))
    assert rows == [[reason.name, reason.meaning, reason.advice] for reason in SLEEPS]
    (rows,) = tables(section("waits.md", "## On the CPU"))
    assert rows == [[work.name, work.meaning, work.advice] for work in WORK]
    assert len(WORK_BY_NAME) == len(WORK)


# 6.18: buffered reads and writes of a large file on ext4, and syncs.
WORKING = {
    "page faults of the buffer": [
        "clear_page_erms <- get_page_from_freelist <- alloc_pages_mpol <- vma_alloc_folio <- do_anonymous_page <- "
        "handle_mm_fault <- exc_page_fault <- asm_exc_page_fault <- rep_movs_alternative <- _copy_to_iter <- "
        "copy_page_to_iter <- filemap_read <- vfs_read",
    ],
    "copying": ["rep_movs_alternative <- _copy_to_iter <- copy_page_to_iter <- filemap_read <- vfs_read"],
    "memory": [
        "get_page_from_freelist <- __alloc_frozen_pages_noprof <- alloc_pages_mpol <- folio_alloc_noprof <- "
        "page_cache_ra_order <- filemap_get_pages <- filemap_read <- vfs_read",
    ],
    "block allocation": ["mb_find_extent <- ext4_mb_scan_aligned <- ext4_mb_regular_allocator <- ext4_mb_new_blocks"],
    "page cache": [
        "xas_load <- filemap_get_entry <- __filemap_get_folio <- iomap_get_folio <- iomap_write_begin",
        # A softirq, which is no work of this operation.
        "net_rx_action <- handle_softirqs <- __irq_exit_rcu <- sysvec_apic_timer_interrupt <- "
        "asm_sysvec_apic_timer_interrupt <- folio_clear_dirty_for_io <- mpage_process_page_bufs",
    ],
    "spinning for a lock": ["rwsem_spin_on_owner <- rwsem_down_write_slowpath <- ext4_buffered_write_iter"],
    "checksum": ["crc32c_pcl_intel_update <- chksum_digest <- ext4_inode_csum <- ext4_mark_iloc_dirty"],
    "unknown (vfs_read)": ["vfs_read <- __x64_sys_pread64"],
}


@pytest.mark.parametrize(("work", "stack"), [(work, stack) for work, stacks in WORKING.items() for stack in stacks])
def test_stacks_say_what_a_task_did(work: str, stack: str) -> None:
    assert work_of(cleaned(stack.split(" <- "))) == work
