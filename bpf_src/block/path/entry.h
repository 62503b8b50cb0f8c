/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Begin and end of a task's operations: at file systems, at functions common to all files, or at system calls. */
#ifndef WPT_PATH_ENTRY_H
#define WPT_PATH_ENTRY_H

#include "block/path/calls.h"
#include "block/path/operation.h"
#include "block/path/async.h"
#include "block/path/inner.h"

/* A file system gets it; an asynchronous one ends elsewhere. */
static __always_inline int on_kiocb_enter(struct kiocb *iocb, struct iov_iter *iter, enum op_kind kind)
{
	if (iocb->ki_complete)
		return issue_kiocb(iocb, iocb->ki_filp, kind, iter->count);
	if (!asks_for_file)
		return begin(NULL, kind, (__u64)iter, &iocb->ki_pos, true);
	return begin(iocb->ki_filp, kind, iter->count, &iocb->ki_pos, true);
}

static __always_inline int on_kiocb_leave(struct kiocb *iocb, __s64 result)
{
	__u64 now = bpf_ktime_get_ns();
	struct op_state *op = find_op(bpf_get_current_task());

	if (!op)
		return 0;
	if (op->kind == OP_STAND_IN) {
		/* The kiocb may be gone: its end is reported on its own. */
		if (result == -EIOCBQUEUED)
			outlives(op);
		free_op(op);
		return 0;
	}
	/* The position has moved by the result, and before that to the end of the file if it is only appended to. */
	if (recording && op->made && op->offset < 0 && result >= 0)
		op->offset = iocb->ki_pos - result;
	return finish(op, iocb, result, now, KNOWN_KIOCB);
}

/*
 * The fourth argument, a pointer to a number. The verifier may refuse to hand over such ones, as 5.10 does, on kernels
 * without the helper get_func_arg; then they are copied.
 */
static __always_inline loff_t *fourth(__u64 *ctx)
{
	loff_t *position = NULL;
	__u64 *copied = ctx;

	if (HAS_HELPER(get_func_arg))
		return (void *)ctx[3];
	/* Otherwise the compiler computes the address once for both, which the verifier refuses to load from. */
	barrier_var(copied);
	bpf_probe_read_kernel(&position, sizeof(position), copied + 3);
	return position;
}

static __always_inline int on_vfs_enter(__u64 *ctx, enum op_kind kind, bool vectored)
{
	struct file *file = (void *)ctx[0];

	if (!is_stored(file, kind, true))
		return 0;
	return begin(file, kind, vectored ? vector_bytes(number_of(ctx[1]), ctx[2]) : ctx[2], fourth(ctx), true);
}

/* The arguments are followed by the result. */
static __always_inline int on_vfs_leave(__u64 *ctx, __u32 arguments)
{
	__u64 now = bpf_ktime_get_ns();
	struct op_state *op = find_op(bpf_get_current_task());

	return op ? finish(op, (void *)ctx[0], ctx[arguments], now, KNOWN_FILE) : 0;
}

#define IS_ONE_OF(kind, kinds) (1U << (kind) & (kinds))
#define READ_CALLS (1U << CALL_KIND_READ | 1U << CALL_KIND_READV | 1U << CALL_KIND_PREAD | 1U << CALL_KIND_PREADV)
#define VECTOR_CALLS (1U << CALL_KIND_READV | 1U << CALL_KIND_WRITEV | 1U << CALL_KIND_PREADV | 1U << CALL_KIND_PWRITEV)
#define OFFSET_CALLS (1U << CALL_KIND_PREAD | 1U << CALL_KIND_PWRITE | 1U << CALL_KIND_PREADV | 1U << CALL_KIND_PWRITEV)
#define SYNC_CALLS \
	(1U << CALL_KIND_FSYNC | 1U << CALL_KIND_SYNCFS | 1U << CALL_KIND_SYNC_FILE_RANGE | 1U << CALL_KIND_SYNC | \
	 1U << CALL_KIND_MSYNC)

static __noinline int begin_sync_call(struct pt_regs *regs, __u8 kind)
{
	struct file *file = NULL;

	/* What is mapped at an address cannot be looked up here. */
	if (kind != CALL_KIND_SYNC && kind != CALL_KIND_MSYNC) {
		file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));
		if (!file)
			return 0;
	}
	if (kind == CALL_KIND_SYNC || kind == CALL_KIND_SYNCFS)
		return begin_whole(file);
	if (kind == CALL_KIND_SYNC_FILE_RANGE)
		return begin_rare(file, OP_KIND_SYNC, PT_REGS_PARM2_CORE_SYSCALL(regs),
				  PT_REGS_PARM3_CORE_SYSCALL(regs));
	return begin_rare(file, OP_KIND_SYNC, -1, 0);
}

static __always_inline int on_call_enter(__u64 *ctx)
{
	struct pt_regs *regs = (void *)ctx[0];
	__u64 number = ctx[1];
	struct op_state *op;
	struct file *file;
	__u64 length;
	__u8 kind;

	if (number >= CALLS)
		return 0;
	kind = calls[number];
	if (!kind || is_foreign_call((void *)bpf_get_current_task(), regs, false))
		return 0;
	if (IS_ONE_OF(kind, SYNC_CALLS))
		return begin_sync_call(regs, kind);
	file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));
	if (!file || !is_stored(file, OP_KIND_READ, false))
		return 0;
	length = PT_REGS_PARM3_CORE_SYSCALL(regs);
	if (IS_ONE_OF(kind, VECTOR_CALLS))
		length = vector_bytes(PT_REGS_PARM2_CORE_SYSCALL(regs), length);
	begin(file, IS_ONE_OF(kind, READ_CALLS) ? OP_KIND_READ : OP_KIND_WRITE, length, NULL, false);
	op = find_op(bpf_get_current_task());
	if (op && IS_ONE_OF(kind, OFFSET_CALLS))
		op->offset = PT_REGS_PARM4_CORE_SYSCALL(regs);
	else if (op)
		op->offset = BPF_CORE_READ(file, f_pos);
	return 0;
}

static __always_inline int on_call_leave(__u64 *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	struct op_state *op = find_op(bpf_get_current_task());

	return op ? finish(op, NULL, ctx[1], now, KNOWN_NOTHING) : 0;
}

#endif
