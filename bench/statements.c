/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Reads of a process that keeps a statement where PostgreSQL does, in a function that gets it. Each line of its input is a
 * length: it prints the mean time of a read in ns, while its statement has that length, and that of a call of the function
 * without reads; 0: it has no statement.
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
int MyDatabaseId = 5, MyProcPid;

/* As in its row of pg_stat_activity. */
struct row {
	int changes, pid;
	long long unused[4], reported;
	int database, user;
	char more[368];
	long long query_id;
};

static struct row row = {.database = 5, .query_id = 1};
struct row *MyBEEntry = &row;

__attribute__((used)) long long pgstat_get_my_query_id(void)
{
	return MyBEEntry->query_id;
}

static long long now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* Where a unit ends that never does. */
__attribute__((noinline, used)) void never(void)
{
	asm volatile("");
}

__attribute__((noinline)) int execute(const char *text, int fd, void *buffer, int reads)
{
	debug_query_string = text;
	row.reported++;
	for (int number = 0; number < reads; number++) {
		if (pread(fd, buffer, 4096, 4096 * number) != 4096)
			return 1;
	}
	return 0;
}

int main(int count, char **words)
{
	static char text[1024];
	long long begin, read, called;
	void *buffer;
	int fd, length;

	row.pid = MyProcPid = getpid();
	fd = count > 1 ? open(words[1], O_RDONLY | O_DIRECT) : -1;
	if (fd < 0 || posix_memalign(&buffer, 4096, 4096))
		return 1;
	while (scanf("%d", &length) == 1 && length >= 0 && length < (int)sizeof(text)) {
		memset(text, 'a', length);
		text[length] = 0;
		/* The first one makes a row. */
		if (execute(length ? text : NULL, fd, buffer, 1))
			return 1;
		begin = now();
		if (execute(length ? text : NULL, fd, buffer, READS))
			return 1;
		read = now();
		for (int number = 0; number < READS; number++)
			execute(length ? text : NULL, fd, buffer, 0);
		called = now();
		printf("%.1f %.1f\n", (double)(read - begin) / READS, (double)(called - read) / READS);
		fflush(stdout);
	}
	return 0;
}
