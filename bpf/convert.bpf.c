// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For the time of an upgrade to a build whose records are larger or smaller: the
 * programs of sockops.bpf.c, which here find a socket's record in the new map or
 * else take it over from the old one, and the walk that takes over what no
 * program has met meanwhile. With both there is no moment at which a socket is
 * without its record. The walk needs Linux 5.11 (records in iterators).
 */
#include "sock.h"

/* The records of the build before; the loader puts the pinned map in its place,
 * whose value has another size. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sh_record);
} sh_old_records SEC(".maps");

/* The size of an old record in words, set before the program is loaded. */
const volatile __u32 old_words = sizeof(struct sh_record) / 4;

/* The record as this build has it: what the old one lacks is 0. */
static __always_inline void convert(struct sh_record *to, const void *old)
{
	const __u32 *from = old;
	__u32 *words = (__u32 *)to;

	/* old_words is known to the verifier: it never sees the other branch. */
#pragma unroll
	for (__u32 i = 0; i < sizeof(*to) / 4; i++)
		words[i] = i < old_words ? from[i] : 0;
	to->version = SH_RECORD_VERSION;
}

/* Finds the record, taken over from the old map where it is there alone. Who
 * creates it first wins: nothing that was written since is overwritten. */
#define take_over(sk)                                                                 \
	({                                                                            \
		struct sh_record *new = bpf_sk_storage_get(&sh_records, sk, NULL, 0); \
		struct sh_record made;                                                \
		void *old = NULL;                                                     \
		if (!new)                                                             \
			old = bpf_sk_storage_get(&sh_old_records, sk, NULL, 0);       \
		if (old) {                                                            \
			convert(&made, old);                                          \
			new = bpf_sk_storage_get(&sh_records, sk, &made,              \
						 BPF_SK_STORAGE_GET_F_CREATE);        \
		}                                                                     \
		new;                                                                  \
	})

#define SH_UPGRADE
#define record_of(sk)	 take_over(sk)
#define bring_record(sk) ((void)take_over(sk))
#define forget_record(sk)                                   \
	({                                                  \
		bpf_sk_storage_delete(&sh_old_records, sk); \
		bpf_sk_storage_delete(&sh_records, sk);     \
	})
#include "sockops.bpf.c"

__u64 converted;     /* records taken over by the walk, or by a program before it */
__u64 not_converted; /* no memory for them: these are lost */

SEC("iter/bpf_sk_storage_map") int sh_convert(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sh_record made, *new;
	struct sock *sk = ctx->sk;
	void *old = ctx->value;

	if (!sk || !old)
		return 0;
	convert(&made, old);
	new = bpf_sk_storage_get(&sh_records, sk, &made, BPF_SK_STORAGE_GET_F_CREATE);
	if (!new) {
		__sync_fetch_and_add(&not_converted, 1);
		return 0;
	}
	__sync_fetch_and_add(&converted, 1);
	/* Closed meanwhile: forget_record() may have run before. */
	if (sk->__sk_common.skc_state == BPF_TCP_CLOSE)
		bpf_sk_storage_delete(&sh_records, sk);
	return 0;
}

/* What the programs of the build before have counted since it was copied. */
struct sh_addition {
	__u8 eth[16]; /* a test run takes at least an Ethernet header */
	__u32 policy; /* 0: n are the faults, in enum sh_fault order */
	__u32 pad;
	__u64 n[32];
};

const struct sh_addition *const unused_addition __attribute__((unused));

/* Adds it to counters that others count in meanwhile. The agent runs it itself. */
SEC("tc") int sh_add(struct __sk_buff *ctx)
{
	struct sh_addition *a = (void *)(long)ctx->data;
	__u64 *n;

	if ((void *)(a + 1) > (void *)(long)ctx->data_end)
		return 1;
	if (a->policy) {
		__u32 policy = a->policy;

		n = bpf_map_lookup_elem(&sh_stats, &policy);
		if (!n)
			return 1;
#pragma unroll
		for (__u32 i = 0; i < sizeof(struct sh_counters) / 8; i++)
			COUNT(n[i], a->n[i]);
		return 0;
	}
	for (__u32 i = 0; i < SH_FAULT_MAX; i++) {
		__u32 reason = i;

		n = bpf_map_lookup_elem(&sh_faults, &reason);
		if (n)
			COUNT(*n, a->n[i]);
	}
	return 0;
}

_Static_assert(sizeof(struct sh_counters) <= sizeof(((struct sh_addition *)0)->n) &&
		       SH_FAULT_MAX * 8 <= sizeof(((struct sh_addition *)0)->n),
	       "make sh_addition longer");
