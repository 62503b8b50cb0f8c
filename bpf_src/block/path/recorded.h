/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Operations in the flight recorder, and paths of their files. */
#ifndef WPT_PATH_RECORDED_H
#define WPT_PATH_RECORDED_H

#include "block/path/account.h"
#include "block/path/owned.h"
#include "block/path/record.h"
#include "block/path/recorder.h"

RECORDER_MAP(recorded_paths, path_record);

__noinline int name_recorded_file(__u32 place, __u64 dentry, __u64 mount)
{
	struct io_record *record;

	if (!recording)
		return 0;
	record = (void *)bpf_map_lookup_elem(&recorded_paths, &place);
	return record ? read_path(record, dentry, mount) : 0;
}

/* The position has moved by the result, and before that to the end of the file if it is only appended to. */
static __always_inline __s64 recorded_offset(struct op_state *op, __s64 result)
{
	__s64 offset = op->offset;

	if (offset < 0 && op->position && result >= 0) {
		bpf_probe_read_kernel(&offset, sizeof(offset), op->position);
		offset -= result;
	}
	return offset;
}

/* Its stages that took time, in order. If a record has no room for all of them, the rest is combined. */
static __always_inline void record_charges(struct recorded *record, struct op_state *op, __u32 shift)
{
	__u32 *charges = (void *)record + __builtin_offsetof(struct recorded, times);
	__u32 stage, count = 0, mask = 0, last = 0;
	__u64 rest = 0;

	for (stage = 0; stage < OP_CHARGES; stage++) {
		__u64 ns = op->charges[stage];

		if (!ns)
			continue;
		if (count < RECORDED_CHARGES - 1) {
			charges[count & 15] = ns >> shift;
			mask |= 1U << stage;
		} else {
			last = rest ? OP_STAGE_UNATTRIBUTED : stage;
			rest += ns;
		}
		count++;
	}
	if (rest) {
		charges[RECORDED_CHARGES - 1] = rest >> shift;
		mask |= 1U << last;
	}
	record->stages = mask;
}

/* Global, so that its loop is verified once. Its stages are final, or it is a page-cache hit. */
__noinline int recorder_operation(__u32 place, __u32 kind, __s64 result)
{
	struct op_state *op = op_at(place);
	struct recorded *record;
	__u32 number, tid;
	struct file *file;
	__u64 total;
	bool coarse;

	if (!recording)
		return 0;
	total = minus(op->end_ns, op->start_ns);
	note_slow(total, op->end_ns);
	tid = op->interface == INTERFACE_CALL ? note_recorded_task(op->end_ns) : op->tid;
	record = claim_record(&recorded, &number, &loss[PATH_CAUSE_UNRECORDED]);
	if (!record)
		return 0;
	coarse = total >= COARSE_FROM;
	record->end_ns = op->end_ns;
	record_charges(record, op, coarse ? RECORDED_COARSE_SHIFT : 0);
	record->offset = recorded_offset(op, result);
	record->inode = 0;
	record->file_dev = 0;
	file = op->file;
	if (file) {
		struct inode *inode = BPF_CORE_READ(file, f_inode);

		record->inode = BPF_CORE_READ(inode, i_ino);
		record->file_dev = dev_of_inode(inode, false);
		note_recorded_file(record->inode, record->file_dev, file, op->end_ns);
	}
	record->tid = tid;
	record->bytes = op->made;
	record->result = result;
	record->length = op->length;
	record->slot = op->slot;
	record->flags = op->readahead;
	record->kind = recorded_kind_of(kind & ((1 << RECORDED_KIND_BITS) - 1), op->interface, coarse);
	record->op = op->op_kind;
	if (BY_STATEMENT(owner_by))
		record->statement = statement_of_owner(op->owner);
	publish_record(&record->number, number);
	return 0;
}

/* An operation too long for a combined record, or one with other waits. */
static __noinline int recorder_apart(struct op_state *op, struct done *only, __s64 result)
{
	if (!op || !only)
		return 0;
	charge(op, only);
	advance(op, OP_STAGE_WAKEUP, op->woken_ns);
	advance(op, OP_STAGE_RETURN, op->end_ns);
	recorder_request(bio_at(op->only - 1));
	return recorder_operation(op->place, RECORDED_KIND_OPERATION, result);
}

/* An operation with its only request, for which it has waited. */
static __always_inline void recorder_both(struct op_state *op, struct done *done, struct file *known, __s64 result,
					  bool trusted)
{
	struct file *file = known;
	struct recorded *record;
	struct inode *inode;
	/* Read once: the compiler does not know that a record is none of them. */
	enum interface interface = op->interface;
	__u64 start = op->start_ns, end = op->end_ns;
	__u32 number, dev = 0;
	__u64 inode_number = 0;

	if (end - start >= COARSE_FROM || (interface != INTERFACE_CALL && op->woken_ns != end)) {
		recorder_apart(op, done, result);
		return;
	}
	note_slow(end - start, end);
	record = claim_record(&recorded, &number, &loss[PATH_CAUSE_UNRECORDED]);
	if (!record)
		return;
	record->end_ns = end;
	record->times[RECORDED_TIME_START] = start;
	record->times[RECORDED_TIME_ISSUED_TO_FS] = interface != INTERFACE_CALL ? op->issued_ns
						    : op->woken_ns		? op->woken_ns
										: done->times.completed;
	record_times(record, &done->times, 0);
	record->sector = done->sector;
	record->offset = recorded_offset(op, result);
	if (trusted) {
		inode = FIELD(trusted, file, f_inode);
		inode_number = FIELD(trusted, inode, i_ino);
		dev = dev_of_inode(inode, trusted);
	} else {
		file = op->file;
		inode = BPF_CORE_READ(file, f_inode);
		inode_number = BPF_CORE_READ(inode, i_ino);
		dev = dev_of_inode(inode, false);
	}
	record->inode = inode_number;
	record->file_dev = dev;
	record->tid = interface == INTERFACE_CALL ? container_of(done, struct bio_state, done)->tid : op->tid;
	record->bytes = done->bytes;
	record->result = result;
	record->length = op->length;
	record->dev = done->dev;
	record->slot = done->slot;
	record->stages = 1;
	record->flags = done->flags >> RECORDED_FLAGS_SHIFT;
	record->kind = recorded_kind_of(RECORDED_KIND_BOTH, interface, false);
	record->op = op->op_kind;
	if (BY_STATEMENT(owner_by))
		record->statement = statement_of_owner(op->owner);
	publish_record(&record->number, number);
	note_recorded_file_of(op, inode_number, dev, file, end);
}

#endif
