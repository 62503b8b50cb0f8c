// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Block requests from G (a request was allocated) over D (issued to the driver) to C (completed).
 *
 * Where the kernel's own stamps hold, one program at the completion sees everything. Where they do not (iostats or
 * writeback throttling off), G and D are taken here and kept per request; which of the two is decided per device.
 */
#include "lib/wptrace.h"
#include "lib/hist.h"
#include "lib/block.h"
#include "lib/arguments.h"
#include "lib/tracepoint.h"
#include "lib/pid_namespace.h"
#include "lib/recorder.h"
#include "lib/sample.h"
#include "lib/table.h"

enum block_stage {
	BLOCK_STAGE_QUEUE, /* G to D */
	BLOCK_STAGE_DEVICE, /* D to C */
	BLOCK_STAGE_TOTAL, /* G to C */
	BLOCK_STAGE_AT_ONCE, /* the same, of requests that did not queue, which are in no other stage: Python adds them */
	BLOCK_STAGES,
};
EXPORT_ENUM(block_stage);

enum block_cause {
	BLOCK_CAUSE_STATE_FULL,
	BLOCK_CAUSE_RING_FULL,
	BLOCK_CAUSE_NO_CELL,
	BLOCK_CAUSE_NO_STAMP,
	BLOCK_CAUSE_NO_START,
	BLOCK_CAUSE_UNMATCHED_END,
	BLOCK_CAUSE_UNRECORDED,
	BLOCK_CAUSES,
};
EXPORT_ENUM(block_cause);
EXPORT_ENUM(block_flag);

/* One per device and operation, and CPU. */
struct block_cell {
	__u64 started; /* counted for stateful devices alone */
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 untimed; /* of the finished: only counted, to save cost for a budget */
	struct event_counts events;
	struct hist stages[BLOCK_STAGES];
};

struct block_record {
	__u64 end_ns;
	__u64 sector;
	__u64 queue_ns;
	__u64 device_ns;
	__u32 bytes;
	__u32 dev;
	__u32 flags;
	__u32 cpu;
	__s32 error; /* a negative errno or a blk_status_t */
	__u16 slot;
	__u16 unused;
	enum block_op op;
	struct events events;
	__u32 number; /* of a recorder */
};

const struct block_record *export_block_record __attribute__((unused));

EACH_CPU(cells, struct block_cell, BLOCK_OPS);

RING(records);

RECORDER_MAP(recorded, block_record);

/* Whether there are stateful devices, for which G of each bio and the requests with the driver are kept. */
const volatile bool own_times;

struct start {
	__u64 bio; /* 0: free */
	__u64 start_ns;
	__u16 slot;
	bool crowded;
};

struct issued {
	__u64 request; /* 0: free */
	__u64 start_ns;
	__u64 issue_ns;
	__u16 slot;
	bool crowded;
};

#define STATE_BITS 14
CONSTANT(STATES, 1 << STATE_BITS);

/* Python sets how many there are: all of them, or one where no device is stateful. */
#define STATE_TABLE(table, of) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, 1); \
		__type(key, __u32); \
		__type(value, struct of); \
	} table SEC(".maps"); \
\
	static __always_inline struct of *of##_at(__u32 place) \
	{ \
		place &= STATES - 1; \
		return bpf_map_lookup_elem(&table, &place); \
	}

STATE_TABLE(starts, start)
STATE_TABLE(requests, issued)

PLAIN_TABLE(start, struct start, bio, STATE_BITS, 16)
PLAIN_TABLE(issued, struct issued, request, STATE_BITS, 16)

/* Rare events of requests in flight. */
struct life {
	__u64 bytes; /* done before the end */
	__s32 error;
	struct events events;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct life);
} lives SEC(".maps");

__u32 living; /* 0: the table is empty */

/* Requests that took at least this long cross the ring; the default is never. */
__u64 slow_ns = ~0ULL;
__u64 loss[BLOCK_CAUSES];

/* What a budget sets. */
__u32 sample; /* one in so many crosses the ring, however fast; 0: none */
__u32 request_sample; /* one in so many is timed, the others are only counted; 0: all are timed */
__u64 elsewhere; /* completed requests that are in no row, and in the counts of their disk */
bool tracing; /* nothing is counted before */
bool stateless; /* set once sampling was ever on: a request without a start may be an untimed one */

/* The countdown to the next one of each. */
struct turns {
	__u64 unsampled;
	__u64 untimed;
};

EACH_CPU(turns, struct turns, 1);

