// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Bodies of flows by definition: what happens at a point once its front end (wptrace/engine/definition/emit.py) has read
 * the key and whatever else it needs. None of them is ever attached as it is.
 *
 * An object has a slot from its begin to its end. Its time is charged at each point to the point before, so stages add
 * up, whichever of the points were seen, in whatever order.
 */
#include "lib/wptrace.h"
#include "lib/filter.h"
#include "lib/hist.h"
#include "lib/place.h"
#include "lib/rate.h"
#include "lib/recorder.h"
#include "generic/args.h"
#include "generic/object.h"
#include "generic/account.h"

/* With a filter on, most of what is seen was never let in. */
static __always_inline int unmatched(void)
{
	if (!HAS(QUIET) && !filtering)
		COUNT(loss[GENERIC_CAUSE_UNMATCHED]);
	return 0;
}

/* The time since the point before, to the stage that began there. */
static __always_inline void charge(struct object *object, __u64 now)
{
	struct life *life = &object->life;
	__s64 *spent = place_in(object, life->spent, life->state.last & STATE_LAST);

	*spent = *spent - life->last_ns + now;
	life->last_ns = now;
}

/* A point's knowledge of an object: few know anything. */
#define KNOWS (FLAG(VALUE) | FLAG(MARK) | LABELS_MASK)

static __always_inline void learn(struct life *life)
{
	if (!ANY(KNOWS))
		return;
	if (HAS(VALUE))
		life->value = ARG(value);
	if (HAS(MARK))
		life->mark = ARG(mark);
	if (HAS_LABEL(0))
		life->labels[0] = ARG(labels[0]);
	if (HAS_LABEL(1))
		life->labels[1] = ARG(labels[1]);
	if (HAS_LABEL(2))
		life->labels[2] = ARG(labels[2]);
	if (HAS_LABEL(3))
		life->labels[3] = ARG(labels[3]);
}

/* Knowledge that the points of a definition share. */
#define KEPT (FLAG(VALUED) | FLAG(MARKED) | FLAG(LABELLED) | FLAG(SHEDDING) | FLAG(EMITS_RECORDS))

static __always_inline void clear(struct life *life)
{
	if (HAS(VALUED))
		life->value = 0;
	if (HAS(MARKED))
		life->mark = 0;
	if (HAS(LABELLED)) {
		life->labels[0] = 0;
		life->labels[1] = 0;
		life->labels[2] = 0;
		life->labels[3] = 0;
	}
	if (HAS(SHEDDING)) {
		__u32 timed = *(volatile __u32 *)&time_one_in;

		if (timed && bpf_get_prandom_u32() % timed)
			life->state.chosen |= CHOSEN_UNTIMED;
	}
	if (HAS(EMITS_RECORDS)) {
		__u64 ids = bpf_get_current_pid_tgid();
		__u32 one_in = *(volatile __u32 *)&sample;

		/* At random: the same addresses come again and again, and say nothing. */
		if (one_in && !(bpf_get_prandom_u32() % one_in))
			life->state.chosen |= CHOSEN_FOR_RECORD;
		life->cpu = bpf_get_smp_processor_id();
		life->tgid = ids >> 32;
		life->tid = ids;
		bpf_get_current_comm(life->comm, sizeof(life->comm));
	}
}

#define CLEAR_SPENT(stage) \
	if (!LACKS(stage)) \
		life->spent[stage] = zero;

/* In a slot that is its own. */
static __always_inline void fill(struct object *object)
{
	struct life *life = &object->life;
	__u64 now = bpf_ktime_get_ns();

	COUNT(object->begun);
	WORD(life) = REPLACED(GENERIC_MARK_BEGUN, 0);
	if (HAS(SEVERAL)) {
		__u64 zero;

		/* Or it is loaded for each. */
		asm volatile("%0 = 0" : "=r"(zero));
		life->last_ns = now;
		EACH_STAGE(CLEAR_SPENT)
	}
	if (ANY(KEPT | KNOWS)) {
		clear(life);
		learn(life);
	}
	barrier();
	life->start_ns = now;
}

