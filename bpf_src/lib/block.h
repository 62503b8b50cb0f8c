/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Block devices, requests and bios, whatever the kernel. Needs `wptrace.h` first. */
#ifndef WPT_BLOCK_H
#define WPT_BLOCK_H

#define MINOR_BITS 20 /* of the kernel's own dev_t */

/*
 * Gone by commit f3fa33acca9f ("block: remove the ->rq_disk field in struct request", v5.17). The queue knows its disk
 * since commit d152c682f03c ("block: add an explicit ->disk backpointer to the request_queue", v5.15).
 */
struct request___with_disk {
	struct gendisk *rq_disk;
} __attribute__((preserve_access_index));

/* Replaced by bi_bdev in commit 309dca309fc3 ("block: store a block_device pointer in struct bio", v5.12). */
struct bio___with_disk {
	struct gendisk *bi_disk;
} __attribute__((preserve_access_index));

static __always_inline __u32 disk_number(struct gendisk *disk, bool trusted)
{
	if (!disk)
		return 0; /* an admin queue, or a disk that is going away */
	return (__u32)FIELD(trusted, disk, major) << MINOR_BITS | (__u32)FIELD(trusted, disk, first_minor);
}

static __always_inline __u32 request_disk(struct request *rq, bool trusted)
{
	struct request___with_disk *old = (void *)rq;
	struct request_queue *queue;

	if (bpf_core_field_exists(old->rq_disk))
		return disk_number(FIELD(trusted, old, rq_disk), trusted);
	queue = FIELD(trusted, rq, q);
	return disk_number(FIELD(trusted, queue, disk), trusted);
}

/*
 * Read it once: for each pointer that is read from an argument, and each path to there, the verifier goes through all types
 * of the kernel several times, which takes a millisecond or more, from
 * commit 57539b1c0ac2 ("bpf: Enable annotating trusted nested pointers", v6.3) to
 * commit 8c3070e159ba ("btf: Optimize type lookup with binary search", v7.0).
 */
static __always_inline struct gendisk *disk_of_bio(struct bio *bio, bool trusted)
{
	struct bio___with_disk *old = (void *)bio;
	struct block_device *device;

	if (bpf_core_field_exists(old->bi_disk))
		return FIELD(trusted, old, bi_disk);
	device = FIELD(trusted, bio, bi_bdev);
	return device ? FIELD(trusted, device, bd_disk) : NULL;
}

static __always_inline __u32 bio_disk(struct bio *bio, bool trusted)
{
	return disk_number(disk_of_bio(bio, trusted), trusted);
}

/* The operations that rows distinguish. */
enum block_op {
	BLOCK_OP_READ,
	BLOCK_OP_WRITE,
	BLOCK_OP_FLUSH,
	BLOCK_OP_DISCARD,
	BLOCK_OP_ZEROES, /* the device writes zeroes itself */
	BLOCK_OP_ZONE, /* a zone is opened, closed, finished or reset */
	BLOCK_OP_OTHER,
	BLOCK_OPS,
};

/* Renamed by commit ff07a02e9e8e ("treewide: Rename enum req_opf into enum req_op", v6.0). */
enum req_opf___before {
	REQ_OP_SECURE_ERASE___before,
	REQ_OP_ZONE_APPEND___before,
	REQ_OP_WRITE_ZEROES___before,
	REQ_OP_ZONE_OPEN___before,
	REQ_OP_ZONE_CLOSE___before,
	REQ_OP_ZONE_FINISH___before,
	REQ_OP_ZONE_RESET___before,
	REQ_OP_ZONE_RESET_ALL___before,
};

