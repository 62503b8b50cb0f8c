/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Log-linear histogram of nanoseconds: 8 buckets per power of two, so a value read from it is within 6.25 %.
 * wptrace/model/distribution.py has the same scheme; tests/kernel compares the two value by value.
 */
#ifndef WPT_HIST_H
#define WPT_HIST_H

#define HIST_SLOTS 320 /* up to 2^42 ns, 73 minutes; longer ones count in the last */

struct hist {
	__u64 sum;
	__u64 low; /* the minimum, inverted, so that 0 means none yet */
	__u64 max;
	__u64 squares; /* sum of squares, 128 bits: low and high half; 0: not kept */
	__u64 squares_high;
	__u32 slots[HIST_SLOTS]; /* wrap; the reader takes differences, and their sum is the count */
};

/*
 * The buckets of small values; 8 bits more are 64 buckets more. Not static: libbpf maps no section of statics alone. Of
 * two bytes each, so that what the verifier knows of a bucket is the same for each of the sums that it is part of.
 */
#define HIST_SMALL 2048
/* clang-format off */
#define HIST_BUCKETS \
	[1] = 1, [2] = 2, [3] = 3, [4] = 4, [5] = 5, [6] = 6, [7] = 7, [8] = 8, [9] = 9, [10] = 10, [11] = 11, \
	[12] = 12, [13] = 13, [14] = 14, [15] = 15, [16 ... 17] = 16, [18 ... 19] = 17, [20 ... 21] = 18, \
	[22 ... 23] = 19, [24 ... 25] = 20, [26 ... 27] = 21, [28 ... 29] = 22, [30 ... 31] = 23, [32 ... 35] = 24, \
	[36 ... 39] = 25, [40 ... 43] = 26, [44 ... 47] = 27, [48 ... 51] = 28, [52 ... 55] = 29, [56 ... 59] = 30, \
	[60 ... 63] = 31, [64 ... 71] = 32, [72 ... 79] = 33, [80 ... 87] = 34, [88 ... 95] = 35, [96 ... 103] = 36, \
	[104 ... 111] = 37, [112 ... 119] = 38, [120 ... 127] = 39, [128 ... 143] = 40, [144 ... 159] = 41, \
	[160 ... 175] = 42, [176 ... 191] = 43, [192 ... 207] = 44, [208 ... 223] = 45, [224 ... 239] = 46, \
	[240 ... 255] = 47, [256 ... 287] = 48, [288 ... 319] = 49, [320 ... 351] = 50, [352 ... 383] = 51, \
	[384 ... 415] = 52, [416 ... 447] = 53, [448 ... 479] = 54, [480 ... 511] = 55, [512 ... 575] = 56, \
	[576 ... 639] = 57, [640 ... 703] = 58, [704 ... 767] = 59, [768 ... 831] = 60, [832 ... 895] = 61, \
	[896 ... 959] = 62, [960 ... 1023] = 63, [1024 ... 1151] = 64, [1152 ... 1279] = 65, [1280 ... 1407] = 66, \
	[1408 ... 1535] = 67, [1536 ... 1663] = 68, [1664 ... 1791] = 69, [1792 ... 1919] = 70, [1920 ... 2047] = 71

/* clang-format on */
const __u16 hist_buckets[HIST_SMALL] = {HIST_BUCKETS};

/*
 * A bucket, or more than there are. The paths to it do not differ for the verifier: otherwise it goes
 * through all that follows once for each path, and in a program with many distributions once more for each of these.
 */
static __always_inline __u64 hist_index(__u64 value)
{
	/* In bytes, as many as two for each bucket. */
	__u64 place = value << 1, index, before = 0;

	if (value >= HIST_SMALL) {
		before = 64;
		place = value >> 7;
		if (value >= (__u64)HIST_SMALL << 8) {
			before = 128;
			place = value >> 15;
			if (value >= (__u64)HIST_SMALL << 16) {
				before = 192;
				place = value >> 23;
				if (value >= (__u64)HIST_SMALL << 24) {
					before = 256;
					place = value >> 31;
					if (value >= (__u64)HIST_SMALL << 31)
						return HIST_SLOTS - 1;
				}
			}
		}
	}
	asm volatile("%0 &= 4094" : "+r"(place)); /* or the compiler knows, and the verifier does not */
	index = *(const __u16 *)((const void *)hist_buckets + place);
	asm volatile("%0 += %1\n\t%0 &= 511" : "+r"(index) : "r"(before));
	return index;
}

/* A copy without any known relation to its source, so that the verifier does not know its bounds. */
#define UNCONNECTED(value) asm volatile("%0 ^= 0" : "+r"(value))

/* Of two CPUs that set an extreme at once, one may win with the lesser one. */
static __always_inline void hist_extremes(struct hist *hist, __u64 value)
{
	if (~value > hist->low)
		hist->low = ~value;
	if (value > hist->max)
		hist->max = value;
}

