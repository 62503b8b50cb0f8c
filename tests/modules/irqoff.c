// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* `echo CPU MICROSECONDS > run`: a thread of that CPU keeps interrupts off so long. The write returns afterwards. */
#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/kthread.h>
#include <linux/ktime.h>

#include "control.h"

#define LONGEST_US (5 * USEC_PER_SEC)

struct period {
	u64 wanted_ns;
	u64 start_ns;
	u64 length_ns;
	struct completion over;
};

/*
 * Its name is to be found on stacks. It looks at the clock instead of mdelay(), which counts rounds of a loop and is
 * far off on an emulated CPU.
 */
static noinline __noclone void wptest_keep_irqs_off(struct period *period)
{
	unsigned long flags;

	local_irq_save(flags);
	period->start_ns = ktime_get_ns();
	do {
		cpu_relax();
		period->length_ns = ktime_get_ns() - period->start_ns;
	} while (period->length_ns < period->wanted_ns);
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

static int run(const char *command)
{
	struct period period = {};
	struct task_struct *task;
	unsigned int cpu, us;

	if (sscanf(command, "%u %u", &cpu, &us) != 2 || us > LONGEST_US || cpu >= nr_cpu_ids || !cpu_online(cpu))
		return -EINVAL;
	period.wanted_ns = us * (u64)NSEC_PER_USEC;
	init_completion(&period.over);
	task = kthread_create(thread, &period, KBUILD_MODNAME);
	if (IS_ERR(task))
		return PTR_ERR(task);
	kthread_bind(task, cpu);
	wake_up_process(task);
	wait_for_completion(&period.over);
	kthread_stop(task);
	return 0;
}

static int __init start(void)
{
	control_create();
	return 0;
}

static void __exit stop(void)
{
	control_remove();
}

module_init(start);
module_exit(stop);
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("Keeps interrupts off for tests of wptrace");
