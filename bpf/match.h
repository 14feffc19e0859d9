/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which rule of the policy in force names a connection. */
#ifndef SOCKHEALTH_MATCH_H
#define SOCKHEALTH_MATCH_H

#include "count.h"

struct policy_trie {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SH_MAX_PREFIXES + 1); /* the canary's */
	__type(key, struct sh_prefix);
	__type(value, struct sh_rules);
};

/* The one slot holds the trie in force: a policy is swapped by one pointer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct policy_trie);
} sh_policy SEC(".maps");

/* Keep types in BTF that no map but the inner one mentions. */
const struct sh_prefix *const unused_prefix __attribute__((unused));
const struct sh_rules *const unused_rules __attribute__((unused));
const enum sh_rule_flags *const unused_rule_flags __attribute__((unused));

/* The trie in force. */
static __always_inline void *policy_in_force(void)
{
	__u32 slot = 0;
	void *trie = bpf_map_lookup_elem(&sh_policy, &slot);

	if (!trie)
		fault(SH_FAULT_NO_POLICY);
	return trie;
}

/* The rules of the longest prefix that holds the address. */
static __always_inline struct sh_rules *find_rules(void *trie, const __u8 *addr)
{
	struct sh_prefix key = {.prefixlen = 128};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(trie, &key);
}

/*
 * The value, which the verifier knows no more: it looks at what follows once, and
 * not for each value, which was most of what loading took. any is a field of the
 * program's context, which is as unknown each time that it is read. (A global function
 * does the same where its arguments are no pointers: before Linux 5.12 they cannot be.)
 */
static __always_inline __u32 hidden(const volatile __u32 *any, __u32 value)
{
	__u32 once = *any;

	value ^= once ^ *any; /* no sum: of that the verifier knew the least and the most */
	barrier_var(value);   /* and here, not wherever it is needed */
	return value;
}

#define NO_RULE SH_MAX_RULES

/*
 * Whether it is for that port and direction: nothing of it is below 0 then. One number
 * and no branches, of which the verifier would follow both sides for each of the rules.
 */
static __always_inline bool is_for(const struct sh_rule *r, __u64 port, __u32 direction)
{
	__u64 least = (port - r->port_lo) | (r->port_hi - port);

	least |= (__u64)(r->direction & direction) - 1;
	barrier_var(least);
	return (__s64)least >= 0;
}

/*
 * The place of the first rule whose port and direction match, or NO_RULE. at is 0, and
 * hidden where the verifier shall not look at what follows for each of the rules.
 */
static __always_inline __u32 find_rule(struct sh_rules *rules, __u32 port, __u32 direction,
				       __u32 at)
{
	for (__u32 i = 0; i < SH_MAX_RULES; i++, at++) {
		struct sh_rule *r = &rules->rule[i];

		barrier_var(at); /* nothing that the compiler makes of i */
		if (i >= rules->count)
			return NO_RULE;
		if (is_for(r, port, direction))
			return at;
	}
	return NO_RULE;
}

/* The rule at a place that is one: the verifier does not remember. */
static __always_inline struct sh_rule *rule_of(struct sh_rules *rules, __u32 at)
{
	barrier_var(at);
	return &rules->rule[at & (SH_MAX_RULES - 1)];
}

/* The service's port: the remote one of an outbound connection. */
static __always_inline __u16 service_port(const struct sock *sk, __u8 direction)
{
	__u32 local = sk->__sk_common.skc_num, remote = bpf_ntohs(sk->__sk_common.skc_dport);

	return choose_if(if_equal(direction, SH_OUTBOUND), remote, local);
}

#endif
