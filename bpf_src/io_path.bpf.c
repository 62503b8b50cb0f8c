// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The whole path of a synchronous read or write: from the system call over bio (Q), request (G), driver (D), device (H)
 * and completion (S, C) back to the task.
 *
 * An operation is a place in `ops`, found by its task. A bio that got a request is a place in `bios`, found by its
 * address, which every later hook finds in the request. When a request completes, its times go to the operation that
 * made it. When the task runs again, the request that completed last is what it waited for, and the time since the last
 * look is charged to that request's stages. So each nanosecond is charged once, however many requests there were.
 */
#include "lib/wptrace.h"
#include "lib/hist.h"
#include "lib/block.h"
#include "lib/filter.h"
#include "lib/sched.h"
#include "lib/arguments.h"
#include "lib/dentry.h"
#include "io_path/shared.h"
#include "io_path/state.h"
#include "io_path/noise.h"
#include "io_path/record.h"

/* --- Charging ----------------------------------------------------------------------------------------------------- */

static __always_inline void advance(struct op_state *op, enum op_stage stage, __u64 until)
{
	if (until > op->cursor_ns) {
		op->charges[stage] += until - op->cursor_ns;
		op->cursor_ns = until;
	}
}

/* The time up to the completion of what was waited for. */
static __noinline int charge(struct op_state *op, struct done *done)
{
	if (!op || !done)
		return 0;
	/* It was on its way before the task went to sleep: until then the task had other work. */
	if (done->times.got < op->cursor_ns)
		advance(op, OP_STAGE_FS, op->slept_ns);
	advance(op, OP_STAGE_FS, done->times.queued);
	advance(op, OP_STAGE_THROTTLE, done->times.got);
	advance(op, OP_STAGE_QUEUE, done->times.issued);
	advance(op, OP_STAGE_DRIVER, done->times.handed);
	advance(op, OP_STAGE_DEVICE, done->times.seen ? done->times.seen : done->times.completed);
	advance(op, OP_STAGE_COMPLETE, done->times.completed);
	op->waited = true;
	op->slot = done->slot;
	return 0;
}

static __always_inline struct done *last_done(struct op_state *op)
{
	return op->last ? &op->done[(op->last - 1) & (DONE - 1)] : NULL;
}

/* Nothing that it asked for is under way; what is read ahead may be. */
static __always_inline bool all_ended(struct op_state *op)
{
	return op->ended >= op->made - op->readahead;
}

static __always_inline void charge_last(struct op_state *op)
{
	struct done *done = last_done(op);

	if (done) {
		charge(op, done);
		if (noisy)
			add_irq_delay(op, done);
		op->waited_for = op->last;
	}
	op->last = 0;
}

/* --- Operations begin and end ------------------------------------------------------------------------------------- */

static __always_inline void look_at_position(struct op_state *op)
{
	if (op->offset < 0 && op->position)
		bpf_probe_read_kernel(&op->offset, sizeof(op->offset), op->position);
}

#define S_IFMT 0170000
#define S_IFBLK 0060000
#define S_IFREG 0100000

static __always_inline void count_op(bool discarded)
{
	struct op_counts *counts = cell_at(&op_counters, 0);

	if (!counts)
		return;
	if (discarded)
		counts->discarded++;
	else
		counts->started++;
}

static __always_inline int begin(struct file *file, bool write, __u64 length, loff_t *position, bool direct)
{
	struct inode *inode = FIELD(direct, file, f_inode);
	__u32 format = FIELD(direct, inode, i_mode) & S_IFMT;
	__u64 task = bpf_get_current_task();
	__u32 tid = bpf_get_current_pid_tgid();
	struct op_state *op;
	bool wanted;

	if (format != S_IFREG && format != S_IFBLK)
		return 0;
	if (!tracing || !task_matches())
		return 0; /* nor do its bios */
	wanted = operation_matches(write, length) && file_matches(file, direct);
	op = claim_op(task, tid);
	if (wanted)
		count_op(false);
	if (!op) {
		if (wanted)
			COUNT(loss[PATH_CAUSE_OP_FULL]);
		return 0;
	}
	op->task = task;
	op->tid = tid;
	op->kind = wanted ? OP_TRACED : OP_IGNORED;
	op->bio = 0;
	op->last = 0;
	op->slept_ns = 0;
	op->held_until = 0;
	if (!wanted)
		return 0;
	op->preempted_ns = 0;
	__builtin_memset(op->charges, 0, sizeof(op->charges));
	op->file = file;
	op->length = length;
	op->position = position;
	op->offset = -1;
	op->made = 0;
	op->ended = 0;
	op->readahead = 0;
	op->lost = 0;
	op->waited_for = 0;
	op->slot = 0;
	op->wake_cpu = NO_CPU;
	op->write = write;
	op->waited = false;
	op->blocked = false;
	if (noisy) {
		__builtin_memset(op->noise, 0, sizeof(op->noise));
		__builtin_memset(&op->before_wakeup, 0, sizeof(op->before_wakeup));
	}
	/* Last, so that our own work is not charged. */
	op->start_ns = op->cursor_ns = bpf_ktime_get_ns();
	return 0;
}

