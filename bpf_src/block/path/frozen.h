/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A frozen file system blocks a write before it gets it. Where operations begin in a file system, that write
 * begins here, without a file: begin() finds it again.
 */
#ifndef WPT_PATH_FROZEN_H
#define WPT_PATH_FROZEN_H

#include "block/path/operation.h"

struct sb_writers___frozen {
	unsigned short frozen;
	struct {
	} rw_sem[3]; /* the first one is that of writes */
} __attribute__((preserve_access_index));

struct super_block___frozen {
	dev_t s_dev;
	struct sb_writers___frozen s_writers;
} __attribute__((preserve_access_index));

/* The kernel's functions for writes, after which a file system surely gets the blocked write; 0: unknown. */
#define WRITE_FUNCTIONS 4
__u64 write_begin[WRITE_FUNCTIONS];
__u64 write_bytes[WRITE_FUNCTIONS];

/* The number of frames to search for them, past the trampoline and the function that waits. */
#define FROZEN_FRAMES 8

/* Global: its loop is verified once. */
__noinline bool is_in_write(__u64 address)
{
	int number;

	for (number = 0; number < WRITE_FUNCTIONS; number++) {
		if (address - write_begin[number] < write_bytes[number])
			return true;
	}
	return false;
}

static __noinline bool comes_from_write(void *ctx)
{
	__u64 frames[FROZEN_FRAMES] = {};
	int frame;

	if (bpf_get_stack(ctx, frames, sizeof(frames), 0) <= 0)
		return false;
#pragma unroll
	for (frame = 0; frame < FROZEN_FRAMES; frame++) {
		if (is_in_write(frames[frame]))
			return true;
	}
	return false;
}

/* Called when a writer has the lock or is about to; most of these locks belong to other things. */
static __always_inline int on_shared_lock(void *ctx, __u64 lock)
{
	struct super_block___frozen *super =
		(void *)(lock - bpf_core_field_offset(struct super_block___frozen, s_writers.rw_sem));
	__u64 task = bpf_get_current_task();
	struct file_device *found;
	struct op_state *op;

	if (!operating || find_op(task) || !BPF_CORE_READ(super, s_writers.frozen))
		return 0;
	found = file_device_of(BPF_CORE_READ(super, s_dev));
	if (!found || !comes_from_write(ctx))
		return 0;
	if (filtering && (!task_passes() || !operation_passes(NULL, OP_KIND_WRITE, 0)))
		return 0;
	op = op_for(task);
	if (!op) {
		COUNT(loss[PATH_CAUSE_OP_FULL]);
		return 0;
	}
	op->kind = OP_IGNORED;
	begin_anew(op);
	open_op(op, NULL, OP_KIND_WRITE, 0, NULL, false);
	op->slot = found->slot;
	op->frozen = true;
	op->start_ns = bpf_ktime_get_ns();
	barrier();
	op->kind = OP_TRACED;
	return 0;
}

#endif
