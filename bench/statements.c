/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Reads of a process that keeps a statement where PostgreSQL does. Each line of its input is a length: it prints the mean
 * time of a read in ns, while its statement has that length; 0: it has none.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define READS 3000

const char *debug_query_string;

static long long now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

int main(int count, char **words)
{
	static char text[1024];
	long long begin;
	void *buffer;
	int fd, length;

	fd = count > 1 ? open(words[1], O_RDONLY | O_DIRECT) : -1;
	if (fd < 0 || posix_memalign(&buffer, 4096, 4096))
		return 1;
	while (scanf("%d", &length) == 1 && length >= 0 && length < (int)sizeof(text)) {
		memset(text, 'a', length);
		text[length] = 0;
		debug_query_string = length ? text : NULL;
		/* The first one makes a row. */
		if (pread(fd, buffer, 4096, 0) != 4096)
			return 1;
		begin = now();
		for (int number = 0; number < READS; number++) {
			if (pread(fd, buffer, 4096, 4096 * number) != 4096)
				return 1;
		}
		printf("%.1f\n", (double)(now() - begin) / READS);
		fflush(stdout);
	}
	return 0;
}
