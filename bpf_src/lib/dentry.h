/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The walk from a file up to the root, across mounts. Needs `wptrace.h` first. */
#ifndef WPT_DENTRY_H
#define WPT_DENTRY_H

struct place {
	struct dentry *dentry;
	struct mount *mount;
};

/*
 * A file that overlayfs or FUSE's passthrough has open below is a struct backing_file since
 * commit 62d53c4a1dfe ("fs: use backing_file container for internal files with "fake" f_path", v6.5).
 * It has two paths: that below, and behind the file the one by which it was opened above. It was the other way round
 * before
 * commit def3ae83da02 ("fs: store real path instead of fake path in backing file f_path", v6.7).
 * Before v6.5 it had only that above.
 */
#define FMODE_BACKING (1 << 25) /* include/linux/fs.h */
/* 6.14 took that bit for FMODE_NONOTIFY, with the same series that made struct file_range. */
#define FMODE_BACKING_6_14 (1 << 24)

struct file_range {
	const struct path *path;
} __attribute__((preserve_access_index));

static __always_inline unsigned int backing_mode(void)
{
	return bpf_core_type_exists(struct file_range) ? FMODE_BACKING_6_14 : FMODE_BACKING;
}

/* The path by which it was opened: of another inode than the file's own if it lies below. */
static __always_inline struct path *opened_path(struct file *file)
{
	struct path *behind = (void *)file + bpf_core_type_size(struct file);

	if (BPF_CORE_READ(file, f_mode) & backing_mode() &&
	    BPF_CORE_READ(behind, dentry, d_inode) != BPF_CORE_READ(file, f_inode))
		return behind;
	return &file->f_path;
}

static __always_inline struct place place_of(struct file *file)
{
	struct path path = {};
	struct place place;

	bpf_probe_read_kernel(&path, sizeof(path), opened_path(file));
	place.dentry = path.dentry;
	place.mount = (void *)path.mnt - bpf_core_field_offset(struct mount, mnt);
	return place;
}

/*
 * Adjacent members are copied together, as copies dominate the cost. Where a kernel
 * has them elsewhere, each is copied by itself.
 */
#define IS_BEHIND(type, field, other, bytes) \
	(bpf_core_field_offset(type, field) == bpf_core_field_offset(type, other) + (bytes))

/* The root of a mount stands for the directory that it is mounted on, which has the name. */
struct mounted {
	struct mount *parent; /* itself at the very root */
	struct dentry *mountpoint;
	struct dentry *root;
};

static __always_inline void read_mount(struct mounted *into, struct mount *mount)
{
	if (IS_BEHIND(struct mount, mnt_mountpoint, mnt_parent, 8) &&
	    IS_BEHIND(struct mount, mnt.mnt_root, mnt_parent, 16)) {
		bpf_probe_read_kernel(into, sizeof(*into),
				      (void *)mount + bpf_core_field_offset(struct mount, mnt_parent));
		return;
	}
	into->parent = BPF_CORE_READ(mount, mnt_parent);
	into->mountpoint = BPF_CORE_READ(mount, mnt_mountpoint);
	into->root = BPF_CORE_READ(mount, mnt.mnt_root);
}

struct named {
	struct dentry *parent;
	__u64 hash;
	const unsigned char *name;
};

static __always_inline void read_dentry(struct named *into, struct dentry *dentry)
{
	if (IS_BEHIND(struct dentry, d_name.name, d_parent, 16)) {
		bpf_probe_read_kernel(into, sizeof(*into),
				      (void *)dentry + bpf_core_field_offset(struct dentry, d_parent));
		return;
	}
	into->parent = BPF_CORE_READ(dentry, d_parent);
	into->name = BPF_CORE_READ(dentry, d_name.name);
}

#endif
