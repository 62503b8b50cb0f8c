/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Files with storage: not pipes, sockets, terminals. Needs `wptrace.h` first. */
#ifndef WPT_PATH_STORED_H
#define WPT_PATH_STORED_H

#include "block/path/shared.h"

#define S_IFMT 0170000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFREG 0100000

/* For files of any kind. */
static __always_inline bool is_stored(struct file *file, enum op_kind kind, bool trusted)
{
	struct inode *inode = FIELD(trusted, file, f_inode);
	__u32 format = FIELD(trusted, inode, i_mode) & S_IFMT;

	return format == S_IFREG || format == S_IFBLK || (kind == OP_KIND_SYNC && format == S_IFDIR);
}

/* Of the current task. */
static __always_inline struct file *file_of(__u32 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file **files = BPF_CORE_READ(table, fd);
	struct file *file = NULL;

	if (fd < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), files + fd);
	return file;
}

#endif
