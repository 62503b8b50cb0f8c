/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Begin and end of operations: which ones are traced, and the row that one belongs to. */
#ifndef WPT_PATH_OPERATION_H
#define WPT_PATH_OPERATION_H

#include "block/path/state.h"
#include "block/path/stored.h"
#include "block/path/account.h"
#include "block/path/controllers.h"
#include "block/path/record.h"
#include "block/path/owned.h"
#include "block/path/recorded.h"
#include "block/path/waits.h"
#include "lib/filter.h"

static __always_inline void count_discarded(void)
{
	struct op_counts *counts = cell_at(&op_counters, 0);

	if (counts)
		COUNT(counts->discarded);
}

static __always_inline void begin_anew(struct op_state *op)
{
	__builtin_memset(&op->tid, 0, offsetof(struct op_state, charges) - offsetof(struct op_state, tid));
	/* The end of the previous one was not seen, or its request came later. */
	drop_only(op);
}

/* Kept out of the path of traces without a filter. */
static __noinline bool task_passes(void)
{
	return task_matches();
}

/* A sync writes, a page fault reads. */
static __always_inline bool is_write(enum op_kind kind)
{
	return kind == OP_KIND_WRITE || kind == OP_KIND_SYNC;
}

static __noinline bool operation_passes(struct file *file, enum op_kind kind, __u64 length)
{
	return (operation_matches(is_write(kind), length) ||
		(kind >= PLAIN_KINDS && operation_matches(kind, length))) &&
	       (file ? file_matches(file, false) : !filter_file);
}

static __always_inline struct file_device *file_device_of(__u32 dev)
{
	__u32 at = device_place(dev, FILE_DEVICES);
	int probe;

	for (probe = 0; probe < DEVICE_PROBES; probe++) {
		struct file_device *entry = &file_devices[(at + probe) & (FILE_DEVICES - 1)];

		if (!entry->dev)
			return NULL;
		if (entry->dev == dev)
			return entry;
	}
	return NULL;
}

/* The row of a file for an operation without a request. */
static __always_inline bool row_of_file(struct file *file, __u16 *slot, bool trusted)
{
	struct inode *inode = FIELD(trusted, file, f_inode);
	struct super_block *super = FIELD(trusted, inode, i_sb);
	bool special = (FIELD(trusted, inode, i_mode) & S_IFMT) == S_IFBLK;
	struct file_device *found =
		file_device_of(special ? FIELD(trusted, inode, i_rdev) : FIELD(trusted, super, s_dev));

	*slot = found ? found->slot : UNLISTED_SLOT;
	return found || (trace_unlisted && (special || FIELD(trusted, super, s_bdev)));
}

/* Its row is known from the start, so that an operation that waits for a dead server is visible. */
static __noinline int place_remote(struct op_state *op, struct file *file)
{
	struct file_device *found;

	if (!op || !file)
		return 0;
	found = file_device_of(BPF_CORE_READ(file, f_inode, i_sb, s_dev));
	if (found && found->remote) {
		op->slot = found->slot;
		op->remote = true;
	}
	return 0;
}

static __always_inline void open_op(struct op_state *op, struct file *file, enum op_kind kind, __u64 length,
				    loff_t *position, bool trusted)
{
	/* A frozen file system had blocked it before. */
	if (op->frozen)
		op->frozen = false;
	else
		op->begun++;
	op->file = file;
	op->length = length;
	op->position = position;
	op->offset = -1;
	if (emits_records)
		op->wake_cpu = NO_CPU;
	op->op_kind = kind;
	own_operation(op, file, trusted);
	if (watches_remote)
		place_remote(op, file);
}

/* Without a file if it has none, or it is unknown. */
static __always_inline int begin(struct file *file, enum op_kind kind, __u64 length, loff_t *position, bool trusted)
{
	__u64 task = bpf_get_current_task();
	bool wanted = true, frozen;
	struct op_state *op;

	if (!operating)
		return 0;
	if (filtering) {
		if (!task_passes())
			return 0; /* its bios are not either */
		wanted = operation_passes(file, kind, length);
	}
	op = op_for(task);
	if (!op) {
		if (wanted)
			COUNT(loss[PATH_CAUSE_OP_FULL]);
		return 0;
	}
	frozen = kind == OP_KIND_WRITE && op->kind == OP_TRACED && op->frozen;
	op->kind = OP_IGNORED;
	if (!frozen)
		begin_anew(op);
	else if (!wanted)
		count_discarded();
	if (!wanted)
		return 0;
	open_op(op, file, kind, length, position, trusted);
	/* Last, so that our own time is not charged, and so that its start is set once it is visible. */
	if (!frozen)
		op->start_ns = bpf_ktime_get_ns();
	barrier();
	op->kind = OP_TRACED;
	return 0;
}

