// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Provokes the kernel's own keepalive on chosen sockets, so that the probe
 * leaves exactly as the connection's segments do. Linux 5.15 and later
 * (bpf_setsockopt in TCP iterators).
 */
#include "look.h"
#include "room.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The sockets to treat in this pass, by cookie: the TCP_KEEPIDLE to set, in
 * seconds. 0: the record's, which ends the provocation. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} sh_targets SEC(".maps");

/* What became of one socket. */
struct sh_provoked {
	__u64 cookie;
	__s32 err; /* negative errno, 0: set */
	__u32 pad;
};

const struct sh_provoked *const unused_provoked __attribute__((unused));

/*
 * tcp_sock_set_keepidle_locked() arms the timer for "idle minus the time since
 * the last segment", so at once where the socket was silent for a second, and
 * tcp_keepalive_timer() looks at the value again when it fires. The old value
 * can therefore only be put back in a later pass. The count is set first, under the
 * same lock: what the timer finds goes together.
 */
static __always_inline long set_keepalive(struct tcp_sock *tp, struct sh_record *rec, int idle,
					  bool provokes)
{
	int count = room_for(tp, rec, idle, provokes);
	long err = 0;

	/* Noted before: who finds it on the socket knows whose it is. */
	rec->room = count == rec->effective.count ? 0 : count;
	if (count != tp->keepalive_probes)
		err = bpf_setsockopt(tp, SOL_TCP, TCP_KEEPCNT, &count, sizeof(count));
	return err ? err : bpf_setsockopt(tp, SOL_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
}

SEC("iter/tcp") int sh_provoke(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct sh_provoked out = {};
	struct sh_record *rec;
	struct tcp_sock *tp;
	__u64 cookie;
	__u32 *want;
	int idle;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc);
	if (!tp)
		return 0;
	cookie = tp->inet_conn.icsk_inet.sk.__sk_common.skc_cookie.counter;
	want = bpf_map_lookup_elem(&sh_targets, &cookie);
	if (!want)
		return 0;
	/* The same timer ends an orphan in FIN_WAIT2, early. */
	if (sock_flag(&tp->inet_conn.icsk_inet.sk, bpf_core_enum_value(enum sock_flags, SOCK_DEAD)))
		return 0;
	rec = bpf_sk_storage_get(&sh_records, tp, NULL, 0);
	if (!rec)
		return 0;
	if (*want && !may_provoke(tp, rec))
		return 0;
	idle = *want ? *want : rec->effective.idle_s;
	out.cookie = cookie;
	out.err = set_keepalive(tp, rec, idle, *want);
	if (!out.err && *want) {
		rec->flags |= SH_PROVOKED;
		rec->leave_ns = bpf_ktime_get_ns() + SH_LEAVE_NS;
	} else if (!out.err) {
		rec->flags &= ~SH_PROVOKED;
		rec->leave_ns = 0;
	}
	bpf_seq_write(ctx->meta->seq, &out, sizeof(out));
	return 0;
}
