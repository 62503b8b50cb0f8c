/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Charging time to operations, and counting operations and requests. */
#ifndef WPT_PATH_ACCOUNT_H
#define WPT_PATH_ACCOUNT_H

#include "block/path/state.h"
#include "block/path/interference.h"
#include "block/path/owner.h"
#include "block/path/neighbours.h"
#include "block/path/recorder.h"
#include "block/path/segments.h"

/* --- Cells -------------------------------------------------------------------------------------------------------- */

/*
 * Operations that waited for a device, per device, kind and CPU. A stage that took no time is not counted: it is the
 * `finished` minus the count of the stage. So `finished` is counted last.
 */
struct op_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 requests;
	__u64 fs_asleep_ns; /* of the stages in which a task may run */
	__u64 journal_asleep_ns;
	struct hist stages[OP_STAGES];
};
CELLS(op_cells, op_cell);

/*
 * Operations that made a single request and waited for it. The request's stages are those of the operation, so it
 * only needs a distribution of its own for its total. Stages that such an operation cannot have are left out.
 */
enum only_stage {
	ONLY_STAGE_SUBMIT,
	ONLY_STAGE_FS,
	EACH_REQUEST_STAGE(ONLY_STAGE_OF) /* the same */
	ONLY_STAGE_WAKEUP,
	ONLY_STAGE_RETURN,
	ONLY_STAGE_TOTAL,
	ONLY_STAGE_REQUEST,
	ONLY_STAGES,
};
EXPORT_ENUM(only_stage);

struct only_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 request_bytes;
	__u64 request_failed;
	struct hist stages[ONLY_STAGES];
};
CELLS(only_cells, only_cell);

/* Operations that the page cache served. */
struct hit_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 readahead; /* requests that they started nevertheless */
	struct hist stages[1];
};
CELLS(hit_cells, hit_cell);

struct interference_cell {
	__u64 finished;
	struct hist stages[INTERFERENCE_KINDS];
};
CELLS(interference_cells, interference_cell);

/* Requests of the block layer, by device and block_op. */
struct request_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 untimed; /* of the finished: only counted */
	struct event_counts events;
	struct hist stages[REQUEST_STAGES];
};
CELLS(request_cells, request_cell);

/* Count an event in the row of the request. */
#define COUNT_EVENTS(state, what, times) \
	do { \
		struct request_cell *__cell = \
			cell_at(&request_cells, (state)->done.slot * BLOCK_OPS + (state)->op_kind); \
		if (__cell) \
			COUNT_MORE(__cell->events.what, times); \
	} while (0)

/* --- Charging ----------------------------------------------------------------------------------------------------- */

static __always_inline void advance(struct op_state *op, enum op_stage stage, __u64 until)
{
	if (until > op->cursor_ns) {
		if (keeps_segments())
			keep_segment(op->place, stage, until);
		op->charges[stage] += until - op->cursor_ns;
		op->cursor_ns = until;
	}
}

/* The stage of a task while it waits for none of its requests. */
static __always_inline enum op_stage own_stage(struct op_state *op)
{
	return op->in_journal ? OP_STAGE_JOURNAL : OP_STAGE_FS;
}

/* Before the first charge. */
static __always_inline void open_account(struct op_state *op)
{
	if (op->charged)
		return;
	op->charged = true;
	op->cursor_ns = op->start_ns;
	if (keeps_segments())
		forget_segments(op->place);
	__builtin_memset(op->charges, 0, sizeof(op->charges));
	op->asleep_ns = op->journal_asleep_ns = 0;
	if (op->interface != INTERFACE_CALL)
		advance(op, OP_STAGE_SUBMIT, op->issued_ns);
}

#define CHARGE(name, from, to) advance(op, OP_STAGE_##name, done->times.to);

/* The time up to the completion of what was waited for. */
static __noinline int charge(struct op_state *op, struct done *done)
{
	if (!op || !done)
		return 0;
	open_account(op);
	/* It was issued before the task went to sleep: until then the task did other work. */
	if (done->times.got < op->cursor_ns)
		advance(op, own_stage(op), op->slept_ns);
	if (done->events.below & EVENT_BELOW) {
		advance(op, own_stage(op), op->above_ns);
		advance(op, OP_STAGE_LAYERS, done->times.queued);
	}
	advance(op, own_stage(op), done->times.queued);
	if (done->events.below & EVENT_UNDIVIDED) {
		advance(op, OP_STAGE_UNATTRIBUTED, done->times.completed);
	} else {
		EACH_REQUEST_STAGE(CHARGE)
	}
	op->waited = true;
	op->slot = done->slot;
	return 0;
}

