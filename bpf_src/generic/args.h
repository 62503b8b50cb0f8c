/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a generated front end hands to a body. A body takes it for the context of a raw_tp program, of which the verifier
 * allows to read so many words; so each body is a program of its own, that libbpf loads and relocates. In the programs
 * that are made of it R1 points to the stack.
 *
 * What is constant at a point is in the instructions themselves: a body loads a number with a mark, in whose place
 * wptrace/engine/definition/numbers.py puts what is meant. So the verifier takes out what a point does not use.
 */
#ifndef WPT_GENERIC_ARGS_H
#define WPT_GENERIC_ARGS_H

#define POINTS 8
#define LABELS 4
#define OUTCOMES 8
#define NAME_BYTES 16

struct args {
	__u64 key;
	__u64 value;
	__u64 other; /* the key that it has from now on */
	__u64 labels[LABELS];
	__u64 mark; /* what is to be reached, or what was */
	__u64 failed; /* not 0: it ended with an error */
	__u32 place; /* where the slot of the key is */
	__u32 other_place; /* and of the other one */
};

const struct args *export_args __attribute__((unused));

enum generic_flag {
	GENERIC_FLAG_VALUE, /* which words of `args` are there */
	GENERIC_FLAG_OTHER,
	GENERIC_FLAG_MARK,
	GENERIC_FLAG_REACHED,
	GENERIC_FLAG_FAILED,
	GENERIC_FLAG_NARROW, /* marks have 32 bits, and wrap */
	GENERIC_FLAG_QUIET, /* nobody wonders about what was not seen to begin */
	GENERIC_FLAG_FIRST, /* what was seen here once is not seen again */
	GENERIC_FLAG_BEGINS, /* what was not seen to begin begins here */
	GENERIC_FLAG_RESTART, /* one that begins again has ended unseen */
	GENERIC_FLAG_NEST, /* the outermost one counts */
	GENERIC_FLAG_SEVERAL, /* stages, each with a distribution; else the total is the only one */
	GENERIC_FLAG_VALUED, /* any point has a value, */
	GENERIC_FLAG_MARKED, /* a mark, */
	GENERIC_FLAG_LABELLED, /* labels */
	GENERIC_FLAG_SHEDDING, /* with a budget, few of them may be timed */
	GENERIC_FLAG_TELLING, /* any is reported one by one, or listed: names are kept */
	GENERIC_FLAGS,
};
EXPORT_ENUM(generic_flag);

/* The upper half of numbers that are replaced. */
enum generic_mark {
	GENERIC_MARK_FLAGS = 0x77700001, /* the lower half is a mask: those of the point's flags that are in it */
	GENERIC_MARK_POINT, /* what is known of an object that begins here, as struct state */
	GENERIC_MARK_LACKS, /* whether there are no more stages than this: true where it was not replaced */
};
EXPORT_ENUM(generic_mark);

#define REPLACED(mark, number) \
	({ \
		__u64 __found; \
		asm volatile("%0 = %1 ll" : "=r"(__found) : "i"((__u64)(mark) << 32 | (number))); \
		__found; \
	})
#define FLAG(what) (1ULL << GENERIC_FLAG_##what)
#define ANY(mask) REPLACED(GENERIC_MARK_FLAGS, mask)
#define HAS(what) ANY(FLAG(what))
#define HERE() REPLACED(GENERIC_MARK_POINT, 0)
#define LACKS(stage) REPLACED(GENERIC_MARK_LACKS, stage)

/*
 * The words of labels that are there, the number of the outcome, bits of the points of which one has to be seen before:
 * all in the lowest 32 bits, so that one test is enough for those that no point has.
 */
#define LABELS_SHIFT 17
#define OUTCOME_SHIFT 21
#define AFTER_SHIFT 24
enum generic_shift {
	GENERIC_SHIFT_LABELS = LABELS_SHIFT,
	GENERIC_SHIFT_OUTCOME = OUTCOME_SHIFT,
	GENERIC_SHIFT_AFTER = AFTER_SHIFT,
};
EXPORT_ENUM(generic_shift);

_Static_assert(GENERIC_FLAGS <= LABELS_SHIFT, "flags have no bits of labels");

/* The end of an object has no such bit. */
#define AFTER_MASK (((1ULL << (POINTS - 1)) - 1) << AFTER_SHIFT)
#define OUTCOME_MASK ((OUTCOMES - 1ULL) << OUTCOME_SHIFT)
#define LABELS_MASK (((1ULL << LABELS) - 1) << LABELS_SHIFT)
#define AFTER() (ANY(AFTER_MASK) >> AFTER_SHIFT)
#define HAS_LABEL(number) ANY(1ULL << (LABELS_SHIFT + (number)))
#define OUTCOME() (ANY(OUTCOME_MASK) >> OUTCOME_SHIFT)

#endif
