/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Operations that their task does not wait for in a system call: io_uring and Linux AIO.
 *
 * Each has a kiocb, which lies at the very begin of the io_kiocb or aio_kiocb around it and is its key from the
 * submission to the end that is reported. While a task works on one (its submitter, or a worker of io_uring), that task
 * has a slot as well, which stands in for it: what the task queues and waits for belongs to the operation.
 */
#ifndef WPT_PATH_ASYNC_H
#define WPT_PATH_ASYNC_H

#include "block/path/state.h"
#include "block/path/operation.h"

struct aio_kiocb___known {
	struct {
		__u64 obj;
	} ki_res;
} __attribute__((preserve_access_index));

/* include/uapi/linux/io_uring.h: what reads or writes a file. */
#define URING_CALLS \
	(1ULL << 1 | 1ULL << 2 | 1ULL << 4 | 1ULL << 5 | 1ULL << 22 | 1ULL << 23 | 1ULL << 49 | 1ULL << 60 | 1ULL << 61)
#define CQE_SKIP_SUCCESS (1 << 6)

#define SUBMISSION_BITS 14
#define SUBMISSIONS (1 << SUBMISSION_BITS)
#define SUBMISSION_PROBES 16

/* Submissions that no file system has got yet. One that waits for a socket or another process may wait for ever. */
struct submission {
	__u64 key; /* 0: free */
	__u64 start_ns;
	__u32 tid;
	__u8 interface;
	bool crowded; /* another one belongs here, and had to take one of the next slots */
	struct submitter by; /* if it may be reported */
};

struct submission submissions[SUBMISSIONS] SEC(".bss.submissions");

static __always_inline struct submission *submission_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(SUBMISSIONS - 1));
	return &submissions[place];
}

/* For each slot of `submissions`: the number of the submitter. */
__u32 submission_owners[SUBMISSIONS] SEC(".bss.sub_owners");

static __always_inline __u32 *submission_owner(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(SUBMISSIONS - 1));
	return &submission_owners[place];
}

/* The kernel's own kiocbs come here as well, such as those of loop devices: they are in no table. */
PLAIN_TABLE(submission, struct submission, key, SUBMISSION_BITS, SUBMISSION_PROBES)

/*
 * Another one has this address now, so what had it before is over, though nothing reported its end: AIO had refused it,
 * or io_uring had cancelled it behind one whose success nobody hears of.
 */
static __noinline int forget_earlier(__u64 key)
{
	__u32 place = submission_place(key);

	if (place < SUBMISSIONS)
		submission_at(place)->key = 0;
	return 0;
}

static __always_inline int submit(__u64 key, enum interface interface, __u64 user_data)
{
	struct submission *submission;
	__u32 place;

	if (!operating)
		return 0;
	if (filtering && !task_passes())
		return forget_earlier(number_of(key)); /* its bios are not traced either */
	/* Or it was submitted before, and its end was never seen. */
	submission = claim_submission(key, &place);
	if (!submission) {
		COUNT(loss[PATH_CAUSE_SUBMIT_FULL]);
		return 0;
	}
	submission->interface = interface;
	submission->tid = bpf_get_current_pid_tgid();
	if (owner_by && !BY_FILE(owner_by))
		*submission_owner(place) = owner_of_current();
	if (keeps_records()) {
		struct submitter *submitter = &submission->by;

		submitter->user_data = user_data;
		submitter->cgroup = bpf_get_current_cgroup_id();
		submitter->tgid = bpf_get_current_pid_tgid() >> 32;
		submitter->tid = bpf_get_current_pid_tgid();
		bpf_get_current_comm(submitter->comm, sizeof(submitter->comm));
	}
	submission->start_ns = bpf_ktime_get_ns();
	if (recording)
		note_recorded_task(submission->start_ns);
	return 0;
}

/* The operation begins when a file system gets the kiocb for the first time. */
static __noinline struct op_state *begin_submitted(__u64 key)
{
	__u32 place = submission_place(key);
	struct submission *submission;
	struct op_state *op;

	if (place >= SUBMISSIONS)
		return NULL;
	submission = submission_at(place);
	op = op_for(key);
	if (!op) {
		COUNT(loss[PATH_CAUSE_OP_FULL]);
		submission->key = 0;
		return NULL;
	}
	if (op->kind == OP_TRACED)
		COUNT(loss[PATH_CAUSE_OP_UNENDED]);
	op->kind = OP_SUBMITTED;
	begin_anew(op);
	op->interface = submission->interface;
	op->tid = submission->tid;
	if (keeps_records())
		*submitter_at(op->place) = submission->by;
	if (owner_by && !BY_FILE(owner_by))
		op->owner = *submission_owner(place);
	op->start_ns = submission->start_ns;
	submission->key = 0;
	return op;
}

