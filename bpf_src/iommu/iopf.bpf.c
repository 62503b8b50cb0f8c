// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * I/O page faults: a device that uses a process's addresses meets a page that is not there, and waits.
 *
 * The driver of the IOMMU reports each page to the kernel (R). Pages may come in groups, of which the last one asks for
 * the answer. The kernel handles the group (H), and answers the device (A). Three sources report it: tracepoints of the
 * SMMU that some kernels have, the functions of the kernel's own queue, and tracepoints of Intel's IOMMU.
 */
#include "lib/wptrace.h"
#include "lib/hist.h"

#define DEVICE_NAME 32

enum iopf_stage {
	IOPF_STAGE_GATHER, /* the first page of a group to its last */
	IOPF_STAGE_QUEUE, /* the last page to H */
	IOPF_STAGE_HANDLE, /* H to A; from the last page where H is not seen */
	IOPF_STAGE_TOTAL,
	IOPF_STAGES,
};
EXPORT_ENUM(iopf_stage);

enum iopf_cause {
	IOPF_CAUSE_NO_ROW,
	IOPF_CAUSE_UNMATCHED_END,
	IOPF_CAUSES,
};
EXPORT_ENUM(iopf_cause);

/* The key of a fault, or a group of them, until it is answered. */
struct iopf_key {
	__u64 device;
	__u32 pasid;
	__u32 group;
};

struct iopf_state {
	__u64 first_ns;
	__u64 last_ns; /* 0: the group is not complete */
	__u64 handled_ns;
	__u64 address;
	__u32 faults;
	__u32 pasid;
	char dev[DEVICE_NAME];
};

CONSTANT(NO_PASID, 0xffffffff);

/* The key of figures: no pointer, because the memory of a removed device is reused. */
struct iopf_row {
	char dev[DEVICE_NAME];
	__u32 pasid;
};

struct iopf_cell {
	__u64 started;
	__u64 finished;
	__u64 failed;
	__u64 faults; /* pages, of the finished */
	__u64 refused;
	__u64 replaced;
	__u64 unfollowed; /* the table of what is pending had no room */
	struct hist stages[IOPF_STAGES];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct iopf_key);
	__type(value, struct iopf_state);
} pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct iopf_row);
	__type(value, struct iopf_cell);
} cells SEC(".maps");

/* A cell is larger than the stack. */
EACH_CPU(blank, struct iopf_cell, 1);

/* Only for kprobes: the report of a thread, until the kernel has accepted or refused it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct iopf_key);
} reports SEC(".maps");

__u64 loss[IOPF_CAUSES];

/* --- Figures ---------------------------------------------------------------------------------------------------------- */

/* The row of what found no room of its own has no name. */
static __always_inline struct iopf_cell *cell_of(struct iopf_row *row)
{
	struct iopf_cell *cell = bpf_map_lookup_elem(&cells, row);
	struct iopf_row other = {};
	__u32 zero = 0;

	if (cell)
		return cell;
	cell = bpf_map_lookup_elem(&blank, &zero);
	if (!cell)
		return 0;
	bpf_map_update_elem(&cells, row, cell, BPF_NOEXIST);
	cell = bpf_map_lookup_elem(&cells, row);
	if (cell)
		return cell;
	COUNT(loss[IOPF_CAUSE_NO_ROW]);
	return bpf_map_lookup_elem(&cells, &other);
}

static __always_inline struct iopf_cell *cell_of_state(struct iopf_state *state)
{
	struct iopf_row row = {};

	__builtin_memcpy(row.dev, state->dev, sizeof(row.dev));
	row.pasid = state->pasid;
	return cell_of(&row);
}

static __noinline void answered(struct iopf_key *key, struct iopf_state *state, bool failed, __u64 now)
{
	__u64 last = state->last_ns ? state->last_ns : now;
	__u64 handled = state->handled_ns ? state->handled_ns : last;
	struct iopf_cell *cell = cell_of_state(state);
	__u64 gather, queue, handle;

	if (cell) {
		gather = last > state->first_ns ? last - state->first_ns : 0;
		queue = handled > last ? handled - last : 0;
		handle = now > handled ? now - handled : 0;
		cell->finished++;
		cell->faults += state->faults;
		if (failed)
			cell->failed++;
		hist_add(&cell->stages[IOPF_STAGE_GATHER], gather);
		hist_add(&cell->stages[IOPF_STAGE_QUEUE], queue);
		hist_add(&cell->stages[IOPF_STAGE_HANDLE], handle);
		hist_add(&cell->stages[IOPF_STAGE_TOTAL], gather + queue + handle);
	}
	bpf_map_delete_elem(&pending, key);
}

