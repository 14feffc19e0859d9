/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Choosing without a branch: of each the verifier follows both sides, and what comes
 * after for every set of values that they leave. The masks have all bits or none;
 * barrier_var() keeps the compiler from making a branch of them.
 */
#ifndef SOCKHEALTH_MASK_H
#define SOCKHEALTH_MASK_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __always_inline __u32 if_less(__u32 a, __u32 b)
{
	__u64 less = ((__u64)a - b) >> 32;

	barrier_var(less);
	return less;
}

/* Of numbers below 1 << 63. */
static __always_inline __u32 if_less_long(__u64 a, __u64 b)
{
	__u64 less = (__s64)(a - b) >> 63;

	barrier_var(less);
	return less;
}

static __always_inline __u32 if_equal(__u32 a, __u32 b)
{
	return if_less(a ^ b, 1);
}

static __always_inline __u32 if_any(__u32 bits)
{
	return if_less(0, bits);
}

/* The one value where the mask is set, else the other. */
static __always_inline __u32 choose_if(__u32 mask, __u32 one, __u32 other)
{
	return other ^ ((other ^ one) & mask);
}

#endif