/* What a vector of buffers holds together; those beyond the first are not looked at unless somebody wants the length. */
#define VECTORS 16

struct user_vector {
	__u64 base;
	__u64 length;
};

static __noinline __u64 vector_bytes(struct user_vector *vectors, __u64 count)
{
	__u64 bytes = 0;
	__u32 place;

	if (!telling && !filter_operation)
		return 0;
	for (place = 0; place < VECTORS && place < count; place++) {
		struct user_vector vector = {};

		bpf_probe_read_user(&vector, sizeof(vector), vectors + place);
		bytes += vector.length;
	}
	return bytes;
}

/* The row of a file that no request tells it of. */
static __always_inline bool row_of_file(struct file *file, __u16 *slot, bool direct)
{
	struct inode *inode = FIELD(direct, file, f_inode);
	struct super_block *super = FIELD(direct, inode, i_sb);
	bool special = (FIELD(direct, inode, i_mode) & S_IFMT) == S_IFBLK;
	__u32 dev = special ? FIELD(direct, inode, i_rdev) : FIELD(direct, super, s_dev);
	/* Also in wptrace/flows/io_path.py. */
	__u32 at = (dev * 0x9e3779b1u) >> 22;
	int probe;

	for (probe = 0; probe < DEVICE_PROBES; probe++) {
		struct file_device *entry = &file_devices[(at + probe) & (FILE_DEVICES - 1)];

		if (!entry->dev)
			break;
		if (entry->dev == dev) {
			*slot = entry->slot;
			return true;
		}
	}
	*slot = UNLISTED_SLOT;
	return trace_unlisted && (special || FIELD(direct, super, s_bdev));
}

/* `known` is the file where the hook has it, as an object that the verifier knows. */
static __always_inline int finish(struct file *known, __s64 result, bool direct)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 task = bpf_get_current_task();
	struct op_state *op = find_op(task, bpf_get_current_pid_tgid());
	struct done *done;
	bool hit, held;
	__u64 total;
	int stage;

	if (!op)
		return 0;
	if (op->kind != OP_TRACED) {
		op->task = 0;
		return 0;
	}
	done = last_done(op);
	/* All was there before its task had to wait. */
	if (done && all_ended(op))
		charge_last(op);
	/* A device made of others took the bio, and a worker made the requests of it: all it waited for was that device. */
	held = op->bio && op->held_until > op->bio_ns;
	if (held) {
		advance(op, OP_STAGE_FS, op->bio_ns);
		advance(op, OP_STAGE_DEVICE, op->held_until);
	}
	advance(op, op->waited || held ? OP_STAGE_RETURN : OP_STAGE_FS, now);
	hit = !op->waited && !op->blocked && op->made == op->readahead;
	if (op->waited && op->wake_cpu == NO_CPU)
		op->wake_cpu = bpf_get_smp_processor_id();
	/* What waited knows its device by its request. */
	if (!op->waited && !op->slot && !row_of_file(direct ? known : op->file, &op->slot, direct)) {
		count_op(true);
		op->task = 0;
		return 0;
	}
	total = minus(now, op->start_ns);
	if (hit) {
		struct hit_cell *cell = cell_at(&hit_cells, op->slot * OP_KINDS + (op->write & 1));

		if (cell) {
			cell->finished++;
			cell->readahead += op->readahead;
			if (result < 0)
				cell->failed++;
			else
				cell->bytes += result;
			add(&cell->stages[0], total);
		}
	} else {
		struct op_cell *cell = cell_at(&op_cells, op->slot * OP_KINDS + (op->write & 1));

		if (cell) {
			cell->finished++;
			cell->requests += op->made - op->readahead;
			if (result < 0)
				cell->failed++;
			else
				cell->bytes += result;
			for (stage = 0; stage < OP_CHARGES; stage++)
				add(&cell->stages[stage], op->charges[stage]);
			add(&cell->stages[OP_STAGE_TOTAL], total);
		}
	}
	if (noisy) {
		struct noise_cell *cell = cell_at(&noise_cells, op->slot * OP_KINDS + (op->write & 1));

		if (cell && !hit) {
			for (stage = 0; stage < NOISE_STAGES; stage++)
				add(&cell->stages[stage], op->noise[stage].ns);
		}
	}
	if (telling && wants_telling(total, now))
		tell_op(op, hit, now, result);
	op->task = 0;
	return 0;
}

