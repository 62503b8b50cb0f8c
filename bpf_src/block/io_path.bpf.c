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
#include "lib/tracepoint.h"
#include "lib/sample.h"
#include "lib/dentry.h"
#include "block/path/shared.h"
#include "block/path/state.h"
#include "block/path/noise.h"
#include "block/path/flush.h"
#include "block/path/journal.h"
#include "block/path/writeback.h"
#include "block/path/controllers.h"
#include "block/path/record.h"
#include "block/path/layers.h"
#include "block/path/hidden.h"

/* --- Charging ----------------------------------------------------------------------------------------------------- */

static __always_inline void advance(struct op_state *op, enum op_stage stage, __u64 until)
{
	if (until > op->cursor_ns) {
		op->charges[stage] += until - op->cursor_ns;
		op->cursor_ns = until;
	}
}

/* What its task is at while none of its requests is in question. */
static __always_inline enum op_stage own_stage(struct op_state *op)
{
	return op->in_journal ? OP_STAGE_JOURNAL : OP_STAGE_FS;
}

/* Before the first charge. */
static __always_inline void open_account(struct op_state *op)
{
	if (op->charged)
		return;
	op->charged = true;
	op->cursor_ns = op->start_ns;
	__builtin_memset(op->charges, 0, sizeof(op->charges));
	if (op->interface != INTERFACE_CALL)
		advance(op, OP_STAGE_SUBMIT, op->issued_ns);
}

/* The time up to the completion of what was waited for. */
static __noinline int charge(struct op_state *op, struct done *done)
{
	if (!op || !done)
		return 0;
	open_account(op);
	/* It was on its way before the task went to sleep: until then the task had other work. */
	if (done->times.got < op->cursor_ns)
		advance(op, own_stage(op), op->slept_ns);
	if (done->events.below & EVENT_BELOW) {
		advance(op, own_stage(op), op->above_ns);
		advance(op, OP_STAGE_LAYERS, done->times.queued);
	}
	advance(op, own_stage(op), done->times.queued);
	advance(op, OP_STAGE_THROTTLE, done->times.got);
	advance(op, OP_STAGE_QUEUE, done->times.issued);
	advance(op, OP_STAGE_DRIVER, done->times.handed);
	advance(op, OP_STAGE_DEVICE, done->times.seen);
	advance(op, OP_STAGE_COMPLETE, done->times.completed);
	op->waited = true;
	op->slot = done->slot;
	return 0;
}

/* Nothing that it asked for is under way; what is read ahead may be. */
static __always_inline bool all_ended(struct op_state *op)
{
	return op->ended >= op->made - op->readahead;
}

static __always_inline void charge_last(struct op_state *op)
{
	struct done *done = done_at(op, op->last);

	if (done) {
		charge(op, done);
		/* What the device above did with it then. */
		if (done->events.below & EVENT_BELOW)
			advance(op, OP_STAGE_LAYERS, op->above_done_ns);
		if (noisy)
			add_irq_delay(op, done);
		op->waited_for = op->last;
	}
	op->last = 0;
}

/*
 * Most operations wait once, for one request. Their account is made up at their end, from what the request passed; it
 * is opened earlier only if something else happens after that wait.
 */
static __always_inline void settle(struct op_state *op)
{
	if (!op->woken_ns)
		return;
	charge_last(op);
	advance(op, OP_STAGE_WAKEUP, op->woken_ns);
	op->woken_ns = 0;
}

/* --- Requests are counted ------------------------------------------------------------------------------------------ */

static __noinline int count_request(struct bio_state *state)
{
	struct request_cell *cell;
	struct times *times;

	if (!state)
		return 0;
	cell = cell_at(&request_cells, state->done.slot * BLOCK_OPS + state->op_kind);
	if (!cell)
		return 0;
	COUNT_MORE(cell->bytes, state->done.bytes);
	if (state->done.error)
		COUNT(cell->failed);
	if (state->untimed) {
		COUNT(cell->untimed);
		COUNT(cell->finished);
		return 0;
	}
	times = &state->done.times;
	add(&cell->stages[REQUEST_STAGE_THROTTLE], times->got - times->queued);
	add(&cell->stages[REQUEST_STAGE_QUEUE], times->issued - times->got);
	add(&cell->stages[REQUEST_STAGE_DRIVER], times->handed - times->issued);
	add(&cell->stages[REQUEST_STAGE_DEVICE], times->seen - times->handed);
	add(&cell->stages[REQUEST_STAGE_COMPLETE], times->completed - times->seen);
	hist_add_counted(&cell->stages[REQUEST_STAGE_TOTAL], times->completed - times->queued);
	COUNT(cell->finished);
	return 0;
}

/* A bio that asked for a flush and had no data: the flush is a request of its own, or that of several who ask at once. */
static __noinline int count_asked(struct bio_state *state)
{
	struct request_cell *cell;

	if (!state)
		return 0;
	cell = cell_at(&request_cells, state->done.slot * BLOCK_OPS + BLOCK_OP_FLUSH);
	if (cell)
		cell->fate.asked++;
	return 0;
}

/* The only request of an operation, when that is over. */
__noinline int release_only(__u32 place, bool uncounted)
{
	struct op_state *op = op_at(place);
	struct bio_state *state;

	state = bio_at(op->only - 1);
	if (state->bio != DELIVERED)
		return 0;
	if (uncounted)
		count_request(state);
	state->bio = 0;
	return 0;
}

/* --- Operations begin and end ------------------------------------------------------------------------------------- */

static __always_inline void look_at_position(struct op_state *op)
{
	if (op->offset < 0 && op->position)
		bpf_probe_read_kernel(&op->offset, sizeof(op->offset), op->position);
}

#define S_IFMT 0170000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFREG 0100000

static __always_inline void count_discarded(void)
{
	struct op_counts *counts = cell_at(&op_counters, 0);

	if (counts)
		COUNT(counts->discarded);
}

static __always_inline void begin_anew(struct op_state *op)
{
	__builtin_memset(&op->tid, 0, offsetof(struct op_state, charges) - offsetof(struct op_state, tid));
}

/* Out of the way of those that want everything. */
static __noinline bool task_passes(void)
{
	return task_matches();
}

/* What is synced is written, what a page lacks is read. */
static __always_inline bool is_write(enum op_kind kind)
{
	return kind == OP_KIND_WRITE || kind == OP_KIND_SYNC;
}