/* The most buffers of a call: UIO_MAXIOV. */
#define VECTORS 1024
/* The verifier goes through a global function once, so what it calls in each of its rounds costs it little. */
#define VECTORS_AT_ONCE 32

struct user_vector {
	__u64 base;
	__u64 length;
};

__noinline __u64 some_bytes(__u64 vectors, __u64 count)
{
	__u64 bytes = 0;
	__u32 place;

	for (place = 0; place < VECTORS_AT_ONCE && place < count; place++) {
		struct user_vector vector = {};

		bpf_probe_read_user(&vector, sizeof(vector), (struct user_vector *)vectors + place);
		bytes += vector.length;
	}
	return bytes;
}

/* The total length of a vector of buffers, which is read only where it is wanted. */
__noinline __u64 vector_bytes(__u64 vectors, __u64 count)
{
	__u64 bytes = 0;
	__u32 place;

	if (!keeps_records() && !filter_operation)
		return 0;
	for (place = 0; place < VECTORS && place < count; place += VECTORS_AT_ONCE)
		bytes += some_bytes(vectors + place * sizeof(struct user_vector), count - place);
	return bytes;
}

/* Nothing has happened to it: it slept for nothing and made no request. */
static __always_inline bool is_untouched(struct op_state *op)
{
	return !AS_ONE(__u64, op, last, in_iowait) && !op->made;
}

/* What the hook has as an object that the verifier knows: the file, or the kiocb, which is read only where that is needed. */
enum known {
	KNOWN_NOTHING,
	KNOWN_FILE,
	KNOWN_KIOCB,
};

static __always_inline struct file *file_in(void *object, enum known known)
{
	return known == KNOWN_KIOCB ? ((struct kiocb *)object)->ki_filp : object;
}

static __always_inline int finish(struct op_state *op, void *object, __s64 result, __u64 now, enum known known)
{
	const bool trusted = known != KNOWN_NOTHING, watched = watches_interference();
	struct done *only = NULL;
	bool hit, untouched, slow;

	if (op->kind != OP_TRACED) {
		free_op(op);
		return 0;
	}
	op->end_ns = now;
	if (op->last == LAST_IS_ONLY && op->made == 1 && !op->charged)
		only = shared_request(op);
	if (only) {
		hit = false;
		count_with_request(op, only, result);
		if (recording)
			recorder_both(op, only, file_in(object, known), result, trusted);
		if (watched)
			add_irq_delay(op, only);
	} else {
		/* Only records have the stages of a hit. */
		slow = recording && now >= op->start_ns + recorded_hit_ns;
		untouched = !keeps_records() && is_untouched(op) && !slow;
		if (!untouched)
			close_account(op->place);
		/* However short, a sleep there is for the server, or for a task that waits for it. */
		if (watches_remote && op->remote && op->asleep_ns)
			op->blocked = true;
		hit = untouched || (!op->waited && !op->blocked && op->made == op->readahead);
		/* An operation that waited knows its device by its request. */
		if (!op->waited && !op->slot &&
		    !row_of_file(trusted ? file_in(object, known) : op->file, &op->slot, trusted)) {
			count_discarded();
			drop_only(op);
			free_op(op);
			return 0;
		}
		if (op->waits)
			count_waits(op->place);
		if (hit) {
			count_hit(op->place, result);
			if (slow)
				recorder_operation(op->place, RECORDED_KIND_HIT, result);
		} else {
			count_alone(op->place, result);
			if (recording)
				recorder_operation(op->place, RECORDED_KIND_OPERATION, result);
		}
	}
	if (watched && !hit) {
		count_interference(op);
		if (op->works)
			count_works(op->place);
		if (was_held(held_op(op), op->start_ns))
			count_held_op(op->place);
	}
	if (keeps_records() && wants_record(op->start_ns, now)) {
		if (only) {
			charge(op, only);
			op->waited_for = LAST_IS_ONLY;
			advance(op, OP_STAGE_WAKEUP, op->woken_ns);
			advance(op, OP_STAGE_RETURN, now);
		}
		if (op->waited && op->wake_cpu == NO_CPU)
			op->wake_cpu = bpf_get_smp_processor_id();
		if (trusted)
			note_known_file(op, file_in(object, known));
		record_operation(op->place, hit, now, result, trusted);
	}
	if (only)
		release_counted(op, only);
	else
		drop_only(op);
	free_op(op);
	return 0;
}

#endif