/* --- Bios: Q and G ------------------------------------------------------------------------------------------------ */

static __always_inline bool bio_is_wanted(struct bio *bio, bool direct)
{
	__u32 op = FIELD(direct, bio, bi_opf) & 0xff;

	/* Whose file it is of, a bio does not tell. */
	return tracing && task_matches() && !filter_file &&
	       operation_matches(op == BLOCK_OP_WRITE, FIELD(direct, bio, bi_iter.bi_size));
}

/* A cgroup's limit may hold the bio back from here on; who sends it on later is a worker. */
static __always_inline int throttle(struct bio *bio, bool direct)
{
	__u64 key = (__u64)bio;
	__u64 task = bpf_get_current_task();
	__u32 tid = bpf_get_current_pid_tgid();
	struct op_state *op = find_op(task, tid);
	struct throttled fresh = {};

	if (!op || op->kind != OP_TRACED)
		return 0;
	fresh.since = bpf_ktime_get_ns();
	fresh.task = task;
	fresh.op = op->place;
	throttling = true;
	bpf_map_update_elem(&throttled, &key, &fresh, BPF_ANY);
	return 0;
}

static __always_inline int queue(struct bio *bio, bool direct)
{
	__u64 key = (__u64)bio;
	__u64 task = bpf_get_current_task();
	__u32 tid = bpf_get_current_pid_tgid();
	struct op_state *op = find_op(task, tid);
	struct throttled *held = NULL;
	__u64 now;

	if (throttling)
		held = bpf_map_lookup_elem(&throttled, &key);
	if (!op || op->kind == OP_NONE) {
		if (!held && !bio_is_wanted(bio, direct))
			return 0;
		if (!op)
			op = claim_op(task, tid);
		if (!op)
			return 0;
		op->task = task;
		op->tid = tid;
		op->kind = OP_NONE;
		op->bio_task = 0;
	} else if (op->kind == OP_IGNORED) {
		return 0;
	} else {
		struct done *done = last_done(op);

		/* The one before it completed in this very task: it was waited for by running it. */
		if (done && done->inline_ && all_ended(op))
			charge_last(op);
		op->last = 0;
		op->bio_task = task;
		op->bio_op = op->place;
	}
	now = bpf_ktime_get_ns();
	op->bio = key;
	op->bio_ns = now;
	if (held) {
		op->bio_ns = held->since;
		op->bio_task = held->task;
		op->bio_op = held->op;
		bpf_map_delete_elem(&throttled, &key);
	}
	return 0;
}

/* A folio begins like its first page; 5.16 (7b230db3b8d3) gave it a name. */
struct page___like_folio {
	struct address_space *mapping;
	unsigned long index;
} __attribute__((preserve_access_index));

struct folio___like_page {
	struct address_space *mapping;
	unsigned long index;
} __attribute__((preserve_access_index));

#define PAGE_SHIFT 12 /* the smallest there is; larger pages only make readahead look nearer than it is */

/*
 * Whether readahead fetches only what its operation did not ask for. The kernel marks what was asked for as readahead
 * as well, so the pages tell. Those of no file (compressed, metadata) count as asked for.
 */
static __noinline bool is_beyond(struct op_state *op, struct bio *bio)
{
	struct folio___like_page *folio;
	struct page___like_folio *page;
	struct address_space *mapping;
	struct file *file;
	__s64 begin, end;

	if (!op)
		return false;
	page = (void *)BPF_CORE_READ(bio, bi_io_vec, bv_page);
	folio = (void *)page;
	if (bpf_core_type_exists(struct folio___like_page)) {
		mapping = BPF_CORE_READ(folio, mapping);
		begin = BPF_CORE_READ(folio, index) << PAGE_SHIFT;
	} else {
		mapping = BPF_CORE_READ(page, mapping);
		begin = BPF_CORE_READ(page, index) << PAGE_SHIFT;
	}
	file = op->file;
	if (mapping != BPF_CORE_READ(file, f_mapping))
		return false;
	look_at_position(op);
	if (op->offset < 0)
		return false;
	end = begin + BPF_CORE_READ(bio, bi_iter.bi_size);
	return begin >= op->offset + (__s64)op->length || end <= op->offset;
}