/* --- The three moments ------------------------------------------------------------------------------------------------ */

struct kobject___named {
	const char *name;
} __attribute__((preserve_access_index));

struct device___named {
	struct kobject___named kobj;
	const char *init_name;
} __attribute__((preserve_access_index));

static __always_inline void read_name(char *name, void *object)
{
	struct device___named *device = object;
	const char *text;

	/* As dev_name() does it. */
	text = BPF_CORE_READ(device, init_name);
	if (!text)
		text = BPF_CORE_READ(device, kobj.name);
	if (bpf_probe_read_kernel_str(name, DEVICE_NAME, text) <= 1)
		name[0] = '?'; /* no name is that of the row of others */
}

static __always_inline void begin(struct iopf_state *state, void *device, __u32 pasid, __u64 address, bool last,
				  __u64 now)
{
	state->first_ns = now;
	state->last_ns = last ? now : 0;
	state->address = address;
	state->faults = 1;
	state->pasid = pasid;
	read_name(state->dev, device);
}

static __noinline void report(struct iopf_key *key, void *device, __u32 pasid, __u64 address, bool last)
{
	struct iopf_state *state = bpf_map_lookup_elem(&pending, key);
	struct iopf_state fresh = {};
	__u64 now = bpf_ktime_get_ns();
	struct iopf_cell *cell;

	if (state && !state->last_ns) {
		state->faults++;
		if (last)
			state->last_ns = now;
		return;
	}
	if (state) {
		/* The device uses a number only again after it got its answer, so that was missed. */
		cell = cell_of_state(state);
		if (cell)
			cell->replaced++;
		bpf_map_delete_elem(&pending, key);
	}
	begin(&fresh, device, pasid, address, last, now);
	cell = cell_of_state(&fresh);
	if (!cell)
		return;
	cell->started++;
	if (bpf_map_update_elem(&pending, key, &fresh, BPF_ANY))
		cell->unfollowed++;
}

/* The kernel did not take the fault: it has no handler, and the driver answers the device by itself. */
static __always_inline void refuse(struct iopf_key *key)
{
	struct iopf_state *state = bpf_map_lookup_elem(&pending, key);
	struct iopf_cell *cell;

	if (!state)
		return;
	if (!state->last_ns && state->faults > 1) {
		state->faults--; /* the rest of the group is still with the kernel */
		return;
	}
	cell = cell_of_state(state);
	if (cell)
		cell->refused++;
	bpf_map_delete_elem(&pending, key);
}

static __always_inline void handle(struct iopf_key *key)
{
	struct iopf_state *state = bpf_map_lookup_elem(&pending, key);

	if (state)
		state->handled_ns = bpf_ktime_get_ns();
}

static __always_inline void respond(struct iopf_key *key, bool failed)
{
	struct iopf_state *state = bpf_map_lookup_elem(&pending, key);

	if (state)
		answered(key, state, failed, bpf_ktime_get_ns());
	else
		COUNT(loss[IOPF_CAUSE_UNMATCHED_END]);
}

/* --- The kernel's own queue ------------------------------------------------------------------------------------------- */

/* include/linux/iommu.h: numbers that never changed. */
#define PASID_VALID 1
#define LAST_PAGE 2

enum iommu_fault_type {
	IOMMU_FAULT_PAGE_REQ = 1, /* 2 until 6.8, which knows another type */
};

struct iommu_fault_page_request {
	__u32 flags;
	__u32 pasid;
	__u32 grpid;
	__u64 addr;
} __attribute__((preserve_access_index));

struct iommu_fault {
	__u32 type;
	struct iommu_fault_page_request prm;
} __attribute__((preserve_access_index));

/* The series of commit 24b5d268b5ab ("iommu: Prepare for separating SVA and IOPF", v6.9) replaced this by iopf_fault. */
struct iommu_fault_event {
	struct iommu_fault fault;
} __attribute__((preserve_access_index));

struct iopf_fault {
	struct iommu_fault fault;
} __attribute__((preserve_access_index));

struct iommu_fault_param {
	struct device *dev;
} __attribute__((preserve_access_index));

struct work_struct___queued {
	__u64 data;
} __attribute__((preserve_access_index));

struct iopf_group {
	struct iopf_fault last_fault;
	struct work_struct___queued work;
	struct iommu_fault_param *fault_param;
} __attribute__((preserve_access_index));

/* Until that series a group knows its device by itself. */
struct iopf_group___with_device {
	struct device *dev;
} __attribute__((preserve_access_index));

