/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* With --segments: each period of an operation's stages, and each of its requests. */
#ifndef WPT_PATH_SEGMENTS_H
#define WPT_PATH_SEGMENTS_H

#include "block/path/state.h"

/*
 * The data of an operation until its record is written. Entries of requests are validated by their times, and never
 * cleared.
 */
struct kept {
	__u64 segments[SEGMENTS];
	__u32 count;
	__u32 more; /* periods without room */
	__u8 stage; /* of the last one */
	__u8 unused[7];
	struct child children[CHILDREN];
};

/* For each slot of `ops`; Python sets the size if it is wanted. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kept);
} op_kept SEC(".maps");

/* Global functions: verified once, not wherever time is charged. */
__noinline int forget_segments(__u32 place)
{
	struct kept *kept;

	if (!keeps_segments())
		return 0;
	kept = bpf_map_lookup_elem(&op_kept, &place);
	if (kept)
		kept->count = kept->more = 0;
	return 0;
}

/* A period begins where the previous one ends. Two of the same stage are combined. */
__noinline int keep_segment(__u32 place, __u32 stage, __u64 until)
{
	struct kept *kept;
	__u32 count;

	if (!keeps_segments())
		return 0;
	kept = bpf_map_lookup_elem(&op_kept, &place);
	if (!kept)
		return 0;
	count = kept->count;
	if (count && kept->stage == stage) {
		if (kept->more)
			return 0;
		count--;
	} else if (count >= SEGMENTS) {
		kept->stage = stage;
		kept->more++;
		return 0;
	}
	kept->stage = stage;
	kept->count = count + 1;
	if (count < SEGMENTS)
		kept->segments[count] = (until - op_at(place)->start_ns) << SEGMENT_STAGE_BITS | (__u8)stage;
	return 0;
}

/*
 * A request of the operation: each has its own place by number, so that two ends on two CPUs do not collide. The
 * first place is for a request of an earlier operation. `head` is the bio that represents the request.
 */
static __noinline int keep_child(struct op_state *op, struct bio_state *state, struct bio_state *head)
{
	struct child *child;
	struct kept *kept;
	__u32 place, at;

	if (!op || !state || !head)
		return 0;
	place = op->place;
	kept = bpf_map_lookup_elem(&op_kept, &place);
	at = state->done.times.queued >= op->start_ns ? state->made : 0;
	if (!kept || at >= CHILDREN)
		return 0;
	child = &kept->children[at];
	child->times = head->done.times;
	child->times.queued = state->done.times.queued;
	if (child->times.got < child->times.queued)
		child->times.got = child->times.queued;
	child->sector = head->done.sector;
	child->dev = head->done.dev;
	child->bytes = head->done.bytes;
	child->flags = portable_flags(head->done.flags);
	child->error = head->done.error;
	child->op = request_op(head->done.flags);
	child->readahead = (state->apart & BIO_APART_READAHEAD) != 0;
	return 0;
}

/* Of this operation, not a stale one. */
static __always_inline bool is_of(struct child *child, struct op_state *op, bool own)
{
	return own ? child->times.queued >= op->start_ns : child->times.completed >= op->start_ns;
}

static __noinline int fill_no_segments(struct trail *trail)
{
	__u32 at;

	if (!trail)
		return 0;
	trail->more = 0;
	__builtin_memset(trail->segments, 0, sizeof(trail->segments));
#pragma clang loop unroll(disable)
	for (at = 0; at < CHILDREN; at++) {
		/* Otherwise the compiler turns the loop into a call that BPF lacks. */
		barrier();
		__builtin_memset(&trail->children[at], 0, sizeof(struct child));
	}
	return 0;
}

static __noinline int fill_children(struct trail *trail, struct kept *kept, struct op_state *op)
{
	__u32 at;

	if (!trail || !kept || !op)
		return 0;
#pragma clang loop unroll(disable)
	for (at = 0; at < CHILDREN; at++) {
		struct child *child = &trail->children[at];

		if (is_of(&kept->children[at], op, at != 0))
			*child = kept->children[at];
		else
			__builtin_memset(child, 0, sizeof(*child));
	}
	return 0;
}

static __noinline int fill_segments(struct trail *trail, struct op_state *op)
{
	struct bio_state *only;
	struct kept *kept;
	__u32 place, at;

	if (!trail || !op)
		return 0;
	place = op->place;
	kept = bpf_map_lookup_elem(&op_kept, &place);
	if (!kept)
		return 0;
	if (op->only) {
		only = bio_at(op->only - 1);
		keep_child(op, only, only);
	}
	trail->more = kept->more;
#pragma clang loop unroll(disable)
	for (at = 0; at < SEGMENTS; at++) {
		/* From memory each time: the verifier does not fork on a value that it reads. */
		__u32 count = *(volatile __u32 *)&kept->count;

		trail->segments[at] = at < count ? kept->segments[at] : 0;
	}
	fill_children(trail, kept, op);
	return 0;
}

#endif
