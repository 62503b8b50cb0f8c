// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Turns of tasks on the CPU. A turn begins when a task wants a CPU (W): it is woken or born, or leaves its CPU without
 * going to sleep. The task waits in a run queue until it runs (R), and the turn ends when it leaves the CPU (L). The
 * time from there to the next R is off the CPU: the sleep, if there is one, and the wait.
 */
#include "lib/wptrace.h"
#include "lib/filter.h"
#include "lib/hist.h"
#include "lib/gone_cgroups.h"
#include "lib/sched.h"
#include "lib/tracepoint.h"

enum cpu_stage {
	CPU_STAGE_WAIT, /* W to R */
	CPU_STAGE_RUN, /* R to L */
	CPU_STAGE_OFF, /* the L before to R */
	CPU_STAGE_TOTAL, /* W to L */
	CPU_STAGES,
};
EXPORT_ENUM(cpu_stage);

enum cpu_cause {
	CPU_CAUSE_STATE_FULL,
	CPU_CAUSE_UNMATCHED_START,
	CPU_CAUSE_UNMATCHED_END,
	CPU_CAUSE_INCOMPLETE,
	CPU_CAUSE_OFF_UNKNOWN,
	CPU_CAUSE_NO_ROW,
	CPU_CAUSE_RING_FULL,
	CPU_CAUSES,
};
EXPORT_ENUM(cpu_cause);

/* The key of a row. */
enum cpu_by {
	CPU_BY_CPU,
	CPU_BY_PROCESS,
	CPU_BY_THREAD,
	CPU_BY_CGROUP,
};
EXPORT_ENUM(cpu_by);
const volatile enum cpu_by by;

struct cpu_cell {
	struct hist stages[CPU_STAGES];
};

/* Rows by CPU: each CPU writes its own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_cell);
} cpus SEC(".maps");

/* The other rows. The name is in the key: a process that executes another program gets another row. */
struct row {
	__u64 id; /* tgid << 32 | tid, tgid << 32, or the id of the cgroup */
	char comm[TASK_NAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct row);
	__type(value, struct cpu_cell);
} rows SEC(".maps");

/* Counts without a row. */
EACH_CPU(others, struct cpu_cell, 1);

/* The content of a new row; it would be too large for the stack. */
struct cpu_cell fresh;

struct task_times {
	__u64 left_ns; /* 0: that was before tracing began */
	__u64 woken_ns; /* 0: sleeps, or was not seen to wake */
	__u64 ran_ns; /* 0: sleeps or waits */
	__u32 tid;
	__u32 tgid;
};

/* By address: the tid of a thread changes when it executes a program. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct task_times);
} tasks SEC(".maps");

struct book {
	__u64 started;
	__u64 finished;
};

EACH_CPU(books, struct book, 1);

/* One wait that was long enough to be shown. */
struct cpu_record {
	__u64 woken_ns;
	__u64 ran_ns;
	__u64 sleep_ns;
	struct row row;
	struct task_name task;
	__u32 cpu;
};

const struct cpu_record *export_cpu_record __attribute__((unused));

RING(records);

/* The last task on each CPU, kept only if waits are shown: the record of a wait names who ran meanwhile. */
#define RUNS 2048

struct run {
	__u64 start_ns;
	__u64 end_ns;
	struct task_name task;
};

struct history {
	struct run runs[RUNS];
	__u64 switched_ns;
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct history);
} histories SEC(".maps");

const volatile bool emits_records;
/* Waits of at least this long cross the ring. */
__u64 slow_ns = ~0ULL;
__u64 loss[CPU_CAUSES];

/*
 * Into zeroed memory, to be compared: before 5.17 the kernel leaves parts of an earlier name behind the end of this
 * one.
 */
static __always_inline void read_comm(void *comm, struct task_struct *task)
{
	bpf_probe_read_kernel_str(comm, TASK_NAME, task->comm);
}

/* filter.h asks for the current task; of those here only the one that leaves is. */
static __always_inline bool wanted(struct task_struct *task, bool trusted)
{
	if (!filter_task)
		return true;
	if (filter_tgid || filter_tid) {
		__u64 ids = pid_namespace ? ids_within(number_of((__u64)task))
					  : (__u64)FIELD(trusted, task, tgid) << 32 | (__u32)FIELD(trusted, task, pid);

		if (filter_tgid && filter_tgid != ids >> 32)
			return false;
		if (filter_tid && filter_tid != (__u32)ids)
			return false;
	}
	if (filter_by_comm) {
		const __u64 *name = (void *)filter_comm;
		__u64 comm[2] = {};

		read_comm(comm, task);
		if (comm[0] != name[0] || comm[1] != name[1])
			return false;
	}
	return !filter_cgroup || cgroup_matches(number_of((__u64)task));
}

