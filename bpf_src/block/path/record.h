/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The record of a single operation or request. */
#ifndef WPT_PATH_RECORD_H
#define WPT_PATH_RECORD_H

#include "block/path/state.h"
#include "block/path/flush.h"
#include "block/path/journal.h"
#include "block/path/writeback.h"
#include "block/path/controllers.h"
#include "block/path/neighbours.h"
#include "block/path/owner.h"
#include "block/path/segments.h"
#include "block/path/waits.h"
#include "lib/comm.h"
#include "lib/dentry.h"
#include "lib/rate.h"

#define CLIMBS 64

/* The length of a record, a constant for the verifier, which drops the code for the rest. */
const volatile __u32 record_bytes = sizeof(struct io_record);

#define HAS_MEMBER(member) (record_bytes > __builtin_offsetof(struct io_record, member))

static __always_inline bool is_sampled(void)
{
	struct op_counts *counts = cell_at(&op_counters, 0);

	if (!sample || !counts)
		return false;
	if (++counts->unsampled < sample)
		return false;
	counts->unsampled = 0;
	return true;
}

static __always_inline bool wants_record(__u64 begun_ns, __u64 now)
{
	if (begun_ns < records_since_ns || (minus(now, begun_ns) < slow_ns && !is_sampled()))
		return false;
	if (within_limit(now))
		return true;
	COUNT(loss[PATH_CAUSE_RATE_LIMITED]);
	return false;
}

/* Of a dentry and a mount. */
static __noinline int read_path(struct io_record *record, __u64 dentry, __u64 mount)
{
	struct place place = {.dentry = (void *)dentry, .mount = (void *)mount};
	struct mounted mounted = {};
	struct named named = {};
	int step;

	if (!record)
		return 0;
	record->path_end = 0;
	read_mount(&mounted, place.mount);
	for (step = 0; step < CLIMBS; step++) {
		/* From memory: otherwise the verifier follows each possible length separately. */
		__u32 end = *(volatile __u16 *)&record->path_end;
		long length;

		if (place.dentry == mounted.root) {
			if (place.mount == mounted.parent)
				break;
			place.dentry = mounted.mountpoint;
			place.mount = mounted.parent;
			read_mount(&mounted, place.mount);
			continue;
		}
		/* The compiler knows its bounds by now, but 5.10's verifier does not. */
		barrier_var(end);
		read_dentry(&named, place.dentry);
		if (named.parent == place.dentry)
			break; /* not below any directory */
		if (end >= PATH_BYTES) {
			record->path_cut = 1;
			break;
		}
		length = bpf_probe_read_kernel_str(record->path + (end & (PATH_BYTES - 1)), PATH_NAME, named.name);
		if (length <= 0)
			break;
		record->path_end = end + length;
		place.dentry = named.parent;
	}
	if (step == CLIMBS)
		record->path_cut = 1;
	return 0;
}

static __always_inline struct io_record *reserve(void)
{
	struct io_record *record = bpf_ringbuf_reserve(&records, record_bytes, 0);

	if (!record)
		COUNT(loss[PATH_CAUSE_RING_FULL]);
	return record;
}

/* Stale, from an earlier use: nothing held this one. */
static __always_inline void fill_held(struct io_record *record, struct held *held, __u64 since)
{
	record->tag_queue = was_held(held, since) ? held->tag_queue : 0;
	if (was_held(held, since))
		__builtin_memcpy(record->held, held->by, sizeof(record->held));
	else
		__builtin_memset(record->held, 0, sizeof(record->held));
}

/* The neighbours of the request that was issued then. */
static __noinline int fill_neighbours(struct io_record *record, struct watch *watch, struct times *times)
{
	if (!record || !times)
		return 0;
	record->met.known = false;
	if (!watch || !watch->met || watch->issued != times->issued)
		return 0;
	record->met.known = true;
	record->met.waited = minus(watch->issued, watch->queued);
	record->met.under_way = minus(times->completed, times->issued);
	__builtin_memcpy(record->met.wait, watch->wait, sizeof(record->met.wait));
	__builtin_memcpy(record->met.device, watch->device, sizeof(record->met.device));
	__builtin_memcpy(record->met.owners, watch->owners, sizeof(record->met.owners));
	return 0;
}

static __always_inline struct watch *watch_of_op(struct op_state *op)
{
	__u32 place = op->place;

	if (op->waited_for == LAST_IS_ONLY)
		return watch_of(bio_at(op->only - 1));
	return bpf_map_lookup_elem(&op_watches, &place);
}

