/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The task of an operation sleeps and runs. */
#ifndef WPT_PATH_TASK_H
#define WPT_PATH_TASK_H

#include "block/path/account.h"
#include "block/path/controllers.h"
#include "block/path/sleep.h"
#include "block/path/waits.h"
#include "lib/sched.h"

static __always_inline void run_again(struct op_state *op, struct task_struct *task, struct task_struct *before,
				      __u64 now, bool trusted)
{
	struct done *done;

	if (op->preempted_ns && watches_interference())
		add_preemption(op, now);
	op->preempted_ns = 0;
	if (!op->slept_ns)
		return;
	settle(op);
	done = done_at(op, op->last);
	/* Everything was complete before its task had to wait for something else. */
	if (done && done->times.completed < op->slept_ns && all_ended(op)) {
		charge_last(op);
		done = NULL;
	}
	if (op->in_dirty_limit) {
		charge_dirty_limit(op, now);
	} else if (done) {
		if (keeps_records())
			op->wake_cpu = bpf_get_smp_processor_id();
		if (watches_interference())
			add_before_wakeup(op, before, minus(now, done->times.completed));
		if (op->last == LAST_IS_ONLY && !op->charged) {
			op->woken_ns = now;
		} else {
			charge_last(op);
			advance(op, OP_STAGE_WAKEUP, now);
		}
	} else {
		open_account(op);
		/* A sleep in a journal or a sync is always for I/O. */
		if (op->in_iowait || op->in_journal || op->op_kind == OP_KIND_SYNC)
			op->blocked = true;
		if (op->in_iowait && op->lost)
			advance(op, OP_STAGE_UNATTRIBUTED, now);
		/* It waited for something other than its own request: a lock, a journal, another task's read. */
		if (op->above && journal_by_stack && trusted)
			leave_above(op, task);
		if (op->above)
			op->held_until = now;
		else if (all_ended(op))
			charge_wait(op, task, now, trusted);
	}
	op->slept_ns = 0;
}

static __always_inline int on_task_switch(__u64 *ctx, bool trusted)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct op_state *op;
	bool preempt = ctx[0];
	__u64 now = 0;

	if (requests_alone)
		return on_switch_of_requests(ctx, prev, next, trusted);
	op = op_of((__u64)prev);
	if (watches_interference() && this_hand()->bio.place)
		put_down(ctx, number_of((__u64)prev), !left_runnable(preempt, prev, trusted));
	if (op && op->kind == OP_TRACED) {
		now = bpf_ktime_get_ns();
		if (left_runnable(preempt, prev, trusted)) {
			op->preempted_ns = now;
			if (watches_interference())
				name_preemptor(op, next);
		} else {
			op->slept_ns = now;
			op->tid = FIELD(trusted, prev, pid);
			op->in_iowait = is_in_iowait(prev, trusted);
		}
	}
	op = op_of((__u64)next);
	if (op && op->kind == OP_TRACED) {
		if (watches_interference())
			pick_up(op, number_of((__u64)next));
		run_again(op, next, prev, now ? now : bpf_ktime_get_ns(), trusted);
	}
	return 0;
}

#endif