static __always_inline void find_row(struct row *row, struct task_struct *task, bool trusted)
{
	__u64 tgid = FIELD(trusted, task, tgid);

	if (by == CPU_BY_CGROUP) {
		row->id = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
		return;
	}
	row->id = tgid << 32;
	if (by == CPU_BY_THREAD)
		row->id |= (__u32)FIELD(trusted, task, pid);
	else
		task = FIELD(trusted, task, group_leader);
	read_comm(row->comm, task);
}

static __always_inline struct cpu_cell *find_cell(struct task_struct *task, bool trusted)
{
	struct row row = {};
	struct cpu_cell *cell;
	__u32 zero = 0;

	if (by == CPU_BY_CPU) {
		__u32 cpu = bpf_get_smp_processor_id();

		return bpf_map_lookup_elem(&cpus, &cpu);
	}
	find_row(&row, task, trusted);
	cell = bpf_map_lookup_elem(&rows, &row);
	if (cell)
		return cell;
	/* Another CPU may be as quick; its row serves as well. */
	bpf_map_update_elem(&rows, &row, &fresh, BPF_NOEXIST);
	cell = bpf_map_lookup_elem(&rows, &row);
	if (cell)
		return cell;
	COUNT(loss[CPU_CAUSE_NO_ROW]);
	return bpf_map_lookup_elem(&others, &zero);
}

/* A turn begins. All programs here run with interrupts off, so no other one counts in this CPU's book. */
static __always_inline void start(void)
{
	__u32 zero = 0;
	struct book *book = bpf_map_lookup_elem(&books, &zero);

	if (book)
		book->started++;
}

/* A task that is not known yet; with `woken` its turn begins, with `left` it sleeps. */
static __always_inline void meet(struct task_struct *task, __u64 left, __u64 woken, bool trusted)
{
	__u64 key = (__u64)task;
	struct task_times unknown = {};

	unknown.left_ns = left;
	unknown.woken_ns = woken;
	unknown.tid = FIELD(trusted, task, pid);
	unknown.tgid = FIELD(trusted, task, tgid);
	if (woken)
		start();
	if (!bpf_map_update_elem(&tasks, &key, &unknown, BPF_ANY))
		return;
	if (woken)
		COUNT(loss[CPU_CAUSE_STATE_FULL]);
	else
		COUNT(loss[CPU_CAUSE_OFF_UNKNOWN]);
}

/* Clocks of two CPUs may differ by some cycles: 0 then. Without a branch, which would cost the verifier a lot. */
static __always_inline __u64 elapsed(__u64 from, __u64 to)
{
	__s64 passed = to - from;

	return passed & ~(passed >> 63);
}

/* A turn ends; without `whole` it is in no stage. */
static __always_inline void end(bool whole)
{
	__u32 zero = 0;
	struct book *book = bpf_map_lookup_elem(&books, &zero);

	if (book)
		book->finished++;
	if (!whole)
		COUNT(loss[CPU_CAUSE_INCOMPLETE]);
}

static __always_inline void finish(struct task_struct *task, struct task_times *times, __u64 now, bool trusted)
{
	struct cpu_cell *cell;
	__u64 wait, run;

	end(times->ran_ns);
	if (!times->ran_ns)
		return;
	cell = find_cell(task, trusted);
	if (!cell)
		return; /* there is one always; the verifier does not know */
	wait = elapsed(times->woken_ns, times->ran_ns);
	run = elapsed(times->ran_ns, now);
	hist_add(&cell->stages[CPU_STAGE_WAIT], wait);
	hist_add(&cell->stages[CPU_STAGE_RUN], run);
	hist_add(&cell->stages[CPU_STAGE_TOTAL], wait + run);
	if (times->left_ns)
		hist_add(&cell->stages[CPU_STAGE_OFF], elapsed(times->left_ns, times->ran_ns));
}