/* Whether it begins anew. */
static __always_inline bool begins_again(struct object *object)
{
	if (HAS(FIRST))
		return false;
	if (HAS(NEST)) {
		object->life.state.depth++;
		return false;
	}
	if (HAS(RESTART))
		COUNT(loss[GENERIC_CAUSE_RESTARTED]);
	else
		COUNT(loss[GENERIC_CAUSE_UNSEEN_END]);
	return true;
}

static __always_inline int begin_as(__u64 key)
{
	struct object *object = claim(key);
	bool fresh;

	if (!object) {
		object = find_or_claim(key, &fresh);
		if (!object) {
			COUNT(loss[GENERIC_CAUSE_STATE_FULL]);
			return 0;
		}
		if (!fresh && !begins_again(object))
			return 0;
	}
	fill(object);
	return 0;
}

static __always_inline int on_begin(__u64 key, bool asks)
{
	if (asks && !task_matches())
		return 0;
	return begin_as(key);
}

#define MOVE_SPENT(stage) \
	if (!LACKS(stage)) \
		to->spent[stage] = from->spent[stage];

/* What is not at home is on its way elsewhere, or begins here: none of it goes on then. */
static __always_inline struct object *find_or_begin(struct object *home, __u64 key, bool asks)
{
	struct object *object;
	__u64 kept;

	/* A copy: the key itself need not outlive what is called, so all other points have one register less to save. */
	asm volatile("%0 = %1" : "=r"(kept) : "r"(key));
	object = find_displaced(home, kept);
	if (object)
		return object;
	if (!asks || task_matches())
		begin_as(HAS(OTHER) ? ARG(other) : kept);
	return NULL;
}

/* To the slot of another key: as much of it as there is. */
static __always_inline void move(struct object *object, __u64 other)
{
	struct life *from = &object->life, *to;
	struct object *into;
	bool fresh;

	into = claim(other);
	if (!into) {
		into = find_or_claim(other, &fresh);
		if (into == object)
			return;
		if (!into) {
			COUNT(loss[GENERIC_CAUSE_MOVED_FULL]);
			free_slot(object);
			return;
		}
		if (!fresh)
			COUNT(loss[GENERIC_CAUSE_REPLACED]);
	}
	to = &into->life;
	to->last_ns = from->last_ns;
	WORD(to) = WORD(from);
	EACH_STAGE(MOVE_SPENT)
	if (ANY(KEPT)) {
		to->value = from->value;
		to->mark = from->mark;
		if (HAS(LABELLED))
			__builtin_memcpy(to->labels, from->labels, sizeof(to->labels));
		if (HAS(EMITS_RECORDS)) {
			to->cpu = from->cpu;
			to->tgid = from->tgid;
			to->tid = from->tid;
			__builtin_memcpy(to->comm, from->comm, sizeof(to->comm));
		}
	}
	barrier();
	to->start_ns = from->start_ns;
	free_slot(object);
}

static __always_inline bool reached(struct life *life)
{
	if (HAS(NARROW))
		return (__s32)((__u32)ARG(mark) - (__u32)life->mark) >= 0;
	return (__s64)(ARG(mark) - life->mark) >= 0;
}

/* The conditions for an object to count at a point. */
#define CONDITIONS (AFTER_MASK | FLAG(REACHED) | FLAG(FIRST) | FLAG(NEST))

static __always_inline bool is_due(struct life *life)
{
	if (ANY(AFTER_MASK) && !(AFTER() & life->state.seen))
		return false;
	return !HAS(REACHED) || reached(life);
}

static __always_inline int on_pass(__u64 key, bool asks)
{
	struct object *object = object_at(home_of(key));
	struct life *life;
	__u64 word;

	if (DIFFER(object->key, key)) {
		object = HAS(BEGINS) ? find_or_begin(object, key, asks) : find_displaced(object, key);
		if (!object)
			return HAS(BEGINS) ? 0 : unmatched();
	}
	life = &object->life;
	if (ANY(CONDITIONS)) {
		if (!is_due(life))
			return 0;
		if (HAS(FIRST) && life->state.seen & REPLACED(GENERIC_MARK_BEGUN, 0) >> STATE_SEEN)
			return 0;
	}
	if (!HAS(SHEDDING) || !(life->state.chosen & CHOSEN_UNTIMED))
		charge(object, bpf_ktime_get_ns());
	word = WORD(life) & ~(__u64)STATE_LAST;
	CHANGED(GENERIC_MARK_PASSED, word);
	WORD(life) = word;
	learn(life);
	if (HAS(OTHER))
		move(object, ARG(other));
	return 0;
}

