/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The flight recorder: a record of each recent operation and request (lib/recorder.h), with names of tasks
 * and files beside them.
 */
#ifndef WPT_PATH_RECORDER_H
#define WPT_PATH_RECORDER_H

#include "block/path/state.h"
#include "block/path/owner.h"
#include "lib/comm.h"
#include "lib/dentry.h"
#include "lib/recorder.h"
#include "lib/subvolume.h"

/* Page-cache hits that took at least as long have a record. */
__u64 recorded_hit_ns = 1000000;

RECORDER_MAP(recorded, recorded);

/* --- Names: of tasks by their number, of files by inode and device; caches, in which what was not seen of late gives way */

#define RECORDED_TASK_BITS 14
#define RECORDED_FILE_BITS 12
#define RECORDED_PROBES 4
/* The name of a task is refreshed after this time, as it may change. */
#define RECORDED_TASK_NS 1000000000ULL
#define RECORDED_FILE_NS 250000000ULL
const volatile __u64 recorder_window_ns = 30000000000ULL;

struct recorded_task {
	__u64 tid; /* 0: free */
	__u64 seen_ns;
	__u64 cgroup;
	__u64 tgid;
	char comm[NAME_BYTES];
};

struct recorded_file {
	__u64 key; /* of inode and device; 0: free */
	__u64 seen_ns;
	__u64 inode;
	__u64 dev;
};

RECORDER_MAP(recorded_tasks, recorded_task);
RECORDER_MAP(recorded_files, recorded_file);

/* Reads the path of a file into its place (recorded.h). */
__noinline int name_recorded_file(__u32 place, __u64 dentry, __u64 mount);

static __always_inline __u32 recorded_home(__u64 key, __u32 bits)
{
	return (__u32)(key * 0x9e3779b97f4a7c15ULL >> 32) >> (32 - bits);
}

/* The place of a task that is not at its home, or needs a refresh. */
__noinline int look_at_recorded_task(__u64 now)
{
	__u64 ids = bpf_get_current_pid_tgid();
	__u32 home = recorded_home((__u32)ids, RECORDED_TASK_BITS), probe;
	struct recorded_task *task = NULL;

	if (!recording)
		return 0;
	for (probe = 0; probe < RECORDED_PROBES; probe++) {
		__u32 place = (home + probe) & ((1 << RECORDED_TASK_BITS) - 1);

		task = bpf_map_lookup_elem(&recorded_tasks, &place);
		if (!task || !task->tid || task->tid == (__u32)ids || now - task->seen_ns > recorder_window_ns)
			break;
		/* All were seen recently: replace the last one. */
	}
	if (!task || (task->tid == (__u32)ids && now - task->seen_ns <= RECORDED_TASK_NS))
		return 0;
	task->tid = 0;
	barrier();
	task->tgid = ids >> 32;
	task->cgroup = bpf_get_current_cgroup_id();
	bpf_get_current_comm(task->comm, sizeof(task->comm));
	task->seen_ns = now;
	barrier();
	task->tid = (__u32)ids;
	return 0;
}

/* For the current task; returns its tid. */
static __always_inline __u32 note_recorded_task(__u64 now)
{
	__u32 tid = bpf_get_current_pid_tgid();
	__u32 place = recorded_home(tid, RECORDED_TASK_BITS);
	struct recorded_task *task = bpf_map_lookup_elem(&recorded_tasks, &place);

	if (!task || task->tid != tid || now - task->seen_ns > RECORDED_TASK_NS)
		look_at_recorded_task(now);
	return tid;
}

/* For a request of this operation, or of none. */
static __always_inline __u32 note_recorded_submitter(struct op_state *op, __u64 now)
{
	__u32 tid = bpf_get_current_pid_tgid();

	if (!op)
		return note_recorded_task(now);
	if (op->named.tid != tid || now - op->named.task_ns > RECORDED_TASK_NS) {
		note_recorded_task(now);
		op->named.tid = tid;
		op->named.task_ns = now;
	}
	return tid;
}

static __always_inline __u64 recorded_file_key(__u64 inode, __u32 dev)
{
	return (inode ^ (__u64)dev << 32) * 0xff51afd7ed558ccdULL | 1;
}