struct iommu_page_response {
	__u32 pasid;
	__u32 grpid;
	__u32 code;
} __attribute__((preserve_access_index));

static __always_inline struct iommu_fault *fault_of(void *given)
{
	if (bpf_core_type_exists(struct iommu_fault_event))
		return (void *)((char *)given + bpf_core_field_offset(struct iommu_fault_event, fault));
	return (void *)((char *)given + bpf_core_field_offset(struct iopf_fault, fault));
}

static __always_inline bool key_of_fault(struct iopf_key *key, void *device, void *given)
{
	struct iommu_fault *fault = fault_of(given);

	if (BPF_CORE_READ(fault, type) != bpf_core_enum_value(enum iommu_fault_type, IOMMU_FAULT_PAGE_REQ))
		return false; /* an error: nobody will answer it */
	key->device = (__u64)device;
	key->pasid = BPF_CORE_READ(fault, prm.pasid);
	key->group = BPF_CORE_READ(fault, prm.grpid);
	return true;
}

static __always_inline void on_fault_report(struct iopf_key *key, void *device, void *given)
{
	struct iommu_fault *fault = fault_of(given);
	__u32 flags = BPF_CORE_READ(fault, prm.flags);

	report(key, device, flags & PASID_VALID ? key->pasid : NO_PASID, BPF_CORE_READ(fault, prm.addr),
	       flags & LAST_PAGE);
}

static __always_inline void key_of_group(struct iopf_key *key, struct iopf_group *group)
{
	struct iopf_group___with_device *old = (void *)group;

	if (bpf_core_field_exists(group->fault_param))
		key->device = (__u64)BPF_CORE_READ(group, fault_param, dev);
	else
		key->device = (__u64)BPF_CORE_READ(old, dev);
	key->pasid = BPF_CORE_READ(group, last_fault.fault.prm.pasid);
	key->group = BPF_CORE_READ(group, last_fault.fault.prm.grpid);
}

static __always_inline int on_group_handle(void *work)
{
	struct iopf_key key = {};

	key_of_group(&key, (void *)((char *)work - bpf_core_field_offset(struct iopf_group, work)));
	handle(&key);
	return 0;
}

static __always_inline int on_group_response(void *group, __u32 code)
{
	struct iopf_key key = {};

	key_of_group(&key, group);
	respond(&key, code);
	return 0;
}

static __always_inline int on_page_response(void *device, struct iommu_page_response *answer)
{
	struct iopf_key key = {};

	key.device = (__u64)device;
	key.pasid = BPF_CORE_READ(answer, pasid);
	key.group = BPF_CORE_READ(answer, grpid);
	respond(&key, BPF_CORE_READ(answer, code));
	return 0;
}

SEC("fentry/iommu_report_device_fault")
int report_fentry(__u64 *ctx)
{
	struct iopf_key key = {};

	if (key_of_fault(&key, (void *)ctx[0], (void *)ctx[1]))
		on_fault_report(&key, (void *)ctx[0], (void *)ctx[1]);
	return 0;
}

SEC("fexit/iommu_report_device_fault")
int refuse_fexit(__u64 *ctx)
{
	struct iopf_key key = {};

	if ((__s32)ctx[2] && key_of_fault(&key, (void *)ctx[0], (void *)ctx[1]))
		refuse(&key);
	return 0;
}

SEC("fentry/iopf_group_response")
int respond_fentry(__u64 *ctx)
{
	return on_group_response((void *)ctx[0], ctx[1]);
}

SEC("fentry/iommu_page_response")
int reply_fentry(__u64 *ctx)
{
	return on_page_response((void *)ctx[0], (void *)ctx[1]);
}

/* The same series moved the work from the queue to those whose pages they are; until then it is iopf_handle_group. */
SEC("fentry/iommu_sva_handle_iopf")
int handle_fentry(__u64 *ctx)
{
	return on_group_handle((void *)ctx[0]);
}

SEC("fentry/iopf_handle_group")
int serve_fentry(__u64 *ctx)
{
	return on_group_handle((void *)ctx[0]);
}

SEC("kprobe/iommu_report_device_fault")
int report_kprobe(struct pt_regs *ctx)
{
	void *device = (void *)PT_REGS_PARM1(ctx);
	void *given = (void *)PT_REGS_PARM2(ctx);
	__u32 thread = bpf_get_current_pid_tgid();
	struct iopf_key key = {};

	if (key_of_fault(&key, device, given)) {
		bpf_map_update_elem(&reports, &thread, &key, BPF_ANY);
		on_fault_report(&key, device, given);
	}
	return 0;
}

