/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#ifndef WPTRACE_SAMPLE_H
#define WPTRACE_SAMPLE_H

#include "wptrace.h"

/*
 * How many to leave out until the next of one in so many, at uneven distances: what repeats itself would else be the same
 * one each time. What Python sets may have become 0 since it was looked at, which is none: one less than twice that
 * would be more than come in hours.
 */
static __always_inline __u32 left_out(const __u32 *one_in)
{
	__u32 now = *(const volatile __u32 *)one_in;

	return now ? bpf_get_prandom_u32() % (2 * now - 1) : 0;
}

#endif
