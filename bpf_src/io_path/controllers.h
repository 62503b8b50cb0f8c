/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What held a bio before it got a request. Each controller is asked in the bio's own task, and may let it sleep; whether
 * it did, the count of the task's sleeps tells.
 */
#ifndef WPT_IO_PATH_CONTROLLERS_H
#define WPT_IO_PATH_CONTROLLERS_H

bool unnamed; /* set by Python: some controller cannot be observed, so a wait until the request need not be for a tag */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct held_cell);
} held_op_cells SEC(".maps"), held_request_cells SEC(".maps");

struct held {
	__u64 since; /* when the operation began or the bio was queued: else it is of an earlier one of the place */
	__u64 ns; /* up to here it is known what held it */
	__u64 sleeps; /* of a bio: how often its task had slept by then */
	__u64 tid; /* of a bio: who queued it */
	__u64 by[CONTROLLERS];
};

/* Of each place of `ops` and `bios`. */
struct held held_ops[OPS] SEC(".bss.held_ops");
struct held held_bios[BIOS] SEC(".bss.held_bios");

static __always_inline struct held *held_op(struct op_state *op)
{
	__u32 place = op->place;

	asm volatile("%0 &= %1" : "+r"(place) : "i"(OPS - 1));
	return &held_ops[place];
}

static __always_inline struct held *held_bio(struct bio_state *state)
{
	__u32 place = state->place;

	asm volatile("%0 &= %1" : "+r"(place) : "i"(BIOS - 1));
	return &held_bios[place];
}

static __always_inline __u64 sleeps(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, nvcsw);
}

/* At Q nobody has held it yet. */
static __always_inline void begin_holding(struct bio_state *state)
{
	struct held *held = held_bio(state);

	__builtin_memset(held, 0, sizeof(*held));
	held->since = held->ns = state->done.times.queued;
	held->sleeps = sleeps();
	held->tid = (__u32)bpf_get_current_pid_tgid();
}

/* What its operation has of that: of several bios that were held at a time, each moment once. */
static __always_inline void hold(struct bio_state *state, struct held *held, enum controller by, __u64 now)
{
	struct op_state *op = op_at(state->op);
	__u64 since = held->ns;
	struct held *whole;

	held->by[by] += minus(now, since);
	if (!state->task || op->task != state->task || op->kind != OP_TRACED)
		return;
	whole = held_op(op);
	if (whole->since != op->start_ns) {
		__builtin_memset(whole, 0, sizeof(*whole));
		whole->since = op->start_ns;
	}
	if (since < whole->ns)
		since = whole->ns;
	whole->by[by] += minus(now, since);
	whole->ns = now;
}

/* A controller, or who allocates the request, is done with the bio. */
static __noinline int end_hold(struct bio *bio, enum controller by)
{
	struct bio_state *state = find_bio((__u64)bio);
	struct held *held;
	__u64 now, slept;

	if (!state || state->untimed || state->kind == BIO_KIND_HEAD)
		return 0;
	held = held_bio(state);
	if (held->since != state->done.times.queued)
		return 0;
	now = bpf_ktime_get_ns();
	slept = sleeps();
	if (slept != held->sleeps)
		hold(state, held, by, now);
	held->sleeps = slept;
	held->ns = now;
	return 0;
}

/* A worker sends on what a limit held. */
static __noinline int release(struct bio_state *state)
{
	__u64 now = bpf_ktime_get_ns();
	struct held *held;

	if (!state)
		return 0;
	held = held_bio(state);
	if (held->since != state->done.times.queued)
		return 0;
	if (held->tid != (__u32)bpf_get_current_pid_tgid())
		hold(state, held, CONTROLLER_IO_MAX, now);
	held->sleeps = sleeps();
	held->ns = now;
	return 0;
}

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

__noinline int count_held_op(__u32 place)
{
	struct op_state *op = op_at(place);
	struct held *held = held_op(op);

	if (held->since == op->start_ns)
		count_held(&held_op_cells, op->slot * OP_KINDS + op->op_kind, held);
	return 0;
}

__noinline int count_held_request(__u32 place)
{
	struct bio_state *state = bio_at(place);
	struct held *held = held_bio(state);

	if (held->since == state->done.times.queued)
		count_held(&held_request_cells, state->done.slot * BLOCK_OPS + state->op_kind, held);
	return 0;
}

#endif
