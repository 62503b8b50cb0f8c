// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* One place that two tasks want at once, as those of bpf_src/block/path/state.h: only one may get it. */
#include "lib/wptrace.h"
#include "lib/place.h"

__u64 target_call; /* one that nobody else uses */

__u64 place;
__u64 owner; /* what its owner alone writes */
__u64 inside;
__u64 tried;
__u64 taken;
__u64 disturbed;

SEC("raw_tp/sys_enter")
int want_place(__u64 *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), others;

	if (ctx[1] != target_call)
		return 0;
	COUNT(tried);
	if (place || !take_place(&place, 0, id))
		return 0;
	COUNT(taken);
	owner = id;
	COUNT(inside);
	others = *(volatile __u64 *)&inside;
	bpf_ktime_get_ns();
	if (others != 1 || *(volatile __u64 *)&owner != id || *(volatile __u64 *)&place != id)
		COUNT(disturbed);
	COUNT_MORE(inside, -1);
	barrier();
	*(volatile __u64 *)&place = 0;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
