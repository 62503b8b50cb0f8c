// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Periods in which a CPU runs with interrupts off.
 *
 * A timer ticks on each CPU. While interrupts are off it cannot, and the tick comes late, at the moment when they come
 * back: that is the end of the period, and its beginning lies between the tick before and the time when the next one
 * was due. Where a cycle counter interrupts by NMI, a second program checks the last tick while interrupts are
 * off, and takes the stack inside the culprit.
 *
 * The tick is an event of perf without a program of its own: the kernel skips such programs while a task is in a system
 * call on a BPF map, also while that task is preempted and others run. It does not skip this one, which runs for every
 * timer that expires; each of them shows that interrupts are on.
 */
#include "lib/wptrace.h"
#include "lib/cpuhp.h"
#include "lib/hist.h"
#include "lib/tracepoint.h"

#define FRAMES 64

/* The drift between two reads of the boot-time clock and of the one that stops in suspend. */
#define AWAKE_NS 1000000

struct irqoff_record {
	__u64 ticked_ns; /* the last tick before; names the period together with the CPU */
	__u64 end_ns;
	__u64 length_ns;
	__u64 stolen_ns; /* is not in the length */
	__u32 cpu;
	__u32 pid;
	__u32 tid;
	__u32 frames;
	char comm[16];
	__u64 stack[FRAMES];
};

/* A sample that an NMI took while interrupts were off. */
struct irqoff_sample {
	__u64 ticked_ns;
	__u64 at_ns;
	__u32 cpu;
	__u32 pid;
	__u32 tid;
	__u32 frames;
	char comm[16];
	__u64 stack[FRAMES];
};

const struct irqoff_record *export_irqoff_record __attribute__((unused));
const struct irqoff_sample *export_irqoff_sample __attribute__((unused));

enum irqoff_cause {
	IRQOFF_CAUSE_RING_FULL,
	IRQOFF_CAUSE_NMI_RING_FULL,
	IRQOFF_CAUSE_STOLEN,
	IRQOFF_CAUSE_SUSPENDED,
	IRQOFF_CAUSE_HOTPLUG,
	IRQOFF_CAUSES,
};
EXPORT_ENUM(irqoff_cause);

/* One per CPU; the tick writes it, and the NMI that may interrupt the tick writes fields of its own. */
struct irqoff_cell {
	__u64 ticked_ns; /* 0: not yet */
	__u64 asleep_ns;
	__u64 stolen_ns;
	__u64 ticks;
	__u64 finished;
	__u64 looked_ns;
	__u64 spacing_ns; /* the shortest recent time between two samples: an idle CPU does not count cycles */
	__u64 sampled_ns; /* the last tick for which there is a sample */
	__u64 looks;
	__u64 nmis;
	__u64 causes[IRQOFF_CAUSES];
	struct hist irqoff;
};

EACH_CPU(cells, struct irqoff_cell, 1);

/* A finished period whose stolen time the kernel may not have counted yet. */
struct irqoff_pending {
	__u64 due_ns; /* 0: there is none */
	__u64 stolen_ns; /* the count before */
	struct irqoff_record record;
};

EACH_CPU(pending, struct irqoff_pending, 1);

/* By CPU: since when it ticks; 0: it does not. The reader writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} watched SEC(".maps");

/* By CPU: when it last came or went, and with it its tick. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} moves SEC(".maps");

RING(records);

/* An NMI does not wait for the lock of a ring, it fails; so it has one that no tick ever holds. */
RING(samples);

const volatile __u64 min_ns = 10000000;
const volatile __u64 period_ns = 1000000;
/* How long to wait until stolen time is counted: by the next tick of the scheduler, which an idle CPU may not have. */
const volatile __u64 settle_ns = 20000000;
const volatile __u64 idle_settle_ns = 1000000000;

/* The members that these structs share with the kernel's own of these names. */
struct rq___stolen {
	__u64 prev_steal_time;
} __attribute__((preserve_access_index));

struct cfs_rq___stolen {
	struct rq___stolen *rq;
} __attribute__((preserve_access_index));

struct sched_entity___stolen {
	struct cfs_rq___stolen *cfs_rq;
} __attribute__((preserve_access_index));

struct task_struct___stolen {
	struct sched_entity___stolen se;
} __attribute__((preserve_access_index));

/*
 * The hypervisor's time of this CPU, as far as the kernel has counted it. A task that is not waiting knows its CPU's
 * rq.
 */
static __always_inline __u64 stolen_so_far(void)
{
	struct task_struct___stolen *task = (void *)bpf_get_current_task();

	if (!bpf_core_field_exists(struct rq___stolen, prev_steal_time) ||
	    !bpf_core_field_exists(struct sched_entity___stolen, cfs_rq))
		return 0;
	return BPF_CORE_READ(task, se.cfs_rq, rq, prev_steal_time);
}

static __always_inline void finish(struct irqoff_cell *cell, struct irqoff_pending *held, __u64 stolen)
{
	__u64 taken = stolen > held->stolen_ns ? stolen - held->stolen_ns : 0;
	struct irqoff_record *record;

	held->due_ns = 0;
	if (taken > held->record.length_ns)
		taken = held->record.length_ns;
	held->record.length_ns -= taken;
	held->record.stolen_ns = taken;
	if (held->record.length_ns < min_ns) {
		cell->causes[IRQOFF_CAUSE_STOLEN]++;
		return;
	}
	cell->finished++;
	hist_add(&cell->irqoff, held->record.length_ns);
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		cell->causes[IRQOFF_CAUSE_RING_FULL]++;
		return;
	}
	__builtin_memcpy(record, &held->record, sizeof(*record));
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

