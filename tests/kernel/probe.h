// SPDX-License-Identifier: Apache-2.0
/* A static probe as <sys/sdt.h> makes it, but for the base address. The semaphore is a variable, or 0. */
#define PROBE(provider, name, semaphore, arguments, ...) \
	asm volatile("990:	nop\n" \
		     "	.pushsection .note.stapsdt, \"\", \"note\"\n" \
		     "	.balign 4\n" \
		     "	.4byte 992f - 991f, 994f - 993f, 3\n" \
		     "991:	.asciz \"stapsdt\"\n" \
		     "992:	.balign 4\n" \
		     "993:	.8byte 990b, 0, " #semaphore "\n" \
		     "	.asciz \"" #provider "\"\n" \
		     "	.asciz \"" #name "\"\n" \
		     "	.asciz \"" arguments "\"\n" \
		     "994:	.balign 4\n" \
		     "	.popsection" \
		     : \
		     : __VA_ARGS__)
