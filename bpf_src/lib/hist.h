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

/* 1 if value >= 1 << bits, without a branch: the verifier would follow both ways, for every step of every histogram. */
#define HIST_REACHES(value, bits) (((1ULL << (bits)) - 1 - (value)) >> 63)

static __always_inline __u32 hist_index(__u64 value)
{
	__u64 rest = value;
	__u32 power, step;

	if (value < 8)
		return value;
	if (value >> 42)
		return HIST_SLOTS - 1;
	step = HIST_REACHES(rest, 32) << 5;
	power = step;
	rest >>= step;
	step = HIST_REACHES(rest, 16) << 4;
	power += step;
	rest >>= step;
	step = HIST_REACHES(rest, 8) << 3;
	power += step;
	rest >>= step;
	step = HIST_REACHES(rest, 4) << 2;
	power += step;
	rest >>= step;
	step = HIST_REACHES(rest, 2) << 1;
	power += step;
	rest >>= step;
	power += rest >> 1;
	return (power - 2) * 8 + ((value >> (power - 3)) & 7);
}

/* Only for memory that no other CPU writes. */
static __always_inline void hist_add(struct hist *hist, __u64 value)
{
	__u32 index;
	__u64 square;

	/* A copy that the verifier does not connect with the caller's value: each branch here would tell two of them. */
	asm volatile("%0 |= 0" : "+r"(value));
	index = hist_index(value);
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