#define IS_REQUEST_OP(op, name) \
	(bpf_core_enum_value_exists(enum req_op, REQ_OP_##name) \
		 ? (op) == bpf_core_enum_value(enum req_op, REQ_OP_##name) \
		 : (op) == bpf_core_enum_value(enum req_opf___before, REQ_OP_##name##___before))

/* The others have numbers that differ between kernels. Global, so that nothing follows its result back in here. */
__noinline __u32 rare_op(__u32 op)
{
	if (IS_REQUEST_OP(op, WRITE_ZEROES))
		return BLOCK_OP_ZEROES;
	if (IS_REQUEST_OP(op, ZONE_APPEND))
		return BLOCK_OP_WRITE;
	if (IS_REQUEST_OP(op, SECURE_ERASE))
		return BLOCK_OP_DISCARD;
	if (IS_REQUEST_OP(op, ZONE_OPEN) || IS_REQUEST_OP(op, ZONE_CLOSE) || IS_REQUEST_OP(op, ZONE_FINISH) ||
	    IS_REQUEST_OP(op, ZONE_RESET) || IS_REQUEST_OP(op, ZONE_RESET_ALL))
		return BLOCK_OP_ZONE;
	return BLOCK_OP_OTHER;
}

/*
 * The low 8 bits of cmd_flags; 0 to 3 are read, write, flush and discard on every kernel since
 * commit ef295ecf090d ("block: better op and flags encoding", v4.10).
 */
static __always_inline enum block_op request_op(__u32 cmd_flags)
{
	__u32 op = cmd_flags & 0xff;

	return op <= BLOCK_OP_DISCARD ? op : rare_op(op);
}

/* RQF_TIMED_OUT: a macro before 6.12, then a value of an enum without a name, which only Python finds. */
const volatile __u8 timed_out_bit = 21;

/* Whether the driver's timeout ran out for it. */
static __always_inline bool has_timed_out(struct request *rq)
{
	__u32 flags = BPF_CORE_READ(rq, rq_flags);

	return flags >> timed_out_bit & 1;
}

/* Counts of uncommon events of a request. */
struct event_counts {
	__u64 merged; /* other bios went with it */
	__u64 split; /* splits of its bio */
	__u64 requeues; /* it was requeued and issued again */
	__u64 parts; /* it completed so many times before its end */
	__u64 timeouts;
	__u64 asked; /* of flushes: bios that asked for one and had no data, which the kernel counts as writes */
};

/* The same of a single request, in few bytes. */
struct events {
	__u16 merged;
	__u8 split;
	__u8 requeues;
	__u8 parts;
	__u8 timeouts;
	__u8 below; /* event_below: no event of its own, but as rare */
	__u8 inline_; /* of the path level, set last: completed by its own task while that made it */
};

enum event_below {
	EVENT_BELOW = 1, /* a stacked device made it of another one */
	EVENT_SAME_BIO = 2, /* such a device sent on the bio that it got */
	EVENT_UNDIVIDED = 4, /* its issue was not seen, and has no stamp */
};
EXPORT_ENUM(event_below);

/* A single request's counts are small, and stay at their end. */
#define SEVERAL 255
#define ONE_MORE(counter) ((counter) += (counter) < SEVERAL)

/* Of those at a place of eight bytes, which are read at once. */
static __always_inline bool has_events(const struct events *events)
{
	__u64 all;

	_Static_assert(sizeof(*events) == sizeof(all), "they are one word");
	__builtin_memcpy(&all, __builtin_assume_aligned(events, sizeof(all)), sizeof(all));
	return all;
}

#define MERGES 256 /* bios in a request; more are not looked at */

/* The flags that the rwbs letters show. Their bits differ between kernels, so records carry ours. */
enum block_flag {
	BLOCK_FLAG_SYNC,
	BLOCK_FLAG_META,
	BLOCK_FLAG_FUA,
	BLOCK_FLAG_PREFLUSH,
	BLOCK_FLAG_RAHEAD,
};

#define PORTABLE_FLAG(flags, name) \
	(((flags) >> bpf_core_enum_value(enum req_flag_bits, __REQ_##name) & 1) << BLOCK_FLAG_##name)

static __always_inline __u32 portable_flags(__u32 flags)
{
	return PORTABLE_FLAG(flags, SYNC) | PORTABLE_FLAG(flags, META) | PORTABLE_FLAG(flags, FUA) |
	       PORTABLE_FLAG(flags, PREFLUSH) | PORTABLE_FLAG(flags, RAHEAD);
}

/*
 * Tables by the number of a device, which Python fills (wptrace/engine/devices.py): a search begins where the hash
 * says, and ends behind so many places.
 */
CONSTANT(DEVICE_HASH, 0x9e3779b1);
CONSTANT(DEVICE_PROBES, 16);

static __always_inline __u32 device_place(__u32 dev, __u32 places)
{
	return dev * DEVICE_HASH >> (32 - __builtin_ctz(places));
}

/*
 * The devices to trace, an open-addressed table by disk number. A partition is a range of sectors on its disk, which
 * holds on every kernel, also where a request does not know its partition (iostats off).
 */
#define DEVICES 256

struct device_entry {
	__u32 dev; /* 0: free */
	__u16 slot; /* row group in the cells */
	__u16 stateful; /* the kernel's stamps do not hold here: keep own times */
	__u64 first; /* sectors */
	__u64 end;
};

struct device_entry devices[DEVICES];

/* Row group of the devices that the table does not name; none when the user asked for certain devices. */
bool trace_unlisted;
#define UNLISTED_SLOT 0

struct device_match {
	__u16 slot;
	bool found;
	bool stateful;
};

static __always_inline bool is_on(struct device_entry *entry, __u32 dev, __u64 sector, bool any_sector)
{
	/* A free entry has no sectors. */
	return entry->dev == dev && (any_sector ? dev != 0 : sector >= entry->first && sector < entry->end);
}

/* The place of an entry that is not where the hash says, or DEVICES. Global: verified once. */
__noinline __u32 displaced_device(__u32 dev, __u64 sector, bool any_sector)
{
	__u32 at = device_place(dev, DEVICES), probe;

	for (probe = 0; probe < DEVICE_PROBES; probe++) {
		struct device_entry *entry = &devices[(at + probe) & (DEVICES - 1)];

		if (!entry->dev)
			break;
		if (is_on(entry, dev, sector, any_sector))
			return (at + probe) & (DEVICES - 1);
	}
	return DEVICES;
}

static __always_inline struct device_match find_device(__u32 dev, __u64 sector, bool any_sector)
{
	struct device_match match = {.slot = UNLISTED_SLOT};
	__u32 at = device_place(dev, DEVICES);
	struct device_entry *entry = COMPUTED(&devices[at]);

	if (!is_on(entry, dev, sector, any_sector)) {
		at = displaced_device(dev, sector, any_sector);
		if (at >= DEVICES) {
			match.found = trace_unlisted;
			return match;
		}
		entry = COMPUTED(&devices[at]);
	}
	match.slot = entry->slot;
	match.stateful = entry->stateful;
	match.found = true;
	return match;
}

#endif