/* Further counts of an end. */
#define MORE (OUTCOME_MASK | FLAG(VALUED) | FLAG(FAILED) | FLAG(SHEDDING))

#define ADD_SPENT(stage) \
	if (!LACKS(stage) && word & 1 << (STATE_SEEN + stage)) \
		hist_add_short(cell, &cell->stages[stage + 1], life->spent[stage], false);

static __always_inline void account(struct object *object)
{
	__u32 number = 0;
	struct life *life = &object->life;
	__u64 now, word;
	__s64 total;
	struct cell *cell;

	if (HAS(LABELLED))
		number = find_row(object);
	cell = bpf_map_lookup_elem(&cells, &number);
	if (!cell) {
		COUNT(loss[GENERIC_CAUSE_NO_CELL]);
		return;
	}
	COUNT(cell->finished);
	if (ANY(MORE)) {
		if (ANY(OUTCOME_MASK))
			COUNT(cell->outcomes[OUTCOME() & (OUTCOMES - 1)]);
		if (HAS(FAILED) && ARG(failed))
			COUNT(cell->failed);
		if (HAS(VALUED))
			COUNT_MORE(cell->value, life->value);
		if (HAS(SHEDDING) && life->state.chosen & CHOSEN_UNTIMED) {
			COUNT(cell->untimed);
			return;
		}
	}
	now = bpf_ktime_get_ns();
	total = now - life->start_ns;
	hist_add_short(cell, &cell->stages[0], total, true);
	if (HAS(SEVERAL)) {
		charge(object, now);
		word = WORD(life);
		EACH_STAGE(ADD_SPENT)
	}
	if (recording)
		record_object(object, number, now, minus(total, 0));
	if (HAS(EMITS_RECORDS) && (minus(total, 0) >= slow_ns || life->state.chosen & CHOSEN_FOR_RECORD))
		emit_record(object, now, minus(total, 0), OUTCOME() & (OUTCOMES - 1), HAS(FAILED) && ARG(failed));
}

static __always_inline int on_end(__u64 key)
{
	struct object *object = object_at(home_of(key));
	struct life *life;

	if (DIFFER(object->key, key)) {
		object = find_displaced(object, key);
		if (!object)
			return unmatched();
	}
	life = &object->life;
	if (ANY(CONDITIONS | KNOWS)) {
		if (!is_due(life))
			return 0;
		if (HAS(NEST) && life->state.depth) {
			life->state.depth--;
			return 0;
		}
		learn(life);
	}
	account(object);
	free_slot(object);
	return 0;
}

/* It was merged into another one, or is not wanted: undo its begin. */
static __always_inline int on_drop(__u64 key)
{
	struct object *object = object_at(home_of(key));

	if (DIFFER(object->key, key)) {
		object = find_displaced(object, key);
		if (!object)
			return unmatched();
	}
	if (!is_due(&object->life))
		return 0;
	COUNT(dropped[OUTCOME() & (OUTCOMES - 1)]);
	free_slot(object);
	return 0;
}

#define BODY(name, call) \
	SEC("raw_tp") \
	int name(void *context) \
	{ \
		__u64 key = KEY(); \
\
		return call; \
	}

BODY(begin, on_begin(key, false))
BODY(pass, on_pass(key, false))
BODY(end, on_end(key))
BODY(drop, on_drop(key))
/* The same where the user wants those of some tasks. */
BODY(begin_asking, on_begin(key, true))
BODY(pass_asking, on_pass(key, true))

char LICENSE[] SEC("license") = "Dual BSD/GPL";
