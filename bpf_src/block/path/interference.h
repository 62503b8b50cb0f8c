/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Interference: whatever took the CPU from an operation, or delayed the interrupt of its request. */
#ifndef WPT_PATH_INTERFERENCE_H
#define WPT_PATH_INTERFERENCE_H

#include "block/path/state.h"
#include "lib/cpuhp.h"

#define FRAMES 32

/* One per CPU. */
struct cpu_state {
	__u64 hardirq_ns; /* since when a handler runs; 0: none */
	__u64 softirq_ns;
	__u64 within_softirq_ns; /* handlers that interrupted it */
	__u64 tick_ns; /* the last time that this CPU is known to have taken an interrupt */
	__u64 off_since; /* the last time for which it took none */
	__u64 off_until;
	__u32 off_pid;
	__u32 padding;
	char off_name[NAME_BYTES];
	__u64 frames[FRAMES]; /* of the task that is leaving it */
};

CELLS(cpu_states, cpu_state);

static __always_inline struct cpu_state *this_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpu_states, &zero);
}

static __always_inline struct interference *add_interference(struct op_state *op, enum interference_kind kind, __u64 ns)
{
	struct interference_state *state = interference_of(op);
	struct interference *mine = &state->kinds[kind];

	if (state->since[kind] != op->start_ns) {
		__builtin_memset(mine, 0, sizeof(*mine));
		state->since[kind] = op->start_ns;
		op->disturbed = true;
	}
	mine->ns += ns;
	mine->count++;
	if (ns <= mine->worst_ns)
		return NULL;
	mine->worst_ns = ns;
	mine->cpu = bpf_get_smp_processor_id();
	return mine;
}

static __always_inline void name_preemptor(struct op_state *op, struct task_struct *next)
{
	struct interference_state *mine = interference_of(op);

	mine->preemptor_pid = BPF_CORE_READ(next, tgid);
	bpf_probe_read_kernel(mine->preemptor, sizeof(mine->preemptor), next->comm);
}

static __always_inline void add_preemption(struct op_state *op, __u64 now)
{
	struct interference *worst = add_interference(op, INTERFERENCE_KIND_PREEMPTED, minus(now, op->preempted_ns));

	if (!worst)
		return;
	worst->pid = interference_of(op)->preemptor_pid;
	__builtin_memcpy(worst->name, interference_of(op)->preemptor, sizeof(worst->name));
}

/* Who had the CPU while the task waited for it. */
static __always_inline void add_before_wakeup(struct op_state *op, struct task_struct *before, __u64 ns)
{
	struct interference_state *state = interference_of(op);
	struct interference *mine = &state->before_wakeup;
	__u32 pid = BPF_CORE_READ(before, tgid);

	if (!pid || (state->wakeup_since == op->start_ns && ns <= mine->worst_ns))
		return;
	state->wakeup_since = op->start_ns;
	mine->ns = mine->worst_ns = ns;
	mine->count = 1;
	mine->cpu = bpf_get_smp_processor_id();
	mine->pid = pid;
	bpf_probe_read_kernel(mine->name, sizeof(mine->name), before->comm);
}

/* For those who read all of it. */
static __noinline int clear_earlier(struct op_state *op)
{
	struct interference_state *state;
	__u32 kind;

	if (!op)
		return 0;
	state = interference_of(op);
	for (kind = 0; kind < INTERFERENCE_KINDS; kind++) {
		if (state->since[kind] != op->start_ns)
			__builtin_memset(&state->kinds[kind], 0, sizeof(state->kinds[kind]));
	}
	if (state->wakeup_since != op->start_ns)
		__builtin_memset(&state->before_wakeup, 0, sizeof(state->before_wakeup));
	return 0;
}

/* The operation that an interrupt delays: that of the interrupted task. */
static __always_inline struct op_state *interrupted(void)
{
	struct op_state *op = op_of(bpf_get_current_task());

	return op && op->kind == OP_TRACED ? op : NULL;
}

static __always_inline int on_hardirq_entry(void)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu)
		cpu->hardirq_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int on_hardirq_exit(struct irqaction *action, bool trusted)
{
	struct cpu_state *cpu = this_cpu();
	struct op_state *op;
	struct interference *worst;
	__u64 ns;

	if (!cpu || !cpu->hardirq_ns)
		return 0;
	ns = minus(bpf_ktime_get_ns(), cpu->hardirq_ns);
	cpu->hardirq_ns = 0;
	if (!watches_interference())
		return 0;
	cpu->within_softirq_ns += ns;
	op = interrupted();
	if (!op)
		return 0;
	worst = add_interference(op, INTERFERENCE_KIND_HARDIRQ, ns);
	if (worst)
		bpf_probe_read_kernel_str(worst->name, sizeof(worst->name), FIELD(trusted, action, name));
	return 0;
}

