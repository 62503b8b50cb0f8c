/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Bios: Q, a limit before it, cuts; and what a stacked device makes of one. */
#ifndef WPT_PATH_BIO_H
#define WPT_PATH_BIO_H

#include "block/path/state.h"
#include "block/path/operation.h"
#include "block/path/layers.h"
#include "block/path/writeback.h"
#include "block/path/controllers.h"

static __noinline bool bio_passes(struct bio *bio, bool write, __u32 bytes)
{
	struct dirty_frame *dirtied = following && write ? dirtier_of(bio) : NULL;

	if (dirtied)
		return dirtied->tid && operation_matches(write, bytes);
	/* A bio does not say which file it is of. */
	return task_matches() && !filter_file && operation_matches(write, bytes);
}

static __always_inline bool bio_is_wanted(struct bio *bio, bool trusted)
{
	/* The kernel gives odd numbers to operations that change data: appends, discards and zeroes as well. */
	bool write = FIELD(trusted, bio, bi_opf) & 1;

	return tracing && (!filtering || bio_passes(bio, write, FIELD(trusted, bio, bi_iter.bi_size)));
}

/* The kernel takes from the length what it adds to the position, so both are looked at together. */
static __always_inline void look_at_position(struct op_state *op)
{
	if (!asks_for_file && !op->file && op->position) {
		struct kiocb *iocb = (void *)op->position - bpf_core_field_offset(struct kiocb, ki_pos);
		struct iov_iter *iter = (void *)op->length;

		op->file = BPF_CORE_READ(iocb, ki_filp);
		op->length = BPF_CORE_READ(iter, count);
	}
	if (op->offset < 0 && op->position)
		bpf_probe_read_kernel(&op->offset, sizeof(op->offset), op->position);
}

/*
 * Whether readahead only fetches pages that its operation did not ask for. The kernel marks requested pages as readahead
 * as well, so the pages decide. Pages without a file (compressed data, metadata) count as asked for.
 */
static __noinline bool is_beyond(struct op_state *op, struct bio *bio)
{
	struct page_of_file page;
	struct file *file;
	__s64 begin, end;

	if (!op)
		return false;
	page = page_of_file((__u64)BPF_CORE_READ(bio, bi_io_vec, bv_page));
	begin = page.index << page_shift;
	look_at_position(op);
	file = op->file;
	if (page.mapping != BPF_CORE_READ(file, f_mapping) || op->offset < 0)
		return false;
	end = begin + BPF_CORE_READ(bio, bi_iter.bi_size);
	return begin >= op->offset + (__s64)op->length || end <= op->offset;
}

static __always_inline bool reads_ahead(struct op_state *op, struct bio *bio, __u32 flags)
{
	return flags >> bpf_core_enum_value(enum req_flag_bits, __REQ_RAHEAD) & 1 && is_beyond(op, bio);
}

/* One more bio of this operation. */
static __always_inline void belong(struct bio_state *state, struct op_state *op, struct bio *bio, __u32 flags)
{
	op->made++;
	op->slot = state->done.slot;
	state->made = op->made;
	if (reads_ahead(op, bio, flags)) {
		state->apart |= BIO_APART_READAHEAD;
		op->readahead++;
	}
}

/* A bio that a stacked device sent on itself belongs to its operation now, if that has not ended. */
static __always_inline void belong_below(struct bio_state *state, struct bio *bio, __u32 flags)
{
	struct op_state *op;

	if (!state->task)
		return;
	op = op_at(state->op);
	if (op->task != state->task || op->kind != OP_TRACED || state->done.times.queued < op->start_ns)
		return;
	op->above = 0;
	belong(state, op, bio, flags);
}

static __always_inline void no_place(struct op_state *op)
{
	COUNT(loss[PATH_CAUSE_BIO_FULL]);
	if (op)
		op->lost = true;
}

/* A slot of bio_for(); its time of Q is set by the caller. */
static __always_inline void start_bio(struct bio_state *state, enum bio_kind kind)
{
	if (state->kind == BIO_KIND_HEAD && !state->empty)
		COUNT(loss[PATH_CAUSE_UNMATCHED_START]); /* the bio was reused: its previous end was not seen */
	state->kind = kind;
	__builtin_memset(&state->apart, 0, 4);
	state->done.times.issued = 0;
	state->done.times.handed = 0;
	state->done.times.seen = 0;
	state->done.irq_delay = 0;
	__builtin_memset(&state->done.events, 0, sizeof(state->done.events));
}

static __always_inline void note_submitter(struct bio_state *state)
{
	__u64 ids = bpf_get_current_pid_tgid();

	state->done.cpus.submit = bpf_get_smp_processor_id();
	state->done.cpus.issue = state->done.cpus.irq = NO_CPU;
	current_comm((void *)state->comm);
	state->cgroup = bpf_get_current_cgroup_id();
	state->tgid = ids >> 32;
	state->tid = ids;
}

/* Its requests are on the devices below. */
static __always_inline bool is_stacked(struct gendisk *disk, bool trusted)
{
	struct request_queue *queue;

	if (!disk)
		return true;
	queue = FIELD(trusted, disk, queue);
	return !FIELD(trusted, queue, mq_ops);
}

