// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The O(1) look at one socket. The agent runs this program itself
 * (BPF_PROG_TEST_RUN), on a thread in the network namespace of the socket; it
 * is never attached. The packet carries the question in and the answer out, so
 * that looks need no map and may run at the same time. Linux 5.10 and later.
 */
#include "look.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum sh_look_result {
	SH_LOOK_FOUND,
	SH_LOOK_NONE,  /* no socket has that tuple */
	SH_LOOK_MINOR, /* one that carries no connection: a request, TIME_WAIT */
	SH_LOOK_SHORT, /* packet too short for question and answer */
};

struct sh_look_packet {
	__u8 eth[16]; /* a test run takes at least an Ethernet header */
	struct sh_tuple tuple;
	struct sh_look look;
};

/* Make bpf2go generate the types that no map mentions. */
const struct sh_look_packet *const unused_packet __attribute__((unused));
const enum sh_look_result *const unused_result __attribute__((unused));
const enum sh_look_flags *const unused_flags __attribute__((unused));
const enum sh_record_flags *const unused_record_flags __attribute__((unused));

static __always_inline struct bpf_sock *find(struct __sk_buff *ctx, const struct sh_tuple *t)
{
	struct bpf_sock_tuple key = {};

	if (is_mapped(t->remote)) {
		__builtin_memcpy(&key.ipv4.saddr, t->remote + 12, 4);
		__builtin_memcpy(&key.ipv4.daddr, t->local + 12, 4);
		key.ipv4.sport = bpf_htons(t->remote_port);
		key.ipv4.dport = bpf_htons(t->local_port);
		return bpf_skc_lookup_tcp(ctx, &key, sizeof(key.ipv4), BPF_F_CURRENT_NETNS, 0);
	}
	__builtin_memcpy(key.ipv6.saddr, t->remote, 16);
	__builtin_memcpy(key.ipv6.daddr, t->local, 16);
	key.ipv6.sport = bpf_htons(t->remote_port);
	key.ipv6.dport = bpf_htons(t->local_port);
	return bpf_skc_lookup_tcp(ctx, &key, sizeof(key.ipv6), BPF_F_CURRENT_NETNS, 0);
}

SEC("tc") int sh_lookup(struct __sk_buff *ctx)
{
	struct sh_look_packet *p = (void *)(long)ctx->data;
	struct sh_record *rec;
	struct sh_tuple tuple;
	struct tcp_sock *tp;
	struct bpf_sock *sk;

	if ((void *)(p + 1) > (void *)(long)ctx->data_end)
		return SH_LOOK_SHORT;
	tuple = p->tuple;
	sk = find(ctx, &tuple);
	if (!sk)
		return SH_LOOK_NONE;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp) {
		bpf_sk_release(sk);
		return SH_LOOK_MINOR;
	}
	look_fill(tp, &p->look);
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (rec) {
		p->look.record = *rec;
		p->look.flags |= SH_LOOK_RECORD;
	}
	bpf_sk_release(sk);
	return SH_LOOK_FOUND;
}
