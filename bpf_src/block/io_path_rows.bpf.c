// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The same as io_path_plain, with rows by file, directory, statement and unit, and with neighbours. */
#define PLAIN
#define ROWS
#include "block/io_path.bpf.c"
