/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which task: its process, its thread, its name (wptrace/engine/filters/task.py). Needs `wptrace.h` first. */
#ifndef WPT_FILTERS_TASK_H
#define WPT_FILTERS_TASK_H

#include "../pid_namespace.h"

bool filter_task; /* any of those below, or the cgroup */
__u32 filter_tgid; /* 0: any */
__u32 filter_tid; /* 0: any */
bool filter_by_comm;
char filter_comm[16] __attribute__((aligned(8)));

/* A program that follows the children of a process says so before. */
#ifndef FILTER_DESCENDANT
#define FILTER_DESCENDANT(tgid) false
#endif

static __always_inline bool ids_match(void)
{
	__u64 ids = current_ids();

	if (filter_tgid && filter_tgid != ids >> 32 && !FILTER_DESCENDANT(filter_tgid))
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
