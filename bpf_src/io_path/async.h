/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Operations that their task does not wait for in a system call: io_uring and Linux AIO.
 *
 * Each has a kiocb, which lies at the very begin of the io_kiocb or aio_kiocb around it and is its key from the
 * submission to the completion event. While a task works on one (its submitter, or a worker of io_uring), that task has
 * a place as well, which stands in for it: what the task queues and waits for belongs to the operation.
 */
#ifndef WPT_IO_PATH_ASYNC_H
#define WPT_IO_PATH_ASYNC_H

struct aio_kiocb___known {
	struct {
		__u64 obj;
	} ki_res;
} __attribute__((preserve_access_index));

/* include/uapi/linux/io_uring.h: what reads or writes a file. */
#define URING_CALLS \
	(1ULL << 1 | 1ULL << 2 | 1ULL << 4 | 1ULL << 5 | 1ULL << 22 | 1ULL << 23 | 1ULL << 49 | 1ULL << 60 | 1ULL << 61)
#define CQE_SKIP_SUCCESS (1 << 6)

static __always_inline int submit(__u64 key, enum interface interface, __u64 user_data)
{
	struct op_state *op;

	if (!tracing || no_operations)
		return 0;
	if (filtering && !task_passes())
		return 0; /* nor do its bios */
	op = claim_op(key);
	if (!op) {
		COUNT(loss[PATH_CAUSE_OP_FULL]);
		return 0;
	}
	if (op->task == key && op->kind == OP_TRACED)
		COUNT(loss[PATH_CAUSE_OP_UNENDED]);
	op->task = key;
	op->kind = OP_SUBMITTED;
	begin_anew(op);
	op->interface = interface;
	op->tid = bpf_get_current_pid_tgid();
	if (telling) {
		struct submitter *submitter = submitter_at(op->place);

		submitter->user_data = user_data;
		submitter->cgroup = bpf_get_current_cgroup_id();
		submitter->tgid = bpf_get_current_pid_tgid() >> 32;
		submitter->tid = bpf_get_current_pid_tgid();
		bpf_get_current_comm(submitter->comm, sizeof(submitter->comm));
	}
	op->start_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int submit_uring(struct io_kiocb *req)
{
	__u8 opcode = BPF_CORE_READ(req, opcode);
	__u64 user_data = 0;

	if (opcode > 63 || !(URING_CALLS >> opcode & 1))
		return 0;
	/* Nobody hears of its end. */
	if (BPF_CORE_READ(req, flags) & CQE_SKIP_SUCCESS)
		return 0;
	/* 5.10 has it elsewhere, and is not used: there nobody hears of the end. */
	if (bpf_core_field_exists(req->cqe.user_data))
		user_data = BPF_CORE_READ(req, cqe.user_data);
	return submit((__u64)req, INTERFACE_URING, user_data);
}

/*
 * A file system that lies over another one (overlayfs, FUSE with passthrough) hands that a kiocb of its own, and keeps the
 * one that it got right behind it: struct backing_aio, before 6.8 (a6293b3e285c) struct ovl_aio_req of the module. So what
 * lies there is the key of one of ours, or it is none. Such file systems may lie over one another.
 */
#define WRAPPINGS 2 /* FILESYSTEM_MAX_STACK_DEPTH */
#define WORDS_BEHIND 2 /* a counter may come first */

/* The place of the operation inside of which a file system made this kiocb, or OPS. Global, and of a number. */
__noinline __u32 wrapped_place(__u64 iocb)
{
	int level, word;

	for (level = 0; level < WRAPPINGS; level++) {
		__u64 inner = 0;

		for (word = 0; word < WORDS_BEHIND; word++) {
			__u64 key = 0;
			struct op_state *op;

			bpf_probe_read_kernel(&key, sizeof(key),
					      (void *)iocb + bpf_core_type_size(struct kiocb) + word * sizeof(key));
			if ((__s64)key >= 0)
				continue; /* no address of the kernel's */
			inner = key;
			op = find_op_in_loop(key);
			if (op && op->interface != INTERFACE_CALL)
				return op->place;
		}
		if (!inner)
			break;
		iocb = inner;
	}
	return OPS;
}

/* A file system gets it: in the task that submitted it, or in a worker, or in both after one another. */
static __always_inline int issue_kiocb(struct kiocb *iocb, struct file *file, enum op_kind kind, __u64 length)
{
	struct op_state *op = find_op((__u64)iocb), *stand_in;
	__u64 task;
	__u32 place;

	if (!op) {
		place = wrapped_place(number_of((__u64)iocb));
		if (place >= OPS)
			return 0; /* filtered out, or one of the kernel's own */
		op = op_at(place);
		/* It is there until the end. */
		iocb = (void *)op->task;
	}
	if (op->kind == OP_SUBMITTED) {
		if (filtering && !operation_passes(file, kind, length))
			op->kind = OP_IGNORED;
		else
			open_op(op, file, kind, length, &iocb->ki_pos);
	}
	/* What no file system could do at once, it gets again. */
	if (!op->made)
		op->issued_ns = bpf_ktime_get_ns();
	task = bpf_get_current_task();
	stand_in = claim_op(task);
	if (!stand_in)
		return 0;
	if (stand_in->only)
		release_only(stand_in->place, true);
	begin_anew(stand_in);
	stand_in->kind = OP_STAND_IN;
	stand_in->stands_for = (__u64)iocb;
	stand_in->target = op->place;
	stand_in->task = task;
	return 0;
}

struct super_block___stacked {
	int s_stack_depth;
} __attribute__((preserve_access_index));

/* It is done, and no file system that is known here ever got it: not what is read from sockets and the like. */
static __noinline int count_unentered(struct kiocb *iocb)
{
	struct file *file = BPF_CORE_READ(iocb, ki_filp);
	struct super_block___stacked *super;
	__u16 slot;

	if (!file || !is_stored(file, OP_KIND_READ, false) || !file_matches(file, false))
		return 0;
	/* What lies over another one may have its data on any device. */
	super = (void *)BPF_CORE_READ(file, f_inode, i_sb);
	if (row_of_file(file, &slot, false) || BPF_CORE_READ(super, s_stack_depth))
		COUNT(loss[PATH_CAUSE_UNENTERED]);
	return 0;
}

static __always_inline int end_async(__u64 key, __s64 result)
{
	struct op_state *op = find_op(key);
	__u64 now;

	if (!op)
		return 0;
	if (op->kind == OP_SUBMITTED && result >= 0)
		count_unentered((void *)key);
	now = bpf_ktime_get_ns();
	/* From the completion of what came last to the event that says so. */
	if (op->last && !op->woken_ns)
		op->woken_ns = now;
	return finish(op, NULL, result, now, false);
}

#endif
