// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The same as io_path_plain, for requests without operations. */
#define PLAIN
#define REQUESTS_ALONE
#include "block/io_path.bpf.c"
