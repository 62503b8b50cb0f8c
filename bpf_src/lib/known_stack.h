/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stacks that are known without walking them. Needs `wptrace.h` first.
 *
 * The kernel walks a stack frame by frame, some 600 instructions each, and most stacks of a machine are a few. So each
 * stack is learned once: where the return addresses lie, relative to some place below them. If the
 * same addresses lie at the same places, it is the same stack: the end of a frame and its return address determine the
 * end of the next one. A frame may hold a stale address from another call; so now and then a stack is walked
 * anyway, and mistakes are counted.
 */
#ifndef WPT_KNOWN_STACK_H
#define WPT_KNOWN_STACK_H

/* Deeper stacks, and those that go on elsewhere (an interrupt's), are walked each time. */
#define KNOWN_DEPTH 32
#define KNOWN_WORDS 512
#define LEARNED_WORDS 32 /* so many at a time */
/* The first frames may be those of the program and of what calls it, below its arguments. */
#define OWN_FRAMES 4

struct known_stack {
	__u64 calls[KNOWN_DEPTH]; /* addresses, */
	__u16 places[KNOWN_DEPTH]; /* words above the arguments: the innermost first */
	__u32 depth; /* 0: nothing is known */
	__s32 id;
	__u32 hits;
};

#define KNOWN_WAYS 4
#define KNOWN_SETS 64
#define KNOWN_CHECK 128 /* one of so many is walked anyway */
#define KNOWN_LEARN 64 /* one of so many that are not known replaces one that is */

/* By CPU, so that none reads what another one learns. */
struct known_set {
	struct known_stack ways[KNOWN_WAYS];
	__u32 misses;
};

EACH_CPU(known_stacks, struct known_set, KNOWN_SETS);

struct learning {
	__u64 arguments;
	__u64 hint;
	__u64 calls[KNOWN_DEPTH + OWN_FRAMES];
	__u32 depth;
	__u32 at;
	__u32 found;
	__u32 busy; /* a program has it: one that preempts that learns nothing */
	__u32 unused;
};

EACH_CPU(learning, struct learning, 1);

__u64 mistaken_stacks;

/* arm64 signs addresses in the upper bits, which are all ones here. */
#define ADDRESS(word) ((word) & ((1ULL << 48) - 1))

static __always_inline __u64 word_above(__u64 arguments, __u32 place)
{
	__u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)(arguments + place * sizeof(word)));
	return ADDRESS(word);
}

/*
 * The way that this stack came before, KNOWN_WAYS for none. From the outermost frame on, as ways differ there first.
 *
 * This one and the next two are functions of their own, so that the verifier goes through them once.
 */
__noinline int find_known_stack(__u64 arguments, __u32 set_number)
{
	struct known_set *set = bpf_map_lookup_elem(&known_stacks, &set_number);
	__u32 way, step;

	if (!set)
		return KNOWN_WAYS;
#pragma clang loop unroll(disable)
	for (way = 0; way < KNOWN_WAYS; way++) {
		struct known_stack *known = &set->ways[way];
		__u32 depth = known->depth;

		if (!depth)
			continue;
#pragma clang loop unroll(disable)
		for (step = 1; step <= KNOWN_DEPTH; step++) {
			__u32 at = depth - step;

			if (at >= KNOWN_DEPTH)
				return way;
			if (word_above(arguments, known->places[at]) != known->calls[at])
				break;
		}
	}
	return KNOWN_WAYS;
}

/* The verifier of 5.10 and 6.1 forgets the bounds of a spilled number. */
static __always_inline struct known_stack *way_of(struct known_set *set, __u32 way)
{
	asm volatile("%0 &= %1" : "+r"(way) : "i"(KNOWN_WAYS - 1));
	return &set->ways[way];
}

/*
 * Some words of it; whether that is all. The verifier goes through each step of a loop, and through this one just once.
 */
__noinline int learn_words(__u32 set_number, __u32 way, __u32 place)
{
	struct known_set *set = bpf_map_lookup_elem(&known_stacks, &set_number);
	__u32 zero = 0, step;
	struct learning *new = bpf_map_lookup_elem(&learning, &zero);
	struct known_stack *known;

	if (!set || !new || way >= KNOWN_WAYS)
		return 1;
	known = way_of(set, way);
#pragma clang loop unroll(disable)
	for (step = 0; step < LEARNED_WORDS; step++, place++) {
		__u64 word = word_above(new->arguments, place);
		__u32 at = new->at, found = new->found;

		if (at >= KNOWN_DEPTH + OWN_FRAMES || found >= KNOWN_DEPTH)
			return 1;
		if (word != ADDRESS(new->calls[at]))
			continue;
		known->calls[found] = word;
		known->places[found] = place;
		new->found = found + 1;
		new->at = at + 1;
		if (at + 2 >= new->depth) {
			known->depth = found + 1;
			return 1;
		}
	}
	return 0;
}

/*
 * Finds the addresses of a walked stack in memory, from that at `new->at` on. The outermost one is left out: kernels that
 * add a random offset to the stack of a system call do it there, and who called that function is clear.
 */
__noinline int learn_stack(__u32 set_number, __u32 way)
{
	struct known_set *set = bpf_map_lookup_elem(&known_stacks, &set_number);
	__u32 zero = 0, place;
	struct learning *new = bpf_map_lookup_elem(&learning, &zero);
	struct known_stack *known;

	if (!set || !new || way >= KNOWN_WAYS)
		return 0;
	known = way_of(set, way);
	known->depth = 0;
	known->hits = 0;
	new->found = 0;
#pragma clang loop unroll(disable)
	for (place = 0; place < KNOWN_WORDS; place += LEARNED_WORDS) {
		if (learn_words(set_number, way, place))
			return known->depth != 0;
	}
	return 0;
}

/* The way to replace by an unknown stack, or KNOWN_WAYS if it is not worth it. */
static __always_inline __u32 way_to_learn(struct known_set *set)
{
	__u32 way = set->misses++;

	if (way < KNOWN_WAYS)
		return way;
	return way % KNOWN_LEARN ? KNOWN_WAYS : way / KNOWN_LEARN % KNOWN_WAYS;
}

#endif
