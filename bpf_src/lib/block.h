/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Block devices, requests and bios, whatever the kernel. Needs `wptrace.h` first. */
#ifndef WPT_BLOCK_H
#define WPT_BLOCK_H

#define MINOR_BITS 20 /* of the kernel's own dev_t */

/* 5.17 (f3fa33acca9f) took rq_disk away: the queue knows its disk since 5.15 (d152c682f03c). */
struct request___with_disk {
	struct gendisk *rq_disk;
} __attribute__((preserve_access_index));

/* 5.12 (309dca309fc3) replaced bi_disk and bi_partno by bi_bdev. */
struct bio___with_disk {
	struct gendisk *bi_disk;
} __attribute__((preserve_access_index));

static __always_inline __u32 disk_number(struct gendisk *disk, bool direct)
{
	if (!disk)
		return 0; /* an admin queue, or a disk that is going away */
	return (__u32)FIELD(direct, disk, major) << MINOR_BITS | (__u32)FIELD(direct, disk, first_minor);
}

static __always_inline __u32 request_disk(struct request *rq, bool direct)
{
	struct request___with_disk *old = (void *)rq;
	struct request_queue *queue;

	if (bpf_core_field_exists(old->rq_disk))
		return disk_number(FIELD(direct, old, rq_disk), direct);
	queue = FIELD(direct, rq, q);
	return disk_number(FIELD(direct, queue, disk), direct);
}

static __always_inline __u32 bio_disk(struct bio *bio, bool direct)
{
	struct bio___with_disk *old = (void *)bio;
	struct block_device *device;

	if (bpf_core_field_exists(old->bi_disk))
		return disk_number(FIELD(direct, old, bi_disk), direct);
	device = FIELD(direct, bio, bi_bdev);
	if (!device)
		return 0;
	return disk_number(FIELD(direct, device, bd_disk), direct);
}

static __always_inline struct request_queue *bio_queue(struct bio *bio, bool direct)
{
	struct bio___with_disk *old = (void *)bio;
	struct gendisk *disk;

	if (bpf_core_field_exists(old->bi_disk)) {
		disk = FIELD(direct, old, bi_disk);
	} else {
		struct block_device *device = FIELD(direct, bio, bi_bdev);

		disk = FIELD(direct, device, bd_disk);
	}
	return FIELD(direct, disk, queue);
}

/* The operations that rows tell apart. */
enum block_op {
	BLOCK_OP_READ,
	BLOCK_OP_WRITE,
	BLOCK_OP_FLUSH,
	BLOCK_OP_DISCARD,
	BLOCK_OP_OTHER,
	BLOCK_OPS,
};

/* The low 8 bits of cmd_flags; 0 to 3 are read, write, flush and discard on every kernel since 4.10 (ef295ecf090d). */
static __always_inline enum block_op request_op(__u32 cmd_flags)
{
	__u32 op = cmd_flags & 0xff;

	return op < BLOCK_OP_OTHER ? op : BLOCK_OP_OTHER;
}

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
 * The devices to trace, an open-addressed table by disk number. A partition is a range of sectors on its disk, which
 * holds on every kernel, also where a request does not know its partition (iostats off).
 */
#define DEVICES 256
#define DEVICE_PROBES 16

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

static __always_inline struct device_match find_device(__u32 dev, __u64 sector, bool any_sector)
{
	struct device_match match = {};
	/* Also in wptrace/flows/io_block.py. */
	__u32 at = (dev * 0x9e3779b1u) >> 24;
	int probe;

	for (probe = 0; probe < DEVICE_PROBES; probe++) {
		struct device_entry *entry = &devices[(at + probe) & (DEVICES - 1)];

		if (!entry->dev)
			break;
		if (entry->dev == dev && (any_sector || (sector >= entry->first && sector < entry->end))) {
			match.slot = entry->slot;
			match.stateful = entry->stateful;
			match.found = true;
			return match;
		}
	}
	match.slot = UNLISTED_SLOT;
	match.found = trace_unlisted;
	return match;
}

#endif
