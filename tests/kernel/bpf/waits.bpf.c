// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The waits of one operation, as they are given. */
/* Of the path this takes a part. */
#pragma clang diagnostic ignored "-Wunused-function"
#include "block/path/waits.h"
#include "block/path/recorded.h"

#define MOST 32

__u64 target_call; /* one that nobody else uses */
__u32 stages[MOST];
__u32 stacks[MOST];
__u64 times[MOST];
__u32 given;
struct op_wait kept[OP_WAITS];
__u32 kept_count;

SEC("raw_tp/sys_enter")
int keep_waits(__u64 *ctx)
{
	__u32 number;

	if (ctx[1] != target_call)
		return 0;
	op_at(0)->waits = 0;
	for (number = 0; number < MOST; number++) {
		if (number < given)
			keep_wait(0, times[number], stages[number], stacks[number]);
	}
	fill_waits(kept, op_at(0));
	kept_count = op_at(0)->waits;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
