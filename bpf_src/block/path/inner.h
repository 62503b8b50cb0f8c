/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Operations within another operation: syncs (of a write with O_SYNC), page faults (on the buffer that is read
 * into), waits for a journal. They are part of the outer one; a sync or fault by itself is an operation.
 */
#ifndef WPT_PATH_INNER_H
#define WPT_PATH_INNER_H

#include "block/path/state.h"
#include "block/path/operation.h"
#include "block/path/journal.h"

/* --- Syncs and page faults ---------------------------------------------------------------------------------------- */

/* They are rare, so each is charged from its beginning. */
static __noinline int begin_rare(struct file *file, enum op_kind kind, __s64 offset, __u64 length)
{
	struct op_state *op;

	if (file && !is_stored(file, kind, false))
		return 0;
	begin(file, kind, length, NULL, false);
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

static __noinline int on_inner_leave(__s64 result)
{
	__u64 now = bpf_ktime_get_ns();
	struct op_state *op = find_op(bpf_get_current_task());

	if (!op)
		return 0;
	if (op->depth) {
		op->depth--;
		op->result = result;
		return 0;
	}
	return finish(op, NULL, result, now, KNOWN_NOTHING);
}

#define WHOLE_FILE (~0ULL >> 1) /* LLONG_MAX */

static __noinline int on_sync_enter(struct file *file, __u64 start, __u64 end)
{
	if (end >= WHOLE_FILE)
		return begin_inner(file, OP_KIND_SYNC, -1, 0);
	return begin_inner(file, OP_KIND_SYNC, start, end - start + 1);
}

static __always_inline int on_range_sync_enter(struct file *file, __s64 offset, __u64 length)
{
	return begin_inner(file, OP_KIND_SYNC, offset, length);
}

#ifdef __TARGET_ARCH_arm64
#define SYSTEM_CALL(name) "__arm64_sys_" #name
#else
#define SYSTEM_CALL(name) "__x64_sys_" #name
#endif

static __always_inline int on_sync_call_enter(struct pt_regs *regs)
{
	struct file *file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));

	return file ? on_sync_enter(file, 0, WHOLE_FILE) : 0;
}

/* All of a file system, or of all of them without a file. A filter for files asks for less. */
static __noinline int begin_whole(struct file *file)
{
	struct op_state *op;

	if (filter_file)
		return 0;
	begin_rare(file, OP_KIND_SYNC, -1, 0);
	op = find_op(bpf_get_current_task());
	if (op)
		op->whole = true;
	return 0;
}

static __always_inline int on_syncfs_enter(struct pt_regs *regs)
{
	struct file *file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));

	return file ? begin_whole(file) : 0;
}

static __always_inline int on_sync_enter_all(void)
{
	return begin_whole(NULL);
}

/* include/linux/mm_types.h */
#define VM_FAULT_OOM 0x1
#define VM_FAULT_SIGBUS 0x2
#define EIO 5
#define ENOMEM 12

/* The page, or an error. A copy: otherwise the verifier follows the rest of the code for each of the three cases. */
static __always_inline __s64 fault_result(__u32 flags)
{
	__s64 result = 1 << page_shift;

	if (flags & VM_FAULT_OOM)
		result = -ENOMEM;
	else if (flags & VM_FAULT_SIGBUS)
		result = -EIO;
	return number_of(result);
}

static __always_inline int on_file_fault_enter(struct vm_fault *fault)
{
	struct file *file = BPF_CORE_READ(fault, vma, vm_file);
	__u64 page = BPF_CORE_READ(fault, pgoff);

	return begin_inner(file, OP_KIND_PAGEFAULT, page << page_shift, 1 << page_shift);
}

static __always_inline int on_swap_fault_enter(void)
{
	return begin_inner(NULL, OP_KIND_SWAPIN, -1, 1 << page_shift);
}

static __always_inline int on_fault_leave(__u32 flags)
{
	return on_inner_leave(fault_result(flags));
}

/* --- Waits for a journal ------------------------------------------------------------------------------------------ */

static __noinline int on_journal_wait(__u64 journal, __u32 transaction)
{
	struct op_state *op = op_of(bpf_get_current_task());
	__u32 place;

	if (!op || op->kind != OP_TRACED)
		return 0;
	settle(op);
	/* Everything was complete before its task had to wait. */
	if (op->last && all_ended(op))
		charge_last(op);
	open_account(op);
	charge_above(op);
	op->above = 0;
	advance(op, OP_STAGE_FS, bpf_ktime_get_ns());
	op->in_journal = true;
	if (!transaction)
		return 0;
	/* It was not on the disk at the start of the wait: if it is now, it was committed while this task did not run. */
	place = claim_journal(journal);
	op->transaction = transaction;
	op->journal = place < JOURNALS ? place + 1 : 0;
	return 0;
}

static __noinline int on_journal_wait_end(void)
{
	struct op_state *op = op_of(bpf_get_current_task());

	if (!op || op->kind != OP_TRACED || !op->in_journal)
		return 0;
	advance(op, OP_STAGE_JOURNAL, bpf_ktime_get_ns());
	op->in_journal = false;
	return 0;
}

#endif
