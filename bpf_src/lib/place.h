/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A place that several may want at once: one of them gets it. Needs `wptrace.h` first. */
#ifndef WPT_PLACE_H
#define WPT_PLACE_H

/*
 * Kernels before
 * commit 5ffa25502b5a ("bpf: Add instructions for atomic_[cmp]xchg", v5.12) have no such instruction, and are given a
 * plain store in its place (wptrace/bpf/atomics.py). Python says so.
 */
const volatile bool without_exchange;

/* The number of contenders for a place, shared by several places. */
#define CLAIMS 1024
__u32 claims[CLAIMS];

static __always_inline __u32 *claims_of(__u64 *place)
{
	/* Places lie far from each other. */
	__u32 at = lower_half((__u64)place) * 0x9e3779b1u >> 22;

	asm volatile("%0 &= %1" : "+r"(at) : "i"(CLAIMS - 1));
	return &claims[at];
}

/*
 * Where a number can be added to atomically, but not fetched: a CPU that then reads that it is alone comes before all
 * others, which read that they are not. If two add themselves at once, neither gets the place, and each tries another.
 */
static __always_inline bool take_alone(__u64 *place, __u64 before, __u64 key)
{
	__u32 *wanting = claims_of(place);
	bool taken = false;

	COUNT(*wanting);
	if (*(volatile __u32 *)wanting == 1 && *(volatile __u64 *)place == before) {
		*(volatile __u64 *)place = key;
		taken = true;
	}
	COUNT_MORE(*wanting, -1);
	return taken;
}

/* Takes a place for what has this key, if it is still what it was before. */
static __always_inline bool take_place(__u64 *place, __u64 before, __u64 key)
{
	if (without_exchange)
		return take_alone(place, before, key);
	return __sync_val_compare_and_swap(place, before, key) == before;
}

#endif
