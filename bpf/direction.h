/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who opened a connection, inferred: its own socket does not tell (S20). A walk
 * meets the listeners of a namespace before the connections.
 */
#ifndef SOCKHEALTH_DIRECTION_H
#define SOCKHEALTH_DIRECTION_H

#include "count.h"
#include "adopt.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, struct sh_listener);
	__type(value, __u64); /* the pass that noted it */
} sh_listeners SEC(".maps");

static __always_inline void note(struct sh_pass *pass, const struct sh_listener *key)
{
	__u64 by = pass->id;

	if (bpf_map_update_elem(&sh_listeners, key, &by, BPF_ANY))
		pass->blind = 1;
}

/*
 * Notes a listener by its address and port. The key is copied: that of another
 * function is none to the verifier of older kernels.
 */
__noinline int note_listener(struct sh_pass *pass, struct sh_listener *at, __u32 only_v6)
{
	struct sh_listener key;
	const __be32 *w;

	if (!pass || !at)
		return 0;
	key = *at;
	note(pass, &key);
	w = (const __be32 *)key.addr;
	if (!w[0] && !w[1] && !w[2] && !w[3] && !only_v6) {
		map_v4(key.addr, 0);
		note(pass, &key);
	}
	__builtin_memset(key.addr, 0xff, sizeof(key.addr));
	note(pass, &key);
	return 0;
}

static __always_inline bool noted(const struct sh_pass *pass, const struct sh_listener *key)
{
	__u64 *by = bpf_map_lookup_elem(&sh_listeners, key);

	return by && *by == pass->id;
}

/*
 * The direction of the connection with this local address and port. A listener
 * that takes both means inbound. Uncertain (SH_BOTH) is where there is one for the
 * port alone, and where there is none though the port is not one that the kernel
 * gives to who connects.
 */
__noinline int infer(struct sh_pass *pass, struct sh_listener *at)
{
	struct sh_listener key;

	if (!pass || !at)
		return SH_BOTH;
	key = *at;
	if (noted(pass, &key))
		return SH_INBOUND;
	if (is_mapped(key.addr))
		map_v4(key.addr, 0);
	else
		__builtin_memset(key.addr, 0, sizeof(key.addr));
	if (noted(pass, &key))
		return SH_INBOUND;
	__builtin_memset(key.addr, 0xff, sizeof(key.addr));
	if (noted(pass, &key) || pass->blind)
		return SH_BOTH;
	return key.port >= pass->port_lo && key.port <= pass->port_hi ? SH_OUTBOUND : SH_BOTH;
}

#endif
