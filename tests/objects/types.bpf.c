// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Every kind of type that the layout decoder knows, with values that the test knows too. */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

enum color { RED, GREEN = 5, BLUE = 0xfffffff0 };
enum wide { SMALL = 1, HUGE = 1ULL << 40 };

struct pair {
	__u8 first;
	__u32 second;
};

/* What values have not, but types do. */
struct others {
	__u32 low : 3;
	int sign : 5;
	__u64 crossing : 40;
	union {
		__u16 half;
		__u8 bytes[2];
	};
};

struct all {
	__u8 u8;
	__s16 s16;
	__u32 u32;
	__s64 s64;
	bool yes;
	char comm[16];
	unsigned char raw[3];
	enum color color;
	enum wide wide;
	struct pair pairs[2];
	__u16 grid[2][3];
	void *pointer;
	struct {
		__u32 lower;
		__u32 upper;
	};
	struct {
		__u8 inner;
	} __attribute__((packed)) packed;
	int (*callback)(struct pair *pair, int count);
	struct others *others;
};

const volatile struct all constants = {
	.u8 = 200,
	.s16 = -300,
	.u32 = 4000000000,
	.s64 = -5000000000,
	.yes = true,
	.comm = "worker",
	.raw = {1, 0, 255},
	.color = BLUE,
	.wide = HUGE,
	.pairs = {{1, 2}, {3, 4}},
	.grid = {{1, 2, 3}, {4, 5, 6}},
	.lower = 7,
	.upper = 8,
	.packed = {9},
};

int first_value = 11;
static volatile int second_value = 22;
__u64 total;
static __u64 hidden[3];

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, struct pair);
	__type(value, struct all);
} table SEC(".maps");

static __noinline int twice(int value)
{
	return value * 2 + second_value;
}

SEC("raw_tp/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *previous)
{
	struct pair key = {};

	key.second = BPF_CORE_READ(previous, pid);
	total += twice(key.second) + constants.u8;
	hidden[key.second & 1]++;
	return bpf_map_lookup_elem(&table, &key) ? first_value : 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
