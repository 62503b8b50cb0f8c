/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The owner of a new operation or bio: the current task, a file, or the task that dirtied the page that is written
 * back.
 */
#ifndef WPT_PATH_OWNED_H
#define WPT_PATH_OWNED_H

#include "block/path/owner.h"
#include "block/path/neighbours.h"
#include "block/path/record.h"
#include "lib/subvolume.h"

/* The part of a record that holds a path. */
struct path_record {
	__u64 words[__builtin_offsetof(struct io_record, statement) / sizeof(__u64)];
};

/* For each place in `owners`: the path of a file or directory; a single one if owners are tasks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct path_record);
} owner_paths SEC(".maps");

/* Global, with a scalar argument, once per owner: the walk up is verified separately. */
__noinline int name_owner(__u32 place, __u64 dentry, __u64 mount)
{
	struct io_record *record = (void *)bpf_map_lookup_elem(&owner_paths, &place);

	return record ? read_path(record, dentry, mount) : 0;
}

/* From the vfsmount to the `struct mount` around it. */
static __always_inline __u32 owner_of_dentry(struct dentry *dentry, struct vfsmount *shown, bool trusted)
{
	enum owner_by by = owner_by;
	struct owner_key key = {};
	struct inode *inode;
	struct owner *owner;
	__u32 number;

	if (by == OWNER_BY_DIR)
		dentry = FIELD(trusted, dentry, d_parent);
	inode = FIELD(trusted, dentry, d_inode);
	key.id = FIELD(trusted, inode, i_ino);
	key.more = dev_of_inode(inode, trusted);
	if (!key.id)
		return 0;
	number = owner_number(&key, by);
	if (number == OWNER_OTHERS)
		return number;
	owner = owner_at(number - 1);
	/* By a single task: a reader that finds it named must not find half of a name. */
	if (owner->known == OWNER_KNOWN && take_place(&owner->known, OWNER_KNOWN, OWNER_BEING_NAMED)) {
		name_owner(number - 1, number_of((__u64)dentry),
			   number_of((__u64)shown) - bpf_core_field_offset(struct mount, mnt));
		barrier();
		owner->known = OWNER_NAMED;
	}
	return number;
}

static __noinline __u32 owner_of_file(struct file *file)
{
	struct path *path;

	if (!file)
		return 0;
	path = opened_path(file);
	return owner_of_dentry(BPF_CORE_READ(path, dentry), BPF_CORE_READ(path, mnt), false);
}

/* Without the copies, which are most of it; what lies behind a file the verifier does not know. */
static __noinline __u32 owner_of_known_file(struct file *file)
{
	if (!file)
		return 0;
	if (file->f_mode & backing_mode())
		return owner_of_file(file);
	return owner_of_dentry(file->f_path.dentry, file->f_path.mnt, true);
}

/* An asynchronous one has its submitter already, who may not be the current task. */
static __always_inline void own_operation(struct op_state *op, struct file *file, bool trusted)
{
	enum owner_by by = owner_by;

	if (!by)
		return;
	if (BY_FILE(by))
		op->owner = trusted ? owner_of_known_file(file) : owner_of_file(file);
	else if (by == OWNER_BY_CALL && op->op_kind == OP_KIND_PAGEFAULT)
		op->owner = owner_of_class(CALL_CLASS_PAGEFAULT);
	else if (by == OWNER_BY_CALL && op->op_kind == OP_KIND_SWAPIN)
		op->owner = owner_of_class(CALL_CLASS_SWAPIN);
	else if (op->interface != INTERFACE_CALL)
		return;
	else if (by == OWNER_BY_PROCESS)
		op->owner = owner_of_process(op->place);
	else if (by == OWNER_BY_CGROUP)
		op->owner = owner_of_cgroup();
	else if (BY_STATEMENT(by) && by == OWNER_BY_STATEMENT)
		op->owner = owner_of_same_statement(op->place);
	else
		op->owner = owner_of_current();
}

/* The thread that dirtied it; its process gets the thread's name. */
static __always_inline __u32 owner_of_dirtied(struct dirty_frame *frame)
{
	struct owner_key key = {};
	enum owner_by by = owner_by;

	if (BY_STATEMENT(by)) {
		struct statement gone = {};

		if (frame->started == STATEMENT_ROW_NONE)
			return OWNER_OTHERS;
		key.id = frame->statement;
		key.more = frame->started;
		if (frame->started == STATEMENT_ROW_PROGRAM || (frame->started == STATEMENT_ROW_IDLE && key.id))
			__builtin_memcpy(key.comm, frame->comm, sizeof(key.comm));
		return owner_by_statement(&key, &gone);
	}
	if (by == OWNER_BY_CGROUP) {
		key.id = frame->cgroup;
	} else {
		if (by != OWNER_BY_COMM) {
			key.id = (__u64)frame->tgid << 32 | (by == OWNER_BY_THREAD ? frame->tid : 0);
			key.more = frame->started;
		}
		__builtin_memcpy(key.comm, frame->comm, sizeof(key.comm));
	}
	return owner_number(&key, by);
}

/* The file of a bio without an operation, which page-cache pages know. */
static __noinline __u32 owner_of_page(struct bio *bio)
{
	/* A copy, or the compiler has libbpf look for `struct page_of_file` in the kernel. */
	struct address_space *mapping = page_of_file(head_of(first_page(bio))).mapping;
	struct inode *inode;
	struct vfsmount *shown;
	struct dentry *dentry;
	struct mount *mount;

	/* Memory of a process, of a driver, or none. */
	if (!mapping || (__u64)mapping & 3)
		return 0;
	inode = BPF_CORE_READ(mapping, host);
	dentry = name_of(inode);
	mount = mount_of(inode);
	if (!dentry || !mount)
		return 0;
	shown = (void *)mount + bpf_core_field_offset(struct mount, mnt);
	return note_seen(owner_of_dentry(dentry, shown, false));
}

/* A bio without an operation. */
static __noinline __u32 owner_of_bio(struct bio *bio, bool write)
{
	struct dirty_frame *frame;

	if (BY_FILE(owner_by))
		return owner_of_page(bio);
	/* The call that dirtied it is not known any more. */
	frame = following && write && owner_by != OWNER_BY_CALL ? dirtier_of(bio) : NULL;
	return frame ? owner_of_dirtied(frame) : note_seen(owner_of_current());
}

/* A bio on a traced device that a filter leaves out: its owner is needed for neighbours. */
static __noinline int queue_stranger(struct bio *bio)
{
	struct device_match match = find_device(bio_disk(bio, false), BPF_CORE_READ(bio, bi_iter.bi_sector), false);

	if (match.found)
		note_stranger(number_of((__u64)bio),
			      owner_of_bio(bio, request_op(BPF_CORE_READ(bio, bi_opf)) == BLOCK_OP_WRITE));
	return 0;
}

static __always_inline void own_bio(struct bio_state *state, struct op_state *op, struct bio *bio)
{
	if (!owner_by)
		return;
	if (op && !op->whole) {
		state->owner = op->owner;
		/* A worker may send it. */
		if (neighbours && op->task == bpf_get_current_task())
			note_seen(op->owner);
	} else {
		state->owner = owner_of_bio(bio, state->op_kind == BLOCK_OP_WRITE && !state->empty);
	}
}

#endif