static __always_inline void leave(struct task_struct *task, bool preempt, __u64 now, bool trusted)
{
	__u64 woken = left_runnable(preempt, task, trusted) ? now : 0;
	__u64 key = (__u64)task;
	struct task_times *times = bpf_map_lookup_elem(&tasks, &key);
	bool goes_on = wanted(task, trusted) && !left_for_good(task, trusted);

	if (times && times->woken_ns)
		finish(task, times, now, trusted);
	else if (times || goes_on)
		COUNT(loss[CPU_CAUSE_UNMATCHED_END]);
	if (!goes_on) {
		if (times)
			bpf_map_delete_elem(&tasks, &key);
	} else if (!times) {
		meet(task, now, woken, trusted);
	} else {
		times->left_ns = now;
		times->woken_ns = woken;
		times->ran_ns = 0;
		if (woken)
			start();
	}
}

static __always_inline void send(struct task_struct *task, struct task_times *times, bool trusted)
{
	struct cpu_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		COUNT(loss[CPU_CAUSE_RING_FULL]);
		return;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->woken_ns = times->woken_ns;
	record->ran_ns = times->ran_ns;
	record->sleep_ns = times->left_ns ? elapsed(times->left_ns, times->woken_ns) : 0;
	record->cpu = bpf_get_smp_processor_id();
	name_task(&record->task, task, trusted);
	if (by != CPU_BY_CPU)
		find_row(&record->row, task, trusted);
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

static __always_inline void remember(struct task_struct *task, __u64 now, bool trusted)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct history *history = bpf_map_lookup_elem(&histories, &cpu);
	struct run *run;

	if (!history)
		return;
	run = &history->runs[history->next++ & (RUNS - 1)];
	run->start_ns = history->switched_ns;
	run->end_ns = now;
	name_task(&run->task, task, trusted);
	history->switched_ns = now;
}

static __always_inline int on_task_switch(bool preempt, struct task_struct *prev, struct task_struct *next,
					  bool trusted)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 key = (__u64)next;
	struct task_times *times;

	if (emits_records)
		remember(prev, now, trusted);
	if (FIELD(trusted, prev, pid)) /* each CPU has an idle task; all have tid 0 */
		leave(prev, preempt, now, trusted);
	times = bpf_map_lookup_elem(&tasks, &key);
	if (!times)
		return 0;
	if (times->ran_ns && times->woken_ns) {
		/* It has left a CPU meanwhile without being seen. */
		end(false);
		times->woken_ns = 0;
	}
	times->ran_ns = now;
	if (emits_records && times->woken_ns && elapsed(times->woken_ns, now) >= slow_ns)
		send(next, times, trusted);
	return 0;
}

static __always_inline int on_task_wakeup(struct task_struct *task, bool trusted)
{
	__u64 key = (__u64)task;
	struct task_times *times = bpf_map_lookup_elem(&tasks, &key);

	if (!times) {
		if (wanted(task, trusted) && !task_is_on_cpu(task))
			meet(task, 0, bpf_ktime_get_ns(), trusted);
		return 0;
	}
	/* A wakeup of a task that runs, or waits for a CPU already, changes nothing. */
	if (!times->woken_ns && !times->ran_ns) {
		times->woken_ns = bpf_ktime_get_ns();
		start();
	}
	return 0;
}

static __always_inline int on_task_birth(struct task_struct *task, bool trusted)
{
	__u64 key = (__u64)task;
	__u64 now = bpf_ktime_get_ns();
	struct task_times *old;

	if (!wanted(task, trusted))
		return 0;
	/* The memory was that of a task whose end was not seen. */
	old = bpf_map_lookup_elem(&tasks, &key);
	if (old && old->woken_ns)
		COUNT(loss[CPU_CAUSE_UNMATCHED_START]);
	meet(task, 0, now, trusted);
	return 0;
}

TRACEPOINT(wakeup, sched_wakeup, on_task_wakeup((void *)ctx[0], trusted))
TRACEPOINT(switch, sched_switch, on_task_switch(ctx[0], (void *)ctx[1], (void *)ctx[2], trusted))
TRACEPOINT(first_wakeup, sched_wakeup_new, on_task_birth((void *)ctx[0], trusted))

SEC("raw_tp/cgroup_rmdir")
int cgroup_removed_raw_tp(__u64 *ctx)
{
	return on_cgroup_removed((void *)ctx[0], (void *)ctx[1]);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
