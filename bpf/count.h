/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs count: per policy, and every step that can fail. */
#ifndef SOCKHEALTH_COUNT_H
#define SOCKHEALTH_COUNT_H

#include "sock.h"

/* Per CPU, and still atomic: a softirq may interrupt a program that runs for a
 * system call. */
#define COUNT(counter, n) __sync_fetch_and_add(&(counter), n)

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SH_MAX_POLICIES);
	__type(key, __u32);
	__type(value, struct sh_counters);
} sh_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SH_FAULT_MAX);
	__type(key, __u32);
	__type(value, __u64);
} sh_faults SEC(".maps");

/* A global function: the verifier looks at it once, and not wherever something may fail. */
__noinline int fault(__u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&sh_faults, &reason);

	if (n)
		COUNT(*n, 1);
	return 0;
}

static __always_inline struct sh_counters *counters(__u32 policy)
{
	struct sh_counters *c = bpf_map_lookup_elem(&sh_stats, &policy);

	if (!c)
		fault(SH_FAULT_COUNTERS);
	return c;
}

#endif