/* The place of a file that is not at its home, or was not seen recently; with its path, if it is new. 0: it has none. */
__noinline int look_at_recorded_file(__u64 address, __u64 now)
{
	struct file *known = (void *)address;
	struct inode *inode = BPF_CORE_READ(known, f_inode);
	__u64 number = BPF_CORE_READ(inode, i_ino), key, before;
	__u32 dev = dev_of_inode(inode, false);
	struct recorded_file *file = NULL;
	__u32 home, place = 0, probe;
	struct place leaf;

	if (!recording)
		return 0;
	key = recorded_file_key(number, dev);
	home = recorded_home(key, RECORDED_FILE_BITS);
	for (probe = 0; probe < RECORDED_PROBES; probe++) {
		place = (home + probe) & ((1 << RECORDED_FILE_BITS) - 1);
		file = bpf_map_lookup_elem(&recorded_files, &place);
		if (!file)
			return 0;
		if (file->key == key) {
			file->seen_ns = now;
			return 1;
		}
		if (!file->key || now - file->seen_ns > recorder_window_ns)
			break;
	}
	/* Records refer to all of them. */
	if (!file || probe == RECORDED_PROBES) {
		COUNT(loss[PATH_CAUSE_UNNAMED_FILE]);
		return 0;
	}
	before = file->key;
	/* It stays the old one's until the path is there; of two contenders one tries again with its next record. */
	file->seen_ns = now;
	if (!take_place(&file->key, before, 1 << 1))
		return 0;
	file->inode = number;
	file->dev = dev;
	leaf = place_of(known);
	name_recorded_file(place, number_of((__u64)leaf.dentry), number_of((__u64)leaf.mount));
	barrier();
	file->key = key;
	return 1;
}

static __always_inline bool note_recorded_file(__u64 inode, __u32 dev, struct file *known, __u64 now)
{
	__u64 key = recorded_file_key(inode, dev);
	__u32 place = recorded_home(key, RECORDED_FILE_BITS);
	struct recorded_file *file = bpf_map_lookup_elem(&recorded_files, &place);

	if (!file || file->key != key || now - file->seen_ns > RECORDED_FILE_NS)
		return look_at_recorded_file(number_of((__u64)known), now);
	return true;
}

static __always_inline void note_recorded_file_of(struct op_state *op, __u64 inode, __u32 dev, struct file *known,
						  __u64 now)
{
	if (op->named.inode == inode && op->named.dev == dev && now - op->named.file_ns <= RECORDED_FILE_NS)
		return;
	if (!note_recorded_file(inode, dev, known, now))
		return;
	op->named.inode = inode;
	op->named.dev = dev;
	op->named.file_ns = now;
}

/* --- Records ------------------------------------------------------------------------------------------------------ */

#define COARSE_FROM 0xfff00000ULL /* the clocks of two CPUs may differ */

static __always_inline __u8 recorded_kind_of(enum recorded_kind kind, enum interface interface, bool coarse)
{
	return kind | interface << RECORDED_INTERFACE_SHIFT | (coarse ? RECORDED_COARSE : 0);
}

#define RECORD_TIME(name, member) record->times[RECORDED_TIME_##name] = times->member >> shift;

static __always_inline void record_times(struct recorded *record, struct times *times, __u32 shift)
{
	EACH_REQUEST_POINT(RECORD_TIME)
}

/* A request that is in no operation's record. */
static __noinline int recorder_request(struct bio_state *state)
{
	struct recorded *record;
	struct times *times;
	bool coarse;
	__u32 number;

	if (!state)
		return 0;
	record = claim_record(&recorded, &number, &loss[PATH_CAUSE_UNRECORDED]);
	if (!record)
		return 0;
	times = &state->done.times;
	if (requests_alone)
		note_slow(times->completed - times->queued, times->completed);
	coarse = times->completed - times->queued >= COARSE_FROM;
	record->end_ns = times->completed;
	record->times[RECORDED_TIME_START] = record->times[RECORDED_TIME_ISSUED_TO_FS] = 0;
	if (coarse)
		record_times(record, times, RECORDED_COARSE_SHIFT);
	else
		record_times(record, times, 0);
	record->sector = state->done.sector;
	record->inode = 0;
	record->offset = -1;
	record->file_dev = 0;
	record->tid = state->tid;
	record->bytes = state->done.bytes;
	record->result = state->done.error;
	record->length = 0;
	record->dev = state->done.dev;
	record->slot = state->done.slot;
	/* Otherwise its stages are unknown. */
	record->stages = !(state->done.events.below & EVENT_UNDIVIDED);
	record->kind = recorded_kind_of(RECORDED_KIND_REQUEST, INTERFACE_CALL, coarse);
	record->op = state->op_kind;
	record->flags = state->done.flags >> RECORDED_FLAGS_SHIFT;
	if (BY_STATEMENT(owner_by))
		record->statement = statement_of_owner(owner_of_request(state));
	publish_record(&record->number, number);
	return 0;
}

#endif