/* None of its requests is in flight, except for readahead. */
static __always_inline bool all_ended(struct op_state *op)
{
	return op->ended >= op->made - op->readahead;
}

static __always_inline void charge_last(struct op_state *op)
{
	struct done *done = done_at(op, op->last);

	if (done) {
		charge(op, done);
		/* The time in the stacked device. */
		if (done->events.below & EVENT_BELOW)
			advance(op, OP_STAGE_LAYERS, op->above_done_ns);
		if (watches_interference())
			add_irq_delay(op, done);
		op->waited_for = op->last;
	}
	op->last = 0;
}

/*
 * Most operations wait once, for one request. They are charged at their end, from the times of that request; they
 * are charged earlier only if something else happens after that wait.
 */
static __always_inline void settle(struct op_state *op)
{
	if (!op->woken_ns)
		return;
	charge_last(op);
	advance(op, OP_STAGE_WAKEUP, op->woken_ns);
	op->woken_ns = 0;
}

/* --- Completion of an operation's requests ------------------------------------------------------------------------ */

/* Tell the operation about a request that it may wait for, even one that an earlier operation of its task began. */
static __noinline int deliver(struct bio_state *state, struct bio_state *head)
{
	struct op_state *op;
	struct done *done;
	__u32 place;
	bool own;

	if (!state || !head)
		return 0;
	op = op_at(state->op);
	if (op->task != state->task || op->kind != OP_TRACED)
		return 0;
	own = state->done.times.queued >= op->start_ns;
	if (keeps_segments() && (own || op->slept_ns))
		keep_child(op, state, head);
	/* Readahead is waited for by a later operation, if at all. */
	if (own ? state->apart & BIO_APART_READAHEAD : !op->slept_ns)
		return 0;
	place = state->made & (DONE - 1);
	done = done_of(op, place);
	__builtin_memcpy(done, &head->done, sizeof(*done));
	done->times.queued = state->done.times.queued;
	if (state != head)
		done->events.below = state->done.events.below | (head->done.events.below & EVENT_UNDIVIDED);
	if (done->events.below & EVENT_BELOW)
		op->above_ns = state->top_ns;
	if (done->times.got < done->times.queued)
		done->times.got = done->times.queued;
	done->cpus.submit = state->done.cpus.submit;
	if (neighbours && keeps_records())
		deliver_watch(op, head);
	if (own)
		COUNT(op->ended);
	op->last = place + 1;
	return 0;
}

/*
 * If a point was not seen, its stage is empty and the next one has its time. Clocks of two CPUs may differ by some
 * cycles, but no point comes before the one before it.
 */
static __always_inline void fill_in(struct times *times, __u64 allocated)
{
	__u64 at = times->queued;

	if (times->issued > at) {
		/* The kernel's stamp; without iostats it is 0 or that of another request. */
		if (allocated > at && allocated <= times->issued)
			at = allocated;
		times->got = at;
		at = times->issued;
	} else {
		times->got = times->issued = at;
	}
	if (times->handed > at)
		at = times->handed;
	times->handed = at;
	if (!times->seen) {
		if (times->completed > at)
			at = times->completed;
		times->completed = times->seen = at;
		return;
	}
	if (times->seen > at)
		at = times->seen;
	times->seen = at;
	if (times->completed < at)
		times->completed = at;
}

/* --- Requests are counted ----------------------------------------------------------------------------------------- */

/* A single comparison. The time is read once more, so that the verifier knows nothing of it on both branches. */
#define COUNT_UP_TO(stage, until) \
	do { \
		if ((until) > at) { \
			hist_add_short(cell, &cell->stages[stage], (until) - at, false); \
			at = *(const volatile __u64 *)&(until); \
		} \
	} while (0)

#define COUNT_REQUEST_UP_TO(name, from, to) COUNT_UP_TO(REQUEST_STAGE_##name, times->to);

static __noinline int count_request(struct bio_state *state)
{
	struct request_cell *cell;
	struct times *times;

	if (!state)
		return 0;
	cell = cell_at(&request_cells, state->done.slot * BLOCK_OPS + state->op_kind);
	if (!cell)
		return 0;
	if (owner_by)
		count_owned_request(state);
	COUNT_MORE(cell->bytes, state->done.bytes);
	if (state->done.error)
		COUNT(cell->failed);
	if (state->untimed) {
		COUNT(cell->untimed);
		COUNT(cell->finished);
		return 0;
	}
	times = &state->done.times;
	if (!(state->done.events.below & EVENT_UNDIVIDED)) {
		__u64 at = times->queued;

		EACH_REQUEST_STAGE(COUNT_REQUEST_UP_TO)
	}
	hist_add_short(cell, &cell->stages[REQUEST_STAGE_TOTAL], times->completed - times->queued, true);
	COUNT(cell->finished);
	if (recording)
		recorder_request(state);
	return 0;
}

