// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Asks, at each system call of the test, how many to leave out until the next sample. */
#include "lib/wptrace.h"
#include "lib/sample.h"

__u32 target_tgid;
__u32 one_in;
__u64 calls;
__u64 left;
__u32 most;

SEC("raw_tp/sys_enter")
int on_enter(void *ctx)
{
	__u32 found;

	if (!target_tgid || bpf_get_current_pid_tgid() >> 32 != target_tgid)
		return 0;
	found = left_out(&one_in);
	calls++;
	left += found;
	if (found > most)
		most = found;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
