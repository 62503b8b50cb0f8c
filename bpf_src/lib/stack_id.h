/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which stack this is, mostly without walking it, seen from the tracepoint's own arguments. Needs `wptrace.h` first. */
#ifndef WPT_STACK_ID_H
#define WPT_STACK_ID_H

#include "lib/known_stack.h"

/* perf_event_max_stack by default, which the kernel lets no map exceed. */
#define STACK_DEPTH 127

#define STACKS(name) \
	struct { \
		__uint(type, BPF_MAP_TYPE_STACK_TRACE); \
		__uint(max_entries, 1); \
		__uint(key_size, sizeof(__u32)); \
		__uint(value_size, STACK_DEPTH * sizeof(__u64)); \
	} name SEC(".maps")

STACKS(stacks);

/*
 * Stacks are stored by their hash, and never removed. One whose place is occupied gets a second chance without
 * one more frame, which gives it another hash: the first ones are the program and what calls it.
 */
CONSTANT(SECOND_CHANCE, 1 << 30);

STACKS(more_stacks);

/*
 * Below 0: there is none, or no room for it. The place in the program from which this is called is left out (of the
 * kernel's stack), or one stack would have as many ids.
 */
static __always_inline __s32 walked_stack_id(void *ctx, __u64 flags)
{
	__u64 skip = !(flags & BPF_F_USER_STACK);
	long id = bpf_get_stackid(ctx, &stacks, flags | skip);

	if (id != -17) /* EEXIST */
		return id;
	id = bpf_get_stackid(ctx, &more_stacks, flags | (skip + 1));
	return id < 0 ? id : id | SECOND_CHANCE;
}

/* Who called the tracepoint is found that near to its arguments. */
#define CALLER_WORDS 64

/* Which is the first frame above the arguments? Global: verified once. */
__noinline __u32 first_above(__u64 arguments)
{
	__u32 zero = 0, place;
	struct learning *new = bpf_map_lookup_elem(&learning, &zero);

	if (!new)
		return 0;
#pragma clang loop unroll(disable)
	for (place = 0; place < CALLER_WORDS; place++) {
		__u64 word = word_above(arguments, place);

		if (word == ADDRESS(new->calls[1]))
			return 1;
		if (word == ADDRESS(new->calls[2]))
			return 2;
		if (word == ADDRESS(new->calls[3]))
			return 3;
	}
	return 0;
}

/* The hints are values that distinguish most stacks. */
static __always_inline __s32 kernel_stack_id(void *ctx, void *hint, __u32 other_hint)
{
	/* By value: another program may preempt this one, and use the memory of this CPU as well. */
	__u64 arguments = number_of((__u64)ctx);
	__u32 zero = 0, set_number, way;
	struct learning *new = bpf_map_lookup_elem(&learning, &zero);
	struct known_stack *known;
	struct known_set *set;
	long size;
	__s32 id;

	if (!new)
		return walked_stack_id(ctx, 0);
	new->hint = (__u64)hint;
	barrier(); /* what comes back from memory is a number, with which one may calculate */
	set_number = ((new->hint + other_hint) * 0x9e3779b97f4a7c15ULL) >> 58; /* 64 sets */
	set = bpf_map_lookup_elem(&known_stacks, &set_number);
	if (!set)
		return walked_stack_id(ctx, 0);
	way = find_known_stack(arguments, set_number);
	if (way < KNOWN_WAYS) {
		known = &set->ways[way];
		if (++known->hits % KNOWN_CHECK)
			return known->id;
		id = walked_stack_id(ctx, 0);
		if (id != known->id) {
			known->depth = 0;
			COUNT(mistaken_stacks);
		}
		return id;
	}
	id = walked_stack_id(ctx, 0);
	way = way_to_learn(set);
	if (way >= KNOWN_WAYS || id < 0 || new->busy)
		return id;
	new->busy = 1;
	barrier();
	size = bpf_get_stack(ctx, new->calls, sizeof(new->calls), 0);
	if (size >= 0 && size < (long)sizeof(new->calls)) {
		new->arguments = arguments;
		new->depth = size / sizeof(__u64);
		new->at = first_above(arguments);
		known = way_of(set, way);
		known->depth = 0;
		barrier();
		known->id = id;
		if (new->at)
			learn_stack(set_number, way);
	}
	barrier();
	new->busy = 0;
	return id;
}

#endif