static __noinline bool operation_passes(struct file *file, enum op_kind kind, __u64 length)
{
	return operation_matches(is_write(kind), length) && (file ? file_matches(file, false) : !filter_file);
}

static __noinline bool bio_passes(struct bio *bio, bool write, __u32 bytes)
{
	struct dirty_frame *dirtied = following && write ? dirtier_of(bio) : NULL;

	if (dirtied)
		return !dirtied->ignored && operation_matches(write, bytes);
	/* Whose file it is of, a bio does not tell. */
	return task_matches() && !filter_file && operation_matches(write, bytes);
}

static __always_inline void open_op(struct op_state *op, struct file *file, enum op_kind kind, __u64 length,
				    loff_t *position)
{
	op->begun++;
	op->file = file;
	op->length = length;
	op->position = position;
	op->offset = -1;
	op->wake_cpu = NO_CPU;
	op->op_kind = kind;
	if (noise_kept)
		__builtin_memset(interference_of(op), 0, sizeof(struct interference));
}

/* Without a file where it has none, or it is not known. */
static __always_inline int begin(struct file *file, enum op_kind kind, __u64 length, loff_t *position)
{
	__u64 task = bpf_get_current_task();
	struct op_state *op;
	bool wanted = true;

	if (!tracing || no_operations)
		return 0;
	if (filtering) {
		if (!task_passes())
			return 0; /* nor do its bios */
		wanted = operation_passes(file, kind, length);
	}
	op = claim_op(task);
	if (!op) {
		if (wanted)
			COUNT(loss[PATH_CAUSE_OP_FULL]);
		return 0;
	}
	/* The end of the one before went unseen. */
	if (op->only)
		release_only(op->place, true);
	op->kind = OP_IGNORED;
	begin_anew(op);
	if (!wanted)
		return 0;
	open_op(op, file, kind, length, position);
	/* Last, so that our own work is not charged; and whoever finds it traced finds when it began. */
	op->start_ns = bpf_ktime_get_ns();
	barrier();
	op->kind = OP_TRACED;
	return 0;
}