/* A bio whose device is known. */
struct taken {
	__u32 dev;
	__u32 layer; /* LAYERS: none */
	__u16 slot;
	bool above; /* it is sent to a stacked device */
	bool empty;
};

static __always_inline int take_known(struct bio *bio, struct op_state *op, enum bio_kind kind, struct taken known,
				      bool trusted)
{
	__u64 key = (__u64)bio;
	struct bio_state *state = bio_for(key);
	__u32 flags;

	if (!state) {
		if (known.above || known.empty)
			COUNT(loss[PATH_CAUSE_LAYER_FULL]);
		else
			no_place(op);
		return 0;
	}
	start_bio(state, kind);
	/* Not before: what is kept over the claim is kept in memory. */
	flags = FIELD(trusted, bio, bi_opf);
	state->op_kind = request_op(flags);
	state->empty = known.empty;
	state->done.dev = known.dev;
	state->done.slot = known.slot;
	state->task = 0;
	own_bio(state, op, bio);
	if (!op && request_sample && known.layer == LAYERS && !is_timed()) {
		state->untimed = true;
		state->done.times.queued = 0;
		if (following)
			follow(state, bio);
		return 0;
	}
	state->untimed = false;
	/* After what may take long, and the compiler has few registers for what is needed behind a call. */
	state->done.times.queued = bpf_ktime_get_ns();
	if (known.layer < LAYERS)
		begin_layer(state, known.layer, FIELD(trusted, bio, bi_iter.bi_sector),
			    FIELD(trusted, bio, bi_iter.bi_size));
	if (neighbours && !known.above)
		look_when_queued(state);
	if (keeps_records())
		note_submitter(state);
	if (watches_interference() || requests_alone)
		take_in_hand(state);
	if (recording)
		state->tid = note_recorded_submitter(op, state->done.times.queued);
	else if (!op)
		state->tid = bpf_get_current_pid_tgid();
	if (following)
		follow(state, bio);
	if (!op)
		return 0;
	state->task = op->task;
	state->op = op->place;
	if (known.above) {
		op->above = key;
		op->above_ns = state->done.times.queued;
		/* It may end before its task sleeps for it, but it is no page-cache hit. */
		if (!reads_ahead(op, bio, flags))
			op->blocked = true;
	} else {
		op->above = 0;
		belong(state, op, bio, flags);
	}
	return 0;
}

static __always_inline int take(struct bio *bio, struct op_state *op, enum bio_kind kind, bool trusted)
{
	struct taken known = {.layer = LAYERS};
	struct gendisk *disk = disk_of_bio(bio, trusted);
	struct device_match match;
	__u64 sector;

	known.dev = disk_number(disk, trusted);
	sector = FIELD(trusted, bio, bi_iter.bi_sector);
	if (FIELD(trusted, bio, bi_iter.bi_size)) {
		match = find_device(known.dev, sector, false);
		known.slot = match.slot;
		/* Most are like this: what follows is compiled for these alone. */
		if (match.found && match.slot != UNLISTED_SLOT)
			return take_known(bio, op, kind, known, trusted);
	} else {
		known.empty = request_op(FIELD(trusted, bio, bi_opf)) <= BLOCK_OP_WRITE;
		match = find_device(known.dev, sector, known.empty);
		known.slot = match.slot;
	}
	if (!match.found || match.slot == UNLISTED_SLOT) {
		known.above = is_stacked(disk, trusted);
		if (known.above && stacked)
			known.layer = layer_of(known.dev);
		if (known.above)
			kind = kind == BIO_KIND_HELD ? kind : BIO_KIND_ABOVE;
		else if (!match.found)
			return 0;
	}
	return take_known(bio, op, kind, known, trusted);
}

/* A stacked device made it from a bio above and inherits its owner; a worker may be sending it. */
static __noinline int take_linked(struct bio *bio, struct bio_state *link)
{
	struct bio_state *upper, *state;
	struct op_state *op = NULL;
	__u64 above_ns, top_ns;
	__u32 above;

	if (!link)
		return 0;
	upper = upper_of(link);
	above = link->above;
	above_ns = link->above_ns;
	top_ns = link->top_ns;
	link->bio = 0;
	if (!upper) {
		/* That one has ended: a mirror may be written later. */
		if (bio_is_wanted(bio, false))
			take(bio, NULL, BIO_KIND_QUEUED, false);
		return 0;
	}
	if (upper->task) {
		op = op_at(upper->op);
		if (op->task != upper->task || op->kind != OP_TRACED || above_ns < op->start_ns)
			op = NULL;
	}
	take(bio, op, BIO_KIND_QUEUED, false);
	state = find_bio((__u64)bio);
	if (!state)
		return 0;
	state->above = above;
	state->above_ns = above_ns;
	state->top_ns = top_ns;
	state->done.events.below = EVENT_BELOW;
	if (!state->layer)
		state->apart |= BIO_APART_BELOW;
	/* It is with the devices since the first of them got it. */
	else if (op)
		op->above_ns = top_ns;
	inherit(state, upper);
	state->tid = upper->tid;
	state->tgid = upper->tgid;
	state->cgroup = upper->cgroup;
	__builtin_memcpy(state->comm, upper->comm, sizeof(state->comm));
	if (!upper->done.times.issued)
		upper->done.times.issued = state->done.times.queued;
	return 0;
}

