// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * A kernel function by its name. From 6.2 on the kernel has an index of names; to read all of /proc/kallsyms takes it
 * some 200 ns for each symbol.
 */
#include "lib/wptrace.h"

char name[128];
__u64 address; /* 0: there is no such function, or it is not shown */
char text[192]; /* name+0x0/0x1c0 [module] */

SEC("syscall")
int find_function(void *ctx)
{
	address = 0;
	if (!bpf_kallsyms_lookup_name(name, sizeof(name), 0, &address))
		bpf_snprintf(text, sizeof(text), "%pS", &address, sizeof(address));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
