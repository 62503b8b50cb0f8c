// SPDX-License-Identifier: Apache-2.0
/*
 * A program to probe: what it does it does once for each line that it reads, "COUNT NAME". It prints what was returned,
 * and the semaphore of its static probes as it found it.
 */
#include <stdio.h>

#include "probe.h"

unsigned short probed_semaphore __attribute__((used, section(".probes")));

__attribute__((noinline)) long work(long number, const char *name)
{
	asm volatile("" : : "r"(name) : "memory");
	return number % 3 - 1;
}

__attribute__((noinline)) int descend(int depth)
{
	int below = depth ? descend(depth - 1) : 0;

	asm volatile("" : "+r"(below));
	return below + 1;
}

/* At two places. */
static inline __attribute__((always_inline)) void probe(const char *name, int number)
{
	volatile int stored = number;
	const char *words[2] = { 0, name };

	PROBE(probed, started, probed_semaphore, "8@%0 -4@%1 -4@%2 -4@%3 8@%4", "r"(name), "r"(-number), "m"(stored), "i"(-7), "r"(words));
	asm volatile("" : : "r"(words) : "memory");
	PROBE(probed, done, probed_semaphore, "", "i"(0));
}

int main(void)
{
	char name[16];
	int count, number;
	long returned;

	while (scanf("%d %15s", &count, name) == 2) {
		returned = 0;
		for (number = 0; number < count; number++) {
			returned += work(number, name);
			descend(2);
			if (number & 1)
				probe(name, 1);
			else
				probe(name, 2);
		}
		printf("%ld %d\n", returned, *(volatile unsigned short *)&probed_semaphore);
		fflush(stdout);
	}
	return 0;
}