static __always_inline int on_uring_submit(struct io_kiocb *req)
{
	__u8 opcode = BPF_CORE_READ(req, opcode);
	__u64 user_data = 0;

	if (opcode > 63 || !(URING_CALLS >> opcode & 1))
		return 0;
	/* Its end is not reported. */
	if (BPF_CORE_READ(req, flags) & CQE_SKIP_SUCCESS) {
		if (operating && (!filtering || task_passes()))
			COUNT(loss[PATH_CAUSE_SILENT]);
		return forget_earlier(number_of((__u64)req));
	}
	/* 5.10 has it elsewhere, but asynchronous ends are not observed there. */
	if (bpf_core_field_exists(req->cqe.user_data))
		user_data = BPF_CORE_READ(req, cqe.user_data);
	return submit((__u64)req, INTERFACE_URING, user_data);
}

/*
 * A file system that lies over another one (overlayfs, FUSE with passthrough) hands that a kiocb of its own, and keeps
 * the one that it got right behind it: struct backing_aio, and struct ovl_aio_req of the module before
 * commit a6293b3e285c ("fs: factor out backing_file_{read,write}_iter() helpers", v6.8).
 * So what lies there is the key of one of ours, or it is none. Such file systems may lie over one another.
 */
#define WRAPPINGS 2 /* FILESYSTEM_MAX_STACK_DEPTH */
#define WORDS_BEHIND 2 /* a counter may come first */

/* The key of the operation inside of which a file system made this kiocb, or 0. Global, and of a number. */
__noinline __u64 wrapped_key(__u64 iocb)
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
				continue; /* not a kernel address */
			inner = key;
			if (submission_place(key) < SUBMISSIONS)
				return key;
			op = find_op_in_loop(key);
			if (op && op->interface != INTERFACE_CALL)
				return key;
		}
		if (!inner)
			break;
		iocb = inner;
	}
	return 0;
}

/* A submission begins, or is retried. */
static __always_inline struct op_state *op_of_kiocb(__u64 key)
{
	struct op_state *op = begin_submitted(key);

	return op ? op : find_op(key);
}

/* A file system gets it: in the task that submitted it, or in a worker, or in both after one another. */
static __always_inline int issue_kiocb(struct kiocb *iocb, struct file *file, enum op_kind kind, __u64 length)
{
	__u64 key = number_of((__u64)iocb), task;
	struct op_state *op = op_of_kiocb(key), *stand_in;

	if (!op) {
		key = wrapped_key(key);
		op = key ? op_of_kiocb(key) : NULL;
		if (!op)
			return 0; /* filtered out, or one of the kernel's own */
		/* It is there until the end. */
		iocb = (void *)key;
	}
	if (op->kind == OP_SUBMITTED) {
		if (filtering && !operation_passes(file, kind, length)) {
			op->kind = OP_IGNORED;
		} else {
			open_op(op, file, kind, length, kind == OP_KIND_SYNC ? NULL : &iocb->ki_pos, false);
			barrier();
			op->kind = OP_TRACED;
		}
	}
	/* The file system gets a kiocb again that it could not complete at once. */
	if (!op->made)
		op->issued_ns = bpf_ktime_get_ns();
	task = bpf_get_current_task();
	stand_in = op_for(task);
	if (!stand_in) {
		/* Its requests cannot be attributed. */
		op->lost = true;
		return 0;
	}
	stand_in->kind = OP_NONE;
	begin_anew(stand_in);
	stand_in->stands_for = key;
	stand_in->target = op->place;
	barrier();
	stand_in->kind = OP_STAND_IN;
	return 0;
}

struct super_block___stacked {
	int s_stack_depth;
} __attribute__((preserve_access_index));

/* It ended, and no watched file system ever got it: a socket or the like is left out. */
static __noinline int count_unentered(struct kiocb *iocb)
{
	struct file *file = BPF_CORE_READ(iocb, ki_filp);
	struct super_block___stacked *super;
	__u16 slot;

	if (!file || !is_stored(file, OP_KIND_READ, false) || !file_matches(file, false))
		return 0;
	/* A file system on top of another one may have its data on any device. */
	super = (void *)BPF_CORE_READ(file, f_inode, i_sb);
	if (row_of_file(file, &slot, false) || BPF_CORE_READ(super, s_stack_depth))
		COUNT(loss[PATH_CAUSE_UNENTERED]);
	return 0;
}

/* It ended without a file system: a socket, a pipe, or it was cancelled. */
static __noinline int forget_submitted(__u64 key, __s64 result)
{
	__u32 place = submission_place(key);

	if (place >= SUBMISSIONS)
		return 0;
	if (result >= 0)
		count_unentered((void *)key);
	submission_at(place)->key = 0;
	return 0;
}

#define EIOCBQUEUED 529 /* include/linux/errno.h: it ends later */

/* The task goes on while the operation is still in flight: it waits for something, so it is no page-cache hit. */
static __always_inline void outlives(struct op_state *stand_in)
{
	struct op_state *op = op_at(stand_in->target);

	if (op->task == stand_in->stands_for && op->kind == OP_TRACED)
		op->blocked = true;
}

