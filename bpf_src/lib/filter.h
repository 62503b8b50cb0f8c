/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which requests the user wants: whose, of which file, which operation. Python sets the globals, also while programs
 * run (wptrace/engine/filters.py). What was asked for has to hold all together. Each of the three functions has one
 * switch, so a filter that is off costs one branch. Needs `wptrace.h` first.
 */
#ifndef WPT_FILTER_H
#define WPT_FILTER_H

#include "dentry.h"
#include "pid_namespace.h"

bool filtering; /* anything of what follows */

/* --- The current task ------------------------------------------------------------------------------------------ */

bool filter_task; /* any of those below */
__u32 filter_tgid; /* 0: any */
__u32 filter_tid; /* 0: any */
bool filter_by_comm;
char filter_comm[16] __attribute__((aligned(8)));
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

/* Global, and of a number: the verifier looks at the loop once, and not in each state of its callers. */
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

static __always_inline bool comm_matches(void)
{
	const __u64 *wanted = (void *)filter_comm;
	__u64 comm[2] = {};

	bpf_get_current_comm(comm, sizeof(comm));
	return comm[0] == wanted[0] && comm[1] == wanted[1];
}

/* Only where `current` is who asked for the request, so not in interrupts. */
static __always_inline bool task_matches(void)
{
	__u64 ids;

	if (!filter_task)
		return true;
	ids = current_ids();
	if (filter_tgid && filter_tgid != ids >> 32)
		return false;
	if (filter_tid && filter_tid != (__u32)ids)
		return false;
	if (filter_by_comm && !comm_matches())
		return false;
	/* bpf_get_current_task_btf came with 5.11, bpf_get_current_ancestor_cgroup_id later to tracing and knows no v1. */
	return !filter_cgroup || cgroup_matches(number_of(bpf_get_current_task()));
}

/* --- The file --------------------------------------------------------------------------------------------------- */

bool filter_file; /* any of those below */
/* A file, by whatever name it is opened: its inode number and the device of its superblock, 0: any. */
__u64 filter_inode;
__u32 filter_inode_dev;
/* A directory with all that is below it, the same way. */
__u64 filter_directory;
__u32 filter_directory_dev;

/* How often one climbs at most: up to another mount, or up so many directories. */
#define CLIMB 32
#define STRIDE 16

/* What stands for a directory where none is left: no kernel has one there. */
#define AT_ROOT 0
#define AT_WANTED 1

/*
 * A few directories up on one file system; where one has got to. Two functions, as the verifier goes through each step
 * of a loop, and through this one just once.
 */
__noinline __u64 stride(__u64 from)
{
	struct dentry *dentry = (void *)from;
	int step;

	for (step = 0; step < STRIDE; step++) {
		struct dentry *parent = BPF_CORE_READ(dentry, d_parent);

		if (BPF_CORE_READ(dentry, d_inode, i_ino) == filter_directory)
			return AT_WANTED;
		if (parent == dentry)
			return AT_ROOT;
		dentry = parent;
	}
	return (__u64)dentry;
}

/*
 * On the file system of the wanted directory the way goes up to its root, past the root of the mount, since a bind
 * mount may show only what is below the directory. Any other one is left at once, to where it is mounted. Pointers
 * come by copy: what was found by a container's offset is no object that the verifier knows.
 */
__noinline __u32 is_below(__u64 dentry, __u64 shown)
{
	struct mount *mount = (void *)shown - bpf_core_field_offset(struct mount, mnt);
	int step;

	for (step = 0; step < CLIMB; step++) {
		struct mount *upper;

		if (BPF_CORE_READ(mount, mnt.mnt_sb, s_dev) == filter_directory_dev) {
			dentry = stride(dentry);
			if (dentry == AT_WANTED)
				return true;
			if (dentry != AT_ROOT)
				continue;
		}
		upper = BPF_CORE_READ(mount, mnt_parent);
		if (upper == mount)
			return false;
		dentry = (__u64)BPF_CORE_READ(mount, mnt_mountpoint);
		mount = upper;
	}
	return false;
}

static __always_inline bool inode_matches(struct inode *inode, bool direct)
{
	struct super_block *super = FIELD(direct, inode, i_sb);

	return FIELD(direct, inode, i_ino) == filter_inode && FIELD(direct, super, s_dev) == filter_inode_dev;
}

/* A file that overlayfs has open below is wanted by either of its paths. */
static __always_inline bool file_matches(struct file *file, bool direct)
{
	struct path *path;

	if (!filter_file)
		return true;
	path = opened_path(file);
	if (filter_inode_dev && !inode_matches(FIELD(direct, file, f_inode), direct) &&
	    !inode_matches(BPF_CORE_READ(path, dentry, d_inode), false))
		return false;
	if (!filter_directory_dev)
		return true;
	return is_below((__u64)BPF_CORE_READ(path, dentry), (__u64)BPF_CORE_READ(path, mnt)) ||
	       (path != &file->f_path &&
		is_below((__u64)BPF_CORE_READ(file, f_path.dentry), (__u64)BPF_CORE_READ(file, f_path.mnt)));
}

/* --- The operation ---------------------------------------------------------------------------------------------- */

bool filter_operation; /* any of those below; all three are set then */
__u32 filter_directions; /* bit 0: reads, bit 1: writes */
__u64 filter_min_bytes;
__u64 filter_max_bytes;

static __always_inline bool operation_matches(bool write, __u64 bytes)
{
	if (!filter_operation)
		return true;
	return (filter_directions >> write & 1) && bytes >= filter_min_bytes && bytes <= filter_max_bytes;
}

#endif
