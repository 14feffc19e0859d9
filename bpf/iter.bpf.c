// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The walks over every TCP socket of one network namespace. Listeners, requests
 * and TIME_WAIT sockets are passed over. Linux 5.11 and later (records in
 * iterators); sh_provoke stands apart since it needs 5.15.
 */
#include "look.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline struct tcp_sock *connection(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct tcp_sock *tp;

	if (!skc)
		return NULL;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp || tp->inet_conn.icsk_inet.sk.__sk_common.skc_state == BPF_TCP_LISTEN)
		return NULL;
	return tp;
}

/* Writes one struct sh_look a socket. */
SEC("iter/tcp") int sh_scan(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = connection(ctx);
	struct sh_look look = {};
	struct sh_record *rec;

	if (!tp)
		return 0;
	look_fill(tp, &look);
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (rec) {
		look.record = *rec;
		look.flags |= SH_LOOK_RECORD;
	}
	bpf_seq_write(ctx->meta->seq, &look, sizeof(look));
	return 0;
}
