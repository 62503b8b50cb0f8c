/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The tracepoints of I/O page faults that patched drivers of the SMMU have, with the same arguments and fields. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM smmu

#if !defined(WPTEST_SMMU_EVENTS_H) || defined(TRACE_HEADER_MULTI_READ)
#define WPTEST_SMMU_EVENTS_H

#include <linux/device.h>
#include <linux/tracepoint.h>
#include <linux/version.h>

#undef ASSIGN_DEVICE
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define ASSIGN_DEVICE(device) __assign_str(dev)
#else
#define ASSIGN_DEVICE(device) __assign_str(dev, dev_name(device))
#endif

/* clang-format off */
DECLARE_EVENT_CLASS(io_fault,
	TP_PROTO(struct device *dev, unsigned int pasid),
	TP_ARGS(dev, pasid),
	TP_STRUCT__entry(
		__string(dev, dev_name(dev))
		__field(int, pasid)
	),
	TP_fast_assign(
		ASSIGN_DEVICE(dev);
		__entry->pasid = pasid;
	),
	TP_printk("dev=%s pasid=%d", __get_str(dev), __entry->pasid)
);

DEFINE_EVENT(io_fault, io_fault_entry,
	TP_PROTO(struct device *dev, unsigned int pasid),
	TP_ARGS(dev, pasid)
);

DEFINE_EVENT(io_fault, io_fault_exit,
	TP_PROTO(struct device *dev, unsigned int pasid),
	TP_ARGS(dev, pasid)
);
/* clang-format on */

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE smmu_events
#include <trace/define_trace.h>
