// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One row that two contexts update at once, by the very functions that count operations and requests. */
#include "lib/wptrace.h"
#include "lib/hist.h"

__u64 target_call; /* one that nobody else uses */

struct row {
	__u64 finished;
	__u64 bytes;
	struct hist stage;
};

/* Two CPUs are here what a task and an interrupt of one CPU are there: each comes in the midst of the other. */
struct row row;
__u64 tried[64]; /* by CPU */

SEC("raw_tp/sys_enter")
int count_one(__u64 *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (ctx[1] != target_call)
		return 0;
	if (cpu < 64)
		tried[cpu]++;
	COUNT_MORE(row.bytes, 3);
	hist_add_counted(&row.stage, 1000);
	COUNT(row.finished);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
