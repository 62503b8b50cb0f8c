/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a generated front end passes to a body. A body is a separate program, which libbpf loads and relocates but which
 * never runs. It is written against stand-ins: marked numbers, and variables of this object.
 * wptrace/engine/definition/body.py turns it into code to run after a front end: the key comes in a register, `args`
 * are on the stack, slots are in a map, and constants of a point are in the instructions. Code that a point does not
 * use is removed.
 */
#ifndef WPT_GENERIC_ARGS_H
#define WPT_GENERIC_ARGS_H

#define POINTS 8
#define LABELS 4
#define OUTCOMES 8
#define NAME_BYTES 16

struct args {
	__u64 value;
	__u64 other; /* the key that it has from now on */
	__u64 labels[LABELS];
	__u64 mark; /* what is to be reached, or what was */
	__u64 failed; /* not 0: it ended with an error */
};

struct args args_here; /* stands for those on the stack */

enum generic_flag {
	GENERIC_FLAG_VALUE, /* which words of `args` are there */
	GENERIC_FLAG_OTHER,
	GENERIC_FLAG_MARK,
	GENERIC_FLAG_REACHED,
	GENERIC_FLAG_FAILED,
	GENERIC_FLAG_NARROW, /* marks have 32 bits, and wrap */
	GENERIC_FLAG_QUIET, /* an object that was not seen to begin is no loss */
	GENERIC_FLAG_FIRST, /* an object that was seen here is not seen again */
	GENERIC_FLAG_BEGINS, /* an object that was not seen to begin begins here */
	GENERIC_FLAG_RESTART, /* an object that begins again had ended unseen */
	GENERIC_FLAG_NEST, /* the outermost one counts */
	GENERIC_FLAG_SEVERAL, /* stages, each with a distribution; else the total is the only one */
	GENERIC_FLAG_VALUED, /* any point has a value, */
	GENERIC_FLAG_MARKED, /* a mark, */
	GENERIC_FLAG_LABELLED, /* labels */
	GENERIC_FLAG_SHEDDING, /* with a budget, few of them may be timed */
	GENERIC_FLAG_EMITS_RECORDS, /* any is reported one by one, recorded, or listed: names are kept */
	GENERIC_FLAGS,
};
EXPORT_ENUM(generic_flag);

/* The upper half of numbers that are replaced. */
enum generic_mark {
	GENERIC_MARK_FLAGS = 0x77700001, /* the lower half is a mask: those of the point's flags that are in it */
	GENERIC_MARK_LACKS, /* whether there are no more stages than this */
	GENERIC_MARK_EXCHANGES, /* whether the kernel has atomics that fetch */
	GENERIC_MARK_KEY, /* the first instruction: what the front end leaves in its register */
	GENERIC_MARK_BEGUN, /* what is known of an object that begins here, as struct state */
	GENERIC_MARK_PASSED, /* the same is set in the register */
	GENERIC_MARK_HOME, /* as many of the register's upper bits of 32 as number the slots */
	GENERIC_MARK_SLOTS, /* how many there are, less one */
};
EXPORT_ENUM(generic_mark);

#define MARKED(mark, number) ((__u64)(mark) << 32 | (number))
#define REPLACED(mark, number) \
	({ \
		__u64 __found; \
		asm volatile("%0 = %1 ll" : "=r"(__found) : "i"(MARKED(mark, number))); \
		__found; \
	})
/* The same of what is there already. */
#define CHANGED(mark, number) asm volatile("%0 = %1 ll" : "+r"(number) : "i"(MARKED(mark, 0)))

/* The branch is decided when a point's program is made, which has only one of both. */
#define DECIDED(mark, number) \
	asm goto("r0 = %0 ll\n\tif r0 != 0 goto %l[yes]" : : "i"(MARKED(mark, number)) : "r0" : yes); \
	return false; \
	yes: \
	return true

static __always_inline bool ANY(const __u64 mask)
{
	DECIDED(GENERIC_MARK_FLAGS, mask);
}

static __always_inline bool LACKS(const __u64 stage)
{
	DECIDED(GENERIC_MARK_LACKS, stage);
}

static __always_inline bool EXCHANGES(void)
{
	DECIDED(GENERIC_MARK_EXCHANGES, 0);
}

#define FLAG(what) (1ULL << GENERIC_FLAG_##what)
#define HAS(what) ANY(FLAG(what))
#define SOME(mask) REPLACED(GENERIC_MARK_FLAGS, mask)
#define KEY() REPLACED(GENERIC_MARK_KEY, 0)
#define ARG(field) \
	({ \
		struct args *__args; \
		asm volatile("%0 = %1 ll" : "=r"(__args) : "i"(&args_here)); \
		__args->field; \
	})

/* Where no branch may be copied, as by unrolling a loop. */
#define EACH_STAGE(what) what(0) what(1) what(2) what(3) what(4) what(5) what(6)

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
#define AFTER() (SOME(AFTER_MASK) >> AFTER_SHIFT)
#define HAS_LABEL(number) ANY(1ULL << (LABELS_SHIFT + (number)))
#define OUTCOME() (SOME(OUTCOME_MASK) >> OUTCOME_SHIFT)

#endif
