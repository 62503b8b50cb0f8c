/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The controllers that hold bios before they get a request. A task that goes to sleep while it submits a bio sleeps in
 * whatever holds the bio, and its stack shows in what. So a bio that nothing holds only costs a note that it is in hand.
 */
#ifndef WPT_PATH_CONTROLLERS_H
#define WPT_PATH_CONTROLLERS_H

#include "block/path/state.h"
#include "block/path/interference.h"

/* Only operations or requests that a controller held. */
struct held_cell {
	__u64 unused;
	struct hist stages[CONTROLLERS];
};

CELLS(held_op_cells, held_cell);
CELLS(held_request_cells, held_cell);

struct held {
	__u64 since; /* when the operation began or the bio was queued; otherwise stale, from earlier use of the slot */
	__u64 until; /* of an operation: time before it has been counted */
	__u64 by[CONTROLLERS];
	__u16 tag_queue; /* as in a record, the last one */
	bool needs_tag; /* of a bio: the controller that its task is about to sleep in */
};

#define PHASES 4 /* of one bio; more are added to the last of them */
#define NOBODY CONTROLLERS

struct phase {
	__u64 begin_ns;
	__u64 by; /* controller or NOBODY, up to the next one or the request */
};

struct hold {
	struct held held; /* when the bio has its request */
	__u64 phases_there;
	struct phase phases[PHASES];
};

/* Of each slot of `ops` and `bios`. */
struct held held_ops[OPS] SEC(".bss.held_ops");
struct hold holds[BIOS] SEC(".bss.holds");

static __always_inline struct held *held_op(struct op_state *op)
{
	__u32 place = op->place;

	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	return &held_ops[place];
}

static __always_inline struct hold *hold_of(struct bio_state *state)
{
	__u32 place = state->place;

	asm volatile("%0 &= %1" : "+w"(place) : "i"(BIOS - 1));
	return &holds[place];
}

/* --- Bios in hand ------------------------------------------------------------------------------------------------- */

#define HANDS 1024 /* with more CPUs some share one, and lose information */

/* Written by its CPU at each bio, so it has a cache line of its own. */
struct hand {
	__u64 task;
	struct in_hand bio;
	__u64 unused[5];
};

struct hand hands[HANDS] SEC(".bss.hands");

static __always_inline struct hand *this_hand(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	asm volatile("%0 &= %1" : "+w"(cpu) : "i"(HANDS - 1));
	return &hands[cpu];
}

/* --- Functions to sleep in ---------------------------------------------------------------------------------------- */

/* Addresses of the functions that wait for each, set by Python; 0: not in this kernel, or unknown. */
__u64 code_begin[CONTROLLERS];
__u64 code_bytes[CONTROLLERS];

/* Global, with scalar arguments, so that it is verified once. */
__noinline __u32 controller_at(__u64 address)
{
	__u32 by;

	for (by = 0; by < CONTROLLER_UNKNOWN; by++) {
		if (address - code_begin[by] < code_bytes[by])
			break;
	}
	return by;
}

static __always_inline __u32 asleep_in(void *ctx)
{
	struct cpu_state *cpu = this_cpu();
	__u32 frame, by;
	long bytes;

	if (!cpu)
		return CONTROLLER_UNKNOWN;
	bytes = bpf_get_stack(ctx, cpu->frames, sizeof(cpu->frames), 0);
	for (frame = 0; frame < FRAMES; frame++) {
		if ((long)(frame * sizeof(cpu->frames[0])) >= bytes)
			break;
		by = controller_at(cpu->frames[frame]);
		if (by < CONTROLLER_UNKNOWN)
			return by;
	}
	return CONTROLLER_UNKNOWN;
}

/* --- Phases ------------------------------------------------------------------------------------------------------- */

static __always_inline void begin_phase(struct bio_state *state, __u64 by, __u64 now)
{
	struct hold *hold = hold_of(state);
	__u64 place;

	if (hold->held.since != state->done.times.queued) {
		__builtin_memset(&hold->held, 0, sizeof(hold->held));
		hold->held.since = state->done.times.queued;
		hold->phases_there = 0;
	}
	place = hold->phases_there;
	if (place >= PHASES)
		return;
	hold->phases[place].begin_ns = now;
	hold->phases[place].by = by;
	hold->phases_there = place + 1;
}

static __always_inline void take_in_hand(struct bio_state *state)
{
	struct hand *hand = this_hand();

	hand->task = bpf_get_current_task();
	hand->bio.since = state->done.times.queued;
	hand->bio.place = state->place + 1;
}

/* The bio that the current task has in hand, if it has no request yet. */
static __always_inline struct bio_state *bio_in_hand(void)
{
	struct hand *hand = this_hand();
	struct bio_state *state;

	if (!watches_interference() || !hand->bio.place || hand->task != bpf_get_current_task())
		return NULL;
	state = bio_at(hand->bio.place - 1);
	if (state->bio <= DELIVERED || state->done.times.queued != hand->bio.since || state->kind != BIO_KIND_QUEUED)
		return NULL;
	return state;
}

struct blk_mq_hw_ctx___known {
	unsigned int queue_num;
} __attribute__((preserve_access_index));

/* It is about to sleep for a tag, since 7.2. */
static __noinline int on_tag_wait(struct blk_mq_hw_ctx___known *queue)
{
	struct bio_state *state = bio_in_hand();
	struct hold *hold;

	if (!state)
		return 0;
	begin_phase(state, CONTROLLER_TAG, bpf_ktime_get_ns());
	hold = hold_of(state);
	hold->held.tag_queue = 1 + BPF_CORE_READ(queue, queue_num);
	hold->held.needs_tag = true;
	return 0;
}

