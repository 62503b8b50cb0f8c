// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The whole path of a synchronous read or write: from the system call over bio (Q), request (G), driver (D), device (H)
 * and completion (S, C) back to the task.
 *
 * An operation is a slot in `ops`, found by its task. A bio that got a request is a slot in `bios`, found by its
 * address, which every later hook finds in the request. When a request completes, its times go to the operation that
 * made it. When the task runs again, the request that completed last is what it waited for, and the time since the last
 * charge goes to that request's stages. So each nanosecond is charged once, however many requests there were.
 */
#include "lib/arguments.h"
#include "lib/gone_cgroups.h"
#include "lib/tracepoint.h"
#include "block/path/children.h"
#include "block/path/drivers.h"
#include "block/path/entry.h"
#include "block/path/frozen.h"
#include "block/path/request.h"
#include "block/path/signals.h"
#include "block/path/task.h"

/* --- Bios and requests -------------------------------------------------------------------------------------------- */

TRACEPOINT(complete, block_rq_complete, on_request_complete((void *)ctx[0], ctx[1], ctx[2], trusted))
TRACEPOINT(issue, block_rq_issue, on_request_issue(FIRST_OR_SECOND(ctx, request_is_second), trusted))
TRACEPOINT(queue, block_bio_queue, on_bio_queue(FIRST_OR_SECOND(ctx, bio_is_second), trusted))
TRACEPOINT(requeue, block_rq_requeue, on_request_requeue(FIRST_OR_SECOND(ctx, request_is_second), trusted))
TRACEPOINT(layer, block_bio_complete, on_bio_complete((void *)ctx[1]))
TRACEPOINT(remap, block_bio_remap,
	   on_bio_remap(number_of((__u64)FIRST_OR_SECOND(ctx, bio_is_second)), (__u64)EITHER(ctx, 1, 2, bio_is_second),
			(__u64)EITHER(ctx, 2, 3, bio_is_second)))
TRACEPOINT(split, block_split,
	   on_bio_split(FIRST_OR_SECOND(ctx, bio_is_second), (__u64)EITHER(ctx, 1, 2, bio_is_second), trusted))

/*
 * A limit of a cgroup: since commit a7b36ee6ba29 ("block: move blk-throtl fast path inline", v5.16) this is called only
 * where there is one.
 */
SEC("fentry/__blk_throtl_bio")
int throttle_fentry(__u64 *ctx)
{
	return on_bio_throttle((void *)ctx[0], false, true);
}

SEC("fentry/blk_throtl_bio")
int throttle_old_fentry(__u64 *ctx)
{
	return on_bio_throttle((void *)ctx[0], true, true);
}

/* --- Drivers ------------------------------------------------------------------------------------------------------ */

SEC("raw_tp/nvme_setup_cmd")
int nvme_setup_raw_tp(__u64 *ctx)
{
	return on_request_setup((void *)ctx[0], false);
}

SEC("raw_tp/nvme_sq")
int nvme_seen_raw_tp(__u64 *ctx)
{
	return on_request_seen((void *)ctx[0], false);
}

SEC("raw_tp/scsi_dispatch_cmd_start")
int scsi_start_raw_tp(__u64 *ctx)
{
	return on_request_handed(before_payload(ctx[0]), false);
}

SEC("raw_tp/scsi_dispatch_cmd_done")
int scsi_seen_raw_tp(__u64 *ctx)
{
	return on_request_seen(before_payload(ctx[0]), false);
}

SEC("fentry/virtblk_add_req")
int virtblk_add_fentry(__u64 *ctx)
{
	return on_request_handed(before_payload(ctx[1]), false);
}

/* Its fifth argument is the driver's cookie: with other drivers it is something else, which no request has. */
SEC("kprobe/virtqueue_add_sgs")
int virtblk_add_kprobe(struct pt_regs *ctx)
{
	return on_request_handed(before_payload(PT_REGS_PARM5(ctx)), false);
}

SEC("fentry/blk_mq_complete_request")
int seen_fentry(__u64 *ctx)
{
	return on_request_seen((void *)ctx[0], true);
}

SEC("kprobe/blk_mq_complete_request")
int seen_kprobe(struct pt_regs *ctx)
{
	return on_request_seen((void *)PT_REGS_PARM1(ctx), false);
}

/* --- The task, and what takes its CPU ----------------------------------------------------------------------------- */

TRACEPOINT(switch, sched_switch, on_task_switch(ctx, trusted))
TRACEPOINT(hardirq_entry, irq_handler_entry, on_hardirq_entry())
TRACEPOINT(hardirq_exit, irq_handler_exit, on_hardirq_exit((void *)ctx[1], trusted))
TRACEPOINT(softirq_entry, softirq_entry, on_softirq_entry())
TRACEPOINT(softirq_exit, softirq_exit, on_softirq_exit(ctx[0]))

