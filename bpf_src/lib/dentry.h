/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The way of a file up to the root, across mounts. Needs `wptrace.h` first. */
#ifndef WPT_DENTRY_H
#define WPT_DENTRY_H

struct place {
	struct dentry *dentry;
	struct mount *mount;
};

static __always_inline struct place place_of(struct file *file)
{
	struct vfsmount *mnt = BPF_CORE_READ(file, f_path.mnt);
	struct place place = {
		.dentry = BPF_CORE_READ(file, f_path.dentry),
		.mount = (void *)mnt - bpf_core_field_offset(struct mount, mnt),
	};

	return place;
}

/* The root of a mount stands for the directory that it is mounted on, which has the name. */
static __always_inline bool is_mount_root(struct place *place)
{
	struct mount *mount = place->mount;

	return place->dentry == BPF_CORE_READ(mount, mnt.mnt_root);
}

/* False at the very root. */
static __always_inline bool leave_mount(struct place *place)
{
	struct mount *mount = place->mount;
	struct mount *parent = BPF_CORE_READ(mount, mnt_parent);

	if (parent == mount)
		return false;
	place->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
	place->mount = parent;
	return true;
}

#endif