/* A bio got its request, or became part of one. */
static __always_inline int got(struct bio *bio, bool merged, bool direct)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 task = bpf_get_current_task();
	__u64 ids = bpf_get_current_pid_tgid();
	struct op_state *op = find_op(task, ids);
	struct op_state *owner = NULL;
	struct bio_state *state;
	struct device_match match;
	__u32 flags = FIELD(direct, bio, bi_opf);
	__u32 size = FIELD(direct, bio, bi_iter.bi_size);
	enum block_op op_kind = request_op(flags);
	__u64 queued = now;
	__u64 owner_task = 0;
	__u32 owner_place = 0;
	__u32 dev;
	bool empty = !size && op_kind <= BLOCK_OP_WRITE;

	if (op && op->kind == OP_IGNORED)
		return 0;
	if (op && op->bio) {
		queued = op->bio_ns;
		owner_task = op->bio_task;
		owner_place = op->bio_op;
		if (op->bio == (__u64)bio)
			op->bio = 0; /* until here it may have been split */
	}
	if (op && op->kind == OP_NONE)
		op->task = 0;
	else if (!op && !bio_is_wanted(bio, direct))
		return 0;
	if (merged && !owner_task)
		return 0; /* nobody waits for it, and the request counts without it */
	dev = bio_disk(bio, direct);
	match = find_device(dev, FIELD(direct, bio, bi_iter.bi_sector), empty);
	if (!match.found)
		return 0;
	if (owner_task) {
		owner = bpf_map_lookup_elem(&ops, &owner_place);
		if (owner && (owner->task != owner_task || owner->kind != OP_TRACED))
			owner = NULL;
	}
	if (!merged && !empty) {
		struct request_cell *cell = cell_at(&request_cells, match.slot * BLOCK_OPS + op_kind);

		if (!cell)
			return 0;
		cell->started++;
	}
	state = claim_bio((__u64)bio);
	if (!state) {
		COUNT(loss[PATH_CAUSE_BIO_FULL]);
		if (owner)
			owner->lost++;
		return 0;
	}
	if (state->bio && state->counted)
		COUNT(loss[PATH_CAUSE_UNMATCHED_START]); /* the bio is used again: its last end went unseen */
	state->bio = (__u64)bio;
	__builtin_memset(&state->times, 0, sizeof(state->times));
	state->times.queued = queued;
	state->times.got = now;
	state->task = 0;
	state->dev = dev;
	state->slot = match.slot;
	state->op_kind = op_kind;
	state->counted = !merged;
	state->empty = empty;
	state->set_up = false;
	state->readahead = false;
	state->tgid = ids >> 32;
	state->tid = ids;
	state->irq_delay = 0;
	state->cpus.submit = bpf_get_smp_processor_id();
	state->cpus.issue = state->cpus.irq = NO_CPU;
	if (owner) {
		owner->made++;
		owner->slot = match.slot;
		if (flags >> bpf_core_enum_value(enum req_flag_bits, __REQ_RAHEAD) & 1 && is_beyond(owner, bio)) {
			state->readahead = true;
			owner->readahead++;
		}
		state->task = owner_task;
		state->op = owner_place;
		state->made = owner->made;
	}
	if (telling) {
		bpf_get_current_comm(state->comm, sizeof(state->comm));
		state->cgroup = bpf_get_current_cgroup_id();
	}
	return 0;
}

/* --- Requests: D, H, S, C ----------------------------------------------------------------------------------------- */