/* A flush without data: the flush itself is a request of its own, or shared by concurrent ones. */
static __noinline int count_asked(struct bio_state *state)
{
	struct request_cell *cell;

	if (!state)
		return 0;
	cell = cell_at(&request_cells, state->done.slot * BLOCK_OPS + BLOCK_OP_FLUSH);
	if (cell)
		cell->events.asked++;
	return 0;
}

/* The only request of an operation that has ended is counted by itself. */
__noinline int release_only(__u32 place)
{
	struct op_state *op = op_at(place);
	struct bio_state *state;

	state = bio_at(op->only - 1);
	if (state->bio != DELIVERED)
		return 0;
	count_request(state);
	state->bio = 0;
	return 0;
}

/* It was counted with its operation. */
static __always_inline void release_counted(struct op_state *op, struct done *only)
{
	struct bio_state *state = container_of(only, struct bio_state, done);

	if (state->bio == DELIVERED)
		state->bio = 0;
	op->only = 0;
}

/*
 * Not by who clears the rest of an operation: what did not wait for its request may end, and the next one begin here,
 * while that completes elsewhere, which is reported when it is read; a request that is cleared unread would be in
 * flight for ever.
 */
static __always_inline void drop_only(struct op_state *op)
{
	if (op->only) {
		release_only(op->place);
		op->only = 0;
	}
}

/* --- Operations are counted --------------------------------------------------------------------------------------- */

/* The result of an operation, after its times. The barrier keeps the compiler from making one addition of both. */
#define COUNT_RESULT(cell, result) \
	do { \
		if (__builtin_expect((result) < 0, 0)) { \
			COUNT((cell)->failed); \
			barrier(); \
		} else { \
			COUNT_MORE((cell)->bytes, result); \
		} \
		COUNT((cell)->finished); \
	} while (0)

#define COUNT_STAGE_UP_TO(name, from, to) COUNT_UP_TO(ONLY_STAGE_##name, times->to);

/* Both are of the same owner and kind. */
struct owned_cells {
	struct owned_op_cell *op;
	struct owned_request_cell *request;
};

static __always_inline void owned_cells_of(struct owned_cells *owned, struct op_state *op, __u32 slot)
{
	__u32 row;

	owned->op = NULL;
	owned->request = NULL;
	if (!owner_by)
		return;
	row = owned_row(op->owner, slot, op->op_kind);
	owned->op = cell_at(&owned_op_cells, row);
	owned->request = cell_at(&owned_request_cells, row);
}

/* An operation with a single request that it waited for: both share distributions, except for the total. */
static __always_inline void count_with_request(struct op_state *op, struct done *done, __s64 result)
{
	struct owned_cells owned;
	struct only_cell *cell;
	struct times *times;
	__u64 at;

	cell = cell_at(&only_cells, done->slot * PLAIN_KINDS + (op->op_kind & 1));
	if (!cell)
		return;
	COUNT_MORE(cell->request_bytes, done->bytes);
	if (done->error)
		COUNT(cell->request_failed);
	times = &done->times;
	at = op->start_ns;
	if (op->interface != INTERFACE_CALL)
		COUNT_UP_TO(ONLY_STAGE_SUBMIT, op->issued_ns);
	COUNT_UP_TO(ONLY_STAGE_FS, times->queued);
	EACH_REQUEST_STAGE(COUNT_STAGE_UP_TO)
	COUNT_UP_TO(ONLY_STAGE_WAKEUP, op->woken_ns);
	COUNT_UP_TO(ONLY_STAGE_RETURN, op->end_ns);
	owned_cells_of(&owned, op, done->slot);
	hist_add_short_twice(cell, &cell->stages[ONLY_STAGE_TOTAL], owned.op, &owned.op->stages[0], at - op->start_ns);
	hist_add_short_twice(cell, &cell->stages[ONLY_STAGE_REQUEST], owned.request,
			     &owned.request->stages[OWNED_REQUEST_STAGE_TOTAL], times->completed - times->queued);
	COUNT_RESULT(cell, result);
	if (owned.op)
		COUNT_RESULT(owned.op, result);
	if (!owned.request)
		return;
	if (times->completed > times->issued)
		hist_add_short(owned.request, &owned.request->stages[OWNED_REQUEST_STAGE_UNDER_WAY],
			       times->completed - times->issued, false);
	count_request_result(owned.request, done);
}

