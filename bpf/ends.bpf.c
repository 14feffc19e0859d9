// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The end of adopted connections where sockops is not called for it: before
 * Linux 6.12, which cannot set callback flags from outside, and on sockets made
 * outside the agent's cgroup. Linux 5.12 and later.
 */
#include "tell.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * tcp_set_state() calls sockops first: what that has told has no record any more
 * when it comes here, so that nothing is told twice.
 */
SEC("tp_btf/inet_sock_set_state") int sh_ended(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sh_record *rec;
	struct tcp_sock *tp;
	int old = ctx[1], next = ctx[2];

	if (next != BPF_TCP_CLOSE)
		return 0;
	rec = bpf_sk_storage_get(&sh_records, sk, NULL, 0);
	if (!rec || !(rec->flags & SH_ADOPTED))
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	tell_close(tp, rec, old, close_cause(tp));
	bpf_sk_storage_delete(&sh_records, tp);
	return 0;
}
