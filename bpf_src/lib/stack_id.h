/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which stack this is, mostly without walking it. Needs `wptrace.h` first.
 *
 * The kernel finds a stack frame by frame, some 600 instructions each, and most I/O of a machine comes by a few ways. So
 * each way is learned once: where on the stack the addresses lie that calls return to, seen from the tracepoint's own
 * arguments, which lie on the stack as well. If the same addresses lie at the same places, it is the same stack: where a
 * frame ends and what it returns to tell where the next one ends. A frame may hold an address that is left over from
 * another call; so every now and then a stack is walked all the same, and what was mistaken is counted.
 */
#ifndef WPT_STACK_ID_H
#define WPT_STACK_ID_H

/* perf_event_max_stack by default, which the kernel lets no map exceed. */
#define STACK_DEPTH 127

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, STACK_DEPTH * sizeof(__u64));
} stacks SEC(".maps");

/*
 * Stacks lie where their hash says, and a place is never given up. One whose place is taken gets a second chance without
 * one more frame, which gives it another hash: the first ones are the program and what calls it.
 */
CONSTANT(SECOND_CHANCE, 1 << 30);

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, STACK_DEPTH * sizeof(__u64));
} more_stacks SEC(".maps");

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

/* Deeper stacks, and those that go on elsewhere (an interrupt's), are walked each time. */
#define KNOWN_DEPTH 32
#define KNOWN_WORDS 512
#define LEARNED_WORDS 32 /* so many at a time */
#define CALLER_WORDS 64 /* who called the tracepoint is found that near */
/* The first frames are the program's and what calls it, below its arguments. */
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
#define KNOWN_CHECK 128 /* one of so many is walked all the same */
#define KNOWN_LEARN 64 /* one of so many that are not known replaces one that is */

/* By CPU, so that none reads what another one learns. */
struct known_set {
	struct known_stack ways[KNOWN_WAYS];
	__u32 misses;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KNOWN_SETS);
	__type(key, __u32);
	__type(value, struct known_set);
} known_stacks SEC(".maps");

struct learning {
	__u64 arguments;
	__u64 hint;
	__u64 calls[KNOWN_DEPTH + OWN_FRAMES];
	__u32 depth;
	__u32 at;
	__u32 found;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct learning);
} learning SEC(".maps");

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

/* The verifier of 5.10 and 6.1 forgets the bounds of a number that the compiler put aside. */
static __always_inline struct known_stack *way_of(struct known_set *set, __u32 way)
{
	asm volatile("%0 &= %1" : "+r"(way) : "i"(KNOWN_WAYS - 1));
	return &set->ways[way];
}

/* Some words of it; whether that is all. The verifier goes through each step of a loop, and through this one just once. */
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
 * Finds the addresses of a walked stack in memory. The outermost one is left out: kernels that add a random offset to
 * the stack of a system call do it there, and who called that function is clear.
 */
__noinline int learn_stack(__u32 set_number, __u32 way)
{
	struct known_set *set = bpf_map_lookup_elem(&known_stacks, &set_number);
	__u32 zero = 0, place, first;
	struct learning *new = bpf_map_lookup_elem(&learning, &zero);
	struct known_stack *known;

	if (!set || !new || way >= KNOWN_WAYS)
		return 0;
	known = way_of(set, way);
	known->depth = 0;
	known->hits = 0;
	new->at = 0;
	/* Which is the first frame above the arguments? */
#pragma clang loop unroll(disable)
	for (first = 0; first < CALLER_WORDS; first++) {
		__u64 word = word_above(new->arguments, first);

		if (word == ADDRESS(new->calls[1]))
			new->at = 1;
		else if (word == ADDRESS(new->calls[2]))
			new->at = 2;
		else if (word == ADDRESS(new->calls[3]))
			new->at = 3;
		if (new->at)
			break;
	}
	if (!new->at)
		return 0;
	new->found = 0;
#pragma clang loop unroll(disable)
	for (place = 0; place < KNOWN_WORDS; place += LEARNED_WORDS) {
		if (learn_words(set_number, way, place))
			return known->depth != 0;
	}
	return 0;
}

/* The hints are whatever tells apart most of the ways in which a stack comes to be taken. */
static __always_inline __s32 kernel_stack_id(void *ctx, void *hint, __u32 other_hint)
{
	__u32 zero = 0, set_number, way;
	struct learning *new = bpf_map_lookup_elem(&learning, &zero);
	struct known_stack *known;
	struct known_set *set;
	long size;
	__s32 id;

	if (!new)
		return walked_stack_id(ctx, 0);
	new->arguments = (__u64)ctx;
	new->hint = (__u64)hint;
	barrier(); /* what comes back from memory is a number, with which one may calculate */
	set_number = ((new->hint + other_hint) * 0x9e3779b97f4a7c15ULL) >> 58; /* 64 sets */
	set = bpf_map_lookup_elem(&known_stacks, &set_number);
	if (!set)
		return walked_stack_id(ctx, 0);
	way = find_known_stack(new->arguments, set_number);
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
	way = set->misses++;
	if (way >= KNOWN_WAYS) {
		if (way % KNOWN_LEARN)
			return id;
		way = way / KNOWN_LEARN % KNOWN_WAYS;
	}
	size = bpf_get_stack(ctx, new->calls, sizeof(new->calls), 0);
	if (id < 0 || size < 0 || size >= (long)sizeof(new->calls))
		return id;
	new->depth = size / sizeof(__u64);
	if (learn_stack(set_number, way) && way < KNOWN_WAYS)
		set->ways[way].id = id;
	return id;
}

#endif
