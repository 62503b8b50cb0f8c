// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* What the tests of the binding load: one of each kind of global, map and program. */
#include "lib/wptrace.h"
#include "lib/hist.h"

enum colour {
	COLOUR_RED,
	COLOUR_GREEN,
	COLOUR_BLUE,
	COLOURS,
};

struct nested {
	__s16 low;
	struct {
		__u8 inner;
		__u64 deep;
	} more;
};

struct everything {
	bool flag;
	__s8 negative;
	__u64 wide;
	enum colour colour;
	struct nested nested;
	__u8 bytes[4];
	char name[8];
	__u16 numbers[3];
};

struct everything given;
/* Filled by the program field by field, so that the two compilers' ideas of the layout meet. */
struct everything filled;

__u32 target_tgid;
__u64 target_call;
bool switched_on = true;
__s8 tiny = -3;
__u64 calls;
char label[16];
const volatile __u32 step = 1;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1000);
	__type(key, __u32);
	__type(value, struct nested);
} hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 600);
	__type(key, __u32);
	__type(value, __u64);
} array SEC(".maps");

struct counters {
	__u64 calls;
	__u32 pair[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, struct counters);
} per_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u32);
} per_cpu_hash SEC(".maps");

struct record {
	__u64 sequence;
	__u64 argument;
	__u32 tgid;
	__u16 cpu;
};

const struct record *export_record __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} alarms SEC(".maps");

__u64 sequence;
__u64 ring_full;
/* Every so many records one is reserved and discarded; 0 never. */
__u64 discard_every;
__u64 alarm_at;

struct hist hist;

struct cell {
	__u64 calls;
	struct hist stages[2];
} cell;

static __always_inline bool is_ours(void)
{
	return bpf_get_current_pid_tgid() >> 32 == target_tgid;
}

static __always_inline void send(__u64 argument)
{
	struct record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		COUNT(ring_full);
		return;
	}
	record->sequence = sequence++;
	record->argument = argument;
	record->tgid = target_tgid;
	record->cpu = bpf_get_smp_processor_id();
	if (discard_every && record->sequence % discard_every == 0)
		bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
	else
		bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* The tests make the system call `target_call` from one thread: everything below counts exactly those. */
SEC("raw_tp/sys_enter")
int on_call(__u64 *ctx)
{
	struct pt_regs *registers = (void *)ctx[0];
	struct counters *counters;
	__u64 argument, *alarm;
	__u32 zero = 0;

	if (ctx[1] != target_call || !is_ours() || !switched_on)
		return 0;
	argument = PT_REGS_PARM1_CORE_SYSCALL(registers);
	calls += step;
	counters = bpf_map_lookup_elem(&per_cpu, &zero);
	if (counters) {
		counters->calls++;
		counters->pair[1] += 2;
	}
	hist_add(&hist, argument);
	hist_add_short(&cell, &cell.stages[0], argument, false);
	hist_add_short(&cell, &cell.stages[1], argument, true);
	send(argument);
	if (alarm_at && calls == alarm_at) {
		alarm = bpf_ringbuf_reserve(&alarms, sizeof(*alarm), 0);
		if (alarm) {
			*alarm = calls;
			bpf_ringbuf_submit(alarm, BPF_RB_FORCE_WAKEUP);
		}
	}
	return 0;
}

SEC("raw_tp/sys_enter")
int fill(__u64 *ctx)
{
	if (ctx[1] != target_call || !is_ours())
		return 0;
	filled.flag = true;
	filled.negative = -7;
	filled.wide = 0xabcdef0123ULL;
	filled.colour = COLOUR_BLUE;
	filled.nested.low = -2;
	filled.nested.more.inner = 200;
	filled.nested.more.deep = 1ULL << 60;
	__builtin_memcpy(filled.bytes, "\1\2\3\4", 4);
	__builtin_memcpy(filled.name, "abc", 4);
	filled.numbers[2] = 65535;
	return 0;
}

__u64 hits;

SEC("tp_btf/sys_enter")
int on_tp_btf(__u64 *ctx)
{
	if (is_ours())
		COUNT(hits);
	return 0;
}

SEC("tracepoint/raw_syscalls/sys_enter")
int on_tracepoint(void *ctx)
{
	if (is_ours())
		COUNT(hits);
	return 0;
}

SEC("fentry/vfs_fsync_range")
int on_fentry(void *ctx)
{
	if (is_ours())
		COUNT(hits);
	return 0;
}

SEC("fexit/vfs_fsync_range")
int on_fexit(void *ctx)
{
	if (is_ours())
		COUNT(hits);
	return 0;
}

SEC("kprobe/vfs_fsync_range")
int on_kprobe(void *ctx)
{
	if (is_ours())
		COUNT(hits);
	return 0;
}

SEC("kretprobe/vfs_fsync_range")
int on_kretprobe(void *ctx)
{
	if (is_ours())
		COUNT(hits);
	return 0;
}

SEC("raw_tp/nonsense")
int on_nonsense(void *ctx)
{
	return 0;
}

SEC("perf_event")
int on_perf_event(void *ctx)
{
	COUNT(hits);
	return 0;
}

SEC("raw_tp/sys_enter")
int refused(__u64 *ctx)
{
	__u32 key = 0;
	struct nested *found = bpf_map_lookup_elem(&hash, &key);

	return found->low; /* unchecked, as the verifier will say */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