TRACEPOINT(tag_wait, block_rq_tag_wait, on_tag_wait((void *)ctx[1]))
TRACEPOINT(zone_plug, disk_zone_wplug_add_bio, on_zone_plug())

SEC("raw_tp/cpuhp_enter")
int cpu_move_raw_tp(__u64 *ctx)
{
	return on_cpu_move(ctx[2]);
}

SEC("perf_event")
int tick_perf(void *ctx)
{
	on_tick();
	return on_tick_of_work(ctx);
}

/*
 * The limit is in a single argument, a dirty_throttle_control, or in several ones: Python checks BTF
 * (writeback:balance_dirty_pages).
 */
TRACEPOINT(dirty_limit, balance_dirty_pages, on_dirty_pause(ctx))

/* --- Cgroups -------------------------------------------------------------------------------------------------------- */

SEC("raw_tp/cgroup_rmdir")
int cgroup_removed_raw_tp(__u64 *ctx)
{
	return on_cgroup_removed((void *)ctx[0], (void *)ctx[1]);
}

/* --- Writeback and journals --------------------------------------------------------------------------------------- */

TRACEPOINT(dirty, writeback_dirty_folio, on_folio_dirty((void *)ctx[0], (void *)ctx[1], trusted))
TRACEPOINT(dirty_page, writeback_dirty_page, on_page_dirty((void *)ctx[0], (void *)ctx[1], trusted))

SEC("raw_tp/jbd2_start_commit")
int commit_start_raw_tp(__u64 *ctx)
{
	return on_commit_start(ctx[0]);
}

SEC("raw_tp/jbd2_run_stats")
int commit_number_raw_tp(__u64 *ctx)
{
	return on_commit_written(ctx[0], ctx[1]);
}

SEC("raw_tp/jbd2_end_commit")
int commit_end_raw_tp(__u64 *ctx)
{
	return on_commit_end(ctx[0]);
}

SEC("raw_tp/jbd2_handle_stats")
int handle_raw_tp(__u64 *ctx)
{
	return on_handle_stop(ctx[0], ctx[1], ctx[7]);
}