/* Without the squares, which the reader estimates from the buckets. Only for memory that no other CPU writes. */
static __always_inline void hist_add_plain(struct hist *hist, __u64 value)
{
	__u64 index;

	UNCONNECTED(value);
	index = hist_index(value);
	hist_extremes(hist, value);
	hist->sum += value;
	if (index < HIST_SLOTS)
		hist->slots[index]++;
}

/*
 * The same where what interrupts this program may count in the same cell: that it was counted is never lost. Of the other
 * distributions of a cell, one in many millions may be, and then counts as empty.
 */
static __always_inline void hist_count(struct hist *hist, __u64 value, __u64 index)
{
	hist_extremes(hist, value);
	hist->sum += value;
	if (index < HIST_SLOTS)
		__sync_fetch_and_add(&hist->slots[index], 1);
}

/* For memory that all CPUs write. */
static __always_inline void hist_add_shared(struct hist *hist, __u64 value)
{
	__u64 index;

	UNCONNECTED(value);
	index = hist_index(value);
	hist_extremes(hist, value);
	COUNT_MORE(hist->sum, value);
	if (index < HIST_SLOTS)
		COUNT(hist->slots[index]);
}

/* The same value in two distributions, or in one where the other is NULL. */
static __always_inline void hist_add_twice(struct hist *hist, struct hist *other, __u64 value)
{
	__u64 index;

	UNCONNECTED(value);
	index = hist_index(value);
	hist_count(hist, value, index);
	if (other)
		hist_count(other, value, index);
}

static __always_inline void hist_add_counted(struct hist *hist, __u64 value)
{
	hist_add_twice(hist, NULL, value);
}

/* The same in bytes, where what the verifier knows does not matter: it takes an instruction less. */
const __u8 hist_small[HIST_SMALL] = {HIST_BUCKETS};

/*
 * The bucket of a value, or a jump if it is too large; 8 bits more are 64 buckets more. The verifier has to see the bounds
 * that the compiler knows: `last`, and the largest bucket in the table, as a mask.
 */
#define HIST_FROM(value, bits, last, mask, larger) \
	({ \
		__u64 __index = (value) >> (bits); \
\
		asm goto("if %0 > " #last " goto %l[" #larger "]" : : "r"(__index) : : larger); \
		__index = hist_small[__index]; \
		if ((bits) > 8) \
			asm volatile("%0 &= " #mask : "+r"(__index)); \
		__index + (bits) * 8; \
	})

/*
 * The same as hist_index, faster for what takes less than half a millisecond, for programs that the verifier sees one by
 * one. Without a call, so that the compiler has all registers.
 */
static __always_inline __u64 hist_index_short(__u64 *value)
{
	__u64 index;

	index = HIST_FROM(*value, 0, 2047, 127, larger8);
	return index;
larger8:
	index = HIST_FROM(*value, 8, 2047, 127, larger16);
	return index;
larger16:
	index = HIST_FROM(*value, 16, 2047, 127, larger24);
	return index;
larger24:
	index = HIST_FROM(*value, 24, 2047, 127, larger32);
	return index;
larger32:
	index = HIST_FROM(*value, 32, 1023, 63, beyond);
	return index;
beyond:
	/* By the clocks of two CPUs. */
	if ((__s64)*value < 0) {
		*value = 0;
		return 0;
	}
	return HIST_SLOTS - 1;
}

/* The histogram is in `cell`. */
static __always_inline void hist_count_short(void *cell, struct hist *hist, __u64 value, __u64 index, bool counted)
{
	__u32 *slot;

	hist_extremes(hist, value);
	hist->sum += value;
	slot = place_in(cell, hist->slots, index * sizeof(*slot));
	if (counted)
		__sync_fetch_and_add(slot, 1);
	else
		++*slot;
}

static __always_inline void hist_add_short(void *cell, struct hist *hist, __u64 value, bool counted)
{
	__u64 index = hist_index_short(&value);

	hist_count_short(cell, hist, value, index, counted);
}

/* The same value in the histograms of two cells, or in one where the other is NULL. */
static __always_inline void hist_add_short_twice(void *cell, struct hist *hist, void *other_cell, struct hist *other,
						 __u64 value)
{
	__u64 index = hist_index_short(&value);

	hist_count_short(cell, hist, value, index, true);
	if (other_cell)
		hist_count_short(other_cell, other, value, index, true);
}

static __always_inline void hist_add(struct hist *hist, __u64 value)
{
	__u64 square;

	hist_add_plain(hist, value);
	UNCONNECTED(value);
	if (value >> 32) {
		/* Over 4.3 s: drop 16 bits, so that the square fits; off by less than 1 part in 30,000. */
		square = (value >> 16) * (value >> 16);
		hist->squares_high += square >> 32;
		square <<= 32;
	} else {
		square = value * value;
	}
	hist->squares += square;
	if (hist->squares < square)
		hist->squares_high++;
}

#endif
