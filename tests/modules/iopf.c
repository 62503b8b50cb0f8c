// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Devices behind an IOMMU, both made up, that report I/O page faults to the kernel, which handles and answers them.
 *
 * `echo DEVICE PASID GROUP PAGES MICROSECONDS CODE > run`: faults of so many pages of one group, of which the last asks
 * for an answer. The write returns when all are reported. The answer comes so much later, never if that is -1, with
 * this code (enum iommu_page_response_code); Linux 6.1 always answers 1, because it knows no process by the PASID.
 * PASIDs are 1 to 8; from 6.12 on others are refused.
 *
 * PASID 0 stands for the one that the kernel gives the writer, whose memory it then looks at: its stack for code 0, and
 * where there is none for code 1. It cannot so long, because the memory is locked, and the write returns after the
 * answer. Linux 6.12 has this switched off.
 */
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/iommu.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/property.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#include "control.h"

#define LONGEST_US (10 * (int)USEC_PER_SEC)
#define PASID_BITS 4
/* Of our own; the kernel gives out what is above. */
#define LAST_PASID 8
#define ADDRESS 0x10000
#define PAGE_FLAGS IOMMU_FAULT_PAGE_REQUEST_PASID_VALID
#define LAST_FLAGS (PAGE_FLAGS | IOMMU_FAULT_PAGE_REQUEST_LAST_PAGE | IOMMU_FAULT_PAGE_RESPONSE_NEEDS_PASID)

static struct platform_device *devices[2];
static struct iommu_device iommu = {.max_pasids = 1 << PASID_BITS};
static struct iommu_ops *ops;
static struct iopf_queue *queue;
static struct workqueue_struct *handlers;
/* For one writer with its own memory at a time. */
static DEFINE_MUTEX(own_lock);
static DECLARE_COMPLETION(own_answer);

/* --- An IOMMU, with no more than the kernel asks for before it takes it for one ----------------------------------- */

static struct iommu_device *probe_device(struct device *device)
{
	/* The kernel asks for every device that it has. */
	if (device->bus == &platform_bus_type && strstarts(dev_name(device), KBUILD_MODNAME))
		return &iommu;
	return ERR_PTR(-ENODEV);
}

static void release_device(struct device *device)
{
}

static int def_domain_type(struct device *device)
{
	return IOMMU_DOMAIN_IDENTITY;
}