static __always_inline int issue(struct request *rq, bool direct)
{
	struct bio_state *state = state_of(rq, direct);
	enum block_op op_kind;
	struct device_match match;
	struct request_cell *cell;
	__u32 dev;

	if (state) {
		if (state->set_up) {
			state->times.handed = bpf_ktime_get_ns();
			state->set_up = false;
			return 0;
		}
		state->times.handed = 0;
		state->times.seen = 0;
		state->cpus.issue = bpf_get_smp_processor_id();
		state->times.issued = bpf_ktime_get_ns();
		return 0;
	}
	if (!tracing || FIELD(direct, rq, bio) || filter_task || filter_file || filter_operation)
		return 0;
	/* The request that the flush machinery has for itself: nobody's, and it waits for nothing. */
	op_kind = request_op(FIELD(direct, rq, cmd_flags));
	if (op_kind != BLOCK_OP_FLUSH)
		return 0;
	dev = request_disk(rq, direct);
	match = find_device(dev, 0, true);
	if (!match.found)
		return 0;
	cell = cell_at(&request_cells, match.slot * BLOCK_OPS + op_kind);
	if (!cell)
		return 0;
	cell->started++;
	state = claim_bio((__u64)rq);
	if (!state) {
		COUNT(loss[PATH_CAUSE_BIO_FULL]);
		return 0;
	}
	state->bio = (__u64)rq;
	__builtin_memset(&state->times, 0, sizeof(state->times));
	state->times.queued = state->times.got = state->times.issued = bpf_ktime_get_ns();
	state->task = 0;
	state->dev = dev;
	state->slot = match.slot;
	state->op_kind = op_kind;
	state->counted = true;
	state->empty = state->readahead = state->set_up = false;
	state->tgid = state->tid = 0;
	state->irq_delay = 0;
	state->cgroup = 0;
	__builtin_memset(state->comm, 0, sizeof(state->comm));
	state->cpus.submit = state->cpus.issue = bpf_get_smp_processor_id();
	state->cpus.irq = NO_CPU;
	return 0;
}