/* Where the file may be of any kind. */
static __always_inline bool is_stored(struct file *file, enum op_kind kind, bool direct)
{
	struct inode *inode = FIELD(direct, file, f_inode);
	__u32 format = FIELD(direct, inode, i_mode) & S_IFMT;

	return format == S_IFREG || format == S_IFBLK || (kind == OP_KIND_SYNC && format == S_IFDIR);
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
	/* Also in wptrace/flows/io/path.py. */
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

/* How an operation ended: behind its times. */
#define COUNT_RESULT(cell, result) \
	do { \
		if ((result) < 0) \
			COUNT((cell)->failed); \
		else \
			COUNT_MORE((cell)->bytes, result); \
		COUNT((cell)->finished); \
	} while (0)

/*
 * One comparison, which the compiler does not make two of; and a value that the verifier takes for the same on both ways.
 */
#define COUNT_UP_TO(stage, until) \
	do { \
		__u64 __until = (until); \
		if (__until > at) { \
			hist_add_plain(&cell->stages[stage], __until - at); \
			at = __until; \
		} \
		asm volatile("%0 |= 0" : "+r"(at)); \
	} while (0)

/* One that made a single request and waited for it: the distributions of both are one, but for the whole time. */
static __noinline int count_with_request(struct op_state *op, struct done *done, __s64 result)
{
	struct only_cell *cell;
	struct times *times;
	__u64 at;

	if (!op || !done)
		return 0;
	cell = cell_at(&only_cells, done->slot * PLAIN_KINDS + (op->op_kind & 1));
	if (!cell)
		return 0;
	COUNT_MORE(cell->request_bytes, done->bytes);
	if (done->error)
		COUNT(cell->request_failed);
	times = &done->times;
	at = op->start_ns;
	if (op->interface != INTERFACE_CALL)
		COUNT_UP_TO(ONLY_STAGE_SUBMIT, op->issued_ns);
	COUNT_UP_TO(ONLY_STAGE_FS, times->queued);
	COUNT_UP_TO(ONLY_STAGE_THROTTLE, times->got);
	COUNT_UP_TO(ONLY_STAGE_QUEUE, times->issued);
	COUNT_UP_TO(ONLY_STAGE_DRIVER, times->handed);
	COUNT_UP_TO(ONLY_STAGE_DEVICE, times->seen);
	COUNT_UP_TO(ONLY_STAGE_COMPLETE, times->completed);
	COUNT_UP_TO(ONLY_STAGE_WAKEUP, op->woken_ns);
	COUNT_UP_TO(ONLY_STAGE_RETURN, op->end_ns);
	hist_add_counted(&cell->stages[ONLY_STAGE_TOTAL], at - op->start_ns);
	hist_add_counted(&cell->stages[ONLY_STAGE_REQUEST], times->completed - times->queued);
	COUNT_RESULT(cell, result);
	return 0;
}

/* Its only request, where that is of its own kind: a write may have to read what its page lacks. */
static __always_inline struct done *shared_request(struct op_state *op)
{
	struct bio_state *state = bio_at(op->only - 1);

	_Static_assert((int)OP_KIND_READ == (int)BLOCK_OP_READ && (int)OP_KIND_WRITE == (int)BLOCK_OP_WRITE, "alike");
	return state->op_kind == op->op_kind ? &state->done : NULL;
}

/* What follows is for the end of an operation, in global functions: the verifier looks at each of them alone. */
__noinline int count_hit(__u32 place, __s64 result)
{
	struct op_state *op = op_at(place);
	struct hit_cell *cell;

	cell = cell_at(&hit_cells, op->slot * OP_KINDS + op->op_kind);
	if (!cell)
		return 0;
	COUNT_MORE(cell->readahead, op->readahead);
	hist_add_counted(&cell->stages[0], minus(op->end_ns, op->start_ns));
	COUNT_RESULT(cell, result);
	return 0;
}

__noinline int count_alone(__u32 place, __s64 result)
{
	struct op_state *op = op_at(place);
	struct op_cell *cell;
	int stage;

	cell = cell_at(&op_cells, op->slot * OP_KINDS + op->op_kind);
	if (!cell)
		return 0;
	COUNT_MORE(cell->requests, op->made - op->readahead);
	for (stage = 0; stage < OP_CHARGES; stage++)
		add(&cell->stages[stage], op->charges[stage]);
	hist_add_counted(&cell->stages[OP_STAGE_TOTAL], minus(op->end_ns, op->start_ns));
	COUNT_RESULT(cell, result);
	return 0;
}

__noinline int count_noise(__u32 place)
{
	struct op_state *op = op_at(place);
	struct noise_cell *cell = cell_at(&noise_cells, op->slot * OP_KINDS + op->op_kind);
	int stage;

	if (!cell)
		return 0;
	for (stage = 0; stage < NOISE_STAGES; stage++)
		add(&cell->stages[stage], interference_of(op)->noise[stage].ns);
	COUNT(cell->finished);
	return 0;
}

/* A device made of others took the bio, and a worker made the requests of it: all it waited for was that device. */
static __noinline bool charge_above(struct op_state *op)
{
	if (!op || !op->above || op->held_until <= op->above_ns)
		return false;
	advance(op, OP_STAGE_FS, op->above_ns);
	if (op->above_done_ns > op->above_ns) {
		advance(op, OP_STAGE_LAYERS, op->above_done_ns);
		advance(op, OP_STAGE_WAKEUP, op->held_until);
	}
	advance(op, OP_STAGE_DEVICE, op->held_until);
	return true;
}

/* The rest of its account, up to the end. */
__noinline int close_account(__u32 place)
{
	struct op_state *op = op_at(place);
	bool held;

	settle(op);
	/* All was there before its task had to wait. */
	if (op->last && all_ended(op))
		charge_last(op);
	open_account(op);
	held = charge_above(op);
	advance(op, op->waited || held ? OP_STAGE_RETURN : OP_STAGE_FS, op->end_ns);
	return 0;
}

/* `known` is the file where the hook has it, as an object that the verifier knows. */
static __always_inline int finish(struct op_state *op, struct file *known, __s64 result, __u64 now, bool direct)
{
	struct done *only = NULL;
	bool hit;

	if (op->kind != OP_TRACED) {
		free_op(op);
		return 0;
	}
	op->end_ns = now;
	if (op->last == LAST_IS_ONLY && op->made == 1 && !op->charged)
		only = shared_request(op);
	if (only) {
		hit = false;
		count_with_request(op, only, result);
		if (noisy)
			add_irq_delay(op, only);
	} else {
		close_account(op->place);
		hit = !op->waited && !op->blocked && op->made == op->readahead;
		/* What waited knows its device by its request. */
		if (!op->waited && !op->slot && !row_of_file(direct ? known : op->file, &op->slot, direct)) {
			count_discarded();
			if (op->only) {
				release_only(op->place, true);
				op->only = 0;
			}
			free_op(op);
			return 0;
		}
		if (hit)
			count_hit(op->place, result);
		else
			count_alone(op->place, result);
	}
	if (noisy && !hit) {
		count_noise(op->place);
		if (was_held(held_op(op), op->start_ns))
			count_held_op(op->place);
	}
	if (telling && wants_telling(minus(now, op->start_ns), now)) {
		if (only) {
			charge(op, only);
			op->waited_for = LAST_IS_ONLY;
			advance(op, OP_STAGE_WAKEUP, op->woken_ns);
			advance(op, OP_STAGE_RETURN, now);
		}
		if (op->waited && op->wake_cpu == NO_CPU)
			op->wake_cpu = bpf_get_smp_processor_id();
		tell_op(op->place, hit, now, result);
	}
	if (op->only) {
		release_only(op->place, !only);
		op->only = 0;
	}
	free_op(op);
	return 0;
}

#include "block/path/async.h"

/* --- Bios: Q ------------------------------------------------------------------------------------------------------ */

static __always_inline bool bio_is_wanted(struct bio *bio, bool direct)
{
	__u32 op = FIELD(direct, bio, bi_opf) & 0xff;

	return tracing && (!filtering || bio_passes(bio, op == BLOCK_OP_WRITE, FIELD(direct, bio, bi_iter.bi_size)));
}

/*
 * Whether readahead fetches only what its operation did not ask for. The kernel marks what was asked for as readahead
 * as well, so the pages tell. Those of no file (compressed, metadata) count as asked for.
 */
static __noinline bool is_beyond(struct op_state *op, struct bio *bio)
{
	struct page_of_file page;
	struct file *file;
	__s64 begin, end;

	if (!op)
		return false;
	page = page_of_file((__u64)BPF_CORE_READ(bio, bi_io_vec, bv_page));
	begin = page.index << page_shift;
	file = op->file;
	if (page.mapping != BPF_CORE_READ(file, f_mapping))
		return false;
	look_at_position(op);
	if (op->offset < 0)
		return false;
	end = begin + BPF_CORE_READ(bio, bi_iter.bi_size);
	return begin >= op->offset + (__s64)op->length || end <= op->offset;
}

/* One more bio of this operation. */
static __always_inline void belong(struct bio_state *state, struct op_state *op, struct bio *bio, __u32 flags)
{
	op->made++;
	op->slot = state->done.slot;
	state->made = op->made;
	if (flags >> bpf_core_enum_value(enum req_flag_bits, __REQ_RAHEAD) & 1 && is_beyond(op, bio)) {
		state->apart |= BIO_APART_READAHEAD;
		op->readahead++;
	}
}

static __always_inline void no_place(struct op_state *op)
{
	COUNT(loss[PATH_CAUSE_BIO_FULL]);
	if (op)
		op->lost = true;
}

static __always_inline void start_bio(struct bio_state *state, __u64 key, enum bio_kind kind, __u64 now)
{
	if (state->bio == key && state->kind == BIO_KIND_HEAD && !state->empty)
		COUNT(loss[PATH_CAUSE_UNMATCHED_START]); /* the bio is used again: its last end went unseen */
	state->bio = key;
	state->kind = kind;
	__builtin_memset(&state->apart, 0, 4);
	state->done.times.queued = now;
	state->done.times.issued = 0;
	state->done.times.handed = 0;
	state->done.times.seen = 0;
	state->done.irq_delay = 0;
	__builtin_memset(&state->done.events, 0, sizeof(state->done.events));
}

static __always_inline void note_submitter(struct bio_state *state)
{
	state->done.cpus.submit = bpf_get_smp_processor_id();
	state->done.cpus.issue = state->done.cpus.irq = NO_CPU;
	bpf_get_current_comm(state->comm, sizeof(state->comm));
	state->cgroup = bpf_get_current_cgroup_id();
	state->tgid = bpf_get_current_pid_tgid() >> 32;
	state->tid = bpf_get_current_pid_tgid();
}

/* Its requests are those of the devices below. */
static __always_inline bool is_made_of_others(struct bio *bio, bool direct)
{
	return !FIELD(direct, bio_queue(bio, direct), mq_ops);
}

static __always_inline int take(struct bio *bio, struct op_state *op, enum bio_kind kind, bool direct)
{
	__u64 key = (__u64)bio;
	__u32 flags = FIELD(direct, bio, bi_opf);
	__u32 dev = bio_disk(bio, direct);
	enum block_op op_kind = request_op(flags);
	bool empty = !FIELD(direct, bio, bi_iter.bi_size) && op_kind <= BLOCK_OP_WRITE;
	struct device_match match = find_device(dev, FIELD(direct, bio, bi_iter.bi_sector), empty);
	struct bio_state *state;
	__u32 layer = LAYERS;
	bool above = false;

	if (!match.found || match.slot == UNLISTED_SLOT) {
		above = is_made_of_others(bio, direct);
		if (above && stacked)
			layer = layer_of(dev);
		if (above)
			kind = kind == BIO_KIND_HELD ? kind : BIO_KIND_ABOVE;
		else if (!match.found)
			return 0;
	}
	state = claim_bio(key);
	if (!state) {
		if (!above && !empty)
			no_place(op);
		return 0;
	}
	state->untimed = request_sample && !op && layer == LAYERS && !is_timed();
	start_bio(state, key, kind, state->untimed ? 0 : bpf_ktime_get_ns());
	state->op_kind = op_kind;
	state->empty = empty;
	state->done.dev = dev;
	state->done.slot = match.slot;
	state->task = 0;
	if (layer < LAYERS)
		begin_layer(state, layer, FIELD(direct, bio, bi_iter.bi_sector), FIELD(direct, bio, bi_iter.bi_size));
	if (state->untimed) {
		if (following)
			follow(state, bio);
		return 0;
	}
	if (telling)
		note_submitter(state);
	if (noisy)
		take_in_hand(state);
	if (!op)
		state->tid = bpf_get_current_pid_tgid();
	if (following)
		follow(state, bio);
	if (!op)
		return 0;
	state->task = op->task;
	state->op = op->place;
	if (above) {
		op->above = key;
		op->above_ns = state->done.times.queued;
	} else {
		op->above = 0;
		belong(state, op, bio, flags);
	}
	return 0;
}

/* A device made of others made it of a bio above, and it belongs to whom that belongs; who sends it may be a worker. */
static __noinline int take_linked(struct bio *bio, struct bio_state *link)
{
	struct bio_state *upper, *state;
	struct op_state *op = NULL;
	__u64 above_ns, top_ns;
	__u32 above;

	if (!link)
		return 0;
	upper = upper_of(link);
	above = link->above;
	above_ns = link->above_ns;
	top_ns = link->top_ns;
	link->bio = 0;
	if (!upper) {
		/* It is over: a mirror may be written later. */
		if (bio_is_wanted(bio, false))
			take(bio, NULL, BIO_KIND_QUEUED, false);
		return 0;
	}
	if (upper->task) {
		op = op_at(upper->op);
		if (op->task != upper->task || op->kind != OP_TRACED || above_ns < op->start_ns)
			op = NULL;
	}
	take(bio, op, BIO_KIND_QUEUED, false);
	state = find_bio((__u64)bio);
	if (!state)
		return 0;
	state->above = above;
	state->above_ns = above_ns;
	state->top_ns = top_ns;
	state->done.events.below = EVENT_BELOW;
	if (!state->layer)
		state->apart |= BIO_APART_BELOW;
	/* The devices have it since the first of them got it. */
	else if (op)
		op->above_ns = top_ns;
	state->tid = upper->tid;
	state->tgid = upper->tgid;
	state->cgroup = upper->cgroup;
	__builtin_memcpy(state->comm, upper->comm, sizeof(state->comm));
	if (!upper->done.times.issued)
		upper->done.times.issued = state->done.times.queued;
	return 0;
}

/* A bio that is known: a device made of others made it or sends it on, or it is what a split left. */
static __always_inline bool is_known(__u64 bio, struct op_state *op)
{
	struct bio_state *state = find_bio(bio);

	if (!state)
		return false;
	if (state->kind == BIO_KIND_LINKED)
		return true;
	return op && state->task == op->task && state->done.times.queued >= op->start_ns &&
	       (state->kind == BIO_KIND_ABOVE || state->done.events.split);
}

/*
 * A cgroup's limit may hold the bio back from here on; who sends it on later is a worker. Where each bio comes by, only
 * operations are looked at.
 */
static __always_inline int throttle(struct bio *bio, bool each, bool direct)
{
	struct op_state *op = op_of(bpf_get_current_task());

	if (op ? op->kind != OP_TRACED : each || !bio_is_wanted(bio, direct))
		return 0;
	if (is_known(number_of((__u64)bio), op))
		return 0;
	holding = true;
	return take(bio, op, BIO_KIND_HELD, direct);
}

static __always_inline int queue(struct bio *bio, bool direct)
{
	struct op_state *op = op_of(bpf_get_current_task());

	if (holding) {
		struct bio_state *held = find_bio((__u64)bio);

		if (held && held->kind == BIO_KIND_HELD) {
			held->kind = held->layer ? BIO_KIND_ABOVE : BIO_KIND_QUEUED;
			if (noisy)
				release(held);
			return 0;
		}
		if (held && held->kind == BIO_KIND_LINKED)
			return take_linked(bio, held);
	}
	if (!op) {
		if (!bio_is_wanted(bio, direct))
			return 0;
	} else if (op->kind != OP_TRACED) {
		return 0;
	} else {
		settle(op);
		if (op->last) {
			struct done *done = done_at(op, op->last);

			/* The one before it completed in this very task: it was waited for by running it. */
			if (done && done->events.inline_ && all_ended(op))
				charge_last(op);
			op->last = 0;
		}
	}
	return take(bio, op, BIO_KIND_QUEUED, direct);
}

/* Its front becomes a bio of its own, and completes into the rest. */
static __always_inline int split(struct bio *front, __u64 sector, bool direct)
{
	struct bio_state *rest = find_bio((__u64)FIELD(direct, front, bi_private));
	struct op_state *op = NULL;
	struct bio_state *state;

	if (stacked && cut_layer((__u64)front, rest, sector))
		return 0;
	if (!rest || rest->kind == BIO_KIND_HEAD)
		return 0;
	if (rest->task) {
		op = op_at(rest->op);
		if (op->task != rest->task)
			op = NULL;
	}
	state = claim_bio((__u64)front);
	if (!state) {
		if (rest->kind != BIO_KIND_ABOVE)
			no_place(op);
		return 0;
	}
	start_bio(state, (__u64)front, rest->kind, rest->done.times.queued);
	state->untimed = rest->untimed;
	state->tid = rest->tid;
	state->op_kind = rest->op_kind;
	state->empty = false;
	state->done.dev = rest->done.dev;
	state->done.slot = rest->done.slot;
	state->task = rest->task;
	state->op = rest->op;
	state->done.events.split = 1;
	ONE_MORE(rest->done.events.split);
	if (rest->done.events.below & EVENT_BELOW) {
		state->above = rest->above;
		state->above_ns = rest->above_ns;
		state->top_ns = rest->top_ns;
		state->done.events.below = EVENT_BELOW;
		state->apart = BIO_APART_BELOW;
	}
	if (rest->kind != BIO_KIND_ABOVE)
		COUNT_FATE(state, split, 1);
	if (telling)
		note_submitter(state);
	if (noisy)
		take_in_hand(state);
	if (following)
		split_writeback(state, rest, front);
	if (op && rest->kind != BIO_KIND_ABOVE)
		belong(state, op, front, FIELD(direct, front, bi_opf));
	return 0;
}

/* --- Requests: D, H, S, C ----------------------------------------------------------------------------------------- */

/* The request that the flush machinery has for itself: nobody's, and it waits for nothing. */
static __noinline struct bio_state *take_flush(struct request *rq)
{
	enum block_op op_kind = request_op(BPF_CORE_READ(rq, cmd_flags));
	struct device_match match;
	struct bio_state *state;
	__u32 dev;

	if (op_kind != BLOCK_OP_FLUSH)
		return NULL;
	dev = request_disk(rq, false);
	match = find_any_device(rq, dev, 0, true);
	if (!match.found)
		return NULL;
	state = claim_bio((__u64)rq);
	if (!state) {
		no_place(NULL);
		return NULL;
	}
	state->untimed = request_sample && !is_timed();
	start_bio(state, (__u64)rq, BIO_KIND_QUEUED, state->untimed ? 0 : bpf_ktime_get_ns());
	state->tid = 0;
	state->op_kind = op_kind;
	state->empty = false;
	state->done.dev = dev;
	state->done.slot = match.slot;
	state->task = 0;
	if (telling) {
		note_submitter(state);
		__builtin_memset(state->comm, 0, sizeof(state->comm));
		state->cgroup = 0;
		state->tgid = 0;
	}
	return state;
}

/* A device made of others sent on the bio that it got. */
static __noinline bool descend(struct bio_state *state, struct request *rq)
{
	__u64 sector = BPF_CORE_READ(rq, __sector);
	struct device_match match;
	struct op_state *op;
	struct bio *bio;

	if (!state)
		return false;
	state->done.dev = request_disk(rq, false);
	match = find_any_device(rq, state->done.dev, sector, state->empty);
	if (!match.found) {
		state->bio = 0;
		return false;
	}
	state->kind = BIO_KIND_QUEUED;
	if (state->layer) {
		/* It stands for both, and ends once. */
		state->layer = false;
		state->layer_slot = state->done.slot;
		state->done.events.below |= EVENT_SAME_BIO;
	}
	state->done.slot = match.slot;
	if (!state->task)
		return true;
	op = op_at(state->op);
	if (op->task != state->task || op->kind != OP_TRACED)
		return true;
	op->above = 0;
	bio = BPF_CORE_READ(rq, bio);
	belong(state, op, bio, BPF_CORE_READ(bio, bi_opf));
	return true;
}

static __always_inline struct bio_state *begin_issue(struct request *rq, bool direct)
{
	struct bio_state *state = first_of(rq, false, direct);

	if (!state) {
		if (!tracing || FIELD(direct, rq, bio) || filtering)
			return NULL;
		state = take_flush(rq);
		if (!state)
			return NULL;
	}
	if (state->kind == BIO_KIND_ABOVE && !descend(state, rq))
		return NULL;
	if (state->kind != BIO_KIND_HEAD) {
		state->kind = BIO_KIND_HEAD;
		if (!state->empty)
			state->begun++;
	}
	if (telling)
		state->done.cpus.issue = bpf_get_smp_processor_id();
	return state;
}

static __always_inline int issue(struct request *rq, bool direct)
{
	struct bio_state *state = begin_issue(rq, direct);
	__u64 now;

	if (!state || state->untimed)
		return 0;
	now = bpf_ktime_get_ns();
	if (state->set_up) {
		state->done.times.handed = now;
		state->set_up = false;
		return 0;
	}
	state->done.times.issued = now;
	/* It may be issued again. */
	state->done.times.handed = 0;
	state->done.times.seen = 0;
	return 0;
}

/* nvme prepares its command before the block layer says that it was issued, and then hands it over at once. */
static __always_inline int set_up(struct request *rq, bool direct)
{
	struct bio_state *state = begin_issue(rq, direct);

	if (!state || state->untimed)
		return 0;
	state->set_up = true;
	state->done.times.handed = 0;
	state->done.times.seen = 0;
	state->done.times.issued = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int hand_over(struct request *rq, bool direct)
{
	struct bio_state *state = state_of(rq, direct);

	if (state)
		state->done.times.handed = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int see(struct request *rq, bool direct)
{
	struct bio_state *state = state_of(rq, direct);

	if (!state || state->done.times.seen)
		return 0;
	state->done.times.seen = bpf_ktime_get_ns();
	state->done.cpus.irq = bpf_get_smp_processor_id();
	if (tick_ns)
		find_irq_delay(state);
	return 0;
}

/* The operation hears of a request that it may wait for, also of one that an earlier one of its task began. */
static __noinline int deliver(struct bio_state *state, struct bio_state *head)
{
	struct op_state *op;
	struct done *done;
	__u32 place;
	bool own;

	if (!state || !head)
		return 0;
	op = op_at(state->op);
	if (op->task != state->task || op->kind != OP_TRACED)
		return 0;
	own = state->done.times.queued >= op->start_ns;
	/* What was read ahead is waited for by a later operation, if by any. */
	if (own ? state->apart & BIO_APART_READAHEAD : !op->slept_ns)
		return 0;
	place = state->made & (DONE - 1);
	done = done_of(op, place);
	__builtin_memcpy(done, &head->done, sizeof(*done));
	done->times.queued = state->done.times.queued;
	if (state != head)
		done->events.below = state->done.events.below;
	if (done->events.below & EVENT_BELOW)
		op->above_ns = state->top_ns;
	if (done->times.got < done->times.queued)
		done->times.got = done->times.queued;
	done->cpus.submit = state->done.cpus.submit;
	if (own)
		COUNT(op->ended);
	op->last = place + 1;
	return 0;
}

/*
 * Where a point was not seen, its stage is empty and the next one has its time. Clocks of two CPUs may differ by some
 * cycles, but no point comes before the one before it.
 */
static __always_inline void fill_in(struct times *times, __u64 allocated)
{
	__u64 at = times->queued;

	if (times->issued > at) {
		/* The kernel's stamp; without iostats it is 0 or that of another request. */
		if (allocated > at && allocated <= times->issued)
			at = allocated;
		times->got = at;
		at = times->issued;
	} else {
		times->got = times->issued = at;
	}
	if (times->handed > at)
		at = times->handed;
	times->handed = at;
	if (!times->seen) {
		if (times->completed > at)
			at = times->completed;
		times->completed = times->seen = at;
		return;
	}
	if (times->seen > at)
		at = times->seen;
	times->seen = at;
	if (times->completed < at)
		times->completed = at;
}

#include "block/path/life.h"

/* What made the request hears of its end itself: flushes, clones of dm, commands that users send. */
struct request___made {
	void *end_io;
} __attribute__((preserve_access_index));

/*
 * The end of a read or write of which nothing is known. It may be of no traced device, or filtered out, or have begun
 * before tracing did; else a program was skipped, or another bio got its place.
 */
__noinline int count_unmatched(__u64 request)
{
	struct request *rq = (void *)request;
	struct request___made *made = (void *)rq;
	struct device_match match;

	if (!tracing || filtering || !BPF_CORE_READ(rq, bio) || BPF_CORE_READ(made, end_io) ||
	    request_op(BPF_CORE_READ(rq, cmd_flags)) > BLOCK_OP_WRITE)
		return 0;
	/* Without iostats it is 0. */
	if (BPF_CORE_READ(rq, start_time_ns) < settled_ns)
		return 0;
	match = find_any_device(rq, request_disk(rq, false), BPF_CORE_READ(rq, __sector), false);
	if (match.found)
		COUNT(loss[PATH_CAUSE_UNMATCHED_END]);
	return 0;
}

static __always_inline int complete(struct request *rq, int error, __u32 bytes, bool direct)
{
	struct bio_state *state;
	struct op_state *op = NULL;
	struct done *done;
	struct bio *bio;

	if (bytes < FIELD(direct, rq, __data_len))
		return complete_part(number_of((__u64)rq), bytes, error);
	state = state_of(rq, direct);
	if (!state)
		/* A sequence of flushes ends with a completion of no bytes, after that of its data. */
		return filtering || !bytes ? 0 : count_unmatched(number_of((__u64)rq));
	done = &state->done;
	if (error || has_events(&done->events)) {
		end_otherwise(rq, state, bytes, error);
	} else {
		done->bytes = bytes;
		done->error = 0;
	}
	bio = FIELD(direct, rq, bio);
	if (state->untimed) {
		if (bio && FIELD(direct, bio, bi_next))
			deliver_merged(number_of((__u64)rq), state->place);
		if (state->empty)
			count_asked(state);
		else
			count_request(state);
		if (following)
			count_writeback(state->place, state->place);
		state->bio = 0;
		return 0;
	}
	done->times.completed = bpf_ktime_get_ns();
	if (seen_by_handler && !done->times.seen)
		see_by_handler(state);
	done->events.inline_ = !done->times.seen && bpf_get_current_task() == state->task;
	fill_in(&done->times, FIELD(direct, rq, start_time_ns));
	if (telling) {
		done->cpus.complete = bpf_get_smp_processor_id();
		if (!done->events.parts)
			done->sector = FIELD(direct, rq, __sector);
		done->flags = FIELD(direct, rq, cmd_flags);
		/* What the block layer does itself (flushes), it does not ask the driver for. */
		if (bio)
			done->flags |= FIELD(direct, bio, bi_opf) & ~0xffU;
	}
	if (noisy && !state->empty && was_held(&hold_of(state)->held, done->times.queued))
		count_held_request(state->place);
	if (bio && FIELD(direct, bio, bi_next))
		deliver_merged(number_of((__u64)rq), state->place);
	if (following)
		count_writeback(state->place, state->place);
	if (state->task) {
		op = op_at(state->op);
		if (op->task != state->task || op->kind != OP_TRACED)
			op = NULL;
	}
	if (op && op->made - op->readahead == 1 && !state->apart && !state->empty && !op->only &&
	    done->times.queued >= op->start_ns) {
		/* It stays here until its operation is over, which counts it together with itself. */
		state->bio = DELIVERED;
		op->only = state->place + 1;
		op->last = LAST_IS_ONLY;
		COUNT(op->ended);
		return 0;
	}
	if (op)
		deliver(state, state);
	if (state->empty)
		count_asked(state);
	else
		count_request(state);
	if (committing && !state->task)
		count_for_commit(state);
	if (telling && state->op_kind == BLOCK_OP_FLUSH)
		note_flush(done);
	if (telling && !op && !state->empty &&
	    wants_telling(minus(done->times.completed, done->times.queued), done->times.completed))
		tell_request(state);
	state->bio = 0;
	return 0;
}

/* --- The task sleeps and runs ------------------------------------------------------------------------------------- */

static __always_inline void run_again(struct op_state *op, struct task_struct *before, __u64 now)
{
	struct done *done;

	if (op->preempted_ns && noisy)
		add_preemption(op, now);
	op->preempted_ns = 0;
	if (!op->slept_ns)
		return;
	settle(op);
	done = done_at(op, op->last);
	if (done) {
		if (telling)
			op->wake_cpu = bpf_get_smp_processor_id();
		if (noisy)
			add_before_wakeup(op, before, minus(now, done->times.completed));
		if (op->last == LAST_IS_ONLY && !op->charged) {
			op->woken_ns = now;
		} else {
			charge_last(op);
			advance(op, OP_STAGE_WAKEUP, now);
		}
	} else {
		open_account(op);
		/* Nobody sleeps in a journal, or to have something synced, but for I/O. */
		if (op->in_iowait || op->in_journal || op->op_kind == OP_KIND_SYNC)
			op->blocked = true;
		if (op->in_iowait && op->lost)
			advance(op, OP_STAGE_UNATTRIBUTED, now);
		/* What it waited for was not a request of its own: a lock, a journal, somebody else's read. */
		if (op->above)
			op->held_until = now;
		else if (all_ended(op))
			advance(op, own_stage(op), now);
	}
	op->slept_ns = 0;
}

static __always_inline int switched(__u64 *ctx, bool direct)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct op_state *op = op_of((__u64)prev);
	bool preempt = ctx[0];
	__u64 now = 0;

	if (noisy && this_hand()->bio.place)
		put_down(ctx, number_of((__u64)prev), !left_runnable(preempt, prev, direct));
	if (op && op->kind == OP_TRACED) {
		now = bpf_ktime_get_ns();
		if (left_runnable(preempt, prev, direct)) {
			op->preempted_ns = now;
			if (noisy)
				name_preemptor(op, next);
		} else {
			op->slept_ns = now;
			op->tid = FIELD(direct, prev, pid);
			op->in_iowait = BPF_CORE_READ_BITFIELD_PROBED(prev, in_iowait);
		}
	}
	op = op_of((__u64)next);
	if (op && op->kind == OP_TRACED) {
		if (noisy)
			pick_up(op, number_of((__u64)next));
		run_again(op, prev, now ? now : bpf_ktime_get_ns());
	}
	return 0;
}

/* --- Hooks -------------------------------------------------------------------------------------------------------- */

TRACEPOINT(complete, block_rq_complete, complete((void *)ctx[0], ctx[1], ctx[2], direct))
TRACEPOINT(issue, block_rq_issue, issue(FIRST_OR_SECOND(ctx, request_is_second), direct))
TRACEPOINT(queue, block_bio_queue, queue(FIRST_OR_SECOND(ctx, bio_is_second), direct))
TRACEPOINT(requeue, block_rq_requeue, requeue(FIRST_OR_SECOND(ctx, request_is_second), direct))
TRACEPOINT(layer, block_bio_complete, complete_bio((void *)ctx[1]))
TRACEPOINT(remap, block_bio_remap,
	   link_to_upper(number_of((__u64)FIRST_OR_SECOND(ctx, bio_is_second)), (__u64)EITHER(ctx, 1, 2, bio_is_second),
			 (__u64)EITHER(ctx, 2, 3, bio_is_second)))
TRACEPOINT(split, block_split,
	   split(FIRST_OR_SECOND(ctx, bio_is_second), (__u64)EITHER(ctx, 1, 2, bio_is_second), direct))
TRACEPOINT(switch, sched_switch, switched(ctx, direct))
TRACEPOINT(dirty, writeback_dirty_folio, dirty_folio((void *)ctx[0], (void *)ctx[1], direct))
TRACEPOINT(dirty_page, writeback_dirty_page, dirty_page((void *)ctx[0], (void *)ctx[1], direct))
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
	return throttle((void *)ctx[0], false, true);
}

SEC("fentry/blk_throtl_bio")
int throttle_old_fentry(__u64 *ctx)
{
	return throttle((void *)ctx[0], true, true);
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

/*
 * Operations by what file systems get, which asynchronous ones have as well. So nothing is run for what is no file of
 * theirs: pipes, sockets, terminals.
 */
static __always_inline int begin_kiocb(struct kiocb *iocb, struct iov_iter *iter, enum op_kind kind)
{
	struct file *file = iocb->ki_filp;

	if (iocb->ki_complete)
		return issue_kiocb(iocb, file, kind, iter->count);
	return begin(file, kind, iter->count, &iocb->ki_pos);
}

static __always_inline int finish_kiocb(struct kiocb *iocb, __s64 result)
{
	__u64 now = bpf_ktime_get_ns();
	struct op_state *op = find_op(bpf_get_current_task());

	if (!op)
		return 0;
	if (op->kind == OP_STAND_IN) {
		/* The kiocb may be gone: its end is told on its own. */
		free_op(op);
		return 0;
	}
	return finish(op, iocb->ki_filp, result, now, true);
}

#define FILE_SYSTEM(prefix) \
	SEC("fentry/" #prefix "_read_iter") \
	int prefix##_read_iter_entry(__u64 *ctx) \
	{ \
		return begin_kiocb((void *)ctx[0], (void *)ctx[1], OP_KIND_READ); \
	} \
	SEC("fexit/" #prefix "_read_iter") \
	int prefix##_read_iter_exit(__u64 *ctx) \
	{ \
		return finish_kiocb((void *)ctx[0], ctx[2]); \
	} \
	SEC("fentry/" #prefix "_write_iter") \
	int prefix##_write_iter_entry(__u64 *ctx) \
	{ \
		return begin_kiocb((void *)ctx[0], (void *)ctx[1], OP_KIND_WRITE); \
	} \
	SEC("fexit/" #prefix "_write_iter") \
	int prefix##_write_iter_exit(__u64 *ctx) \
	{ \
		return finish_kiocb((void *)ctx[0], ctx[2]); \
	}

FILE_SYSTEM(blkdev)
FILE_SYSTEM(ext4_file)
FILE_SYSTEM(xfs_file)
FILE_SYSTEM(btrfs_file)

/* 6.0 gave it another name. */
SEC("raw_tp/io_uring_submit_req")
int uring_submit_raw_tp(__u64 *ctx)
{
	return submit_uring((void *)ctx[0]);
}

SEC("raw_tp/io_uring_submit_sqe")
int uring_submit_old_raw_tp(__u64 *ctx)
{
	return submit_uring((void *)ctx[0]);
}

/* 6.15 hands over the event instead of what is in it. */
const volatile bool uring_hands_event;

struct io_uring_cqe___known {
	__s32 res;
} __attribute__((preserve_access_index));

/* An event that is not the last one of its operation names none. */
SEC("raw_tp/io_uring_complete")
int uring_complete_raw_tp(__u64 *ctx)
{
	__s32 result;

	if (uring_hands_event)
		result = BPF_CORE_READ((struct io_uring_cqe___known *)ctx[2], res);
	else
		result = ctx[3];
	return ctx[1] ? end_async(ctx[1], result) : 0;
}

static __always_inline int submit_aio(__u64 key)
{
	struct aio_kiocb___known *iocb = (void *)key;

	return submit(key, INTERFACE_AIO, telling ? BPF_CORE_READ(iocb, ki_res.obj) : 0);
}

SEC("fentry/aio_read")
int aio_read_fentry(__u64 *ctx)
{
	return submit_aio(ctx[0]);
}

SEC("fentry/aio_write")
int aio_write_fentry(__u64 *ctx)
{
	return submit_aio(ctx[0]);
}

/*
 * Where file systems are not watched one by one, these are the functions in which any of them gets it: what follows their begin is
 * the work of the operation.
 */
#define AIO_WHOLE(function, kind) \
	SEC("fexit/" #function) \
	int function##_whole_fexit(__u64 *ctx) \
	{ \
		return leave_aio(); \
	} \
	SEC("fentry/" #function) \
	int function##_whole_fentry(__u64 *ctx) \
	{ \
		submit_aio(ctx[0]); \
		/* Of a bool the upper bits are anything. */ \
		return enter_aio((void *)ctx[0], ctx[1], kind, (__u8)ctx[2]); \
	}

/* include/uapi/linux/aio_abi.h */
struct aio_request {
	__u64 unused[3];
	__u64 buffer;
	__u64 bytes;
};

static __always_inline int enter_aio(struct kiocb *iocb, __u64 given, enum op_kind kind, bool vectored)
{
	struct file *file = BPF_CORE_READ(iocb, ki_filp);
	struct aio_request request = {};
	__u64 length;

	if (!is_stored(file, kind, false))
		return 0;
	bpf_probe_read_kernel(&request, sizeof(request), (void *)given);
	length = request.bytes;
	if (vectored)
		length = vector_bytes((void *)request.buffer, length);
	return issue_kiocb(iocb, file, kind, length);
}

static __always_inline int leave_aio(void)
{
	struct op_state *op = find_op(bpf_get_current_task());

	if (op && op->kind == OP_STAND_IN)
		op->task = 0;
	return 0;
}

AIO_WHOLE(aio_read, OP_KIND_READ)
AIO_WHOLE(aio_write, OP_KIND_WRITE)

SEC("fentry/aio_complete_rw")
int aio_complete_fentry(__u64 *ctx)
{
	return end_async(ctx[0], ctx[1]);
}

/* Operations by the functions that all their system calls go through, of whatever file system. */
#define OPERATION(function, kind, length, result) \
	SEC("fentry/" #function) \
	int function##_entry(__u64 *ctx) \
	{ \
		struct file *file = (void *)ctx[0]; \
\
		return is_stored(file, kind, true) ? begin(file, kind, length, fourth(ctx)) : 0; \
	} \
	SEC("fexit/" #function) \
	int function##_exit(__u64 *ctx) \
	{ \
		__u64 now = bpf_ktime_get_ns(); \
		struct op_state *op = find_op(bpf_get_current_task()); \
\
		return op ? finish(op, (void *)ctx[0], ctx[result], now, true) : 0; \
	}

OPERATION(vfs_read, OP_KIND_READ, ctx[2], 4)
OPERATION(vfs_write, OP_KIND_WRITE, ctx[2], 4)
OPERATION(vfs_readv, OP_KIND_READ, vector_bytes((void *)ctx[1], ctx[2]), 5)
OPERATION(vfs_writev, OP_KIND_WRITE, vector_bytes((void *)ctx[1], ctx[2]), 5)

#include "block/path/inner.h"

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
	CALL_KIND_FSYNC,
	CALL_KIND_SYNC_FILE_RANGE,
	CALL_KIND_MSYNC,
};
EXPORT_ENUM(call_kind);

#define CALLS 512
__u8 calls[CALLS];

struct thread_info___x86 {
	__u32 status;
} __attribute__((preserve_access_index));

struct pt_regs___mode {
	__u64 pstate;
} __attribute__((preserve_access_index));

#define TS_COMPAT 2 /* arch/x86/include/asm/thread_info.h */
#define PSR_MODE32_BIT 0x10 /* arch/arm64/include/uapi/asm/ptrace.h */

/* Programs of 32 bits number their calls otherwise. */
static __always_inline bool is_foreign_call(struct pt_regs *regs)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct thread_info___x86 *info = (void *)__builtin_preserve_access_index(&task->thread_info);
	struct pt_regs___mode *state = (void *)regs;

	if (bpf_core_field_exists(state->pstate))
		return BPF_CORE_READ(state, pstate) & PSR_MODE32_BIT;
	return bpf_core_field_exists(info->status) && BPF_CORE_READ(info, status) & TS_COMPAT;
}

static __noinline int begin_sync_call(struct pt_regs *regs, __u8 kind)
{
	struct file *file = NULL;

	/* What is mapped at an address nobody can look up here. */
	if (kind != CALL_KIND_MSYNC) {
		file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));
		if (!file)
			return 0;
	}
	if (kind == CALL_KIND_SYNC_FILE_RANGE)
		return begin_rare(file, OP_KIND_SYNC, PT_REGS_PARM2_CORE_SYSCALL(regs),
				  PT_REGS_PARM3_CORE_SYSCALL(regs));
	return begin_rare(file, OP_KIND_SYNC, -1, 0);
}

static __always_inline int enter_call(__u64 *ctx)
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
	if (!kind || is_foreign_call(regs))
		return 0;
	if (kind >= CALL_KIND_FSYNC)
		return begin_sync_call(regs, kind);
	file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));
	if (!file || !is_stored(file, OP_KIND_READ, false))
		return 0;
	length = PT_REGS_PARM3_CORE_SYSCALL(regs);
	if (kind == CALL_KIND_READV || kind == CALL_KIND_WRITEV || kind == CALL_KIND_PREADV ||
	    kind == CALL_KIND_PWRITEV)
		length = vector_bytes((void *)PT_REGS_PARM2_CORE_SYSCALL(regs), length);
	begin(file, kind & 1 ? OP_KIND_READ : OP_KIND_WRITE, length, NULL);
	op = find_op(bpf_get_current_task());
	if (op && kind >= CALL_KIND_PREAD)
		op->offset = PT_REGS_PARM4_CORE_SYSCALL(regs);
	else if (op)
		op->offset = BPF_CORE_READ(file, f_pos);
	return 0;
}

SEC("raw_tp/sys_enter")
int call_enter_raw_tp(__u64 *ctx)
{
	return enter_call(ctx);
}

SEC("raw_tp/sys_exit")
int call_exit_raw_tp(__u64 *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	struct op_state *op = find_op(bpf_get_current_task());

	return op ? finish(op, NULL, ctx[1], now, false) : 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
