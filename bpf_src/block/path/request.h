/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Requests: D and C. Hooks of drivers are in drivers.h, rare events in life.h. */
#ifndef WPT_PATH_REQUEST_H
#define WPT_PATH_REQUEST_H

#include "block/path/bio.h"
#include "block/path/life.h"
#include "block/path/hidden.h"
#include "block/path/flush.h"
#include "block/path/journal.h"
#include "block/path/record.h"

/* Cheap checks: with one disk traced, most requests may be on others. */
static __always_inline struct device_match traced_disk(struct request *rq, struct bio *bio, bool trusted)
{
	return find_any_device(rq, request_disk(rq, trusted), FIELD(trusted, rq, __sector), !bio);
}

/*
 * A request without a known bio: the flush machinery's, which has none, or the kernel skipped the program
 * at Q. Its owner and its waits before G are unknown.
 */
static __noinline struct bio_state *take_unqueued(struct request *rq, __u32 slot)
{
	struct bio *bio = BPF_CORE_READ(rq, bio);
	enum block_op op_kind = request_op(BPF_CORE_READ(rq, cmd_flags));
	/* It is 0 without iostats, except for flushes. */
	__u64 made = BPF_CORE_READ(rq, start_time_ns);
	__u64 key = bio ? (__u64)bio : (__u64)rq;
	struct bio_state *state;

	if (op_kind == BLOCK_OP_OTHER || made < since_ns)
		return NULL;
	/*
	 * With end_io the issuer handles its end itself: flushes, clones of dm, passthrough commands. If the table was full,
	 * the loss may have been counted at Q.
	 */
	if (bio ? BPF_CORE_READ(rq, end_io) || loss[PATH_CAUSE_BIO_FULL] : op_kind != BLOCK_OP_FLUSH)
		return NULL;
	state = bio_for(key);
	if (!state) {
		no_place(NULL);
		return NULL;
	}
	state->untimed = request_sample && !is_timed();
	start_bio(state, BIO_KIND_QUEUED);
	state->done.times.queued = state->untimed ? 0 : made;
	state->tid = 0;
	state->op_kind = op_kind;
	state->empty = false;
	state->done.dev = request_disk(rq, false);
	state->done.slot = slot;
	state->task = 0;
	disown(state);
	if (following)
		written_by(state)->dirtied_ns = 0;
	if (neighbours)
		look_when_queued(state);
	if (keeps_records()) {
		note_submitter(state);
		__builtin_memset(state->comm, 0, sizeof(state->comm));
		state->cgroup = 0;
		state->tgid = 0;
		state->tid = 0;
	}
	/* Bios from before the trace get their requests soon. */
	if (bio && made >= settled_ns)
		COUNT(loss[PATH_CAUSE_UNSEEN_START]);
	return state;
}

/* A stacked device sent on its own bio. */
static __noinline bool descend(struct bio_state *state, struct request *rq)
{
	__u64 sector = BPF_CORE_READ(rq, __sector);
	struct device_match match;
	struct bio *bio;

	if (!state)
		return false;
	state->done.dev = request_disk(rq, false);
	match = find_any_device(rq, state->done.dev, sector, state->empty);
	if (!match.found) {
		state->bio = 0;
		return false;
	}
	state->kind = BIO_KIND_QUEUED;
	if (state->layer) {
		/* It represents both, and ends once. */
		state->layer = false;
		state->layer_slot = state->done.slot;
		state->done.events.below |= EVENT_SAME_BIO;
	}
	state->done.slot = match.slot;
	bio = BPF_CORE_READ(rq, bio);
	belong_below(state, bio, BPF_CORE_READ(bio, bi_opf));
	return true;
}

static __always_inline struct bio_state *begin_issue(struct request *rq, bool trusted)
{
	struct bio *bio = FIELD(trusted, rq, bio);
	struct bio_state *state = first_of(rq, bio, false, trusted);

	if (!state || state->kind != BIO_KIND_QUEUED) {
		/* The kernel skipped the program when it was queued: of its device nothing is known yet. */
		if (state && state->kind == BIO_KIND_LINKED) {
			state->bio = 0;
			state = NULL;
		}
		if (!state) {
			struct device_match match;

			if (!tracing || filtering)
				return NULL;
			match = traced_disk(rq, bio, trusted);
			state = match.found ? take_unqueued(rq, match.slot) : NULL;
			if (!state)
				return NULL;
		}
		if (state->kind == BIO_KIND_ABOVE && !descend(state, rq))
			return NULL;
	}
	if (state->kind != BIO_KIND_HEAD) {
		state->kind = BIO_KIND_HEAD;
		if (!state->empty)
			state->begun++;
	}
	if (keeps_records())
		state->done.cpus.issue = bpf_get_smp_processor_id();
	return state;
}

static __always_inline int on_request_issue(struct request *rq, bool trusted)
{
	struct bio_state *state = begin_issue(rq, trusted);
	__u64 now;

	if (neighbours && filtering && !state && tracing)
		issue_stranger(rq);
	if (!state || state->untimed)
		return 0;
	now = bpf_ktime_get_ns();
	if (state->set_up) {
		state->done.times.handed = now;
		state->set_up = false;
	} else {
		state->done.times.issued = now;
		/* It may be issued again. */
		state->done.times.handed = 0;
		state->done.times.seen = 0;
	}
	if (neighbours)
		look_when_issued(rq, state, trusted);
	return 0;
}

/*
 * The end of a request on a traced device whose start was not seen: the place that represents it from now on. The
 * kernel skipped the program at its issue, or it is not ours: a command, or made before tracing began.
 */
