/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Log-linear histogram of nanoseconds: 8 buckets per power of two, so a value read from it is within 6.25 %.
 * wptrace/engine/distribution.py has the same scheme; tests/kernel compares the two value by value.
 */
#ifndef WPT_HIST_H
#define WPT_HIST_H

#define HIST_SLOTS 320 /* up to 2^42 ns, 73 minutes; longer ones count in the last */

struct hist {
	__u64 count;
	__u64 sum;
	__u64 min; /* meaningless while count is 0 */
	__u64 max;
	__u64 squares; /* sum of squares, 128 bits: low and high half */
	__u64 squares_high;
	__u32 slots[HIST_SLOTS]; /* wrap; whoever reads takes differences */
};

static __always_inline __u32 hist_index(__u64 value)
{
	__u64 rest = value;
	__u32 power = 0;
	__u32 index;

	if (value < 8)
		return value;
	if (rest >> 32) {
		power = 32;
		rest >>= 32;
	}
	if (rest >> 16) {
		power += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		power += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		power += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		power += 2;
		rest >>= 2;
	}
	power += rest >> 1;
	index = (power - 2) * 8 + ((value >> (power - 3)) & 7);
	return index < HIST_SLOTS ? index : HIST_SLOTS - 1;
}

/* Only for memory that no other CPU writes. */
static __always_inline void hist_add(struct hist *hist, __u64 value)
{
	__u32 index = hist_index(value);
	__u64 square;

	if (!hist->count || value < hist->min)
		hist->min = value;
	if (value > hist->max)
		hist->max = value;
	hist->count++;
	hist->sum += value;
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
	if (index < HIST_SLOTS)
		hist->slots[index]++;
}

#endif
