/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What may happen inside of another operation: syncs (a write with O_SYNC), page faults (of the buffer that is read
 * into), waits for a journal. There it is part of that operation; alone, a sync or a fault is one itself.
 */
#ifndef WPT_PATH_INNER_H
#define WPT_PATH_INNER_H

/* --- Syncs and page faults ---------------------------------------------------------------------------------------- */

/* They are few: each has an account of its own from the beginning. */
static __noinline int begin_rare(struct file *file, enum op_kind kind, __s64 offset, __u64 length)
{
	struct op_state *op;

	if (file && !is_stored(file, kind, false))
		return 0;
	begin(file, kind, length, NULL);
	op = find_op(bpf_get_current_task());
	if (!op || op->kind != OP_TRACED)
		return 0;
	op->offset = offset;
	open_account(op);
	return 0;
}

static __noinline int begin_inner(struct file *file, enum op_kind kind, __s64 offset, __u64 length)
{
	struct op_state *op = find_op(bpf_get_current_task());

	if (op) {
		op->depth++;
		return 0;
	}
	return begin_rare(file, kind, offset, length);
}

static __noinline int end_inner(__s64 result)
{
	__u64 now = bpf_ktime_get_ns();
	struct op_state *op = find_op(bpf_get_current_task());

	if (!op)
		return 0;
	if (op->depth) {
		op->depth--;
		return 0;
	}
	return finish(op, NULL, result, now, false);
}

#define WHOLE_FILE (~0ULL >> 1) /* LLONG_MAX */

static __noinline int begin_sync(struct file *file, __u64 start, __u64 end)
{
	if (end >= WHOLE_FILE)
		return begin_inner(file, OP_KIND_SYNC, -1, 0);
	return begin_inner(file, OP_KIND_SYNC, start, end - start + 1);
}

/*
 * fsync, fdatasync and msync, and the last part of a write with O_SYNC or O_DSYNC. A compiler may have made one of the
 * functions of the kernel that call that of a file system a part of the next, so they are watched only for others.
 */
