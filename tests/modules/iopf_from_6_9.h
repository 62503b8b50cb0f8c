/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Part of iopf.c: a handler for the domain of each PASID, to which the kernel gives whole groups. */

typedef struct iopf_fault fault_event;

static struct {
	struct iommu_domain domain;
	struct iommu_attach_handle handles[LAST_PASID + 1];
} spaces[ARRAY_SIZE(devices)];
static ioasid_t reserved;

static void page_response(struct device *device, fault_event *event, struct iommu_page_response *answer)
{
	log_answer(device, answer);
}

static int attach_pasid(struct iommu_domain *domain, struct device *device, ioasid_t pasid WITH_OLD_DOMAIN)
{
	return 0;
}

static const struct iommu_domain_ops domain_ops = {
	.attach_dev = attach_domain,
	.set_dev_pasid = attach_pasid,
	.free = free_domain,
};

static void free_own(struct iommu_domain *domain)
{
	kfree(domain);
}

static const struct iommu_domain_ops own_ops = {
	.attach_dev = attach_domain,
	.set_dev_pasid = attach_pasid,
	.free = free_own,
};

static struct iommu_domain *alloc_own(struct device *device, struct mm_struct *mm)
{
	struct iommu_domain *domain = kzalloc(sizeof(*domain), GFP_KERNEL);

	if (!domain)
		return ERR_PTR(-ENOMEM);
	domain->ops = &own_ops;
	return domain;
}

static struct iommu_domain identity_domain = {.type = IOMMU_DOMAIN_IDENTITY, .ops = &domain_ops};
static struct iommu_domain blocked_domain = {.type = IOMMU_DOMAIN_BLOCKED, .ops = &domain_ops};

#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
static void detach_pasid(struct device *device, ioasid_t pasid, struct iommu_domain *domain)
{
}
#endif

static const struct iommu_ops ops_template = {
	.probe_device = probe_device,
	.release_device = release_device,
	.device_group = generic_device_group,
	.def_domain_type = def_domain_type,
	.page_response = page_response,
	.identity_domain = &identity_domain,
	.blocked_domain = &blocked_domain,
	.domain_alloc_sva = alloc_own,
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
	.remove_dev_pasid = detach_pasid,
#endif
};

static void handle_group(struct work_struct *work)
{
	struct iopf_group *group = container_of(work, struct iopf_group, work);
	const u64 *wish = group->last_fault.fault.prm.private_data;

	usleep_range(wish[0], wish[0]);
	iopf_group_response(group, wish[1]);
	iopf_free_group(group);
}

static int take_group(struct iopf_group *group)
{
	/* A group without an answer is freed with the queue. */
	if ((s64)group->last_fault.fault.prm.private_data[0] >= 0) {
		INIT_WORK(&group->work, handle_group);
		queue_work(handlers, &group->work);
	}
	return 0;
}

static int attach_device(struct device *device)
{
	typeof(spaces[0]) *space = &spaces[to_platform_device(device)->id];
	int error = iopf_queue_add_device(queue, device);
	ioasid_t pasid;

	/* The kernel must not give processes the PASIDs that are attached here. */
	while (!error && reserved < LAST_PASID)
		if (iommu_alloc_global_pasid(device) == reserved + 1)
			reserved++;
		else
			error = -EBUSY;
	space->domain.type = IOMMU_DOMAIN_UNMANAGED;
	space->domain.ops = &domain_ops;
	space->domain.owner = ops;
	space->domain.iopf_handler = take_group;
	for (pasid = 1; !error && pasid <= LAST_PASID; pasid++)
		error = iommu_attach_device_pasid(&space->domain, device, pasid, &space->handles[pasid]);
	return error;
}

static void detach_device(struct device *device)
{
	typeof(spaces[0]) *space = &spaces[to_platform_device(device)->id];
	ioasid_t pasid;

	iopf_queue_remove_device(queue, device);
	for (pasid = 1; pasid <= LAST_PASID; pasid++)
		if (space->handles[pasid].domain)
			iommu_detach_device_pasid(&space->domain, device, pasid);
}

static int bind(struct device *device, unsigned int *pasid, void **bond)
{
	*bond = iommu_sva_bind_device(device, current->mm);
	if (IS_ERR(*bond))
		return PTR_ERR(*bond);
	*pasid = iommu_sva_get_pasid(*bond);
	return 0;
}

static void unbind(void *bond)
{
	iommu_sva_unbind_device(bond);
}

static void forget_iommu(void)
{
	for (; reserved; reserved--)
		iommu_free_global_pasid(reserved);
}
