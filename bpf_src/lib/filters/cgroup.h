/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which cgroup, with those below it (wptrace/engine/filters/cgroup.py). Needs `wptrace.h` first. */
#ifndef WPT_FILTERS_CGROUP_H
#define WPT_FILTERS_CGROUP_H

__u64 filter_cgroup; /* id of the topmost cgroup that is wanted; 0: any */
__s32 filter_cgroup_subsys; /* below 0: cgroup v2; else the controller of a v1 hierarchy */
/* The levels at which it may stand: one, or all where a cgroup namespace hides how far the root is. */
__u32 filter_cgroup_first;
__u32 filter_cgroup_last;

#define CGROUP_LEVELS 32

/* 6.1 (7f203bc89eb6) has pointers to the ancestors of a cgroup in place of their ids. */
struct cgroup___with_ids {
	__u64 ancestor_ids[0];
} __attribute__((preserve_access_index));

/* Global, with a scalar argument: the loop is verified once, and not in each state of its callers. */
__noinline __u32 cgroup_matches(__u64 address)
{
	struct task_struct *task = (void *)address;
	struct css_set *set = BPF_CORE_READ(task, cgroups);
	struct cgroup_subsys_state **states = &set->subsys[0], *state = NULL;
	struct cgroup *cgroup = BPF_CORE_READ(set, dfl_cgrp);
	struct cgroup___with_ids *old;
	__u32 lowest, step;
	__u64 *ancestors;

	if (filter_cgroup_subsys >= 0) {
		bpf_probe_read_kernel(&state, sizeof(state), states + filter_cgroup_subsys);
		cgroup = BPF_CORE_READ(state, cgroup);
	}
	old = (void *)cgroup;
	/* The barriers keep clang from computing both: the one that the kernel does not have is refused. */
	if (bpf_core_field_exists(old->ancestor_ids)) {
		ancestors = (void *)&old->ancestor_ids[0];
		barrier_var(ancestors);
	} else {
		ancestors = (void *)&cgroup->ancestors[0];
		barrier_var(ancestors);
	}
	lowest = BPF_CORE_READ(cgroup, level);
	if (lowest > filter_cgroup_last)
		lowest = filter_cgroup_last;
	for (step = 0; step < CGROUP_LEVELS; step++) {
		__u32 level = filter_cgroup_first + step;
		__u64 id = 0;

		if (level > lowest)
			break;
		bpf_probe_read_kernel(&id, sizeof(id), ancestors + level);
		if (!bpf_core_field_exists(old->ancestor_ids))
			id = BPF_CORE_READ((struct cgroup *)id, kn, id);
		if (id == filter_cgroup)
			return true;
	}
	return false;
}

/* bpf_get_current_task_btf came with 5.11, bpf_get_current_ancestor_cgroup_id later to tracing and knows no v1. */
static __always_inline bool in_cgroup(void)
{
	return cgroup_matches(number_of(bpf_get_current_task()));
}

#endif