#define SYNC(function) \
	SEC("fentry/" #function) \
	int function##_entry(__u64 *ctx) \
	{ \
		return begin_sync((void *)ctx[0], ctx[1], ctx[2]); \
	} \
	SEC("fexit/" #function) \
	int function##_exit(__u64 *ctx) \
	{ \
		return end_inner((__s32)ctx[4]); \
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
	return begin_sync((void *)ctx[0], 0, WHOLE_FILE);
}

SEC("fexit/vfs_fsync")
int vfs_fsync_exit(__u64 *ctx)
{
	return end_inner((__s32)ctx[2]);
}

static __always_inline struct file *file_of(__u32 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *file = NULL;

	if (fd < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	return file;
}

#ifdef __TARGET_ARCH_arm64
#define SYSTEM_CALL(name) "__arm64_sys_" #name
#else
#define SYSTEM_CALL(name) "__x64_sys_" #name
#endif

static __always_inline int begin_sync_of(struct pt_regs *regs)
{
	struct file *file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));

	return file ? begin_sync(file, 0, WHOLE_FILE) : 0;
}

/* They may have both of those above as a part of them: in 5.10, fdatasync has. */
#define SYNC_CALL(name) \
	SEC("fentry/" SYSTEM_CALL(name)) \
	int sys_##name##_entry(__u64 *ctx) \
	{ \
		return begin_sync_of((void *)ctx[0]); \
	} \
	SEC("fexit/" SYSTEM_CALL(name)) \
	int sys_##name##_exit(__u64 *ctx) \
	{ \
		return end_inner(ctx[1]); \
	}

SYNC_CALL(fsync)
SYNC_CALL(fdatasync)

SEC("fentry/sync_file_range")
int sync_file_range_entry(__u64 *ctx)
{
	return begin_inner((void *)ctx[0], OP_KIND_SYNC, ctx[1], ctx[2]);
}

SEC("fexit/sync_file_range")
int sync_file_range_exit(__u64 *ctx)
{
	return end_inner((__s32)ctx[4]);
}

/* include/linux/mm_types.h */
#define VM_FAULT_OOM 0x1
#define VM_FAULT_SIGBUS 0x2
#define EIO 5
#define ENOMEM 12

/* A page that is there, or why it is not: a copy, or the verifier looks at all that follows for each of the three. */
static __always_inline __s64 fault_result(__u32 flags)
{
	__s64 result = 1 << page_shift;

	if (flags & VM_FAULT_OOM)
		result = -ENOMEM;
	else if (flags & VM_FAULT_SIGBUS)
		result = -EIO;
	return number_of(result);
}

SEC("fentry/filemap_fault")
int filemap_fault_entry(__u64 *ctx)
{
	struct vm_fault *fault = (void *)ctx[0];
	struct file *file = BPF_CORE_READ(fault, vma, vm_file);
	__u64 page = BPF_CORE_READ(fault, pgoff);

	return begin_inner(file, OP_KIND_PAGEFAULT, page << page_shift, 1 << page_shift);
}

SEC("fexit/filemap_fault")
int filemap_fault_exit(__u64 *ctx)
{
	return end_inner(fault_result(ctx[1]));
}

SEC("fentry/do_swap_page")
int do_swap_page_entry(__u64 *ctx)
{
	return begin_inner(NULL, OP_KIND_SWAPIN, -1, 1 << page_shift);
}

SEC("fexit/do_swap_page")
int do_swap_page_exit(__u64 *ctx)
{
	return end_inner(fault_result(ctx[1]));
}

/* --- Waits for a journal ------------------------------------------------------------------------------------------ */

static __noinline int enter_journal(__u64 journal, __u32 transaction)
{
	struct op_state *op = op_of(bpf_get_current_task());
	__u32 place;

	if (!op || op->kind != OP_TRACED)
		return 0;
	settle(op);
	/* All was there before its task had to wait. */
	if (op->last && all_ended(op))
		charge_last(op);
	open_account(op);
	charge_above(op);
	op->above = 0;
	advance(op, OP_STAGE_FS, bpf_ktime_get_ns());
	op->in_journal = true;
	if (!transaction)
		return 0;
	/* It was not on the disk when it was asked for: if it is by now, it was made while this task did not run. */
	place = claim_journal(journal);
	op->transaction = transaction;
	op->journal = place < JOURNALS ? place + 1 : 0;
	return 0;
}

static __noinline int leave_journal(void)
{
	struct op_state *op = op_of(bpf_get_current_task());

	if (!op || op->kind != OP_TRACED || !op->in_journal)
		return 0;
	advance(op, OP_STAGE_JOURNAL, bpf_ktime_get_ns());
	op->in_journal = false;
	return 0;
}

#define JOURNAL(function, journal, transaction) \
	SEC("fentry/" #function) \
	int function##_entry(__u64 *ctx) \
	{ \
		return enter_journal(journal, transaction); \
	} \
	SEC("fexit/" #function) \
	int function##_exit(__u64 *ctx) \
	{ \
		return leave_journal(); \
	}

#define JOURNAL_OLD(function, journal, transaction) \
	SEC("kprobe/" #function) \
	int function##_kprobe(struct pt_regs *ctx) \
	{ \
		return enter_journal(journal, transaction); \
	} \
	SEC("kretprobe/" #function) \
	int function##_kretprobe(struct pt_regs *ctx) \
	{ \
		return leave_journal(); \
	}

JOURNAL(jbd2_log_wait_commit, number_of(ctx[0]), ctx[1])
JOURNAL_OLD(jbd2_log_wait_commit, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx))
/* Before a change may begin: the transaction is being committed. */
JOURNAL(wait_transaction_locked, 0, 0)
JOURNAL_OLD(wait_transaction_locked, 0, 0)
/* 5.14 (5f9b4b0de8dc) and its stable kernels have it in place of xfs_log_force_lsn. */
JOURNAL(xfs_log_force_seq, 0, 0)
JOURNAL_OLD(xfs_log_force_seq, 0, 0)
JOURNAL(btrfs_sync_log, 0, 0)
JOURNAL_OLD(btrfs_sync_log, 0, 0)

#endif