__noinline __u32 begin_late(__u64 request, __u32 bytes)
{
	struct request *rq = (void *)request;
	struct bio *bio = BPF_CORE_READ(rq, bio);
	struct bio_state *state;
	__u64 issued;

	/* A sequence of flushes ends with a completion of no bytes, after that of its data. */
	state = bio && !bytes ? NULL : begin_issue(rq, false);
	if (!state) {
		if (!tracing || filtering || (bio && !bytes && BPF_CORE_READ(rq, start_time_ns) >= since_ns))
			return BIOS;
		COUNT(elsewhere);
		if (bio && !BPF_CORE_READ(rq, start_time_ns) && !BPF_CORE_READ(rq, end_io) &&
		    request_op(BPF_CORE_READ(rq, cmd_flags)) <= BLOCK_OP_WRITE && bpf_ktime_get_ns() >= settled_ns)
			COUNT(loss[PATH_CAUSE_UNMATCHED_END]);
		return BIOS;
	}
	if (keeps_records())
		state->done.cpus.issue = NO_CPU;
	/* Without statistics of the queue it is 0 or that of another request. */
	issued = BPF_CORE_READ(rq, io_start_time_ns);
	state->apart |= BIO_APART_LATE;
	if (issued && issued >= BPF_CORE_READ(rq, start_time_ns))
		state->done.times.issued = issued;
	else
		state->done.events.below |= EVENT_UNDIVIDED;
	return state->place;
}

/* One that its operation asked for and waits for, made by no device above, with data. */
static __always_inline bool is_ordinary(struct bio_state *state)
{
	return !AS_ONE(__u32, state, apart, empty);
}

/* Its operation made a single bio, and reads nothing ahead. */
static __always_inline bool is_alone(struct op_state *op)
{
	/* Both architectures are little-endian. */
	return AS_ONE(__u64, op, made, readahead) == 1;
}

static __always_inline int on_request_complete(struct request *rq, int error, __u32 bytes, bool trusted)
{
	struct bio *bio = FIELD(trusted, rq, bio);
	struct bio *last = FIELD(trusted, rq, biotail);
	struct bio_state *state;
	struct op_state *op = NULL;
	struct done *done;

	if (bytes < FIELD(trusted, rq, __data_len))
		return complete_part(number_of((__u64)rq), bytes, error);
	state = first_of(rq, bio, true, trusted);
	if (!state) {
		__u32 place;

		if (neighbours)
			leave_device(number_of((__u64)rq), true);
		/* With a filter only what was queued is known to be ours. */
		if (filtering ? !first_of(rq, bio, false, trusted) : !tracing || !traced_disk(rq, bio, trusted).found)
			return 0;
		place = begin_late(number_of((__u64)rq), bytes);
		if (place >= BIOS)
			return 0;
		state = bio_at(place);
	}
	done = &state->done;
	if (error || has_events(&done->events)) {
		end_otherwise(rq, state, bytes, error);
	} else {
		done->bytes = bytes;
		done->error = 0;
	}
	if (state->untimed) {
		if (neighbours)
			leave_device(number_of((__u64)rq), true);
		if (bio && bio != last)
			deliver_merged(number_of((__u64)rq), state->place);
		if (state->empty)
			count_asked(state);
		else
			count_request(state);
		if (following)
			count_writeback(state->place, state->place);
		state->bio = 0;
		return 0;
	}
	done->times.completed = bpf_ktime_get_ns();
	if (seen_by_handler && !done->times.seen)
		see_by_handler(state);
	if (has_operations && !done->times.seen && bpf_get_current_task() == state->task)
		done->events.inline_ = true;
	fill_in(&done->times, FIELD(trusted, rq, start_time_ns));
	/* Nothing is kept of one whose issue was not seen. */
	if (neighbours) {
		meet_neighbours(state);
		leave((__u64)rq, done->times.completed, true);
	}
	if (keeps_records())
		done->cpus.complete = bpf_get_smp_processor_id();
	if (keeps_records() || recording) {
		if (!done->events.parts)
			done->sector = FIELD(trusted, rq, __sector);
		done->flags = FIELD(trusted, rq, cmd_flags);
		/* A flush that the block layer completes itself never gets to the driver. */
		if (bio)
			done->flags |= FIELD(trusted, bio, bi_opf) & ~0xffU;
	}
	if (watches_interference() && !state->empty && was_held(&hold_of(state)->held, done->times.queued))
		count_held_request(state->place);
	if (bio && bio != last)
		deliver_merged(number_of((__u64)rq), state->place);
	if (following)
		count_writeback(state->place, state->place);
	if (has_operations && state->task) {
		op = COMPUTED(op_at(state->op));
		if (op->task != state->task || op->kind != OP_TRACED)
			op = NULL;
	}
	if (op && is_alone(op) && is_ordinary(state) && !op->only && done->times.queued >= op->start_ns) {
		/* It stays here until its operation ends, which counts both together. */
		state->bio = DELIVERED;
		op->only = state->place + 1;
		barrier();
		op->last = LAST_IS_ONLY;
		COUNT(op->ended);
		return 0;
	}
	if (op)
		deliver(state, state);
	if (state->empty)
		count_asked(state);
	else
		count_request(state);
	if (committing && !state->task)
		count_for_commit(state);
	if (keeps_records() && state->op_kind == BLOCK_OP_FLUSH)
		note_flush(done);
	if (keeps_records() && !op && !state->empty && wants_record(done->times.queued, done->times.completed))
		record_request(state);
	state->bio = 0;
	return 0;
}

#endif
