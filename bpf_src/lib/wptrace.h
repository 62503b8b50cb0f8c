/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What every object starts with. */
#ifndef WPT_WPTRACE_H
#define WPT_WPTRACE_H

#include "vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/*
 * A field of a kernel object. In a tp_btf or fentry program the objects that the kernel hands over, and what they point
 * to, are `trusted`: the verifier checks a plain load. In a raw_tp or kprobe program pointers have no type and the
 * field is copied. Both come from one source because `trusted` is a constant after inlining.
 */
#define FIELD(trusted, object, field) \
	({ \
		typeof((object)->field) __value; \
		if (trusted) \
			__value = (object)->field; \
		else \
			__value = BPF_CORE_READ(object, field); \
		__value; \
	})

/*
 * A constant that Python sets before the load, so that the verifier drops the code of what is off. In an object without
 * options (PLAIN) the compiler drops it: programs are smaller, load faster, and need fewer registers.
 */
#ifdef PLAIN
#define OPTION(name, by_default) enum { name = false }
#else
#define OPTION(name, by_default) const volatile bool name = by_default
#endif

/* Helpers that not each kernel has. */
enum bpf_func_id___known {
	/* commit 3ca1032ab7ab ("bpf: Implement get_current_task_btf and RET_PTR_TO_BTF_ID", v5.11) */
	BPF_FUNC_get_current_task_btf___known = 158,
	/* commit dd6e10fbd9fb ("bpf: Add bpf_task_pt_regs() helper", v5.15) */
	BPF_FUNC_task_pt_regs___known = 175,
	/* commit f92c1e183604 ("bpf: Add get_func_[arg|ret|arg_cnt] helpers", v5.17) */
	BPF_FUNC_get_func_arg___known = 183,
};

#define HAS_HELPER(name) bpf_core_enum_value_exists(enum bpf_func_id___known, BPF_FUNC_##name##___known)

/* Python reads names and values of an enum from BTF, which only has types that something refers to. */
#define EXPORT_ENUM(name) enum name *export_##name __attribute__((unused))

/* A constant that Python reads as well. */
#define CONSTANT(name, value) \
	enum constant_##name{name = value}; \
	EXPORT_ENUM(constant_##name)

/* A counter that several CPUs write, seldom. The sum is not used: fetching atomics came with 5.12. */
#define COUNT_MORE(counter, more) ((void)__sync_fetch_and_add(&(counter), more))
#define COUNT(counter) COUNT_MORE(counter, 1)

/* A ring of records. Python sets its size. */
#define RING(name) \
	struct { \
		__uint(type, BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, 4096); \
	} name SEC(".maps")

/* An array of each CPU. Python may set another length. */
#define EACH_CPU(name, type_, length) \
	struct { \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); \
		__uint(max_entries, length); \
		__type(key, __u32); \
		__type(value, type_); \
	} name SEC(".maps")

/* An offset into an array in an object, by one addition: the rest is in loads and stores. */
#define place_in(object, array, bytes) \
	({ \
		__u64 __place = bytes; \
		asm volatile("%0 += %1" : "+r"(__place) : "r"(object)); \
		(typeof(&(array)[0]))(__place + ((char *)(array) - (char *)(object))); \
	})

/*
 * An address in a variable, computed once and kept in a register: the compiler takes the address of a variable for free,
 * and adds to it again for each access, though it is two instructions.
 */
#define COMPUTED(address) \
	({ \
		typeof(address) __computed = address; \
		barrier_var(__computed); \
		__computed; \
	})

/* The same of one that was found not to be NULL, which the compiler does not test again. */
#define COMPUTED_KNOWN(address) \
	({ \
		typeof(address) __known = COMPUTED(address); \
		if (!__known) \
			__builtin_unreachable(); \
		__known; \
	})

/* The members from `first` to `last` as one number of this type: they must be exactly that, at its alignment. */
#define AS_ONE(type, object, first, last) \
	({ \
		type __one; \
\
		_Static_assert(!(__builtin_offsetof(typeof(*(object)), first) % sizeof(type)), "they are one word"); \
		_Static_assert(__builtin_offsetof(typeof(*(object)), last) + sizeof((object)->last) == \
				       __builtin_offsetof(typeof(*(object)), first) + sizeof(type), \
			       "they are one word"); \
		__builtin_memcpy(&__one, &(object)->first, sizeof(__one)); \
		__one; \
	})

/* The verifier forbids arithmetic with a pointer it knows, but its lower half is a plain number. */
static __always_inline __u32 lower_half(__u64 pointer)
{
	__u32 half;

	asm volatile("%0 = %1" : "=w"(half) : "w"((__u32)pointer));
	return half;
}

/*
 * The verifier does not let a pointer be handed to a global function. One of which a byte was written is a number for it,
 * and each write of the same byte leaves it as it is.
 */
static __always_inline __u64 number_of(__u64 pointer)
{
	volatile __u64 number = pointer;

	/* Both architectures are little-endian. */
	*(volatile __u8 *)&number = lower_half(pointer);
	return number;
}

#endif
