/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Requests: D and C. What drivers report between them is in drivers.h, what seldom happens to one in life.h. */
#ifndef WPT_PATH_REQUEST_H
#define WPT_PATH_REQUEST_H

#include "block/path/bio.h"
#include "block/path/life.h"
#include "block/path/hidden.h"
#include "block/path/flush.h"
#include "block/path/journal.h"
#include "block/path/record.h"

/* The request that the flush machinery has for itself: it has no owner, and waits for nothing. */
static __noinline struct bio_state *take_flush(struct request *rq)
{
	enum block_op op_kind = request_op(BPF_CORE_READ(rq, cmd_flags));
	struct device_match match;
	struct bio_state *state;
	__u32 dev;

	if (op_kind != BLOCK_OP_FLUSH)
		return NULL;
	dev = request_disk(rq, false);
	match = find_any_device(rq, dev, 0, true);
	if (!match.found)
		return NULL;
	state = claim_bio((__u64)rq);
	if (!state) {
		no_place(NULL);
		return NULL;
	}
	state->untimed = request_sample && !is_timed();
	start_bio(state, (__u64)rq, BIO_KIND_QUEUED, state->untimed ? 0 : bpf_ktime_get_ns());
	state->tid = 0;
	state->op_kind = op_kind;
	state->empty = false;
	state->done.dev = dev;
	state->done.slot = match.slot;
	state->task = 0;
	if (telling) {
		note_submitter(state);
		__builtin_memset(state->comm, 0, sizeof(state->comm));
		state->cgroup = 0;
		state->tgid = 0;
	}
	return state;
}

/* A stacked device sent on the bio that it got. */
static __noinline bool descend(struct bio_state *state, struct request *rq)
{
	__u64 sector = BPF_CORE_READ(rq, __sector);
	struct device_match match;
	struct op_state *op;
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
		/* It stands for both, and ends once. */
		state->layer = false;
		state->layer_slot = state->done.slot;
		state->done.events.below |= EVENT_SAME_BIO;
	}
	state->done.slot = match.slot;
	if (!state->task)
		return true;
	op = op_at(state->op);
	if (op->task != state->task || op->kind != OP_TRACED)
		return true;
	op->above = 0;
	bio = BPF_CORE_READ(rq, bio);
	belong(state, op, bio, BPF_CORE_READ(bio, bi_opf));
	return true;
}

static __always_inline struct bio_state *begin_issue(struct request *rq, bool trusted)
{
	struct bio_state *state = first_of(rq, false, trusted);

	if (!state) {
		if (!tracing || FIELD(trusted, rq, bio) || filtering)
			return NULL;
		state = take_flush(rq);
		if (!state)
			return NULL;
	}
	if (state->kind == BIO_KIND_ABOVE && !descend(state, rq))
		return NULL;
	if (state->kind != BIO_KIND_HEAD) {
		state->kind = BIO_KIND_HEAD;
		if (!state->empty)
			state->begun++;
	}
	if (telling)
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
		if (neighbours)
			look_when_issued(rq, state, trusted);
		return 0;
	}
	state->done.times.issued = now;
	/* It may be issued again. */
	state->done.times.handed = 0;
	state->done.times.seen = 0;
	if (neighbours)
		look_when_issued(rq, state, trusted);
	return 0;
}

/* What made the request hears of its end itself: flushes, clones of dm, commands that users send. */
struct request___made {
	void *end_io;
} __attribute__((preserve_access_index));

/*
 * The end of a read or write of which nothing is known. It may be of no traced device, or filtered out, or have begun
 * before tracing did; else a program was skipped.
 */
__noinline int count_unmatched(__u64 request)
{
	struct request *rq = (void *)request;
	struct request___made *made = (void *)rq;
	struct device_match match;

	if (!tracing || filtering || !BPF_CORE_READ(rq, bio) || BPF_CORE_READ(made, end_io) ||
	    request_op(BPF_CORE_READ(rq, cmd_flags)) > BLOCK_OP_WRITE)
		return 0;
	/* Without iostats it is 0. */
	if (BPF_CORE_READ(rq, start_time_ns) < settled_ns)
		return 0;
	match = find_any_device(rq, request_disk(rq, false), BPF_CORE_READ(rq, __sector), false);
	if (match.found)
		COUNT(loss[PATH_CAUSE_UNMATCHED_END]);
	return 0;
}

static __always_inline int on_request_complete(struct request *rq, int error, __u32 bytes, bool trusted)
{
	struct bio_state *state;
	struct op_state *op = NULL;
	struct done *done;
	struct bio *bio;

	if (bytes < FIELD(trusted, rq, __data_len))
		return complete_part(number_of((__u64)rq), bytes, error);
	state = state_of(rq, trusted);
	if (neighbours && (!state || state->untimed))
		leave_device(number_of((__u64)rq), 0, true);
	if (!state)
		/* A sequence of flushes ends with a completion of no bytes, after that of its data. */
		return filtering || !bytes ? 0 : count_unmatched(number_of((__u64)rq));
	done = &state->done;
	if (error || has_events(&done->events)) {
		end_otherwise(rq, state, bytes, error);
	} else {
		done->bytes = bytes;
		done->error = 0;
	}
	bio = FIELD(trusted, rq, bio);
	if (state->untimed) {
		if (bio && FIELD(trusted, bio, bi_next))
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
	done->events.inline_ = !done->times.seen && bpf_get_current_task() == state->task;
	fill_in(&done->times, FIELD(trusted, rq, start_time_ns));
	if (neighbours) {
		meet_neighbours(state);
		leave_with(state, rq);
	}
	if (telling) {
		done->cpus.complete = bpf_get_smp_processor_id();
		if (!done->events.parts)
			done->sector = FIELD(trusted, rq, __sector);
		done->flags = FIELD(trusted, rq, cmd_flags);
		/* What the block layer does itself (flushes), it does not ask the driver for. */
		if (bio)
			done->flags |= FIELD(trusted, bio, bi_opf) & ~0xffU;
	}
	if (watches_interference() && !state->empty && was_held(&hold_of(state)->held, done->times.queued))
		count_held_request(state->place);
	if (bio && FIELD(trusted, bio, bi_next))
		deliver_merged(number_of((__u64)rq), state->place);
	if (following)
		count_writeback(state->place, state->place);
	if (state->task) {
		op = op_at(state->op);
		if (op->task != state->task || op->kind != OP_TRACED)
			op = NULL;
	}
	if (op && op->made - op->readahead == 1 && !state->apart && !state->empty && !op->only &&
	    done->times.queued >= op->start_ns) {
		/* It stays here until its operation is over, which counts it together with itself. */
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
	if (telling && state->op_kind == BLOCK_OP_FLUSH)
		note_flush(done);
	if (telling && !op && !state->empty &&
	    wants_telling(minus(done->times.completed, done->times.queued), done->times.completed))
		tell_request(state);
	state->bio = 0;
	return 0;
}

#endif
