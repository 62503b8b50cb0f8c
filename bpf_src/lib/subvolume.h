/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * All subvolumes of a btrfs share a superblock and use the same inode numbers. Each has a device number of its own, which
 * stat() shows. Needs `wptrace.h` first.
 */
#ifndef WPT_SUBVOLUME_H
#define WPT_SUBVOLUME_H

#define BTRFS_SUPER_MAGIC 0x9123683e /* include/uapi/linux/magic.h */

struct btrfs_root___known {
	dev_t anon_dev;
} __attribute__((preserve_access_index));

struct btrfs_inode___known {
	struct btrfs_root___known *root;
	struct inode vfs_inode;
} __attribute__((preserve_access_index));

/* The device number of the subvolume; 0 if the kernel says nothing about the types of btrfs. Out of the path of others. */
static __noinline __u32 subvolume_of(struct inode *inode)
{
	struct btrfs_inode___known *found = NULL;

	if (!bpf_core_field_exists(found->vfs_inode))
		return 0;
	found = (void *)(number_of((__u64)inode) - bpf_core_field_offset(struct btrfs_inode___known, vfs_inode));
	return BPF_CORE_READ(found, root, anon_dev);
}

/* The device that distinguishes inodes of the same number. */
static __always_inline __u32 dev_of_inode(struct inode *inode, bool direct)
{
	struct super_block *super = FIELD(direct, inode, i_sb);
	__u32 dev = FIELD(direct, super, s_dev);

	if (FIELD(direct, super, s_magic) == BTRFS_SUPER_MAGIC) {
		__u32 own = subvolume_of(inode);

		return own ? own : dev;
	}
	return dev;
}

#endif
