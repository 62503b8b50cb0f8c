/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Events between the issue and the end of a request: it is requeued and issued again, it completes in parts,
 * it fails, other bios are merged into it. All of that is rare, and kept out of the path of other requests.
 */
#ifndef WPT_PATH_LIFE_H
#define WPT_PATH_LIFE_H

#include "block/path/state.h"
#include "block/path/account.h"
#include "block/path/bio.h"
#include "block/path/layers.h"
#include "block/path/writeback.h"

/*
 * A loop is verified round by round to its last one: loops over bios have little in them but calls of global functions
 * with scalar arguments, which are verified once, and no result that the verifier knows.
 */

/* It was merged before its request was issued: nobody has seen yet that a stacked device sent it on. */
static __noinline int end_same_bio(struct bio_state *state, struct bio *bio, int error)
{
	__u64 now = bpf_ktime_get_ns(), total;

	if (!state)
		return 0;
	total = minus(now, state->done.times.queued);
	if (state->layer) {
		state->layer = false;
		/* The one that represents the request counts the bytes of all. */
		state->done.bytes = 0;
		count_layer(state, state->done.slot, total, now, error);
	}
	belong_below(state, bio, BPF_CORE_READ(bio, bi_opf));
	return 0;
}

static __always_inline int deliver_merged_one(__u64 address, __u32 head_place)
{
	struct bio_state *head = bio_at(head_place);
	struct bio_state *state = find_bio(address);

	if (!state || state->place == head->place)
		return 0;
	if (state->kind == BIO_KIND_ABOVE)
		end_same_bio(state, (void *)address, head->done.error);
	/* It was issued, and merged with another one before it was issued again. */
	if (state->kind == BIO_KIND_HEAD) {
		state->begun--;
		head->done.events.requeues += state->done.events.requeues;
	}
	if (state->done.events.below & EVENT_BELOW)
		end_below(state, bpf_ktime_get_ns());
	if (state->task)
		deliver(state, head);
	if (following)
		count_writeback(state->place, head->place);
	state->bio = 0;
	return 0;
}

/* Ends a merged bio, and returns the next one. */
__noinline __u64 deliver_and_next(__u64 bio, __u32 head_place)
{
	deliver_merged_one(bio, head_place);
	bio_at(head_place)->done.events.merged++;
	return (__u64)BPF_CORE_READ((struct bio *)bio, bi_next);
}

/* A request of 4 MiB may have 1,024 bios of a page, and more if they are smaller. */
#define MERGES_AT_ONCE 32
#define MERGES_OF_REQUEST 2048

__noinline __u64 deliver_some(__u64 bio, __u32 head_place)
{
	int ended;

	for (ended = 0; ended < MERGES_AT_ONCE && bio; ended++)
		bio = deliver_and_next(bio, head_place);
	return bio;
}

/* Bios that were merged into the request end with it. */
__noinline int deliver_merged(__u64 request, __u32 head_place)
{
	struct request *rq = (void *)request;
	struct bio_state *head = bio_at(head_place);
	__u64 bio = (__u64)BPF_CORE_READ(rq, bio);
	__u16 before = head->done.events.merged, more;
	int ended;

	if (!bio)
		return 0;
	for (ended = 0; ended < MERGES_OF_REQUEST && bio; ended += MERGES_AT_ONCE)
		bio = deliver_some(bio, head_place);
	if (bio)
		COUNT(loss[PATH_CAUSE_MANY_BIOS]);
	/* The first one is not merged. */
	head->done.events.merged--;
	more = head->done.events.merged - before;
	COUNT_EVENTS(head, merged, more);
	return 0;
}

/* Another bio represents the request from now on, as the previous one has ended. */
static __noinline int succeed(__u64 address, struct bio_state *head)
{
	struct bio_state *next;

	if (!head)
		return 0;
	next = find_bio(address);
	if (next) {
		__u64 queued = next->done.times.queued;
		__u16 submit = next->done.cpus.submit;

		if (next->kind == BIO_KIND_HEAD)
			next->begun--;
		__builtin_memcpy(&next->done, &head->done, sizeof(next->done));
		next->done.times.queued = queued;
		next->done.cpus.submit = submit;
	} else {
		/* It was never seen: it has no owner. */
		next = bio_for(address);
		if (!next) {
			COUNT(loss[PATH_CAUSE_UNMATCHED_START]);
			return 0;
		}
		__builtin_memcpy(&next->done, &head->done, sizeof(next->done));
		next->bio = address;
		next->task = 0;
		disown(next);
		next->tid = next->tgid = 0;
		next->cgroup = 0;
		__builtin_memset(next->comm, 0, sizeof(next->comm));
		next->apart = 0;
		next->layer = false;
		next->empty = false;
		if (following)
			written_by(next)->dirtied_ns = 0;
	}
	next->kind = BIO_KIND_HEAD;
	next->op_kind = head->op_kind;
	next->untimed = head->untimed;
	next->set_up = false;
	next->above = head->above;
	next->above_ns = head->above_ns;
	next->top_ns = head->top_ns;
	next->done.times.seen = 0;
	if (neighbours)
		succeed_watch(next, head);
	return 0;
}

