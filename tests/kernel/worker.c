// SPDX-License-Identifier: Apache-2.0
/*
 * A program whose units of work are known: for each line that it reads, "HOW COUNT KIND TEXT", it reads COUNT blocks of
 * the disk in a unit with that text. HOW says how a unit is known: by a call, by a static probe, by variables; or none.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "probe.h"

#define BLOCK 4096
#define LARGEST 4096

const char *unit_text;
char unit_array[64];
short unit_number;
static int disk;
static char **words;

static void *read_blocks(void *count)
{
	static __thread void *buffer;
	long number;

	if (!buffer && posix_memalign(&buffer, BLOCK, BLOCK))
		exit(1);
	for (number = 0; number < (long)count; number++)
		if (pread(disk, buffer, BLOCK, 0) != BLOCK)
			exit(1);
	return NULL;
}

static void *read_blocks_by_name(void *count)
{
	pthread_setname_np(pthread_self(), "cleaner");
	return read_blocks(count);
}

/* To the page cache. */
static void *write_blocks_by_name(void *count)
{
	static char block[BLOCK];
	int file = open(words[1], O_WRONLY);
	long number;

	pthread_setname_np(pthread_self(), "cleaner");
	for (number = 0; number < (long)count; number++)
		if (pwrite(file, block, BLOCK, number * BLOCK) != BLOCK)
			exit(1);
	close(file);
	return NULL;
}

/* Where a text becomes known. */
__attribute__((noinline)) void know(const char *text, long length)
{
	asm volatile("" : : "r"(text), "r"(length) : "memory");
}

/* Whoever is called with a text may overwrite it. Without reads, it starts the program again. */
__attribute__((noinline)) long work(long kind, char *text, long length, long count)
{
	char *again[] = {words[0], words[1], "again", NULL};

	if (kind == 9 || kind == 3)
		know("known later", 11);
	if (kind == 10)
		know((char *)8, 11);
	memset(text, '#', length);
	if (!count)
		execv(words[0], again);
	read_blocks((void *)count);
	return kind;
}

__attribute__((noinline)) void probed(const char *text, unsigned int length, long count)
{
	volatile unsigned int size = length;

	PROBE(worker, begin, 0, "8@%0 -4@%1", "r"(text), "m"(size));
	read_blocks((void *)count);
	PROBE(worker, end, 0, "", "i"(0));
}

int main(int argc, char **argv)
{
	static char line[2 * LARGEST], text[LARGEST], how[16];
	pthread_t thread;
	char *pages;
	long count, kind;

	words = argv;
	if (argc > 2) {
		puts("done");
		fflush(stdout);
	}
	disk = open(argv[1], O_RDONLY | O_DIRECT);
	pages = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (disk < 0 || pages == MAP_FAILED || mprotect(pages + BLOCK, BLOCK, PROT_NONE))
		return 1;
	memset(pages, 'a', BLOCK);
	while (fgets(line, sizeof(line), stdin) && sscanf(line, "%15s %ld %ld %4095[^\n]", how, &count, &kind, text) == 4) {
		if (!strcmp(how, "call")) {
			work(kind, text, strlen(text), count);
		} else if (!strcmp(how, "static")) {
			probed(text, strlen(text), count);
		} else if (!strcmp(how, "lie")) {
			/* Not mapped to its end, and where there is nothing at all. */
			unit_text = kind ? pages + BLOCK - 100 : (char *)8;
			probed(unit_text, 100, count);
			unit_text = NULL;
		} else if (!strcmp(how, "thread") || !strcmp(how, "named") || !strcmp(how, "dirty")) {
			if (pthread_create(&thread, NULL,
					   *how == 't' ? read_blocks :
					   *how == 'n' ? read_blocks_by_name :
							 write_blocks_by_name,
					   (void *)count) ||
			    pthread_join(thread, NULL))
				return 1;
		} else {
			if (!strcmp(how, "set")) {
				unit_text = text;
				unit_number = kind;
				memcpy(unit_array, text, sizeof(unit_array) - 1);
			}
			read_blocks((void *)count);
			unit_text = NULL;
			unit_number = 0;
			memset(unit_array, 0, sizeof(unit_array));
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