#define JOURNAL(function, journal, transaction) \
	SEC("fentry/" #function) \
	int function##_entry(__u64 *ctx) \
	{ \
		return on_journal_wait(journal, transaction); \
	} \
	SEC("fexit/" #function) \
	int function##_exit(__u64 *ctx) \
	{ \
		return on_journal_wait_end(); \
	}

#define JOURNAL_OLD(function, journal, transaction) \
	SEC("kprobe/" #function) \
	int function##_kprobe(struct pt_regs *ctx) \
	{ \
		return on_journal_wait(journal, transaction); \
	} \
	SEC("kretprobe/" #function) \
	int function##_kretprobe(struct pt_regs *ctx) \
	{ \
		return on_journal_wait_end(); \
	}

JOURNAL(jbd2_log_wait_commit, number_of(ctx[0]), ctx[1])
JOURNAL_OLD(jbd2_log_wait_commit, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx))
/* Before a change may begin: the transaction is being committed. */
JOURNAL(wait_transaction_locked, 0, 0)
JOURNAL_OLD(wait_transaction_locked, 0, 0)
/*
 * In place of xfs_log_force_lsn, since commit 5f9b4b0de8dc ("xfs: xfs_log_force_lsn isn't passed a LSN", v5.14) and in
 * stable kernels.
 */
JOURNAL(xfs_log_force_seq, 0, 0)
JOURNAL_OLD(xfs_log_force_seq, 0, 0)
JOURNAL(btrfs_sync_log, 0, 0)
JOURNAL_OLD(btrfs_sync_log, 0, 0)

#ifndef REQUESTS_ALONE

/* --- Operations --------------------------------------------------------------------------------------------------- */

/*
 * Operations at functions of file systems, which serve asynchronous ones as well. So no program runs for files of other
 * kinds: pipes, sockets, terminals.
 */
#define FILE_SYSTEM(prefix) \
	SEC("fentry/" #prefix "_read_iter") \
	int prefix##_read_iter_entry(__u64 *ctx) \
	{ \
		return on_kiocb_enter((void *)ctx[0], (void *)ctx[1], OP_KIND_READ); \
	} \
	SEC("fexit/" #prefix "_read_iter") \
	int prefix##_read_iter_exit(__u64 *ctx) \
	{ \
		return on_kiocb_leave((void *)ctx[0], ctx[2]); \
	} \
	SEC("fentry/" #prefix "_write_iter") \
	int prefix##_write_iter_entry(__u64 *ctx) \
	{ \
		return on_kiocb_enter((void *)ctx[0], (void *)ctx[1], OP_KIND_WRITE); \
	} \
	SEC("fexit/" #prefix "_write_iter") \
	int prefix##_write_iter_exit(__u64 *ctx) \
	{ \
		return on_kiocb_leave((void *)ctx[0], ctx[2]); \
	}

FILE_SYSTEM(blkdev)
FILE_SYSTEM(ext4_file)
FILE_SYSTEM(xfs_file)
FILE_SYSTEM(btrfs_file)

/* Its second argument: do not wait. */
SEC("fentry/__percpu_down_read")
int frozen_fentry(__u64 *ctx)
{
	return (__u8)ctx[1] ? 0 : on_shared_lock(ctx, ctx[0]);
}

/* Operations at the functions that all their system calls go through, for any file system. */
#define OPERATION(function, kind, vectored, arguments) \
	SEC("fentry/" #function) \
	int function##_entry(__u64 *ctx) \
	{ \
		return on_vfs_enter(ctx, kind, vectored); \
	} \
	SEC("fexit/" #function) \
	int function##_exit(__u64 *ctx) \
	{ \
		return on_vfs_leave(ctx, arguments); \
	}

OPERATION(vfs_read, OP_KIND_READ, false, 4)
OPERATION(vfs_write, OP_KIND_WRITE, false, 4)
OPERATION(vfs_readv, OP_KIND_READ, true, 5)
OPERATION(vfs_writev, OP_KIND_WRITE, true, 5)

/* Where functions cannot be observed: by the number of the system call. */
SEC("raw_tp/sys_enter")
int call_enter_raw_tp(__u64 *ctx)
{
	return on_call_enter(ctx);
}

SEC("raw_tp/sys_exit")
int call_exit_raw_tp(__u64 *ctx)
{
	return on_call_leave(ctx);
}

/* --- Eventfds of a hypervisor ------------------------------------------------------------------------------------- */

SEC("raw_tp/sys_enter")
int signal_write_raw_tp(__u64 *ctx)
{
	return on_signal_write((void *)ctx[0], ctx[1]);
}

SEC("raw_tp/sys_exit")
int signal_read_raw_tp(__u64 *ctx)
{
	return on_signal_read((void *)ctx[0], ctx[1]);
}

/* --- Children of a process ---------------------------------------------------------------------------------------- */

SEC("raw_tp/sched_process_fork")
int fork_raw_tp(__u64 *ctx)
{
	return on_fork((void *)ctx[1]);
}

SEC("raw_tp/sched_process_free")
int task_free_raw_tp(__u64 *ctx)
{
	return on_task_free((void *)ctx[0]);
}

/* --- Asynchronous operations -------------------------------------------------------------------------------------- */

/* 6.0 gave it another name. */
SEC("raw_tp/io_uring_submit_req")
int uring_submit_raw_tp(__u64 *ctx)
{
	return on_uring_submit((void *)ctx[0]);
}

SEC("raw_tp/io_uring_submit_sqe")
int uring_submit_old_raw_tp(__u64 *ctx)
{
	return on_uring_submit((void *)ctx[0]);
}

SEC("raw_tp/io_uring_complete")
int uring_complete_raw_tp(__u64 *ctx)
{
	return on_uring_complete(ctx);
}

SEC("fentry/io_req_cqe_overflow")
int uring_overflow_fentry(__u64 *ctx)
{
	return on_uring_overflow(ctx[0]);
}

/* Of later kernels. What it gets lies in the request, if it is the completion of one. */
SEC("fentry/io_alloc_ocqe")
int uring_overflow_new_fentry(__u64 *ctx)
{
	return on_uring_overflow(number_of(ctx[1]) - bpf_core_field_offset(struct io_kiocb, cqe));
}

SEC("fentry/aio_read")
int aio_read_fentry(__u64 *ctx)
{
	return on_aio_submit(ctx[0]);
}

SEC("fentry/aio_write")
int aio_write_fentry(__u64 *ctx)
{
	return on_aio_submit(ctx[0]);
}

/*
 * If file systems are not watched one by one, these functions call into any of them: what follows their
 * begin is the work of the operation.
 */
#define AIO_WHOLE(function, kind) \
	SEC("fexit/" #function) \
	int function##_whole_fexit(__u64 *ctx) \
	{ \
		return on_aio_leave(ctx[0], ctx[4]); \
	} \
	SEC("fentry/" #function) \
	int function##_whole_fentry(__u64 *ctx) \
	{ \
		on_aio_submit(ctx[0]); \
		/* The upper bits of a bool are undefined. */ \
		return on_aio_enter((void *)ctx[0], ctx[1], kind, (__u8)ctx[2]); \
	}

AIO_WHOLE(aio_read, OP_KIND_READ)
AIO_WHOLE(aio_write, OP_KIND_WRITE)

SEC("fentry/aio_fsync")
int aio_fsync_fentry(__u64 *ctx)
{
	return on_aio_submit(ctx[0]);
}

SEC("fentry/aio_fsync_work")
int aio_fsync_work_entry(__u64 *ctx)
{
	return on_aio_fsync_enter(ctx[0]);
}

SEC("fexit/aio_fsync_work")
int aio_fsync_work_exit(__u64 *ctx)
{
	return on_aio_fsync_leave(ctx[0]);
}

SEC("fentry/iomap_dio_complete_work")
int late_work_entry(__u64 *ctx)
{
	return on_late_work_enter(number_of(ctx[0]));
}

SEC("fexit/iomap_dio_complete_work")
int late_work_exit(__u64 *ctx)
{
	return on_late_work_leave();
}

SEC("fentry/aio_complete_rw")
int aio_complete_fentry(__u64 *ctx)
{
	return on_async_end(ctx[0], ctx[1]);
}

/* --- Syncs and page faults ---------------------------------------------------------------------------------------- */

/*
 * fsync, fdatasync and msync, and the last part of a write with O_SYNC or O_DSYNC. A compiler may have made one of the
 * functions of the kernel that call that of a file system a part of the next, so they are watched only for others.
 */
#define SYNC(function) \
	SEC("fentry/" #function) \
	int function##_entry(__u64 *ctx) \
	{ \
		return on_sync_enter((void *)ctx[0], ctx[1], ctx[2]); \
	} \
	SEC("fexit/" #function) \
	int function##_exit(__u64 *ctx) \
	{ \
		return on_inner_leave((__s32)ctx[4]); \
	}

SYNC(blkdev_fsync)
SYNC(ext4_sync_file)
SYNC(xfs_file_fsync)
SYNC(xfs_dir_fsync)
SYNC(btrfs_sync_file)
SYNC(vfs_fsync_range)

SEC("fentry/vfs_fsync")
int vfs_fsync_entry(__u64 *ctx)
{
	return on_sync_enter((void *)ctx[0], 0, WHOLE_FILE);
}

SEC("fexit/vfs_fsync")
int vfs_fsync_exit(__u64 *ctx)
{
	return on_inner_leave((__s32)ctx[2]);
}

/* The functions above may be inlined in them: in fdatasync of 5.10, both are. */
#define SYNC_CALL(name, on_enter) \
	SEC("fentry/" SYSTEM_CALL(name)) \
	int sys_##name##_entry(__u64 *ctx) \
	{ \
		return on_enter((void *)ctx[0]); \
	} \
	SEC("fexit/" SYSTEM_CALL(name)) \
	int sys_##name##_exit(__u64 *ctx) \
	{ \
		return on_inner_leave(ctx[1]); \
	}

SYNC_CALL(fsync, on_sync_call_enter)
SYNC_CALL(fdatasync, on_sync_call_enter)
/* Syncs of a whole file system, and of all of them. */
SYNC_CALL(syncfs, on_syncfs_enter)

SEC("fentry/ksys_sync")
int ksys_sync_entry(void *ctx)
{
	return on_sync_enter_all();
}

SEC("fexit/ksys_sync")
int ksys_sync_exit(void *ctx)
{
	return on_inner_leave(0);
}

SEC("fentry/sync_file_range")
int sync_file_range_entry(__u64 *ctx)
{
	return on_range_sync_enter((void *)ctx[0], ctx[1], ctx[2]);
}

SEC("fexit/sync_file_range")
int sync_file_range_exit(__u64 *ctx)
{
	return on_inner_leave((__s32)ctx[4]);
}

SEC("fentry/filemap_fault")
int filemap_fault_entry(__u64 *ctx)
{
	return on_file_fault_enter((void *)ctx[0]);
}

SEC("fexit/filemap_fault")
int filemap_fault_exit(__u64 *ctx)
{
	return on_fault_leave(ctx[1]);
}

SEC("fentry/do_swap_page")
int do_swap_page_entry(__u64 *ctx)
{
	return on_swap_fault_enter();
}

SEC("fexit/do_swap_page")
int do_swap_page_exit(__u64 *ctx)
{
	return on_fault_leave(ctx[1]);
}

/* --- Units of work of programs: Python attaches these where a definition says ------------------------------------------ */

SEC("uprobe")
int unit_begin(void *ctx)
{
	return on_unit_begin(ctx);
}

SEC("uprobe")
int unit_named_later(void *ctx)
{
	return on_unit_named_later(ctx);
}

SEC("uprobe")
int unit_end(void *ctx)
{
	return on_unit_end();
}

#endif

char LICENSE[] SEC("license") = "Dual BSD/GPL";