static __always_inline int on_softirq_entry(void)
{
	struct cpu_state *cpu = this_cpu();

	if (!cpu)
		return 0;
	cpu->within_softirq_ns = 0;
	cpu->softirq_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int on_softirq_exit(__u32 number)
{
	struct cpu_state *cpu = this_cpu();
	struct op_state *op;
	struct interference *worst;
	__u64 ns;

	if (!cpu || !cpu->softirq_ns)
		return 0;
	ns = minus(minus(bpf_ktime_get_ns(), cpu->softirq_ns), cpu->within_softirq_ns);
	cpu->softirq_ns = 0;
	op = interrupted();
	if (!op)
		return 0;
	worst = add_interference(op, INTERFERENCE_KIND_SOFTIRQ, ns);
	if (worst)
		worst->softirq = number;
	return 0;
}

/* A request that completes in an interrupt handler was seen when the handler began, unless it was issued later. */
static __always_inline void see_by_handler(struct bio_state *state)
{
	struct cpu_state *cpu = this_cpu();

	if (!cpu || cpu->hardirq_ns <= state->done.times.issued || cpu->hardirq_ns <= state->done.times.handed)
		return;
	state->done.times.seen = cpu->hardirq_ns;
	state->done.cpus.irq = bpf_get_smp_processor_id();
}

/* --- Interrupts that were late ------------------------------------------------------------------------------------ */

/* A CPU that goes takes its tick along. Ticks before the last time that any CPU came or went say nothing. */
__u64 cpu_moved_ns;
__u64 cpu_moves;

static __always_inline int on_cpu_move(__s32 step)
{
	if (comes_or_goes(step)) {
		cpu_moved_ns = bpf_ktime_get_ns();
		COUNT(cpu_moves);
	}
	return 0;
}

/* A CPU with interrupts on ticks every tick_ns. If it did not, they were off, because of the task that runs now. */
static __always_inline int on_tick(void)
{
	struct cpu_state *cpu = this_cpu();
	__u64 now = bpf_ktime_get_ns();

	if (!cpu)
		return 0;
	if (cpu->tick_ns > cpu_moved_ns && now - cpu->tick_ns > tick_ns + tick_ns / 2) {
		cpu->off_since = cpu->tick_ns + tick_ns;
		cpu->off_until = now;
		cpu->off_pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(cpu->off_name, sizeof(cpu->off_name));
	}
	cpu->tick_ns = now;
	return 0;
}

/*
 * The interrupt of a request may have been delayed with all others. Which pending one is served first when
 * interrupts are on again, the tick or the device's, differs between machines.
 */
static __always_inline void find_irq_delay(struct bio_state *state)
{
	struct cpu_state *cpu = this_cpu();
	__u64 now = state->done.times.seen;
	__u64 since;

	if (!cpu || cpu->tick_ns <= cpu_moved_ns)
		return;
	if (now > cpu->tick_ns && now - cpu->tick_ns > tick_ns + tick_ns / 2) {
		since = cpu->tick_ns + tick_ns;
		state->done.irq_pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(state->done.irq_name, sizeof(state->done.irq_name));
	} else if (cpu->off_until && now - cpu->off_until < tick_ns / 2) {
		since = cpu->off_since;
		state->done.irq_pid = cpu->off_pid;
		__builtin_memcpy(state->done.irq_name, cpu->off_name, sizeof(state->done.irq_name));
	} else {
		return;
	}
	if (since < state->done.times.handed)
		since = state->done.times.handed;
	if (since < state->done.times.issued)
		since = state->done.times.issued;
	if (since >= now)
		return;
	state->done.irq_delay = now - since;
	/* From here on the CPU could have seen it. */
	state->done.times.seen = since;
}

static __always_inline void add_irq_delay(struct op_state *op, struct done *done)
{
	struct interference *worst;

	if (!done->irq_delay)
		return;
	worst = add_interference(op, INTERFERENCE_KIND_IRQ_DELAY, done->irq_delay);
	if (!worst)
		return;
	worst->cpu = done->cpus.irq;
	worst->pid = done->irq_pid;
	__builtin_memcpy(worst->name, done->irq_name, sizeof(worst->name));
}

#endif
