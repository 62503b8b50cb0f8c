/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Disks without a device number in sysfs, since they cannot be opened: the paths of an NVMe multipath. They are found by
 * name. Only the multipath head sends bios to them, so only its bios are looked up here.
 */
#ifndef WPT_PATH_HIDDEN_H
#define WPT_PATH_HIDDEN_H

#include "lib/wptrace.h"
#include "lib/block.h"

#define HIDDEN 32
#define DISK_NAME_BYTES 32 /* DISK_NAME_LEN */

struct hidden_disk {
	__u32 slot; /* 0: free */
	__u32 unused;
	char name[DISK_NAME_BYTES];
};

struct hidden_disk hidden_disks[HIDDEN];

/* The slot of its disk, or UNLISTED_SLOT. Global, with a scalar argument: its loop is verified once. */
__noinline __u32 hidden_slot(__u64 request)
{
	struct request___with_disk *old = (void *)request;
	struct request *rq = (void *)request;
	__u64 name[DISK_NAME_BYTES / 8] = {};
	struct gendisk *disk;
	__u32 place;

	if (bpf_core_field_exists(old->rq_disk))
		disk = BPF_CORE_READ(old, rq_disk);
	else
		disk = BPF_CORE_READ(rq, q, disk);
	bpf_probe_read_kernel_str(name, sizeof(name), disk->disk_name);
	for (place = 0; place < HIDDEN; place++) {
		struct hidden_disk *hidden = &hidden_disks[place];
		const __u64 *other = (void *)hidden->name;

		if (!hidden->slot)
			break;
		if (name[0] == other[0] && name[1] == other[1] && name[2] == other[2] && name[3] == other[3])
			return hidden->slot;
	}
	return UNLISTED_SLOT;
}

/* As find_device, where the disk may be hidden. */
static __always_inline struct device_match find_any_device(struct request *rq, __u32 dev, __u64 sector, bool any_sector)
{
	struct device_match match = find_device(dev, sector, any_sector);

	if (hidden_disks[0].slot && match.slot == UNLISTED_SLOT) {
		match.slot = hidden_slot(number_of((__u64)rq));
		match.found |= match.slot != UNLISTED_SLOT;
	}
	return match;
}

#endif
