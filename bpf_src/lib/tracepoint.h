/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A program for each of the two ways to a tracepoint. With `tp_btf` the kernel's objects are read directly (`trusted`);
 * `raw_tp`, for kernels that refuse that, has to copy what it reads.
 */
#ifndef WPT_TRACEPOINT_H
#define WPT_TRACEPOINT_H

#define TRACEPOINT(name, tracepoint, call) \
	SEC("tp_btf/" #tracepoint) \
	int name##_tp_btf(__u64 *ctx) \
	{ \
		const bool trusted __attribute__((unused)) = true; \
		return call; \
	} \
	SEC("raw_tp/" #tracepoint) \
	int name##_raw_tp(__u64 *ctx) \
	{ \
		const bool trusted __attribute__((unused)) = false; \
		return call; \
	}

#endif
