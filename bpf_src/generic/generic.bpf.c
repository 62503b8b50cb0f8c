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
static __always_inline void charge(struct life *life, __u64 word, __u64 now)
{
	__u64 last = word >> (STATE_LAST - 3) & (POINTS - 1) << 3;

	*(__u64 *)((char *)life->spent + last) += minus(now, life->last_ns);
	life->last_ns = now;
}

/* What a point may know of an object: few know anything. */
#define KNOWS (FLAG(VALUE) | FLAG(MARK) | LABELS_MASK)

static __always_inline void learn(struct life *life, struct args *args)
{
	if (!ANY(KNOWS))
		return;
	if (HAS(VALUE))
		life->value = args->value;
	if (HAS(MARK))
		life->mark = args->mark;
	if (HAS_LABEL(0))
		life->labels[0] = args->labels[0];
	if (HAS_LABEL(1))
		life->labels[1] = args->labels[1];
	if (HAS_LABEL(2))
		life->labels[2] = args->labels[2];
	if (HAS_LABEL(3))
		life->labels[3] = args->labels[3];
}

/* What the points of a definition know together. */
#define KEPT (FLAG(VALUED) | FLAG(MARKED) | FLAG(LABELLED) | FLAG(SHEDDING) | FLAG(TELLING))

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
			life->state.chosen |= STATE_UNTIMED;
	}
	if (HAS(TELLING)) {
		__u64 ids = bpf_get_current_pid_tgid();
		__u32 one_in = *(volatile __u32 *)&sample;

		/* At random: the same addresses come again and again, and say nothing. */
		if (one_in && !(bpf_get_prandom_u32() % one_in))
			life->state.chosen |= STATE_TOLD;
		life->cpu = bpf_get_smp_processor_id();
		life->tgid = ids >> 32;
		life->tid = ids;
		bpf_get_current_comm(life->comm, sizeof(life->comm));
	}
}

static __always_inline void clear_spent(struct life *life)
{
	__u32 stage;

#pragma unroll
	for (stage = 0; stage < POINTS - 1; stage++) {
		if (!LACKS(stage))
			life->spent[stage] = 0;
	}
}