static __always_inline bool is_turn(__u64 *left, const __u32 *one_in)
{
	if (*left) {
		--*left;
		return false;
	}
	*left = left_out(one_in);
	return true;
}

static __always_inline bool is_timed(void)
{
	__u32 zero = 0;
	struct turns *next = bpf_map_lookup_elem(&turns, &zero);

	return next && is_turn(&next->untimed, &request_sample);
}

static __always_inline bool has_record(void)
{
	__u32 zero = 0;
	struct turns *next = bpf_map_lookup_elem(&turns, &zero);

	return next && is_turn(&next->unsampled, &sample);
}

/*
 * Only requests of this process, 0 for all. Who owns a request is known where it is made, so this works with own times
 * alone: what has no start belongs to another process.
 */
__u32 target_tgid;

/* Whether the queue comes first: see lib/arguments.h. */
const volatile bool request_is_second;
const volatile bool bio_is_second;

static __always_inline struct block_cell *cell_of(__u16 slot, enum block_op op)
{
	__u32 key = slot * BLOCK_OPS + op;
	struct block_cell *cell = bpf_map_lookup_elem(&cells, &key);

	if (!cell)
		COUNT(loss[BLOCK_CAUSE_NO_CELL]);
	return cell;
}

static __always_inline int on_request_alloc(struct bio *bio, bool trusted)
{
	__u32 dev = bio_disk(bio, trusted);
	struct device_match match;
	struct start *start;
	__u32 place;
	/* It is only a flush. */
	bool empty = !FIELD(trusted, bio, bi_iter.bi_size);

	if (target_tgid && target_tgid != current_ids() >> 32)
		return 0;
	match = find_device(dev, FIELD(trusted, bio, bi_iter.bi_sector), empty);
	if (!match.stateful)
		return 0;
	if (request_sample && !target_tgid && !is_timed())
		return 0;
	start = claim_start((__u64)bio, &place);
	if (!start) {
		COUNT(loss[BLOCK_CAUSE_NO_START]);
		return 0;
	}
	start->slot = match.slot;
	start->start_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline __u64 end_wait(struct start *start)
{
	__u64 since = start->start_ns;

	barrier();
	start->bio = 0;
	return since;
}

/* A front merge puts another bio before the one that got the request; more than a few of them are rare. */
#define FRONT_MERGES 8

static __noinline __u64 end_wait_behind(struct bio *bio)
{
	int place;

	for (place = 1; place < FRONT_MERGES; place++) {
		__u32 found;

		bio = BPF_CORE_READ(bio, bi_next);
		if (!bio)
			return 0;
		found = start_place((__u64)bio);
		if (found < STATES) {
			struct start *start = start_at(found);

			return start ? end_wait(start) : 0;
		}
	}
	return 0;
}

static __always_inline int issue(struct request *rq, enum block_op op, __u16 slot, __u64 start, __u64 now)
{
	struct block_cell *cell = cell_of(slot, op);
	struct issued *issued;
	__u32 place;

	if (!cell || !tracing)
		return 0;
	COUNT(cell->started);
	issued = claim_issued((__u64)rq, &place);
	if (!issued) {
		COUNT(loss[BLOCK_CAUSE_STATE_FULL]);
		return 0;
	}
	issued->start_ns = start;
	issued->issue_ns = now;
	issued->slot = slot;
	return 0;
}

/* The start of its first bio is unknown: a front merge, a flush, or another process. */
static __noinline int issue_without_start(struct request *rq, __u64 now)
{
	struct bio *bio = BPF_CORE_READ(rq, bio);
	enum block_op op = request_op(BPF_CORE_READ(rq, cmd_flags));
	struct device_match match;
	__u64 start;

	match = find_device(request_disk(rq, false), BPF_CORE_READ(rq, __sector), op == BLOCK_OP_FLUSH);
	if (!match.stateful)
		return 0;
	start = bio ? end_wait_behind(bio) : 0;
	if (!start && target_tgid)
		return 0;
	/* The flush machinery has one request of its own, which never waits for a tag. */
	if (!start && op == BLOCK_OP_FLUSH)
		start = now;
	if (!start && stateless)
		return 0;
	return issue(rq, op, match.slot, start, now);
}

static __always_inline int on_request_issue(struct request *rq, bool trusted)
{
	struct bio *bio = FIELD(trusted, rq, bio);
	struct start *start = bio ? find_start((__u64)bio) : NULL;
	struct issued *issued;
	__u64 since;
	__u16 slot;

	if (!start) {
		issued = find_issued((__u64)rq);
		if (!issued)
			return issue_without_start((struct request *)number_of((__u64)rq), bpf_ktime_get_ns());
		/* Requeued: D is the last time it was issued. */
		issued->issue_ns = bpf_ktime_get_ns();
		return 0;
	}
	/* Once the wait has ended, its place may be that of another bio. */
	slot = start->slot;
	since = end_wait(start);
	return issue(rq, request_op(FIELD(trusted, rq, cmd_flags)), slot, since, bpf_ktime_get_ns());
}

/* Whether it was known. */
static __always_inline bool forget_start(__u64 bio)
{
	struct start *start = bio ? find_start(bio) : NULL;

	if (start)
		start->bio = 0;
	return start;
}

static __always_inline int on_request_merge(struct request *rq, bool trusted)
{
	forget_start((__u64)FIELD(trusted, rq, bio));
	return 0;
}

/* The number of bios that end with so many bytes. Global, with scalar arguments, so that it is verified once. */
__noinline int bios_within(__u64 request, __u32 bytes)
{
	struct request *rq = (void *)request;
	struct bio *bio = BPF_CORE_READ(rq, bio);
	int ended;

	for (ended = 0; ended < MERGES && bio; ended++) {
		__u32 size = BPF_CORE_READ(bio, bi_iter.bi_size);

		if (bytes < size)
			break;
		bytes -= size;
		bio = BPF_CORE_READ(bio, bi_next);
	}
	return ended;
}

/* The events of a request in flight, created with the first one. */
static __noinline struct life *life_of(struct request *rq)
{
	__u64 key = (__u64)rq;
	struct life fresh = {};
	struct life *life = bpf_map_lookup_elem(&lives, &key);

	if (life)
		return life;
	if (bpf_map_update_elem(&lives, &key, &fresh, BPF_NOEXIST))
		return NULL;
	COUNT(living);
	return bpf_map_lookup_elem(&lives, &key);
}

/* The row of a request that is traced. */
static __noinline struct block_cell *cell_of_request(struct request *rq)
{
	__u32 flags = BPF_CORE_READ(rq, cmd_flags);
	enum block_op op = request_op(flags);
	struct device_match match;
	__u32 dev = request_disk(rq, false);

	if (!dev)
		return NULL;
	match = find_device(dev, BPF_CORE_READ(rq, __sector), op == BLOCK_OP_FLUSH);
	if (!match.found)
		return NULL;
	/* Of another process, or issued before tracing began. */
	if (match.stateful && target_tgid && !find_issued((__u64)rq))
		return NULL;
	return cell_of(match.slot, op);
}

__noinline int complete_part(__u64 request, __u32 bytes, int error)
{
	struct request *rq = (void *)request;
	struct block_cell *cell = cell_of_request(rq);
	struct life *life;
	int ended;

	if (!cell)
		return 0;
	cell->events.parts++;
	life = life_of(rq);
	if (!life)
		return 0;
	life->bytes += bytes;
	if (error)
		life->error = error;
	ONE_MORE(life->events.parts);
	ended = bios_within(request, bytes);
	life->events.merged += ended;
	cell->events.merged += ended;
	return 0;
}

static __always_inline int on_request_requeue(struct request *rq, bool trusted)
{
	struct block_cell *cell = cell_of_request(rq);
	bool late = has_timed_out(rq);
	struct life *life;

	if (!cell)
		return 0;
	cell->events.requeues++;
	cell->events.timeouts += late;
	life = life_of(rq);
	if (!life)
		return 0;
	ONE_MORE(life->events.requeues);
	if (late)
		ONE_MORE(life->events.timeouts);
	return 0;
}

static __always_inline int on_bio_split(struct bio *bio, bool trusted)
{
	__u32 flags = FIELD(trusted, bio, bi_opf);
	struct device_match match;
	struct block_cell *cell;

	if (target_tgid && target_tgid != current_ids() >> 32)
		return 0;
	match = find_device(bio_disk(bio, trusted), FIELD(trusted, bio, bi_iter.bi_sector), false);
	if (!match.found)
		return 0;
	cell = cell_of(match.slot, request_op(flags));
	if (cell)
		cell->events.split++;
	return 0;
}

/* The end of a request that had events. */
static __noinline int end_life(struct request *rq, struct life *found)
{
	__u64 key = (__u64)rq;
	struct life *life = bpf_map_lookup_elem(&lives, &key);

	if (!life || !found)
		return 0;
	__builtin_memcpy(found, life, sizeof(*found));
	bpf_map_delete_elem(&lives, &key);
	__sync_fetch_and_add(&living, -1);
	return 0;
}

/* What a record says of a request. */
struct ended {
	__u64 now;
	__u64 queue;
	__u64 device;
	__u32 bytes;
	__u32 flags;
	enum block_op op;
	int error;
	__u16 slot;
	struct life life;
};

static __always_inline void fill(struct block_record *record, struct request *rq, bool trusted, struct ended *ended)
{
	record->end_ns = ended->now;
	record->sector = FIELD(trusted, rq, __sector) - (ended->life.bytes >> 9);
	record->queue_ns = ended->queue;
	record->device_ns = ended->device;
	record->bytes = ended->bytes;
	record->dev = request_disk(rq, trusted);
	record->flags = portable_flags(ended->flags);
	record->cpu = bpf_get_smp_processor_id();
	record->slot = ended->slot;
	record->error = ended->error;
	record->unused = 0;
	record->op = ended->op;
	record->events = ended->life.events;
}

static __always_inline void send(struct request *rq, bool trusted, struct ended *ended)
{
	struct block_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		COUNT(loss[BLOCK_CAUSE_RING_FULL]);
		return;
	}
	fill(record, rq, trusted, ended);
	record->number = 0;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

static __always_inline void keep(struct request *rq, bool trusted, struct ended *ended)
{
	struct block_record *record;
	__u32 number;

	note_slow(ended->queue + ended->device, ended->now);
	record = claim_record(&recorded, &number, &loss[BLOCK_CAUSE_UNRECORDED]);
	if (!record)
		return;
	fill(record, rq, trusted, ended);
	publish_record(&record->number, number);
}

static __always_inline void count(struct block_cell *cell, __u32 bytes, int error)
{
	cell->finished++;
	cell->bytes += bytes;
	if (error)
		cell->failed++;
}

/*
 * A sequence of flushes ends: its data and its flushes were requests of their own. Without data it was asked for alone.
 */
static __noinline int end_sequence(struct request *rq, __u16 slot, bool stateful)
{
	struct bio *bio = BPF_CORE_READ(rq, bio);
	struct block_cell *cell;

	if (!bio)
		return 0;
	if (stateful && !forget_start((__u64)bio) && target_tgid)
		return 0; /* somebody else's */
	/* No bytes left does not mean that it is done. A clone shares the pages and does not count them. */
	if (BPF_CORE_READ(bio, bi_io_vec) && (BPF_CORE_READ(bio, bi_vcnt) || BPF_CORE_READ(bio, bi_iter.bi_sector)))
		return 0;
	cell = cell_of(slot, BLOCK_OP_FLUSH);
	if (cell)
		cell->events.asked++;
	return 0;
}

/* A command to a disk that has rows. Kernels before 5.17 count it as a request of the disk. */
static __noinline int count_command(__u32 dev)
{
	struct device_match match = find_device(dev, 0, true);

	if (match.found && match.slot != UNLISTED_SLOT)
		COUNT(elsewhere);
	return 0;
}

/* Of a stateful device: issued before tracing began, of another process, or not timed. */
static __noinline int complete_without_start(__u16 slot, enum block_op op, __u32 bytes, int error)
{
	struct block_cell *cell;

	if (target_tgid)
		return 0;
	if (!stateless) {
		COUNT(loss[BLOCK_CAUSE_UNMATCHED_END]);
		return 0;
	}
	cell = cell_of(slot, op);
	if (cell) {
		COUNT(cell->started);
		count(cell, bytes, error);
		cell->untimed++;
	}
	if (recording)
		COUNT(loss[BLOCK_CAUSE_UNRECORDED]);
	return 0;
}

static __always_inline int on_request_complete(struct request *rq, int error, __u32 bytes, bool trusted)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 flags = FIELD(trusted, rq, cmd_flags);
	enum block_op op = request_op(flags);
	struct bio *first = FIELD(trusted, rq, bio), *last = FIELD(trusted, rq, biotail);
	__u64 key = (__u64)rq;
	struct issued *known = NULL;
	struct block_cell *cell;
	struct ended ended;
	struct life *life = &ended.life;
	__u64 start, issued;
	__u16 slot;
	bool timed;

	if (!tracing)
		return 0;
	if (bytes < FIELD(trusted, rq, __data_len))
		return complete_part(number_of(key), bytes, error);
	__builtin_memset(life, 0, sizeof(*life));
	if (living)
		end_life(rq, life);
	if (own_times)
		known = find_issued(key);
	if (known) {
		start = known->start_ns;
		issued = known->issue_ns;
		slot = known->slot;
		barrier();
		known->request = 0;
	} else {
		bool empty = !bytes && op <= BLOCK_OP_WRITE;
		struct device_match match;
		__u32 dev = request_disk(rq, trusted);

		if (!dev)
			return 0; /* a command to a controller, not to a disk */
		match = find_device(dev, FIELD(trusted, rq, __sector), op == BLOCK_OP_FLUSH || empty);
		/* A command, which has no sector, is on no disk. */
		if (op == BLOCK_OP_OTHER && match.slot == UNLISTED_SLOT)
			return count_command(dev);
		if (!match.found)
			return 0;
		slot = match.slot;
		if (empty)
			return end_sequence(rq, slot, match.stateful);
		if (match.stateful)
			return complete_without_start(slot, op, bytes, error);
		start = FIELD(trusted, rq, start_time_ns);
		issued = FIELD(trusted, rq, io_start_time_ns);
		/*
		 * Neither stamp is cleared when a request's memory is used again. Only with iostats is a request stamped
		 * when it is made, and then it has its partition (7.2 leaves an old stamp, others 0); the flush machinery
		 * stamps its own always. An issue before that is the previous request's.
		 */
		if (op != BLOCK_OP_FLUSH && !FIELD(trusted, rq, part))
			start = 0;
		if (issued < start)
			issued = 0;
	}
	cell = cell_of(slot, op);
	if (!cell)
		return 0;
	bytes += life->bytes;
	if (life->error)
		error = life->error;
	if (error && has_timed_out(rq)) {
		cell->events.timeouts++;
		ONE_MORE(life->events.timeouts);
	}
	if (first != last) {
		int others = bios_within(number_of(key), ~0U) - 1;

		life->events.merged += others;
		cell->events.merged += others;
	}
	count(cell, bytes, error);
	/* With a program at the start, this was decided there. */
	timed = !request_sample || (known && !target_tgid) || is_timed();
	if (!timed) {
		cell->untimed++;
		if (!recording)
			return 0;
	}
	if (!start || !issued) {
		if (timed)
			COUNT(loss[BLOCK_CAUSE_NO_STAMP]);
		if (recording)
			COUNT(loss[BLOCK_CAUSE_UNRECORDED]);
		return 0;
	}
	/* Clocks of two CPUs may differ by some cycles. */
	ended.queue = issued > start ? issued - start : 0;
	ended.device = now > issued ? now - issued : 0;
	ended.now = now;
	ended.bytes = bytes;
	ended.flags = flags;
	ended.op = op;
	ended.error = error;
	ended.slot = slot;
	if (recording)
		keep(rq, trusted, &ended);
	if (!timed)
		return 0;
	if (ended.queue) {
		hist_add_short(cell, &cell->stages[BLOCK_STAGE_QUEUE], ended.queue, false);
		hist_add_short(cell, &cell->stages[BLOCK_STAGE_DEVICE], ended.device, false);
		hist_add_short(cell, &cell->stages[BLOCK_STAGE_TOTAL], ended.queue + ended.device, false);
	} else { /* from 6.9 on the stamps of a plugged request are one */
		hist_add_short(cell, &cell->stages[BLOCK_STAGE_AT_ONCE], ended.device, false);
	}
	if (ended.queue + ended.device >= slow_ns || (sample && has_record()))
		send(rq, trusted, &ended);
	return 0;
}

TRACEPOINT(complete, block_rq_complete, on_request_complete((void *)ctx[0], ctx[1], ctx[2], trusted))
TRACEPOINT(issue, block_rq_issue, on_request_issue(FIRST_OR_SECOND(ctx, request_is_second), trusted))
TRACEPOINT(getrq, block_getrq, on_request_alloc(FIRST_OR_SECOND(ctx, bio_is_second), trusted))
TRACEPOINT(merge, block_rq_merge, on_request_merge(FIRST_OR_SECOND(ctx, request_is_second), trusted))
TRACEPOINT(requeue, block_rq_requeue, on_request_requeue(FIRST_OR_SECOND(ctx, request_is_second), trusted))
TRACEPOINT(split, block_split, on_bio_split(FIRST_OR_SECOND(ctx, bio_is_second), trusted))

char LICENSE[] SEC("license") = "Dual BSD/GPL";