/* Its only request, if that is of its own kind: a write may have to read the rest of its page. */
static __always_inline struct done *shared_request(struct op_state *op)
{
	struct bio_state *state = COMPUTED(bio_at(op->only - 1));

	_Static_assert((int)OP_KIND_READ == (int)BLOCK_OP_READ && (int)OP_KIND_WRITE == (int)BLOCK_OP_WRITE, "alike");
	return state->op_kind == op->op_kind ? &state->done : NULL;
}

/* The end of an operation, in global functions, which are verified separately. */
__noinline int count_hit(__u32 place, __s64 result)
{
	struct op_state *op = op_at(place);
	struct owned_op_cell *owned;
	struct hit_cell *cell;

	cell = cell_at(&hit_cells, op->slot * OP_KINDS + op->op_kind);
	if (!cell)
		return 0;
	COUNT_MORE(cell->readahead, op->readahead);
	owned = owned_op(op, op->op_kind + OWNED_HIT);
	hist_add_twice(&cell->stages[0], owned ? &owned->stages[0] : NULL, minus(op->end_ns, op->start_ns));
	if (owned)
		COUNT_RESULT(owned, result);
	COUNT_RESULT(cell, result);
	return 0;
}

__noinline int count_alone(__u32 place, __s64 result)
{
	struct op_state *op = op_at(place);
	struct owned_op_cell *owned;
	struct op_cell *cell;
	int stage;

	cell = cell_at(&op_cells, op->slot * OP_KINDS + op->op_kind);
	if (!cell)
		return 0;
	COUNT_MORE(cell->requests, op->made - op->readahead);
	COUNT_MORE(cell->fs_asleep_ns, op->asleep_ns);
	COUNT_MORE(cell->journal_asleep_ns, op->journal_asleep_ns);
#pragma unroll
	for (stage = 0; stage < OP_CHARGES; stage++)
		add(&cell->stages[stage], op->charges[stage]);
	owned = owned_op(op, op->op_kind);
	hist_add_twice(&cell->stages[OP_STAGE_TOTAL], owned ? &owned->stages[0] : NULL,
		       minus(op->end_ns, op->start_ns));
	if (owned)
		COUNT_RESULT(owned, result);
	COUNT_RESULT(cell, result);
	return 0;
}

static __noinline int count_disturbed(struct op_state *op, struct interference_cell *cell)
{
	int kind;

	if (!op || !cell)
		return 0;
	clear_earlier(op);
	for (kind = 0; kind < INTERFERENCE_KINDS; kind++)
		add(&cell->stages[kind], interference_of(op)->kinds[kind].ns);
	return 0;
}

static __always_inline void count_interference(struct op_state *op)
{
	struct interference_cell *cell = cell_at(&interference_cells, op->slot * OP_KINDS + op->op_kind);

	if (!cell)
		return;
	if (op->disturbed)
		count_disturbed(op, cell);
	COUNT(cell->finished);
}

/* A stacked device took the bio, and a worker made its requests: the operation only waited for that device. */
static __noinline bool charge_above(struct op_state *op)
{
	if (!op || !op->above || op->held_until <= op->above_ns)
		return false;
	advance(op, OP_STAGE_FS, op->above_ns);
	if (op->above_done_ns > op->above_ns) {
		advance(op, OP_STAGE_LAYERS, op->above_done_ns);
		advance(op, OP_STAGE_WAKEUP, op->held_until);
	}
	advance(op, OP_STAGE_DEVICE, op->held_until);
	return true;
}

/* Charge the rest, up to the end. */
__noinline int close_account(__u32 place)
{
	struct op_state *op = op_at(place);
	bool held;

	settle(op);
	/* Everything was complete before its task had to wait. */
	if (op->last && all_ended(op))
		charge_last(op);
	open_account(op);
	/* The stacked device was done before its task had to wait. */
	if (op->above && op->blocked && op->held_until < op->above_done_ns)
		op->held_until = op->above_done_ns;
	held = charge_above(op);
	advance(op, op->waited || held ? OP_STAGE_RETURN : OP_STAGE_FS, op->end_ns);
	return 0;
}

#endif
