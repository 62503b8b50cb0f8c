/* SPDX-License-Identifier: Apache-2.0 */
/* CALLS of one kind and nothing else: the nanoseconds of CPU time that each took. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv)
{
	int calls = argc == 3 ? atoi(argv[2]) : 0, zero = open("/dev/zero", O_RDONLY), number;
	char byte;
	double start;

	if (calls <= 0 || zero < 0)
		return 2;
	start = now();
	for (number = 0; number < calls; number++) {
		if (!strcmp(argv[1], "read"))
			syscall(SYS_read, zero, &byte, 1);
		else
			syscall(SYS_getppid);
	}
	printf("%f\n", (now() - start) / calls);
	return 0;
}
