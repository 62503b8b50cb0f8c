// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which stacks start block I/O: how much, and how long it takes.
 *
 * An I/O here is a bio that got a request (G) or was merged into one. Its state is kept by the bio, so a merged one is
 * charged to the stack that merged it, and a merge of two requests needs no attention: when a request completes (C),
 * all of its bios are at hand.
 */
#include "lib/wptrace.h"
#include "lib/arguments.h"
#include "lib/block.h"
#include "lib/filter.h"
#include "lib/hist.h"
#include "lib/tracepoint.h"
#include "lib/stack_id.h"
#include "lib/table.h"

enum stacks_cause {
	STACKS_CAUSE_STATE_FULL,
	STACKS_CAUSE_NO_CELL,
	STACKS_CAUSE_UNMATCHED_START,
	STACKS_CAUSE_UNMATCHED_END,
	STACKS_CAUSE_NO_STACK,
	STACKS_CAUSE_LONG_CHAIN,
	STACKS_CAUSES,
};
EXPORT_ENUM(stacks_cause);
EXPORT_ENUM(block_op);

/* The row of an I/O. */
struct stack_key {
	__s32 kernel; /* of the stack; below 0: there is none */
	__s32 user;
	__u32 tgid; /* only with user stacks, whose addresses mean nothing without it */
	__u16 slot;
	__u16 op;
};

struct io {
	__u64 bio; /* 0: free */
	__u64 start_ns;
	struct stack_key key;
	__u32 bytes;
	bool crowded;
};

#define IO_BITS 14
CONSTANT(IOS, 1 << IO_BITS);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IOS);
	__type(key, __u32);
	__type(value, struct io);
} ios SEC(".maps");

static __always_inline struct io *io_at(__u32 place)
{
	place &= IOS - 1;
	return bpf_map_lookup_elem(&ios, &place);
}

PLAIN_TABLE(io, struct io, bio, IO_BITS, 16)

/* Shared by all CPUs, as per-CPU rows would take too much memory, so it is updated with atomics. */
struct stack_cell {
	__u64 bytes;
	__u64 count;
	__u64 sum;
	__u64 min; /* of the two CPUs that set an extreme at the same moment, one may win with the lesser one */
	__u64 max;
	__u64 slots[HIST_SLOTS];
};

const struct stack_cell no_io;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct stack_key);
	__type(value, struct stack_cell);
} cells SEC(".maps");

struct totals {
	__u64 started;
	__u64 finished;
};

EACH_CPU(totals, struct totals, 1);

/* A process is reported when it is first seen, so that its memory maps can be read while it lives. */
struct process_record {
	__u32 tgid;
	char comm[16];
};

const struct process_record *export_process_record __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8);
} processes SEC(".maps");

RING(records);

/* A shorter I/O is counted, but not charged to its stack. */
__u64 min_ns;
__u64 loss[STACKS_CAUSES];

const volatile bool with_user;
const volatile bool bio_is_second;
const volatile bool bio_is_third;

