/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of iopf.c: a handler for the device, which gives the faults to the kernel's queue. */

typedef struct iommu_fault_event fault_event;

/* Exported for modules, but declared in a header that Debian does not package. */
int iommu_queue_iopf(struct iommu_fault *fault, void *cookie);
int iopf_queue_add_device(struct iopf_queue *queue, struct device *dev);
int iopf_queue_remove_device(struct iopf_queue *queue, struct device *dev);
int iopf_queue_flush_dev(struct device *dev);
struct iopf_queue *iopf_queue_alloc(const char *name);
void iopf_queue_free(struct iopf_queue *queue);
int iommu_sva_alloc_pasid(struct mm_struct *mm, ioasid_t min, ioasid_t max);

struct handling {
	struct work_struct work;
	struct device *device;
	struct iommu_fault fault;
};

static int page_response(struct device *device, fault_event *event, struct iommu_page_response *answer)
{
	log_answer(device, answer);
	return 0;
}

static struct iommu_domain identity_domain;

static struct iommu_domain *alloc_domain(unsigned int type)
{
	return type == IOMMU_DOMAIN_IDENTITY ? &identity_domain : NULL;
}

static const struct iommu_domain_ops domain_ops = {.attach_dev = attach_domain, .free = free_domain};

static const struct iommu_ops ops_template = {
	.probe_device = probe_device,
	.release_device = release_device,
	.device_group = generic_device_group,
	.def_domain_type = def_domain_type,
	.page_response = page_response,
	.domain_alloc = alloc_domain,
	.default_domain_ops = &domain_ops,
};

static void handle_group(struct work_struct *work)
{
	struct handling *handling = container_of(work, struct handling, work);
	struct dev_iommu *state = handling->device->iommu;
	unsigned long us = handling->fault.prm.private_data[0];

	usleep_range(us, us);
	mutex_lock(&state->lock);
	iommu_queue_iopf(&handling->fault, handling->device);
	mutex_unlock(&state->lock);
	kfree(handling);
}

static int handle_fault(struct iommu_fault *fault, void *device)
{
	struct handling *handling;

	if (!(fault->prm.flags & IOMMU_FAULT_PAGE_REQUEST_LAST_PAGE))
		return iommu_queue_iopf(fault, device);
	if ((s64)fault->prm.private_data[0] < 0)
		return 0;
	handling = kmalloc(sizeof(*handling), GFP_KERNEL);
	if (!handling)
		return -ENOMEM;
	INIT_WORK(&handling->work, handle_group);
	handling->device = device;
	handling->fault = *fault;
	queue_work(handlers, &handling->work);
	return 0;
}

static int attach_device(struct device *device)
{
	int error = iommu_register_device_fault_handler(device, handle_fault, device);

	return error ? error : iopf_queue_add_device(queue, device);
}

static void detach_device(struct device *device)
{
	struct iommu_fault_param *faults = device->iommu->fault_param;

	/* A device with unanswered faults cannot let go of its handler. */
	while (faults && !list_empty(&faults->faults)) {
		fault_event *event = list_first_entry(&faults->faults, fault_event, list);
		struct iommu_page_response answer = {
			.version = IOMMU_PAGE_RESP_VERSION_1,
			.flags = IOMMU_PAGE_RESP_PASID_VALID,
			.pasid = event->fault.prm.pasid,
			.grpid = event->fault.prm.grpid,
			.code = IOMMU_PAGE_RESP_FAILURE,
		};

		if (WARN_ON(iommu_page_response(device, &answer)))
			break;
	}
	iopf_queue_remove_device(queue, device);
	iommu_unregister_device_fault_handler(device);
}

/* The memory keeps it as long as it lives. */
static int bind(struct device *device, unsigned int *pasid, void **bond)
{
	int error = iommu_sva_alloc_pasid(current->mm, LAST_PASID + 1, (1 << PASID_BITS) - 1);

	*pasid = current->mm->pasid;
	return error;
}

static void unbind(void *bond)
{
}

static void forget_iommu(void)
{
	/* The kernel itself leaves its buses pointing at an IOMMU that is gone. */
	platform_bus_type.iommu_ops = NULL;
	pci_bus_type.iommu_ops = NULL;
}