static __always_inline bool settled(struct irqoff_pending *held, __u64 stolen, __u64 now)
{
	if (now >= held->due_ns)
		return true;
	return stolen != held->stolen_ns && now >= held->record.end_ns + settle_ns;
}

#define IDENTIFY(record, context) \
	({ \
		__u64 __id = bpf_get_current_pid_tgid(); \
		long __size; \
		(record)->cpu = bpf_get_smp_processor_id(); \
		(record)->pid = __id >> 32; \
		(record)->tid = __id; \
		bpf_get_current_comm((record)->comm, sizeof((record)->comm)); \
		__size = bpf_get_stack(context, (record)->stack, sizeof((record)->stack), 0); \
		(record)->frames = __size > 0 ? __size / sizeof(__u64) : 0; \
	})

static __always_inline int on_timer_expire(void *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 asleep = bpf_ktime_get_boot_ns() - now;
	__u64 stolen = stolen_so_far();
	__u32 cpu = bpf_get_smp_processor_id();
	__u32 zero = 0;
	struct irqoff_cell *cell = bpf_map_lookup_elem(&cells, &zero);
	struct irqoff_pending *held = bpf_map_lookup_elem(&pending, &zero);
	__u64 before, slept, stolen_before;
	__u64 *since, *moved;
	bool late;

	if (!cell || !held)
		return 0;
	before = cell->ticked_ns;
	slept = asleep - cell->asleep_ns;
	stolen_before = cell->stolen_ns;
	cell->ticked_ns = now;
	cell->asleep_ns = asleep;
	cell->stolen_ns = stolen;
	cell->ticks++;
	/* Half a period is as near as one can come to a beginning that was not seen. */
	late = before && now - before >= min_ns + period_ns / 2;
	if (held->due_ns && (late || settled(held, stolen, now)))
		finish(cell, held, stolen);
	if (!late)
		return 0;
	since = bpf_map_lookup_elem(&watched, &cpu);
	moved = bpf_map_lookup_elem(&moves, &cpu);
	if (!since || !*since || !moved)
		return 0;
	if (*moved >= before)
		cell->causes[IRQOFF_CAUSE_HOTPLUG]++;
	/* Without its tick, a CPU only has the timers that the kernel needs. */
	if (*moved >= *since || *since >= before)
		return 0;
	if (slept + AWAKE_NS > 2 * AWAKE_NS) {
		cell->causes[IRQOFF_CAUSE_SUSPENDED]++;
		return 0;
	}
	held->stolen_ns = stolen_before;
	held->record.ticked_ns = before;
	held->record.end_ns = now;
	held->record.length_ns = now - before - period_ns / 2;
	IDENTIFY(&held->record, ctx);
	held->due_ns = now + (held->record.tid ? settle_ns : idle_settle_ns);
	return 0;
}

TRACEPOINT(expire, hrtimer_expire_entry, on_timer_expire(ctx))

#ifdef __TARGET_ARCH_arm64
#define NMI_MASK 0xf00000

struct thread_info___count {
	__u64 preempt_count;
} __attribute__((preserve_access_index));

struct task_struct___count {
	struct thread_info___count thread_info;
} __attribute__((preserve_access_index));
#endif

/* On x86 counters interrupt by NMI. On arm64 they do with irqchip.gicv3_pseudo_nmi=1. */
static __always_inline bool in_nmi(void)
{
#ifdef __TARGET_ARCH_arm64
	struct task_struct___count *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, thread_info.preempt_count) & NMI_MASK;
#else
	return true;
#endif
}

SEC("perf_event")
int look_perf_event(struct bpf_perf_event_data *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 zero = 0;
	struct irqoff_cell *cell = bpf_map_lookup_elem(&cells, &zero);
	__u32 cpu = bpf_get_smp_processor_id();
	struct irqoff_sample *sample;
	__u64 spacing, ticked;
	__u64 *since;

	if (!cell)
		return 0;
	spacing = now - cell->looked_ns;
	if (!cell->looked_ns || spacing < cell->spacing_ns)
		cell->spacing_ns = spacing;
	else
		cell->spacing_ns += cell->spacing_ns >> 3;
	cell->looked_ns = now;
	cell->looks++;
	if (in_nmi())
		cell->nmis++;
	ticked = cell->ticked_ns;
	if (!ticked || now - ticked < min_ns + period_ns / 2 || cell->sampled_ns == ticked)
		return 0;
	since = bpf_map_lookup_elem(&watched, &cpu);
	if (!since || !*since || *since >= ticked)
		return 0;
	sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);
	if (!sample) {
		cell->causes[IRQOFF_CAUSE_NMI_RING_FULL]++;
		return 0;
	}
	cell->sampled_ns = ticked;
	sample->ticked_ns = ticked;
	sample->at_ns = now;
	IDENTIFY(sample, ctx);
	bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("raw_tp/cpuhp_enter")
int move_raw_tp(__u64 *ctx)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 cpu = ctx[0];

	if (comes_or_goes(ctx[2]))
		bpf_map_update_elem(&moves, &cpu, &now, BPF_ANY);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