static __always_inline int on_async_end(__u64 key, __s64 result)
{
	struct op_state *op = find_op(key);
	__u64 now;

	if (!op)
		return forget_submitted(number_of(key), result);
	now = bpf_ktime_get_ns();
	/* From the last completion to the report of the end. */
	if (op->last && !op->woken_ns)
		op->woken_ns = now;
	/* A stacked device had it until now, and its requests were not seen. No task slept for it. */
	if (op->above) {
		settle(op);
		open_account(op);
		op->blocked = true;
		op->held_until = now;
	}
	return finish(op, NULL, result, now, KNOWN_NOTHING);
}

/* 6.15 hands over the completion (a cqe) instead of what is in it. */
const volatile bool uring_hands_event;

struct io_uring_cqe___known {
	__s32 res;
} __attribute__((preserve_access_index));

/* A completion that is not the last one of its operation does not name it. */
static __always_inline int on_uring_complete(__u64 *ctx)
{
	__s32 result;

	if (uring_hands_event)
		result = BPF_CORE_READ((struct io_uring_cqe___known *)ctx[2], res);
	else
		result = ctx[3];
	return ctx[1] ? on_async_end(ctx[1], result) : 0;
}

/* The ring has no room for the completion, which is kept elsewhere and not reported again: the operation ends here. */
static __always_inline int on_uring_overflow(__u64 key)
{
	struct io_kiocb *req = (void *)key;
	__s32 result = BPF_CORE_READ(req, cqe.res);

	return on_async_end(key, result);
}

static __always_inline int on_aio_submit(__u64 key)
{
	struct aio_kiocb___known *iocb = (void *)key;

	return submit(key, INTERFACE_AIO, keeps_records() ? BPF_CORE_READ(iocb, ki_res.obj) : 0);
}

/* include/uapi/linux/aio_abi.h */
struct aio_request {
	__u64 unused[3];
	__u64 buffer;
	__u64 bytes;
};

static __always_inline int on_aio_enter(struct kiocb *iocb, __u64 given, enum op_kind kind, bool vectored)
{
	struct file *file = BPF_CORE_READ(iocb, ki_filp);
	struct aio_request request = {};
	__u64 length;

	if (!is_stored(file, kind, false))
		return 0;
	bpf_probe_read_kernel(&request, sizeof(request), (void *)given);
	length = request.bytes;
	if (vectored)
		length = vector_bytes(request.buffer, length);
	return issue_kiocb(iocb, file, kind, length);
}

static __always_inline int on_aio_leave(__u64 key, __s32 result)
{
	struct op_state *op = find_op(bpf_get_current_task());

	if (op && op->kind == OP_STAND_IN) {
		outlives(op);
		op->task = 0;
	}
	/* It was refused, and no end will be reported. */
	return result < 0 ? on_async_end(key, result) : 0;
}

/* It is at the offset of the kiocb of a read or write. */
struct fsync_iocb___known {
	struct file *file;
	struct {
		long data;
	} work;
} __attribute__((preserve_access_index));

static __always_inline __u64 aio_of_work(__u64 work)
{
	return number_of(work) - bpf_core_field_offset(struct fsync_iocb___known, work);
}

/* A worker does what AIO's fsync asked for, and reports the end before it returns. */
static __always_inline int on_aio_fsync_enter(__u64 work)
{
	struct fsync_iocb___known *request = (void *)aio_of_work(work);

	return issue_kiocb((void *)request, BPF_CORE_READ(request, file), OP_KIND_SYNC, 0);
}

static __always_inline int on_aio_fsync_leave(__u64 work)
{
	struct op_state *stand_in = find_op(bpf_get_current_task());
	__s32 result = 0;

	if (stand_in && stand_in->kind == OP_STAND_IN) {
		result = stand_in->result;
		free_op(stand_in);
	}
	return on_async_end(aio_of_work(work), result);
}

/* An asynchronous direct write that needs a sync or a change of metadata: a worker does that, and reports the end. */
struct iomap_dio___known {
	struct kiocb *iocb;
	struct {
		struct work_struct work;
	} aio;
} __attribute__((preserve_access_index));

static __always_inline int on_late_work_enter(__u64 work)
{
	struct iomap_dio___known *dio = (void *)(work - bpf_core_field_offset(struct iomap_dio___known, aio));
	struct kiocb *iocb = BPF_CORE_READ(dio, iocb);
	struct op_state *op;

	issue_kiocb(iocb, NULL, OP_KIND_WRITE, 0);
	op = op_of(bpf_get_current_task());
	if (!op || op->kind != OP_TRACED)
		return 0;
	/* The worker is the task that waits for its requests, and that runs now. */
	if (op->last && all_ended(op))
		op->woken_ns = bpf_ktime_get_ns();
	if (op->above)
		op->held_until = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int on_late_work_leave(void)
{
	struct op_state *op = find_op(bpf_get_current_task());

	if (op && op->kind == OP_STAND_IN)
		free_op(op);
	return 0;
}

#endif
