/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which file, or files below which directory (wptrace/engine/filters/file.py). Needs `wptrace.h` first. */
#ifndef WPT_FILTERS_FILE_H
#define WPT_FILTERS_FILE_H

#include "../dentry.h"
#include "lib/subvolume.h"

bool filter_file; /* any of those below */
/* A file, by whatever name it is opened: its inode number and the device of its superblock, 0: any. */
__u64 filter_inode;
__u32 filter_inode_dev;
/* A directory with all that is below it, the same way. */
__u64 filter_directory;
__u32 filter_directory_dev;
/* Their subvolumes, where they are on btrfs. */
__u32 filter_inode_subvolume;
__u32 filter_directory_subvolume;

/* The maximum of steps: up to another mount, or up so many directories. */
#define CLIMB 32
#define STRIDE 16

/* What stands for a directory where none is left: no kernel has one there. */
#define AT_ROOT 0
#define AT_WANTED 1

static __always_inline bool is_in_subvolume(struct inode *inode, __u32 wanted)
{
	__u32 found = wanted ? subvolume_of(inode) : 0;

	return !found || found == wanted;
}

/*
 * Climb a few directories on one file system; returns the place. Two functions, as the verifier goes through each step
 * of a loop, and through this one just once.
 */
__noinline __u64 stride(__u64 from)
{
	struct dentry *dentry = (void *)from;
	int step;

	for (step = 0; step < STRIDE; step++) {
		struct dentry *parent = BPF_CORE_READ(dentry, d_parent);

		struct inode *inode = BPF_CORE_READ(dentry, d_inode);

		if (BPF_CORE_READ(inode, i_ino) == filter_directory &&
		    is_in_subvolume(inode, filter_directory_subvolume))
			return AT_WANTED;
		if (parent == dentry)
			return AT_ROOT;
		dentry = parent;
	}
	return (__u64)dentry;
}

/*
 * On the file system of the wanted directory the walk goes up to its root, past the root of the mount, since a bind
 * mount may only show what is below the directory. Any other file system is left at once for its mount point. Pointers
 * are copied: the verifier does not know an object that was found by container_of.
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

	return FIELD(direct, inode, i_ino) == filter_inode && FIELD(direct, super, s_dev) == filter_inode_dev &&
	       is_in_subvolume(inode, filter_inode_subvolume);
}

/* A lower file of overlayfs matches by either of its paths. */
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

#endif
