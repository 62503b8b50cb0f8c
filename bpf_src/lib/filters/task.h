/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which task: its process, its thread, its name (wptrace/engine/filters/task.py). Needs `wptrace.h` first. */
#ifndef WPT_FILTERS_TASK_H
#define WPT_FILTERS_TASK_H

#include "../pid_namespace.h"

bool filter_task; /* any of those below, or the cgroup */
__u32 filter_tgid; /* 0: any */
__u32 filter_tid; /* 0: any */
const volatile bool filter_children; /* and what that process started, and these in turn */
bool filter_by_comm;
char filter_comm[16] __attribute__((aligned(8)));

#define GENERATIONS 16

/* Whether that process is among those above a task. Global, and of numbers: the verifier looks at the loop once. */
__noinline __u32 descends_from(__u64 address, __u32 tgid)
{
	struct task_struct *task = (void *)address;
	__u32 generation;

	for (generation = 0; generation < GENERATIONS; generation++) {
		__u32 found;

		task = BPF_CORE_READ(task, real_parent);
		if (!task)
			break;
		if (pid_namespace)
			found = number_within((__u64)BPF_CORE_READ(task, group_leader, thread_pid));
		else
			found = BPF_CORE_READ(task, tgid);
		if (found == tgid)
			return 1;
		/* What has no number in that namespace stands above all that have. */
		if (found <= 1)
			break;
	}
	return 0;
}

static __always_inline bool ids_match(void)
{
	__u64 ids = current_ids();

	if (filter_tgid && filter_tgid != ids >> 32 &&
	    !(filter_children && descends_from(number_of(bpf_get_current_task()), filter_tgid)))
		return false;
	return !filter_tid || filter_tid == (__u32)ids;
}

static __always_inline bool comm_matches(void)
{
	const __u64 *wanted = (void *)filter_comm;
	__u64 comm[2] = {};

	bpf_get_current_comm(comm, sizeof(comm));
	return comm[0] == wanted[0] && comm[1] == wanted[1];
}

#endif