/* The file of an operation that ends, of a hook that has it as an object that the verifier knows: read without copies. */
struct known_file {
	__u64 dentry; /* 0: it has two paths */
	__u64 mount;
	__u64 inode;
	__u64 links;
};

#ifdef PLAIN
#define note_known_file(op, file)
#else
struct known_file known_files[OPS] SEC(".bss.known_files");

static __always_inline struct known_file *known_file_of(struct op_state *op)
{
	__u32 place = op->place;

	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	return COMPUTED(&known_files[place]);
}

static __always_inline void note_known_file(struct op_state *op, struct file *file)
{
	struct known_file *known = known_file_of(op);
	struct inode *inode = file->f_inode;

	known->dentry = file->f_mode & backing_mode() ? 0 : (__u64)file->f_path.dentry;
	known->mount = (__u64)file->f_path.mnt - bpf_core_field_offset(struct mount, mnt);
	known->inode = inode->i_ino;
	known->links = inode->i_nlink;
}
#endif

static __noinline int fill_file_of(struct io_record *record, struct op_state *op, bool known)
{
	struct inode *inode;
	struct place leaf;
	struct file *file;
	__u32 links = 0;

	if (!record || !op)
		return 0;
	record->path_cut = 0;
	record->path_end = 0;
#ifndef PLAIN
	struct known_file *of = known_file_of(op);

	if (known && of->dentry) {
		record->inode = of->inode;
		record->deleted = !of->links;
		return read_path(record, of->dentry, of->mount);
	}
#endif
	file = op->file;
	inode = BPF_CORE_READ(file, f_inode);
	record->inode = BPF_CORE_READ(inode, i_ino);
	/* The field is constant, which a copy of its type would be as well. */
	BPF_CORE_READ_INTO(&links, inode, i_nlink);
	record->deleted = file && !links;
	if (!file)
		return 0;
	leaf = place_of(file);
	return read_path(record, (__u64)leaf.dentry, (__u64)leaf.mount);
}

