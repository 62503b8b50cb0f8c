// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * How large requests are, and which of them begin where the one before ended.
 *
 * They are counted when they are issued: their order is that of the device, and their size is complete,
 * while one that completes in parts has the size of each part.
 */
#include "lib/wptrace.h"
#include "lib/arguments.h"
#include "lib/block.h"
#include "lib/tracepoint.h"

#define SECTOR_SHIFT 9

enum size_cause {
	SIZE_CAUSE_NO_CELL,
	SIZE_CAUSE_NO_PLACE,
	SIZE_CAUSE_REQUEUES_FULL,
	SIZE_CAUSES,
};
EXPORT_ENUM(size_cause);
EXPORT_ENUM(block_op);

/* How many requests had one size, exactly. They wrap; the reader takes differences. */
struct size_place {
	__u32 key; /* the size and 1; 0: free */
	__u32 random;
	__u32 sequential;
};

#define PLACES 512
#define PLACE_SHIFT (32 - 9) /* as many bits as it takes to count the places */
#define PLACE_PROBES 32

/* One per device and operation, and CPU: an open-addressed table by size. */
struct size_cell {
	__u64 unplaced; /* requests whose size found no place */
	__u64 unplaced_bytes;
	struct size_place places[PLACES];
};

const struct size_place *export_size_place __attribute__((unused));

EACH_CPU(cells, struct size_cell, BLOCK_OPS);

/*
 * Where the last request of a device and operation ended, and 1; 0: there was none. CPUs share it, as the device has one
 * head (or one queue) for all of them; two that issue at the same moment have no order anyway.
 */
#define STREAMS ((DEVICES / 2 + 1) * BLOCK_OPS)
__u64 ends[STREAMS];

/* Requests that were issued and requeued, by the sector that they will be issued with again. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} requeued SEC(".maps");

/* The number of its entries, so that the lookup can be skipped while there are none. */
__u64 requeues;
__u64 loss[SIZE_CAUSES];

const volatile bool request_is_second;

/* A request that is issued again has been counted. Memory that another request uses by now begins elsewhere. */
static __always_inline bool seen_before(struct request *rq, __u64 sector)
{
	__u64 key = (__u64)rq;
	__u64 *found = bpf_map_lookup_elem(&requeued, &key);
	__u64 expected;

	if (!found)
		return false;
	expected = *found;
	if (!bpf_map_delete_elem(&requeued, &key))
		__sync_fetch_and_add(&requeues, -1);
	return expected == sector;
}

static __always_inline void count(struct size_cell *cell, __u32 bytes, bool sequential)
{
	__u32 key = bytes + 1;
	/* Sizes are multiples of sectors and mostly of pages: the factor spreads those over the upper bits. */
	__u32 at = (key * 0x9e3779b1u) >> PLACE_SHIFT;
	int probe;

#pragma clang loop unroll(disable)
	for (probe = 0; probe < PLACE_PROBES; probe++) {
		struct size_place *place = &cell->places[(at + probe) & (PLACES - 1)];

		if (place->key != key) {
			if (place->key)
				continue;
			place->key = key;
		}
		if (sequential)
			place->sequential++;
		else
			place->random++;
		return;
	}
	cell->unplaced++;
	cell->unplaced_bytes += bytes;
	COUNT(loss[SIZE_CAUSE_NO_PLACE]);
}

static __always_inline int on_request_issue(struct request *rq, bool trusted)
{
	enum block_op op = request_op(FIELD(trusted, rq, cmd_flags));
	__u64 sector = FIELD(trusted, rq, __sector);
	__u32 bytes = FIELD(trusted, rq, __data_len);
	__u32 dev = request_disk(rq, trusted);
	struct device_match match;
	struct size_cell *cell;
	bool sequential;
	__u32 key;

	if (!dev)
		return 0; /* a command to a controller, not to a disk */
	match = find_device(dev, sector, op == BLOCK_OP_FLUSH);
	/* A command, which has no sector, is on no disk. */
	if (!match.found || (match.slot == UNLISTED_SLOT && op == BLOCK_OP_OTHER) ||
	    (requeues && seen_before(rq, sector)))
		return 0;
	key = match.slot * BLOCK_OPS + op;
	cell = bpf_map_lookup_elem(&cells, &key);
	if (!cell || key >= STREAMS) {
		COUNT(loss[SIZE_CAUSE_NO_CELL]);
		return 0;
	}
	sequential = ends[key] == sector + 1;
	ends[key] = sector + 1 + (bytes >> SECTOR_SHIFT);
	count(cell, bytes, sequential);
	return 0;
}

static __always_inline int on_request_requeue(struct request *rq, bool trusted)
{
	__u64 sector = FIELD(trusted, rq, __sector);
	__u64 key = (__u64)rq;

	/* The driver had no room and did not start it: it has not been issued. */
	if (!FIELD(trusted, rq, state))
		return 0;
	if (!find_device(request_disk(rq, trusted), sector, true).found)
		return 0;
	if (!bpf_map_update_elem(&requeued, &key, &sector, BPF_NOEXIST))
		COUNT(requeues);
	else if (bpf_map_update_elem(&requeued, &key, &sector, BPF_EXIST))
		COUNT(loss[SIZE_CAUSE_REQUEUES_FULL]);
	return 0;
}

TRACEPOINT(issue, block_rq_issue, on_request_issue(FIRST_OR_SECOND(ctx, request_is_second), trusted))
TRACEPOINT(requeue, block_rq_requeue, on_request_requeue(FIRST_OR_SECOND(ctx, request_is_second), trusted))

char LICENSE[] SEC("license") = "Dual BSD/GPL";
