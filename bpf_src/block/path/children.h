/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * With --children: the descendants of the wanted process. They are marked when they fork, as
 * an orphan becomes a child of init. Existing ones are found through their parents, or by Python.
 */
#ifndef WPT_PATH_CHILDREN_H
#define WPT_PATH_CHILDREN_H

#include "block/path/state.h"
#include "lib/pid_namespace.h"

OPTION(filter_children, false);
extern __u32 filter_tgid; /* lib/filters/task.h */

#define FILTER_DESCENDANT(tgid) (filter_children && is_descendant(tgid))

#define GENERATIONS 16

/*
 * By tgid of the initial namespace: the start time of the process, since tgids are reused. 0:
 * found by Python, and filled in on first use.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} descendants SEC(".maps");

/* Whether that process is an ancestor of a task. Global, with scalar arguments: the loop is verified once. */
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
		/* A process without a pid in that namespace is above all that have one. */
		if (found <= 1)
			break;
	}
	return 0;
}

static __always_inline __u64 process_started(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, start_time);
}

static __always_inline void mark_descendant(__u32 tgid, __u64 started)
{
	if (bpf_map_update_elem(&descendants, &tgid, &started, BPF_ANY))
		COUNT(loss[PATH_CAUSE_CHILD_FULL]);
}

static __noinline bool is_descendant(__u32 tgid)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 number = bpf_get_current_pid_tgid() >> 32;
	__u64 started = process_started(task), *marked;

	marked = bpf_map_lookup_elem(&descendants, &number);
	if (marked && !*marked)
		*marked = started;
	if (marked && *marked == started)
		return true;
	if (!descends_from(number_of((__u64)task), tgid))
		return false;
	mark_descendant(number, started);
	return true;
}

/* The parent runs. */
static __always_inline int on_fork(struct task_struct *child)
{
	__u32 number = BPF_CORE_READ(child, tgid), tgid = filter_tgid;

	/* A thread belongs to its process. */
	if (!tgid || number == bpf_get_current_pid_tgid() >> 32)
		return 0;
	if (tgid == current_ids() >> 32 || is_descendant(tgid))
		mark_descendant(number, BPF_CORE_READ(child, start_time));
	return 0;
}

static __always_inline int on_task_free(struct task_struct *task)
{
	__u32 number = BPF_CORE_READ(task, tgid);
	__u64 *marked;

	if (number != (__u32)BPF_CORE_READ(task, pid))
		return 0;
	marked = bpf_map_lookup_elem(&descendants, &number);
	if (marked && (!*marked || *marked == BPF_CORE_READ(task, start_time)))
		bpf_map_delete_elem(&descendants, &number);
	return 0;
}

#endif