/* It is already known to sleep for a tag. */
static __always_inline bool is_tag_wait(struct bio_state *state)
{
	struct held *held = &hold_of(state)->held;
	bool known = held->since == state->done.times.queued && held->needs_tag;

	if (known)
		held->needs_tag = false;
	return known;
}

/* The task goes on; a worker sends the bio when earlier writes are done. */
static __noinline int on_zone_plug(void)
{
	struct bio_state *state = bio_in_hand();

	if (!state)
		return 0;
	begin_phase(state, CONTROLLER_ZONE, bpf_ktime_get_ns());
	/* Whatever the task sleeps for now does not hold this bio. */
	this_hand()->bio.place = 0;
	return 0;
}

/* Its task goes to sleep: what it sleeps in holds the bio, if it has no request yet. */
static __always_inline void begin_held(void *ctx, struct bio_state *state, __u64 now)
{
	if (state->kind == BIO_KIND_QUEUED && !is_tag_wait(state))
		begin_phase(state, asleep_in(ctx), now);
}

/*
 * The task leaves this CPU. A task with an operation takes the bio in hand along; of others only the first sleep
 * is seen.
 */
static __noinline int put_down(void *ctx, __u64 task, bool sleeps)
{
	struct hand *hand = this_hand();
	struct bio_state *state;
	struct op_state *op;
	__u32 place = hand->bio.place;

	hand->bio.place = 0;
	if (!place || hand->task != task)
		return 0;
	state = bio_at(place - 1);
	if (state->bio <= DELIVERED || state->done.times.queued != hand->bio.since)
		return 0;
	if (state->kind != BIO_KIND_QUEUED && state->kind != BIO_KIND_HELD)
		return 0;
	op = op_of(task);
	if (op) {
		interference_of(op)->in_hand.place = place;
		interference_of(op)->in_hand.since = hand->bio.since;
		op->carries = true;
	}
	if (sleeps)
		begin_held(ctx, state, bpf_ktime_get_ns());
	return 0;
}

static __always_inline void pick_up(struct op_state *op, __u64 task)
{
	struct in_hand *bio = &interference_of(op)->in_hand;
	struct hand *hand = this_hand();

	hand->task = task;
	hand->bio.since = bio->since;
	hand->bio.place = op->carries ? bio->place : 0;
	op->carries = false;
}

/* A worker sends on a bio that a limit held, or its own task does if it was not held after all. */
static __noinline int release(struct bio_state *state)
{
	struct hand *hand = this_hand();
	bool own;

	if (!state)
		return 0;
	own = hand->bio.place == state->place + 1 && hand->task == bpf_get_current_task();
	if (!own && (state->task || state->tid != (__u32)bpf_get_current_pid_tgid())) {
		begin_phase(state, CONTROLLER_IO_MAX, state->done.times.queued);
		begin_phase(state, NOBODY, bpf_ktime_get_ns());
	}
	take_in_hand(state);
	return 0;
}

/* --- Counting ----------------------------------------------------------------------------------------------------- */

static __always_inline void count_held(void *cells, __u32 key, struct held *held)
{
	struct held_cell *cell = cell_at(cells, key);
	int by;

	if (!cell)
		return;
	for (by = 0; by < CONTROLLERS; by++) {
		if (held->by[by])
			hist_add_plain(&cell->stages[by], held->by[by]);
	}
}

/* The time that counts for an operation: while several bios are held at once, it counts once. */
static __always_inline void hold_op(struct op_state *op, __u64 by, __u64 begin, __u64 end)
{
	struct held *held = held_op(op);

	if (held->since != op->start_ns) {
		__builtin_memset(held, 0, sizeof(*held));
		held->since = op->start_ns;
	}
	if (begin < held->until)
		begin = held->until;
	if (end <= begin)
		return;
	held->until = end;
	held->by[by] += end - begin;
}

/* The request of a held bio is complete, so the time of G is known. */
__noinline int count_held_request(__u32 place)
{
	struct bio_state *state = bio_at(place);
	struct hold *hold = hold_of(state);
	struct op_state *op = op_at(state->op);
	__u64 got = state->done.times.got;
	__u32 at;

	if (!state->task || op->task != state->task || op->kind != OP_TRACED)
		op = NULL;
	for (at = 0; at < PHASES && at < hold->phases_there; at++) {
		__u64 begin = hold->phases[at].begin_ns, by = hold->phases[at].by, end = got;

		if (at + 1 < PHASES && at + 1 < hold->phases_there && hold->phases[at + 1].begin_ns < end)
			end = hold->phases[at + 1].begin_ns;
		if (by >= CONTROLLERS || end <= begin)
			continue;
		hold->held.by[by] += end - begin;
		if (!op)
			continue;
		hold_op(op, by, begin, end);
		if (by == CONTROLLER_TAG)
			held_op(op)->tag_queue = hold->held.tag_queue;
	}
	count_held(&held_request_cells, state->done.slot * BLOCK_OPS + state->op_kind, &hold->held);
	return 0;
}

__noinline int count_held_op(__u32 place)
{
	struct op_state *op = op_at(place);

	count_held(&held_op_cells, op->slot * OP_KINDS + op->op_kind, held_op(op));
	return 0;
}

static __always_inline bool was_held(struct held *held, __u64 since)
{
	return held->since == since;
}

#endif