/* A known bio: a stacked device made it or sends it on, or it is the rest of a split. */
static __always_inline bool is_known(__u64 bio, struct op_state *op)
{
	struct bio_state *state = find_bio(bio);

	if (!state)
		return false;
	if (state->kind == BIO_KIND_LINKED)
		return true;
	return op && state->task == op->task && state->done.times.queued >= op->start_ns &&
	       (state->kind == BIO_KIND_ABOVE || state->done.events.split);
}

/*
 * A cgroup's limit may hold the bio back from here on; a worker sends it on later. Where every bio comes by, only those
 * of operations are considered.
 */
static __always_inline int on_bio_throttle(struct bio *bio, bool each, bool trusted)
{
	struct op_state *op = op_of(bpf_get_current_task());

	if (op ? op->kind != OP_TRACED : each || !bio_is_wanted(bio, trusted))
		return 0;
	if (is_known(number_of((__u64)bio), op))
		return 0;
	holding = true;
	return take(bio, op, BIO_KIND_HELD, trusted);
}

/* The operation makes another request. */
static __noinline int settle_previous(struct op_state *op)
{
	struct done *done;

	if (!op)
		return 0;
	settle(op);
	if (op->last) {
		done = done_at(op, op->last);
		/* The previous one completed in this task itself, which spent the wait running it. */
		if (done && done->events.inline_ && all_ended(op))
			charge_last(op);
		op->last = 0;
	}
	return 0;
}

static __always_inline int on_bio_queue(struct bio *bio, bool trusted)
{
	struct op_state *op = op_of(bpf_get_current_task());

	if (holding) {
		struct bio_state *held = find_bio((__u64)bio);

		if (held && held->kind == BIO_KIND_HELD) {
			held->kind = held->layer ? BIO_KIND_ABOVE : BIO_KIND_QUEUED;
			if (watches_interference())
				release(held);
			return 0;
		}
		if (stacked && held && held->kind == BIO_KIND_LINKED)
			return take_linked(bio, held);
	}
	if (!op) {
		if (!bio_is_wanted(bio, trusted)) {
			if (neighbours && filtering && tracing)
				queue_stranger(bio);
			return 0;
		}
	} else if (op->kind != OP_TRACED) {
		if (neighbours && filtering)
			queue_stranger(bio);
		return 0;
	} else if (op->last) {
		settle_previous(op);
	}
	return take(bio, op, BIO_KIND_QUEUED, trusted);
}

/* Its front becomes a bio of its own, whose completion counts in the rest. */
static __always_inline int on_bio_split(struct bio *front, __u64 sector, bool trusted)
{
	__u64 cut_from = (__u64)FIELD(trusted, front, bi_private);
	/* dm reports the bio itself, which may have no parent; 0 marks a free slot. */
	struct bio_state *rest = cut_from ? find_bio(cut_from) : NULL;
	struct op_state *op = NULL;
	struct bio_state *state;

	if (stacked && cut_layer((__u64)front, rest, sector))
		return 0;
	if (!rest || rest->kind == BIO_KIND_HEAD)
		return 0;
	if (rest->task) {
		op = op_at(rest->op);
		/* A worker may cut it when its operation has ended, and the task has begun another one. */
		if (op->task != rest->task || op->kind != OP_TRACED || rest->done.times.queued < op->start_ns)
			op = NULL;
	}
	state = bio_for((__u64)front);
	if (!state) {
		if (rest->kind != BIO_KIND_ABOVE)
			no_place(op);
		return 0;
	}
	start_bio(state, rest->kind);
	state->done.times.queued = rest->done.times.queued;
	state->untimed = rest->untimed;
	state->tid = rest->tid;
	state->op_kind = rest->op_kind;
	state->empty = false;
	state->done.dev = rest->done.dev;
	state->done.slot = rest->done.slot;
	state->task = rest->task;
	state->op = rest->op;
	inherit(state, rest);
	if (neighbours)
		split_watch(state, rest);
	state->done.events.split = 1;
	ONE_MORE(rest->done.events.split);
	if (rest->done.events.below & EVENT_BELOW) {
		state->above = rest->above;
		state->above_ns = rest->above_ns;
		state->top_ns = rest->top_ns;
		state->done.events.below = EVENT_BELOW;
		state->apart = BIO_APART_BELOW;
	}
	if (rest->kind != BIO_KIND_ABOVE)
		COUNT_EVENTS(state, split, 1);
	if (keeps_records())
		note_submitter(state);
	if (watches_interference())
		take_in_hand(state);
	if (following)
		split_writeback(state, rest, front);
	if (op && rest->kind != BIO_KIND_ABOVE)
		belong(state, op, front, FIELD(trusted, front, bi_opf));
	return 0;
}

#endif