static void log_answer(struct device *device, const struct iommu_page_response *answer)
{
	log_line("event=answer dev=%s pasid=%u group=%u code=%u ns=%llu", dev_name(device), answer->pasid,
		 answer->grpid, answer->code, ktime_get_ns());
	if (answer->pasid > LAST_PASID)
		complete(&own_answer);
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
#define WITH_OLD_DOMAIN , struct iommu_domain *old
#else
#define WITH_OLD_DOMAIN
#endif

static int attach_domain(struct iommu_domain *domain, struct device *device WITH_OLD_DOMAIN)
{
	return 0;
}

static void free_domain(struct iommu_domain *domain)
{
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 9, 0)
#include "iopf_until_6_8.h"
#else
#include "iopf_from_6_9.h"
#endif

/* --- The devices -------------------------------------------------------------------------------------------------- */

static int report(struct device *device, struct iommu_fault_page_request request, unsigned int pages)
{
	fault_event event = {.fault = {.type = IOMMU_FAULT_PAGE_REQ}};
	unsigned int page;
	u64 start_ns;
	int error = 0;

	request.perm = IOMMU_FAULT_PERM_READ;
	for (page = 1; !error && page <= pages; page++) {
		request.flags = page == pages ? LAST_FLAGS : PAGE_FLAGS;
		event.fault.prm = request;
		start_ns = ktime_get_ns();
		error = iommu_report_device_fault(device, &event);
		log_line("event=fault dev=%s pasid=%u group=%u addr=0x%llx last=%d error=%d ns=%llu", dev_name(device),
			 request.pasid, request.grpid, request.addr, page == pages, error, start_ns);
		/* The writer's memory may end anywhere. */
		if (request.pasid <= LAST_PASID)
			request.addr += PAGE_SIZE;
	}
	return error;
}

static int report_own(struct device *device, struct iommu_fault_page_request request, unsigned int pages, int us)
{
	void *bond;
	int error;

	mutex_lock(&own_lock);
	error = bind(device, &request.pasid, &bond);
	if (error)
		goto unlock;
	reinit_completion(&own_answer);
	mmap_write_lock(current->mm);
	error = report(device, request, pages);
	usleep_range(us, us);
	mmap_write_unlock(current->mm);
	if (!error)
		wait_for_completion(&own_answer);
	unbind(bond);
unlock:
	mutex_unlock(&own_lock);
	return error;
}

static int run(const char *command)
{
	struct iommu_fault_page_request request = {};
	unsigned int number, pages, code;
	struct device *device;
	int us;

	if (sscanf(command, "%u %u %u %u %d %u", &number, &request.pasid, &request.grpid, &pages, &us, &code) != 6 ||
	    number >= ARRAY_SIZE(devices) || !pages || us < -1 || us > LONGEST_US || code > IOMMU_PAGE_RESP_FAILURE)
		return -EINVAL;
	device = &devices[number]->dev;
	if (!request.pasid) {
		if (us < 0 || code > IOMMU_PAGE_RESP_INVALID)
			return -EINVAL;
		request.addr = code ? 0 : current->mm->start_stack & PAGE_MASK;
		return report_own(device, request, pages, us);
	}
	request.addr = ADDRESS;
	/* For the handlers: the kernel passes it on unseen. */
	request.private_data[0] = us;
	request.private_data[1] = code;
	return report(device, request, pages);
}

static void remove_all(void)
{
	int number;

	if (handlers)
		destroy_workqueue(handlers);
	for (number = 0; number < ARRAY_SIZE(devices); number++) {
		if (IS_ERR_OR_NULL(devices[number]))
			continue;
		if (device_iommu_mapped(&devices[number]->dev)) {
			iopf_queue_flush_dev(&devices[number]->dev);
			detach_device(&devices[number]->dev);
		}
		platform_device_unregister(devices[number]);
	}
	iommu_device_unregister(&iommu);
	iommu_device_sysfs_remove(&iommu);
	forget_iommu();
	if (queue)
		iopf_queue_free(queue);
	kfree(ops);
}

static int __init add_all(void)
{
	static const struct property_entry properties[] = {PROPERTY_ENTRY_U32("pasid-num-bits", PASID_BITS), {}};
	struct platform_device_info info = {.name = KBUILD_MODNAME, .properties = properties};
	int error;

	handlers = alloc_workqueue(KBUILD_MODNAME, WQ_UNBOUND, 0);
	queue = iopf_queue_alloc(KBUILD_MODNAME);
	if (!handlers || !queue)
		return -ENOMEM;
	for (info.id = 0; info.id < ARRAY_SIZE(devices); info.id++) {
		devices[info.id] = platform_device_register_full(&info);
		if (IS_ERR(devices[info.id]))
			return PTR_ERR(devices[info.id]);
		if (!device_iommu_mapped(&devices[info.id]->dev))
			return -ENODEV;
		error = attach_device(&devices[info.id]->dev);
		if (error)
			return error;
	}
	return 0;
}

static int __init start(void)
{
	int error;

	/* A device holds the module that its IOMMU's operations name; this one would hold itself for ever. */
	ops = kmemdup(&ops_template, sizeof(ops_template), GFP_KERNEL);
	if (!ops)
		return -ENOMEM;
	error = iommu_device_sysfs_add(&iommu, NULL, NULL, KBUILD_MODNAME);
	if (error)
		goto no_directory;
	error = iommu_device_register(&iommu, ops, NULL);
	if (error)
		goto no_iommu;
	error = add_all();
	if (error) {
		remove_all();
		return error;
	}
	control_create();
	return 0;
no_iommu:
	iommu_device_sysfs_remove(&iommu);
no_directory:
	kfree(ops);
	return error;
}

static void __exit stop(void)
{
	control_remove();
	remove_all();
}

module_init(start);
module_exit(stop);
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("Reports I/O page faults of devices that do not exist, for tests of wptrace");
