// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The programs of io_path for traces without options and filters, with rows by task, process, cgroup or call. */
#define PLAIN
#include "block/io_path.bpf.c"