SEC("kretprobe/iommu_report_device_fault")
int refuse_kretprobe(struct pt_regs *ctx)
{
	__u32 thread = bpf_get_current_pid_tgid();
	struct iopf_key *found = bpf_map_lookup_elem(&reports, &thread);
	struct iopf_key key;

	if (!found)
		return 0;
	key = *found;
	bpf_map_delete_elem(&reports, &thread);
	if ((__s32)PT_REGS_RC(ctx))
		refuse(&key);
	return 0;
}

SEC("kprobe/iopf_group_response")
int respond_kprobe(struct pt_regs *ctx)
{
	return on_group_response((void *)PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
}

SEC("kprobe/iommu_page_response")
int reply_kprobe(struct pt_regs *ctx)
{
	return on_page_response((void *)PT_REGS_PARM1(ctx), (void *)PT_REGS_PARM2(ctx));
}

SEC("kprobe/iommu_sva_handle_iopf")
int handle_kprobe(struct pt_regs *ctx)
{
	return on_group_handle((void *)PT_REGS_PARM1(ctx));
}

SEC("kprobe/iopf_handle_group")
int serve_kprobe(struct pt_regs *ctx)
{
	return on_group_handle((void *)PT_REGS_PARM1(ctx));
}

/* --- Tracepoints of the SMMU, which know of no groups ----------------------------------------------------------------- */

/* The number of faults of one PASID to distinguish; an exit does not identify its fault, so the oldest one is assumed. */
#define LANES 8

SEC("raw_tp/io_fault_entry")
int entry_raw_tp(__u64 *ctx)
{
	struct iopf_key key = {.device = ctx[0], .pasid = ctx[1]};
	struct iopf_state fresh = {};
	struct iopf_cell *cell;
	__u32 lane;

	begin(&fresh, (void *)ctx[0], key.pasid, 0, true, bpf_ktime_get_ns());
	cell = cell_of_state(&fresh);
	if (!cell)
		return 0;
	cell->started++;
	for (lane = 0; lane < LANES; lane++) {
		key.group = lane;
		if (!bpf_map_update_elem(&pending, &key, &fresh, BPF_NOEXIST))
			return 0;
	}
	cell->unfollowed++;
	return 0;
}

SEC("raw_tp/io_fault_exit")
int exit_raw_tp(__u64 *ctx)
{
	struct iopf_key key = {.device = ctx[0], .pasid = ctx[1]};
	__u64 now = bpf_ktime_get_ns();
	struct iopf_state oldest = {};
	__u32 lane, found = LANES;

	for (lane = 0; lane < LANES; lane++) {
		struct iopf_state *state;

		key.group = lane;
		state = bpf_map_lookup_elem(&pending, &key);
		if (state && (found == LANES || state->first_ns < oldest.first_ns)) {
			oldest = *state;
			found = lane;
		}
	}
	key.group = found;
	if (found < LANES)
		answered(&key, &oldest, false, now);
	else
		COUNT(loss[IOPF_CAUSE_UNMATCHED_END]);
	return 0;
}

/* --- Tracepoints of Intel's IOMMU: its page requests, and the answers in its queue of commands ------------------------ */

#define BITS(word, from, count) ((word) >> (from) & ((1ULL << (count)) - 1))

/* The request names its device by a pointer, the answer by its number on the bus, which is unique for each IOMMU. */
#define INTEL_DEVICE(iommu, requester) ((iommu) << 16 | (requester))

SEC("raw_tp/prq_report")
int request_raw_tp(__u64 *ctx)
{
	__u64 low = ctx[2], high = ctx[3];
	bool has_pasid = BITS(low, 8, 1);
	struct iopf_key key = {
		.device = INTEL_DEVICE(ctx[0], BITS(low, 16, 16)),
		.pasid = BITS(low, 32, 20),
		.group = BITS(high, 3, 9),
	};

	report(&key, (void *)ctx[1], has_pasid ? key.pasid : NO_PASID, high & ~0xfffULL, BITS(high, 2, 1));
	return 0;
}

#define PAGE_GROUP_RESPONSE 9

SEC("raw_tp/qi_submit")
int submit_raw_tp(__u64 *ctx)
{
	__u64 low = ctx[1], high = ctx[2];
	struct iopf_key key = {
		.device = INTEL_DEVICE(ctx[0], BITS(low, 16, 16)),
		.pasid = BITS(low, 32, 20),
		.group = BITS(high, 3, 9),
	};

	if (BITS(low, 0, 4) == PAGE_GROUP_RESPONSE && !BITS(low, 9, 3))
		respond(&key, BITS(low, 12, 4));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
