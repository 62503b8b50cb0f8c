// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * `echo CPU MICROSECONDS > run`: a thread of that CPU keeps interrupts off so long. The write returns afterwards.
 *
 * With -1 MICROSECONDS it returns when they are off, and they stay off until `echo release > run`, which returns when
 * they are on again. Whoever never says so has to wait for a minute.
 */
#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/sched.h>

#include "control.h"

#define HELD (-1)
#define LONGEST_US (5 * USEC_PER_SEC)
#define LONGEST_HELD_NS (60 * (u64)NSEC_PER_SEC)

struct period {
	u64 wanted_ns;
	u64 start_ns;
	u64 length_ns;
	bool released;
	struct completion begun;
	struct completion over;
};

/* The one that is held, if there is one. */
static struct period held;
static struct task_struct *holder;
static DEFINE_MUTEX(holding);

/*
 * Its name is to be found on stacks. It looks at the clock instead of mdelay(), which counts rounds of a loop and is
 * far off on an emulated CPU.
 */
static noinline __noclone void wptest_keep_irqs_off(struct period *period)
{
	unsigned long flags;

	local_irq_save(flags);
	period->start_ns = ktime_get_ns();
	complete(&period->begun);
	do {
		cpu_relax();
		period->length_ns = ktime_get_ns() - period->start_ns;
	} while (period->length_ns < period->wanted_ns && !READ_ONCE(period->released));
	/* Behind the release, however long this CPU stood still before it saw that. */
	period->length_ns = ktime_get_ns() - period->start_ns;
	local_irq_restore(flags);
}

static int thread(void *data)
{
	struct period *period = data;

	wptest_keep_irqs_off(period);
	log_line("cpu=%d pid=%d comm=%s start_ns=%llu length_ns=%llu", raw_smp_processor_id(), current->pid,
		 current->comm, period->start_ns, period->length_ns);
	complete(&period->over);
	/* Until it is stopped, so that no thread runs in a module that is gone. */
	set_current_state(TASK_INTERRUPTIBLE);
	while (!kthread_should_stop()) {
		schedule();
		set_current_state(TASK_INTERRUPTIBLE);
	}
	__set_current_state(TASK_RUNNING);
	return 0;
}

static struct task_struct *begin(struct period *period, unsigned int cpu, u64 wanted_ns)
{
	struct task_struct *task;

	period->wanted_ns = wanted_ns;
	period->released = false;
	init_completion(&period->begun);
	init_completion(&period->over);
	task = kthread_create(thread, period, KBUILD_MODNAME);
	if (IS_ERR(task))
		return task;
	kthread_bind(task, cpu);
	wake_up_process(task);
	return task;
}

static int keep(unsigned int cpu, int us)
{
	struct period period;
	struct task_struct *task = begin(&period, cpu, us * (u64)NSEC_PER_USEC);

	if (IS_ERR(task))
		return PTR_ERR(task);
	wait_for_completion(&period.over);
	kthread_stop(task);
	return 0;
}

static int hold(unsigned int cpu)
{
	struct task_struct *task;
	int error = 0;

	/* Who runs there himself could not release it. */
	if (cpumask_test_cpu(cpu, current->cpus_ptr))
		return -EINVAL;
	mutex_lock(&holding);
	if (holder) {
		error = -EBUSY;
	} else {
		task = begin(&held, cpu, LONGEST_HELD_NS);
		if (IS_ERR(task)) {
			error = PTR_ERR(task);
		} else {
			holder = task;
			wait_for_completion(&held.begun);
		}
	}
	mutex_unlock(&holding);
	return error;
}

static int release(void)
{
	int error = -EINVAL;

	mutex_lock(&holding);
	if (holder) {
		WRITE_ONCE(held.released, true);
		wait_for_completion(&held.over);
		kthread_stop(holder);
		holder = NULL;
		error = 0;
	}
	mutex_unlock(&holding);
	return error;
}

static int run(const char *command)
{
	unsigned int cpu;
	int us;

	if (sysfs_streq(command, "release"))
		return release();
	if (sscanf(command, "%u %d", &cpu, &us) != 2 || us < HELD || us > LONGEST_US || cpu >= nr_cpu_ids ||
	    !cpu_online(cpu))
		return -EINVAL;
	return us == HELD ? hold(cpu) : keep(cpu, us);
}

static int __init start(void)
{
	control_create();
	return 0;
}

static void __exit stop(void)
{
	control_remove();
	release();
}

module_init(start);
module_exit(stop);
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("Keeps interrupts off for tests of wptrace");