/* In a slot that is its own. */
static __always_inline void fill(struct object *object, struct args *args)
{
	struct life *life = &object->life;
	__u64 now = bpf_ktime_get_ns();

	COUNT(object->begun);
	WORD(life) = HERE();
	if (HAS(SEVERAL)) {
		life->last_ns = now;
		clear_spent(life);
	}
	if (ANY(KEPT | KNOWS)) {
		clear(life);
		learn(life, args);
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

static __always_inline int begin_as(__u64 key, __u32 place, struct args *args)
{
	struct object *object = claim(key, place);
	bool fresh;

	if (!object) {
		object = find_or_claim(key, place, &fresh);
		if (!object) {
			COUNT(loss[GENERIC_CAUSE_STATE_FULL]);
			return 0;
		}
		if (!fresh && !begins_again(object))
			return 0;
	}
	fill(object, args);
	return 0;
}

static __always_inline int on_begin(struct args *args, bool asks)
{
	if (asks && !task_matches())
		return 0;
	return begin_as(args->key, args->place, args);
}

/* To the slot of another key: as much of it as there is. */
static __always_inline void move(struct object *object, __u64 word, __u64 other, __u32 place)
{
	struct life *from = &object->life, *to;
	struct object *into;
	__u32 stage;
	bool fresh;

	into = claim(other, place);
	if (!into) {
		into = find_or_claim(other, place, &fresh);
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
	WORD(to) = word;
#pragma unroll
	for (stage = 0; stage < POINTS - 1; stage++) {
		if (!LACKS(stage))
			to->spent[stage] = from->spent[stage];
	}
	if (ANY(KEPT)) {
		to->value = from->value;
		to->mark = from->mark;
		if (HAS(LABELLED))
			__builtin_memcpy(to->labels, from->labels, sizeof(to->labels));
		if (HAS(TELLING)) {
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

static __always_inline bool reached(struct args *args, struct life *life)
{
	if (HAS(NARROW))
		return (__s32)((__u32)args->mark - (__u32)life->mark) >= 0;
	return (__s64)(args->mark - life->mark) >= 0;
}

/* What it takes for an object to count at a point. */
#define CONDITIONS (AFTER_MASK | FLAG(REACHED) | FLAG(FIRST) | FLAG(NEST))

static __always_inline bool is_due(struct args *args, struct life *life)
{
	if (ANY(AFTER_MASK) && !(AFTER() & life->state.seen))
		return false;
	return !HAS(REACHED) || reached(args, life);
}

static __always_inline int on_pass(struct args *args, bool asks)
{
	struct object *object = find(args->key, args->place);
	struct life *life;
	__u64 word;

	if (!object) {
		if (!HAS(BEGINS))
			return unmatched();
		if (asks && !task_matches())
			return 0;
		if (HAS(OTHER))
			return begin_as(args->other, args->other_place, args);
		return begin_as(args->key, args->place, args);
	}
	life = &object->life;
	word = WORD(life);
	if (ANY(CONDITIONS)) {
		if (!is_due(args, life))
			return 0;
		if (HAS(FIRST) && word & HERE() & 0xff << STATE_SEEN)
			return 0;
	}
	if (!HAS(SHEDDING) || !(word & STATE_UNTIMED))
		charge(life, word, bpf_ktime_get_ns());
	word = (word & ~(0xffULL << STATE_LAST)) | HERE();
	WORD(life) = word;
	learn(life, args);
	if (HAS(OTHER))
		move(object, word, args->other, args->other_place);
	return 0;
}

/* What else may be counted of an end. */
#define MORE (OUTCOME_MASK | FLAG(VALUED) | FLAG(FAILED) | FLAG(SHEDDING))

static __always_inline void account(struct object *object, struct args *args)
{
	__u32 number = 0, stage;
	struct life *life = &object->life;
	__u64 now, total, word;
	struct cell *cell;

	if (HAS(LABELLED))
		number = find_row(object);
	cell = bpf_map_lookup_elem(&cells, &number);
	if (!cell) {
		COUNT(loss[GENERIC_CAUSE_NO_CELL]);
		return;
	}
	COUNT(cell->finished);
	word = WORD(life);
	if (ANY(MORE)) {
		if (ANY(OUTCOME_MASK))
			COUNT(cell->outcomes[OUTCOME() & (OUTCOMES - 1)]);
		if (HAS(FAILED) && args->failed)
			COUNT(cell->failed);
		if (HAS(VALUED))
			COUNT_MORE(cell->value, life->value);
		if (HAS(SHEDDING) && word & STATE_UNTIMED) {
			COUNT(cell->untimed);
			return;
		}
	}
	now = bpf_ktime_get_ns();
	total = minus(now, life->start_ns);
	hist_add_short(&cell->stages[0], total, true);
	if (HAS(SEVERAL)) {
		charge(life, word, now);
#pragma unroll
		for (stage = 0; stage < POINTS - 1; stage++) {
			if (!LACKS(stage) && word & 1 << (STATE_SEEN + stage))
				hist_add_short(&cell->stages[stage + 1], life->spent[stage], false);
		}
	}
	if (HAS(TELLING) && (total >= slow_ns || word & STATE_TOLD))
		tell(object, now, total, OUTCOME() & (OUTCOMES - 1), HAS(FAILED) && args->failed);
}

static __always_inline int on_end(struct args *args)
{
	struct object *object = find(args->key, args->place);
	struct life *life;

	if (!object)
		return unmatched();
	life = &object->life;
	if (ANY(CONDITIONS | KNOWS)) {
		if (!is_due(args, life))
			return 0;
		if (HAS(NEST) && life->state.depth) {
			life->state.depth--;
			return 0;
		}
		learn(life, args);
	}
	account(object, args);
	free_slot(object);
	return 0;
}

/* It was merged into another one, or is none of those that are wanted: as if it had never begun. */
static __always_inline int on_drop(struct args *args)
{
	struct object *object = find(args->key, args->place);

	if (!object)
		return unmatched();
	if (!is_due(args, &object->life))
		return 0;
	COUNT(dropped[OUTCOME() & (OUTCOMES - 1)]);
	free_slot(object);
	return 0;
}

#define BODY(name, call) \
	SEC("raw_tp") \
	int name(struct args *args) \
	{ \
		return call; \
	}

BODY(begin, on_begin(args, false))
BODY(pass, on_pass(args, false))
BODY(end, on_end(args))
BODY(drop, on_drop(args))
/* The same where the user wants those of some tasks. */
BODY(begin_asking, on_begin(args, true))
BODY(pass_asking, on_pass(args, true))

char LICENSE[] SEC("license") = "Dual BSD/GPL";
