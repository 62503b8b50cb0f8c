// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * `echo DEVICE PASID FAULTS MICROSECONDS > run`: so many faults one after the other, each so long from io_fault_entry
 * to io_fault_exit; -1 for an exit that never comes. The write returns after the last. Writers do not wait for each
 * other, so several have faults at the same time.
 */
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/err.h>
#include <linux/ktime.h>
#include <linux/workqueue.h>

#include "control.h"

#define CREATE_TRACE_POINTS
#include "smmu_events.h"

#define LONGEST_US (10 * USEC_PER_SEC)

static const char *const names[] = {"0000:75:00.0", "0000:76:00.0"};
static struct device *devices[ARRAY_SIZE(names)];

struct fault {
	struct work_struct work;
	struct device *device;
	unsigned int pasid;
	unsigned int us;
	u64 end_ns;
};

/* As a driver does it, not in the thread that had the entry. */
static void handle(struct work_struct *work)
{
	struct fault *fault = container_of(work, struct fault, work);

	usleep_range(fault->us, fault->us);
	fault->end_ns = ktime_get_ns();
	trace_io_fault_exit(fault->device, fault->pasid);
}

static int run(const char *command)
{
	struct fault fault = {};
	unsigned int device, faults;
	u64 start_ns;
	int us;

	if (sscanf(command, "%u %u %u %d", &device, &fault.pasid, &faults, &us) != 4 || device >= ARRAY_SIZE(devices) ||
	    us < -1 || us > (int)LONGEST_US)
		return -EINVAL;
	fault.device = devices[device];
	fault.us = us;
	INIT_WORK_ONSTACK(&fault.work, handle);
	while (faults--) {
		fault.end_ns = 0;
		start_ns = ktime_get_ns();
		trace_io_fault_entry(fault.device, fault.pasid);
		if (us >= 0) {
			queue_work(system_unbound_wq, &fault.work);
			flush_work(&fault.work);
		}
		log_line("dev=%s pasid=%u start_ns=%llu end_ns=%llu", dev_name(fault.device), fault.pasid, start_ns,
			 fault.end_ns);
	}
	destroy_work_on_stack(&fault.work);
	return 0;
}

static void remove_devices(void)
{
	int number;

	for (number = 0; number < ARRAY_SIZE(devices); number++)
		if (!IS_ERR_OR_NULL(devices[number]))
			root_device_unregister(devices[number]);
}

static int __init start(void)
{
	int number;

	for (number = 0; number < ARRAY_SIZE(devices); number++) {
		devices[number] = root_device_register(names[number]);
		if (IS_ERR(devices[number])) {
			remove_devices();
			return PTR_ERR(devices[number]);
		}
	}
	control_create();
	return 0;
}

static void __exit stop(void)
{
	control_remove();
	remove_devices();
}

module_init(start);
module_exit(stop);
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("Fires the tracepoints of SMMU faults for tests of wptrace");
