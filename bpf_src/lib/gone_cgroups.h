/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Paths of removed cgroups: one may be gone before its id is looked up. */
#ifndef WPT_GONE_CGROUPS_H
#define WPT_GONE_CGROUPS_H

#include "lib/wptrace.h"

#define CGROUP_PATH_BYTES 256

struct cgroup_path {
	char path[CGROUP_PATH_BYTES];
};

/* By the id. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct cgroup_path);
} gone_cgroups SEC(".maps");

static __always_inline int on_cgroup_removed(struct cgroup *cgroup, const char *path)
{
	struct cgroup_path gone = {};
	__u64 id;

	/* Those of the first version have ids of their own. */
	if (BPF_CORE_READ(cgroup, root, hierarchy_id))
		return 0;
	id = BPF_CORE_READ(cgroup, kn, id);
	bpf_probe_read_kernel_str(gone.path, sizeof(gone.path), path);
	bpf_map_update_elem(&gone_cgroups, &id, &gone, BPF_ANY);
	return 0;
}

#endif
