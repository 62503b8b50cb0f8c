/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Without operations (wptrace io --level request): tasks that sleep for their own requests. A task that leaves a CPU
 * with a bio in hand that is in flight has a slot in `ops` until it runs again. So a task without I/O only costs a look
 * at the bio in hand of the CPU and one at that table.
 */
#ifndef WPT_PATH_SLEEP_H
#define WPT_PATH_SLEEP_H

#include "block/path/controllers.h"
#include "block/path/entry.h"
#include "block/path/waits.h"
#include "lib/sched.h"

/* By device and block_op of the request. */
enum sleep_stage {
	SLEEP_STAGE_ASLEEP, /* until the request was complete */
	SLEEP_STAGE_WAKEUP,
	SLEEP_STAGE_TOTAL,
	SLEEP_STAGES,
};
EXPORT_ENUM(sleep_stage);

struct sleep_cell {
	__u64 finished;
	struct hist stages[SLEEP_STAGES];
};
CELLS(sleep_cells, sleep_cell);

/* It is in a system call that waits for asynchronous operations, which the scheduler does not count as a wait for I/O. */
static __always_inline bool waits_for_events(struct task_struct *task, bool trusted)
{
	__u64 call =
		trusted && has_typed_registers() ? call_in(task, (void *)bpf_task_pt_regs(task), true) : call_of(task);

	return call < CALLS && calls[call] == CALL_KIND_EVENTS;
}

static __noinline int leave_with_bio(void *ctx, struct task_struct *task, struct hand *hand, bool sleeps, bool trusted)
{
	struct bio_state *state;
	struct in_hand *bio;
	struct op_state *op;
	__u64 now;

	if (!task || !hand)
		return 0;
	bio = &hand->bio;
	state = bio_at(bio->place - 1);
	if (state->bio <= DELIVERED || state->done.times.queued != bio->since)
		return 0; /* it is over */
	op = op_for(hand->task);
	if (!op) {
		COUNT(loss[PATH_CAUSE_SLEEP_FULL]);
		return 0;
	}
	op->kind = OP_AWAY;
	op->slept_ns = 0;
	interference_of(op)->in_hand.place = bio->place;
	interference_of(op)->in_hand.since = bio->since;
	op->carries = true;
	if (!sleeps)
		return 0;
	now = bpf_ktime_get_ns();
	if (watches_interference())
		begin_held(ctx, state, now);
	op->in_iowait = is_in_iowait(task, trusted);
	/* A stacked device has it, and a worker makes the requests of it. */
	if (state->kind == BIO_KIND_ABOVE || (!op->in_iowait && !waits_for_events(task, trusted)))
		return 0;
	op->slot = state->done.slot;
	op->op_kind = state->empty ? BLOCK_OP_FLUSH : state->op_kind;
	op->owner = state->owner;
	op->slept_ns = now;
	return 0;
}

/* The reason of the sleep. */
static __noinline int name_sleep(struct op_state *op, struct task_struct *task, __u64 ns, bool trusted)
{
	struct wait_cell *cell;
	__u32 stack = WAIT_OTHER;

	if (!op || !task)
		return 0;
	if (trusted)
		stack = wait_stack_of(task, op->op_kind << 1 | op->in_iowait);
	cell = wait_cell_of(WAIT_KEY(op->slot, op->op_kind, SLEEP_STAGE_ASLEEP, owner_by ? op->owner : 0, stack));
	if (!cell)
		return 0;
	COUNT(cell->waits);
	hist_add_shared(&cell->stages[0], ns);
	COUNT(cell->finished);
	return 0;
}

/* The request is complete, or an earlier one was enough, or it gave up. */
static __noinline int count_sleep(struct op_state *op, __u64 now)
{
	struct in_hand *bio;
	struct bio_state *state;
	struct sleep_cell *cell;
	__u64 until = now;

	if (!op)
		return 0;
	bio = &interference_of(op)->in_hand;
	state = bio_at(bio->place - 1);
	if (state->done.times.queued == bio->since && state->done.times.completed >= op->slept_ns &&
	    state->done.times.completed < now)
		until = state->done.times.completed;
	cell = cell_at(&sleep_cells, op->slot * BLOCK_OPS + op->op_kind);
	if (!cell)
		return 0;
	op->woken_ns = until;
	if (until > op->slept_ns)
		hist_add_short(cell, &cell->stages[SLEEP_STAGE_ASLEEP], until - op->slept_ns, false);
	if (now > until)
		hist_add_short(cell, &cell->stages[SLEEP_STAGE_WAKEUP], now - until, false);
	hist_add_short(cell, &cell->stages[SLEEP_STAGE_TOTAL], now - op->slept_ns, true);
	COUNT(cell->finished);
	return 0;
}

static __always_inline int on_switch_of_requests(__u64 *ctx, struct task_struct *prev, struct task_struct *next,
						 bool trusted)
{
	struct hand *hand = this_hand();
	struct op_state *op;

	if (hand->bio.place) {
		if (hand->task == (__u64)prev)
			leave_with_bio(ctx, prev, hand, !left_runnable(ctx[0], prev, trusted), trusted);
		hand->bio.place = 0;
	}
	op = find_op((__u64)next);
	if (!op)
		return 0;
	if (op->slept_ns) {
		count_sleep(op, bpf_ktime_get_ns());
		if (op->woken_ns - op->slept_ns >= wait_ns)
			name_sleep(op, next, op->woken_ns - op->slept_ns, trusted);
	}
	/* It may sleep once more: first for a tag, then for the request. */
	pick_up(op, op->task);
	free_op(op);
	return 0;
}

#endif