/* Global, with scalar arguments, so that it is verified once. */
__noinline int record_operation(__u32 place, bool hit, __u64 now, __s64 result, bool known)
{
	struct op_state *op = op_at(place);
	struct io_record *record;
	struct done *done;
	__u64 ids;

	/* Before 6.8 the verifier checks functions without callers as well. */
	if (!emits_records)
		return 0;
	record = reserve();
	if (!record)
		return 0;
	/* First: otherwise the verifier goes through its loop for each path to here. */
	fill_file_of(record, op, known);
	record->start_ns = op->start_ns;
	record->end_ns = now;
	__builtin_memcpy(record->stages, op->charges, sizeof(record->stages));
	record->offset = op->offset;
	/* It was moved by what was done, and before that to the end of the file where the file is only appended to. */
	if (op->offset < 0 && op->position && result >= 0) {
		bpf_probe_read_kernel(&record->offset, sizeof(record->offset), op->position);
		record->offset -= result;
	}
	record->length = op->length;
	record->result = result;
	record->slot = op->slot;
	record->kind = hit ? RECORD_KIND_HIT : RECORD_KIND_OPERATION;
	record->op = op->op_kind;
	record->requests = op->made;
	record->readahead = op->readahead < 0xffff ? op->readahead : 0xffff;
	record->interface = op->interface;
	if (op->interface == INTERFACE_CALL) {
		record->user_data = 0;
		record->cgroup = bpf_get_current_cgroup_id();
		ids = bpf_get_current_pid_tgid();
		record->tid = ids;
		record->tgid = ids >> 32;
		current_comm((void *)record->comm);
	} else {
		struct submitter *submitter = submitter_at(place);

		record->user_data = submitter->user_data;
		record->cgroup = submitter->cgroup;
		record->tid = submitter->tid;
		record->tgid = submitter->tgid;
		__builtin_memcpy(record->comm, submitter->comm, sizeof(record->comm));
	}
	record->flush_before = record->flush_behind = 0;
	done = done_at(op, op->waited_for);
	if (done) {
		record->sector = done->sector;
		record->bytes = done->bytes;
		record->dev = done->dev;
		record->flags = portable_flags(done->flags);
		record->request_op = request_op(done->flags);
		record->cpus = done->cpus;
		record->handed_ns = done->times.handed;
		record->seen_ns = done->times.seen;
		fill_flushes(record, done, now);
		record->events = done->events;
		if (HAS_MEMBER(met))
			fill_neighbours(record, watch_of_op(op), &done->times);
	} else {
		if (HAS_MEMBER(met))
			record->met.known = false;
		record->handed_ns = record->seen_ns = 0;
		record->sector = 0;
		record->bytes = 0;
		record->dev = 0;
		record->flags = 0;
		record->request_op = 0;
		__builtin_memset(&record->events, 0, sizeof(record->events));
		__builtin_memset(&record->cpus, 0xff, sizeof(record->cpus));
		record->cpus.submit = bpf_get_smp_processor_id();
	}
	record->cpus.wake = op->wake_cpu;
	if (HAS_MEMBER(interference)) {
		clear_earlier(op);
		__builtin_memcpy(record->interference, interference_of(op)->kinds, sizeof(record->interference));
		record->before_wakeup = interference_of(op)->before_wakeup;
	}
	fill_commit(&record->commit, op);
	fill_held(record, held_op(op), op->start_ns);
	fill_waits(record->waits, op);
	if (BY_STATEMENT(owner_by))
		record->statement = statement_of_owner(op->owner);
	if (HAS_MEMBER(trail))
		fill_segments(&record->trail, op);
	record->dirty_ns = 0;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

/* The file that a request writes back, while its pages are still there. */
static __noinline int fill_file(struct io_record *record, struct bio_state *state)
{
	struct address_space *mapping;
	struct page_of_file page;
	struct dentry *dentry;
	struct inode *inode;
	__u32 links = 0;

	if (!record || !state)
		return 0;
	page = first_of_file((struct bio *)state->bio);
	mapping = page.mapping;
	inode = BPF_CORE_READ(mapping, host);
	record->dirty_ns = minus(state->done.times.queued, written_by(state)->dirtied_ns);
	record->inode = BPF_CORE_READ(inode, i_ino);
	record->offset = page.index << page_shift;
	/* The field is constant, which a copy of its type would be as well. */
	BPF_CORE_READ_INTO(&links, inode, i_nlink);
	record->deleted = !links;
	dentry = name_of(inode);
	return dentry ? read_path(record, (__u64)dentry, (__u64)mount_of(inode)) : 0;
}

#define TELL_STAGE(name, from, to) record->stages[OP_STAGE_##name] = minus(times->to, times->from);

/* A request that no operation waits for: written back, read ahead, of an interface that does not wait. */
static __noinline int record_request(struct bio_state *state)
{
	struct io_record *record;
	struct times *times;

	if (!state)
		return 0;
	record = reserve();
	if (!record)
		return 0;
	times = &state->done.times;
	__builtin_memset(record->stages, 0, sizeof(record->stages));
	if (!(state->done.events.below & EVENT_UNDIVIDED)) {
		EACH_REQUEST_STAGE(TELL_STAGE)
	}
	record->start_ns = times->queued;
	record->end_ns = times->completed;
	record->handed_ns = times->handed;
	record->seen_ns = times->seen;
	record->offset = -1;
	record->length = state->done.bytes;
	record->result = state->done.error;
	record->cgroup = state->cgroup;
	record->user_data = 0;
	record->interface = INTERFACE_CALL;
	record->inode = 0;
	record->sector = state->done.sector;
	record->bytes = state->done.bytes;
	record->dev = state->done.dev;
	record->flags = portable_flags(state->done.flags);
	record->tgid = state->tgid;
	record->tid = state->tid;
	record->requests = 1;
	record->readahead = state->apart & BIO_APART_READAHEAD;
	record->slot = state->done.slot;
	record->kind = RECORD_KIND_REQUEST;
	record->op = record->request_op = state->op_kind;
	record->cpus = state->done.cpus;
	record->events = state->done.events;
	record->cpus.wake = NO_CPU;
	record->deleted = 0;
	record->path_cut = 0;
	record->path_end = 0;
	__builtin_memcpy(record->comm, state->comm, sizeof(record->comm));
	if (HAS_MEMBER(interference)) {
		__builtin_memset(record->interference, 0, sizeof(record->interference));
		__builtin_memset(&record->before_wakeup, 0, sizeof(record->before_wakeup));
	}
	__builtin_memset(&record->commit, 0, sizeof(record->commit));
	record->flush_before = record->flush_behind = 0;
	fill_flushes(record, &state->done, state->done.times.completed);
	fill_held(record, &hold_of(state)->held, state->done.times.queued);
	__builtin_memset(record->waits, 0, sizeof(record->waits));
	if (BY_STATEMENT(owner_by))
		record->statement = statement_of_owner(owner_of_request(state));
	if (HAS_MEMBER(met))
		fill_neighbours(record, watch_of(state), times);
	/* Its stages become segments directly. */
	if (HAS_MEMBER(trail))
		fill_no_segments(&record->trail);
	record->dirty_ns = 0;
	if (following && written_by(state)->dirtied_ns)
		fill_file(record, state);
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

#endif