static __always_inline struct totals *totals_here(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static __always_inline void meet(__u32 tgid)
{
	struct process_record *record;
	__u8 known = 1;

	if (bpf_map_lookup_elem(&processes, &tgid) || bpf_map_update_elem(&processes, &tgid, &known, BPF_NOEXIST))
		return;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		/* Its next I/O may find room. */
		bpf_map_delete_elem(&processes, &tgid);
		return;
	}
	record->tgid = tgid;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

static __always_inline int on_io_start(void *ctx, struct bio *bio, bool trusted)
{
	__u32 bytes = FIELD(trusted, bio, bi_iter.bi_size);
	__u32 flags = FIELD(trusted, bio, bi_opf);
	struct device_match match;
	struct totals *counts;
	struct stack_key key;
	struct io *io;
	__u32 place;

	match = find_device(bio_disk(bio, trusted), FIELD(trusted, bio, bi_iter.bi_sector), !bytes);
	if (!match.found || !task_matches())
		return 0;
	counts = totals_here();
	if (!counts)
		return 0;
	COUNT(counts->started);
	key.slot = match.slot;
	/* A flush comes as an empty write. */
	key.op = bytes || request_op(flags) != BLOCK_OP_WRITE ? request_op(flags) : BLOCK_OP_FLUSH;
	/* The end function of a bio shows who made it. */
	key.kernel = kernel_stack_id(ctx, (void *)FIELD(trusted, bio, bi_end_io), flags);
	key.user = -1;
	key.tgid = 0;
	if (key.kernel < 0)
		COUNT(loss[STACKS_CAUSE_NO_STACK]);
	if (with_user) {
		key.tgid = bpf_get_current_pid_tgid() >> 32;
		key.user = walked_stack_id(ctx, BPF_F_USER_STACK);
		meet(key.tgid);
	}
	io = find_io((__u64)bio);
	if (io)
		/* Its memory was used by another one, whose end was not seen. */
		COUNT(loss[STACKS_CAUSE_UNMATCHED_START]);
	else
		io = claim_io((__u64)bio, &place);
	if (!io) {
		COUNT(loss[STACKS_CAUSE_STATE_FULL]);
		return 0;
	}
	io->key = key;
	io->bytes = bytes;
	io->start_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline struct stack_cell *cell_of(struct stack_key *key)
{
	struct stack_cell *cell = bpf_map_lookup_elem(&cells, key);

	if (cell)
		return cell;
	bpf_map_update_elem(&cells, key, &no_io, BPF_NOEXIST);
	return bpf_map_lookup_elem(&cells, key);
}

static __always_inline void charge(struct stack_cell *cell, __u32 bytes, __u64 latency)
{
	__u64 index = hist_index(latency);

	if (!cell->count || latency < cell->min)
		cell->min = latency;
	if (latency > cell->max)
		cell->max = latency;
	__sync_fetch_and_add(&cell->count, 1);
	__sync_fetch_and_add(&cell->sum, latency);
	__sync_fetch_and_add(&cell->bytes, bytes);
	if (index < HIST_SLOTS)
		__sync_fetch_and_add(&cell->slots[index], 1);
}

/* A function of its own, so that the verifier goes through it once and not for every bio that a request can have. */
__noinline int finish(__u64 bio, __u64 now)
{
	struct totals *counts = totals_here();
	struct io *found = find_io(bio);
	struct stack_cell *cell;
	struct stack_key key;
	__u64 latency;
	__u32 bytes;

	if (!found || !counts) { /* started before tracing began, or somebody else's */
		if (!filter_task)
			COUNT(loss[STACKS_CAUSE_UNMATCHED_END]);
		return 0;
	}
	key = found->key;
	bytes = found->bytes;
	/* Clocks of two CPUs may differ by some cycles. */
	latency = now > found->start_ns ? now - found->start_ns : 0;
	barrier();
	found->bio = 0;
	if (latency < min_ns) {
		counts->finished++;
		return 0;
	}
	cell = cell_of(&key);
	if (!cell) {
		COUNT(loss[STACKS_CAUSE_NO_CELL]);
		return 0;
	}
	counts->finished++;
	charge(cell, bytes, latency);
	return 0;
}

/* So many bios of a page make 1,280 KiB. Of a request with more, those are counted that are left out (LONG_CHAIN). */
#define BIOS 320
/* Operations from here on are passed through by a caller that makes requests itself, without G. */
#define PASSED_THROUGH 32

static __always_inline int on_request_complete(struct request *rq, __u32 bytes, bool trusted)
{
	struct bio *bio = BPF_CORE_READ(rq, bio); /* by copy, which makes it a number: `finish` takes no pointers */
	__u32 left = bytes;
	__u64 now;
	__u32 dev;
	int place;

	if (!bio || (FIELD(trusted, rq, cmd_flags) & 0xff) >= PASSED_THROUGH)
		return 0;
	dev = request_disk(rq, trusted);
	if (!dev || !find_device(dev, FIELD(trusted, rq, __sector), !bytes).found)
		return 0;
	/* The data of a write with flushes is written. The write ends when this completes once more, without bytes. */
	if (bytes && FIELD(trusted, rq, end_io))
		return 0;
	now = bpf_ktime_get_ns();
#pragma clang loop unroll(disable)
	for (place = 0; place < BIOS; place++) {
		__u32 size = BPF_CORE_READ(bio, bi_iter.bi_size);

		if (size > left)
			return 0; /* completed in part: the rest is still with the device */
		left -= size;
		finish((__u64)bio, now);
		bio = BPF_CORE_READ(bio, bi_next);
		if (!bio)
			return 0;
	}
	COUNT(loss[STACKS_CAUSE_LONG_CHAIN]);
	return 0;
}

TRACEPOINT(complete, block_rq_complete, on_request_complete((void *)ctx[0], ctx[2], trusted))
TRACEPOINT(getrq, block_getrq, on_io_start(ctx, FIRST_OR_SECOND(ctx, bio_is_second), trusted))
TRACEPOINT(backmerge, block_bio_backmerge, on_io_start(ctx, FIRST_OR_THIRD(ctx, bio_is_third), trusted))
TRACEPOINT(frontmerge, block_bio_frontmerge, on_io_start(ctx, FIRST_OR_THIRD(ctx, bio_is_third), trusted))

char LICENSE[] SEC("license") = "Dual BSD/GPL";