/* nvme prepares its command before the block layer says that it was issued, and then hands it over at once. */
static __always_inline int set_up(struct request *rq, bool direct)
{
	struct bio_state *state = state_of(rq, direct);

	if (!state)
		return 0;
	state->set_up = true;
	state->times.handed = 0;
	state->times.seen = 0;
	state->cpus.issue = bpf_get_smp_processor_id();
	state->times.issued = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int hand_over(struct request *rq, bool direct)
{
	struct bio_state *state = state_of(rq, direct);

	if (state)
		state->times.handed = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int see(struct request *rq, bool direct)
{
	struct bio_state *state = state_of(rq, direct);

	if (!state || state->times.seen)
		return 0;
	state->times.seen = bpf_ktime_get_ns();
	state->cpus.irq = bpf_get_smp_processor_id();
	if (tick_ns)
		find_irq_delay(state);
	return 0;
}

/* The operation hears of the request that it may wait for, also of one that an earlier one of its task began. */
static __always_inline void deliver(struct bio_state *state, struct times *times, struct bio_state *head, __u64 sector,
				    __u32 bytes, __u32 flags)
{
	struct op_state *op;
	struct done *done;
	__u32 place;
	bool own;

	if (!state->task)
		return;
	place = state->op;
	op = bpf_map_lookup_elem(&ops, &place);
	if (!op || op->task != state->task || op->kind != OP_TRACED)
		return;
	own = state->times.queued >= op->start_ns;
	/* What was read ahead is waited for by a later operation, if by any. */
	if (own ? state->readahead : !op->slept_ns)
		return;
	place = state->made & (DONE - 1);
	done = &op->done[place];
	done->times = *times;
	done->times.queued = state->times.queued;
	done->times.got = state->times.got;
	done->sector = sector;
	done->bytes = bytes;
	done->flags = flags;
	done->dev = head->dev;
	done->slot = head->slot;
	done->inline_ = !times->seen && bpf_get_current_task() == state->task;
	done->cpus = head->cpus;
	done->cpus.submit = state->cpus.submit;
	done->cpus.complete = bpf_get_smp_processor_id();
	done->irq_delay = head->irq_delay;
	if (head->irq_delay) {
		done->irq_pid = head->irq_pid;
		__builtin_memcpy(done->irq_name, head->irq_name, sizeof(done->irq_name));
	}
	if (own)
		COUNT(op->ended);
	op->last = place + 1;
}

#define MERGES 128

/* Global, so that the verifier looks at it once and not for each round of the loop; it takes numbers only. */
__noinline int deliver_merged_one(__u64 address, __u32 head_place)
{
	struct bio *bio = (void *)address;
	struct bio_state *head = bpf_map_lookup_elem(&bios, &head_place);
	struct bio_state *state = find_bio(address);

	if (!state || !head || state->counted)
		return 0;
	deliver(state, &head->times, head, BPF_CORE_READ(bio, bi_iter.bi_sector), BPF_CORE_READ(bio, bi_iter.bi_size),
		BPF_CORE_READ(bio, bi_opf));
	state->bio = 0;
	return 0;
}

/* Bios that were merged into the request end with it. */
static __noinline int deliver_merged(struct request *rq, __u32 head_place)
{
	struct bio *bio = BPF_CORE_READ(rq, bio);
	int place;

	for (place = 0; place < MERGES && bio; place++) {
		deliver_merged_one((__u64)bio, head_place);
		bio = BPF_CORE_READ(bio, bi_next);
	}
	return 0;
}

static __always_inline void count_request(struct bio_state *state, __u32 bytes, int error)
{
	struct request_cell *cell = cell_at(&request_cells, state->slot * BLOCK_OPS + state->op_kind);
	struct times *times = &state->times;
	__u64 issued, handed, seen;

	if (!cell)
		return;
	/* Where a point was not seen, its stage is empty and the next one has its time. */
	issued = times->issued ? times->issued : times->got;
	handed = times->handed ? times->handed : issued;
	seen = times->seen ? times->seen : times->completed;
	cell->finished++;
	cell->bytes += bytes;
	if (error)
		cell->failed++;
	add(&cell->stages[REQUEST_STAGE_THROTTLE], minus(times->got, times->queued));
	add(&cell->stages[REQUEST_STAGE_QUEUE], minus(issued, times->got));
	add(&cell->stages[REQUEST_STAGE_DRIVER], minus(handed, issued));
	add(&cell->stages[REQUEST_STAGE_DEVICE], minus(seen, handed));
	add(&cell->stages[REQUEST_STAGE_COMPLETE], minus(times->completed, seen));
	add(&cell->stages[REQUEST_STAGE_TOTAL], minus(times->completed, times->queued));
}

static __always_inline int complete(struct request *rq, int error, __u32 bytes, bool direct)
{
	struct bio_state *state;
	struct bio *bio;
	__u32 flags;
	__u64 sector;

	if (bytes < FIELD(direct, rq, __data_len))
		return 0; /* the rest is still with the device */
	state = state_of(rq, direct);
	if (!state)
		return 0;
	state->times.completed = bpf_ktime_get_ns();
	if (seen_by_handler && !state->times.seen)
		see_by_handler(state);
	flags = FIELD(direct, rq, cmd_flags);
	sector = FIELD(direct, rq, __sector);
	if (!state->empty)
		count_request(state, bytes, error);
	bio = FIELD(direct, rq, bio);
	deliver(state, &state->times, state, sector, bytes, flags);
	if (bio && FIELD(direct, bio, bi_next))
		deliver_merged(rq, state->place);
	if (telling && !state->empty && !has_teller(state) &&
	    wants_telling(minus(state->times.completed, state->times.queued), state->times.completed))
		tell_request(state, sector, bytes, flags, error);
	state->bio = 0;
	return 0;
}

/* This request becomes a part of the one before it. */
static __always_inline int merge(struct request *rq, bool direct)
{
	struct bio_state *state = state_of(rq, direct);
	struct request_cell *cell;

	if (!state)
		return 0;
	cell = cell_at(&request_cells, state->slot * BLOCK_OPS + state->op_kind);
	/* Another CPU may have counted its start: only the sum over all is meant. */
	if (cell)
		cell->started--;
	if (state->task)
		state->counted = false;
	else
		state->bio = 0;
	return 0;
}

/* --- The task sleeps and runs ------------------------------------------------------------------------------------- */

static __always_inline void run_again(struct op_state *op, struct task_struct *before, __u64 now)
{
	__u64 completed;

	if (op->preempted_ns && noisy)
		add_preemption(op, now);
	op->preempted_ns = 0;
	if (!op->slept_ns)
		return;
	if (op->last) {
		charge_last(op);
		completed = op->cursor_ns;
		advance(op, OP_STAGE_WAKEUP, now);
		op->wake_cpu = bpf_get_smp_processor_id();
		if (noisy)
			add_before_wakeup(op, before, minus(now, completed));
	} else if (op->in_iowait) {
		op->blocked = true;
		if (op->lost)
			advance(op, OP_STAGE_UNATTRIBUTED, now);
	}
	/* What it waited for was not a request of its own: a lock, the journal, somebody else's read. */
	if (op->bio)
		op->held_until = now;
	else if (all_ended(op))
		advance(op, OP_STAGE_FS, now);
	op->slept_ns = 0;
}

static __always_inline int switched(bool preempt, struct task_struct *prev, struct task_struct *next, bool direct)
{
	__u32 prev_tid = FIELD(direct, prev, pid);
	__u32 next_tid = FIELD(direct, next, pid);
	struct op_state *op;
	__u64 now = 0;

	/* The idle tasks have the number 0, one a CPU. */
	if (prev_tid) {
		op = find_op((__u64)prev, prev_tid);
		if (op && op->kind == OP_TRACED) {
			now = bpf_ktime_get_ns();
			if (left_runnable(preempt, prev, direct)) {
				op->preempted_ns = now;
				if (noisy)
					name_preemptor(op, next);
			} else {
				op->slept_ns = now;
				op->in_iowait = BPF_CORE_READ_BITFIELD_PROBED(prev, in_iowait);
			}
		}
	}
	if (next_tid) {
		op = find_op((__u64)next, next_tid);
		if (op && op->kind == OP_TRACED)
			run_again(op, prev, now ? now : bpf_ktime_get_ns());
	}
	return 0;
}

/* --- Hooks -------------------------------------------------------------------------------------------------------- */

/* The same for a tracepoint's two kinds of programs. */
#define TRACEPOINT(name, tracepoint, call) \
	SEC("tp_btf/" #tracepoint) \
	int name##_tp_btf(__u64 *ctx) \
	{ \
		const bool direct __attribute__((unused)) = true; \
		return call; \
	} \
	SEC("raw_tp/" #tracepoint) \
	int name##_raw_tp(__u64 *ctx) \
	{ \
		const bool direct __attribute__((unused)) = false; \
		return call; \
	}

TRACEPOINT(complete, block_rq_complete, complete((void *)ctx[0], ctx[1], ctx[2], direct))
TRACEPOINT(issue, block_rq_issue, issue(FIRST_OR_SECOND(ctx, request_is_second), direct))
TRACEPOINT(merge, block_rq_merge, merge(FIRST_OR_SECOND(ctx, request_is_second), direct))
TRACEPOINT(getrq, block_getrq, got(FIRST_OR_SECOND(ctx, bio_is_second), false, direct))
TRACEPOINT(queue, block_bio_queue, queue(FIRST_OR_SECOND(ctx, bio_is_second), direct))
TRACEPOINT(backmerge, block_bio_backmerge, got(FIRST_OR_THIRD(ctx, merged_bio_is_third), true, direct))
TRACEPOINT(frontmerge, block_bio_frontmerge, got(FIRST_OR_THIRD(ctx, merged_bio_is_third), true, direct))
TRACEPOINT(switch, sched_switch, switched(ctx[0], (void *)ctx[1], (void *)ctx[2], direct))
TRACEPOINT(hardirq_entry, irq_handler_entry, enter_hardirq())
TRACEPOINT(hardirq_exit, irq_handler_exit, leave_hardirq((void *)ctx[1], direct))
TRACEPOINT(softirq_entry, softirq_entry, enter_softirq())
TRACEPOINT(softirq_exit, softirq_exit, leave_softirq(ctx[0]))

SEC("perf_event")
int tick_perf(void *ctx)
{
	return tick();
}

/* A limit of a cgroup: from 5.13 (a7b36ee6ba29) on this is called only where there is one. */
SEC("fentry/__blk_throtl_bio")
int throttle_fentry(__u64 *ctx)
{
	return throttle((void *)ctx[0], true);
}

SEC("fentry/blk_throtl_bio")
int throttle_old_fentry(__u64 *ctx)
{
	return throttle((void *)ctx[0], true);
}

/*
 * Drivers. Their tracepoints are in modules, whose types 5.10 does not tell, and 6.12 hands such arguments over as
 * pointers that may be NULL; copying works everywhere.
 */
SEC("raw_tp/nvme_setup_cmd")
int nvme_setup_raw_tp(__u64 *ctx)
{
	return set_up((void *)ctx[0], false);
}

SEC("raw_tp/nvme_sq")
int nvme_seen_raw_tp(__u64 *ctx)
{
	return see((void *)ctx[0], false);
}

/* Drivers keep what they need for a request right behind it. */
static __always_inline struct request *before_payload(__u64 payload)
{
	return (void *)(payload - bpf_core_type_size(struct request));
}

SEC("raw_tp/scsi_dispatch_cmd_start")
int scsi_start_raw_tp(__u64 *ctx)
{
	return hand_over(before_payload(ctx[0]), false);
}

SEC("raw_tp/scsi_dispatch_cmd_done")
int scsi_seen_raw_tp(__u64 *ctx)
{
	return see(before_payload(ctx[0]), false);
}

SEC("fentry/virtblk_add_req")
int virtblk_add_fentry(__u64 *ctx)
{
	return hand_over(before_payload(ctx[1]), false);
}

/* Its fifth argument is what the driver wants back: of other drivers it is something else, which is in no request. */
SEC("kprobe/virtqueue_add_sgs")
int virtblk_add_kprobe(struct pt_regs *ctx)
{
	return hand_over(before_payload(PT_REGS_PARM5(ctx)), false);
}

SEC("fentry/blk_mq_complete_request")
int seen_fentry(__u64 *ctx)
{
	return see((void *)ctx[0], true);
}

SEC("kprobe/blk_mq_complete_request")
int seen_kprobe(struct pt_regs *ctx)
{
	return see((void *)PT_REGS_PARM1(ctx), false);
}

/*
 * The fourth argument, a pointer to a number. Before 5.17 (f92c1e183604, which also brought bpf_get_func_arg) the verifier
 * may refuse to hand over such ones, as 5.10 does, and they are copied.
 */
enum bpf_func_id___known {
	BPF_FUNC_get_func_arg___known = 183,
};

static __always_inline loff_t *fourth(__u64 *ctx)
{
	loff_t *position = NULL;
	__u64 *copied = ctx;

	if (bpf_core_enum_value_exists(enum bpf_func_id___known, BPF_FUNC_get_func_arg___known))
		return (void *)ctx[3];
	/* Or the place is computed once for both, and the verifier forbids to load from there. */
	barrier_var(copied);
	bpf_probe_read_kernel(&position, sizeof(position), copied + 3);
	return position;
}

/* Operations by the functions that all their system calls go through. */
#define OPERATION(function, write, length, result) \
	SEC("fentry/" #function) \
	int function##_entry(__u64 *ctx) \
	{ \
		return begin((void *)ctx[0], write, length, fourth(ctx), true); \
	} \
	SEC("fexit/" #function) \
	int function##_exit(__u64 *ctx) \
	{ \
		return finish((void *)ctx[0], ctx[result], true); \
	}

OPERATION(vfs_read, false, ctx[2], 4)
OPERATION(vfs_write, true, ctx[2], 4)
OPERATION(vfs_readv, false, vector_bytes((void *)ctx[1], ctx[2]), 5)
OPERATION(vfs_writev, true, vector_bytes((void *)ctx[1], ctx[2]), 5)

/* Where functions cannot be observed: by the number of the system call. What Python sets for each of them. */
enum call_kind {
	CALL_KIND_NONE,
	CALL_KIND_READ,
	CALL_KIND_WRITE,
	CALL_KIND_READV,
	CALL_KIND_WRITEV,
	CALL_KIND_PREAD,
	CALL_KIND_PWRITE,
	CALL_KIND_PREADV,
	CALL_KIND_PWRITEV,
};
EXPORT_ENUM(call_kind);

#define CALLS 512
__u8 calls[CALLS];

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

struct thread_info___x86 {
	__u32 status;
} __attribute__((preserve_access_index));

#define TS_COMPAT 2 /* arch/x86/include/asm/thread_info.h */

/* Programs of 32 bits number their calls otherwise. */
static __always_inline bool is_foreign_call(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct thread_info___x86 *info = (void *)__builtin_preserve_access_index(&task->thread_info);

	return bpf_core_field_exists(info->status) && BPF_CORE_READ(info, status) & TS_COMPAT;
}

SEC("raw_tp/sys_enter")
int call_enter_raw_tp(__u64 *ctx)
{
	struct pt_regs *regs = (void *)ctx[0];
	__u64 number = ctx[1];
	struct op_state *op;
	struct file *file;
	__u64 length;
	__u8 kind;

	if (number >= CALLS)
		return 0;
	kind = calls[number];
	if (!kind || is_foreign_call())
		return 0;
	file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));
	if (!file)
		return 0;
	length = PT_REGS_PARM3_CORE_SYSCALL(regs);
	if (kind == CALL_KIND_READV || kind == CALL_KIND_WRITEV || kind == CALL_KIND_PREADV ||
	    kind == CALL_KIND_PWRITEV)
		length = vector_bytes((void *)PT_REGS_PARM2_CORE_SYSCALL(regs), length);
	begin(file, !(kind & 1), length, NULL, false);
	op = find_op(bpf_get_current_task(), bpf_get_current_pid_tgid());
	if (op && kind >= CALL_KIND_PREAD)
		op->offset = PT_REGS_PARM4_CORE_SYSCALL(regs);
	else if (op)
		op->offset = BPF_CORE_READ(file, f_pos);
	return 0;
}

SEC("raw_tp/sys_exit")
int call_exit_raw_tp(__u64 *ctx)
{
	return finish(NULL, ctx[1], false);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
