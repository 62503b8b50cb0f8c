// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The same as io_path_plain, with a flight recorder. */
#define PLAIN
#define RECORDING
#include "block/io_path.bpf.c"