#define NOT_WHOLE (~0U)

/* The size of a bio that ends with so many bytes, and leaves the request another one. */
__noinline __u32 size_within(__u64 address, __u32 bytes)
{
	struct bio *bio = (void *)address;
	__u32 size = BPF_CORE_READ(bio, bi_iter.bi_size);

	return size <= bytes && BPF_CORE_READ(bio, bi_next) ? size : NOT_WHOLE;
}

/* In the address of a bio: one before it represented the request, and has ended. */
#define HEAD_ENDED 1ULL

/* Ends a bio before the rest of its request, and returns the next one. */
__noinline __u64 end_and_next(__u64 bio, __u32 head_place)
{
	struct bio_state *head = bio_at(head_place);
	__u64 head_ended = bio & HEAD_ENDED;

	bio &= ~HEAD_ENDED;
	if (bio == head->bio)
		head_ended = HEAD_ENDED;
	else
		deliver_merged_one(bio, head_place);
	head->done.events.merged++;
	COUNT_EVENTS(head, merged, 1);
	return (__u64)BPF_CORE_READ((struct bio *)bio, bi_next) | head_ended;
}

/* Ends the bios that end with so many bytes, and returns the first one of the rest. */
__noinline __u64 end_within(__u64 bio, __u32 bytes, __u32 head_place)
{
	int ended;

	for (ended = 0; ended < MERGES; ended++) {
		__u32 size = size_within(bio & ~HEAD_ENDED, bytes);

		if (size == NOT_WHOLE)
			return bio;
		bytes -= size;
		bio = end_and_next(bio, head_place);
	}
	COUNT(loss[PATH_CAUSE_MANY_BIOS]);
	return bio;
}

/*
 * Some bytes of a request are done, and its first bios with them; the kernel ends those, and the request goes on with
 * the next one. The request is counted once, at its end, with all of its bytes.
 */
__noinline int complete_part(__u64 request, __u32 bytes, int error)
{
	struct request *rq = (void *)request;
	struct bio_state *head = state_of(rq, false);
	__u64 bio = (__u64)BPF_CORE_READ(rq, bio);
	struct done *done;

	if (!head || !bio)
		return 0;
	done = &head->done;
	if (!done->events.parts) {
		done->bytes = 0;
		done->error = 0;
		done->sector = BPF_CORE_READ(rq, __sector);
	}
	done->bytes += bytes;
	if (error)
		done->error = error;
	ONE_MORE(done->events.parts);
	COUNT_EVENTS(head, parts, 1);
	if (!head->untimed) {
		done->times.completed = bpf_ktime_get_ns();
		fill_in(&done->times, BPF_CORE_READ(rq, start_time_ns));
	}
	bio = end_within(bio, bytes, head->place);
	if (bio & HEAD_ENDED) {
		if (head->task)
			deliver(head, head);
		if (following)
			count_writeback(head->place, head->place);
		succeed(bio & ~HEAD_ENDED, head);
		head->bio = 0;
	}
	/* The rest is still with the device. */
	done->times.seen = 0;
	return 0;
}

/* The end of a request that failed, completed in parts, or is below a stacked device. */
static __noinline int end_otherwise(struct request *rq, struct bio_state *state, __u32 bytes, int error)
{
	struct done *done;

	if (!state)
		return 0;
	done = &state->done;
	if (done->events.parts) {
		done->bytes += bytes;
		if (error)
			done->error = error;
	} else {
		done->bytes = bytes;
		done->error = error;
	}
	if (done->events.below & EVENT_SAME_BIO) {
		__u64 now = bpf_ktime_get_ns();

		/* No hook reports when the device above sent it. */
		count_layer(state, state->layer_slot, minus(now, done->times.queued), now, done->error);
	}
	if (done->events.below & EVENT_BELOW)
		end_below(state, bpf_ktime_get_ns());
	if (error && has_timed_out(rq)) {
		ONE_MORE(done->events.timeouts);
		COUNT_EVENTS(state, timeouts, 1);
	}
	return 0;
}

/* The driver could not take it, or returns it; it is issued again, perhaps after a merge. */
static __always_inline int on_request_requeue(struct request *rq, bool trusted)
{
	struct bio_state *state = first_of(rq, FIELD(trusted, rq, bio), false, trusted);

	if (neighbours)
		leave_device(number_of((__u64)rq), false);
	if (!state || state->kind == BIO_KIND_ABOVE)
		return 0;
	ONE_MORE(state->done.events.requeues);
	COUNT_EVENTS(state, requeues, 1);
	if (has_timed_out(rq)) {
		ONE_MORE(state->done.events.timeouts);
		COUNT_EVENTS(state, timeouts, 1);
	}
	return 0;
}

#endif
