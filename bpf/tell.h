/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is told of a connection: an event to the agent, counters at its end. */
#ifndef SOCKHEALTH_TELL_H
#define SOCKHEALTH_TELL_H

#include "count.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} sh_events SEC(".maps");

/* Payload the peer has acknowledged: our SYN and FIN are none. old is the state left
 * for CLOSE, or the state as it is. */
static __always_inline __u64 payload_acked(const struct tcp_sock *tp, const struct sh_record *rec,
					   int old)
{
	__u32 all = if_equal(tp->snd_una, tp->write_seq);
	__u32 fin = if_equal(old, BPF_TCP_FIN_WAIT2) |
		    (all & (if_equal(old, BPF_TCP_LAST_ACK) | if_equal(old, BPF_TCP_CLOSING)));
	__u64 none = (if_equal(rec->direction, SH_OUTBOUND) & 1) + (fin & 1);
	__u64 acked = tp->bytes_acked;

	return acked > none ? acked - none : 0;
}

/*
 * The local port is that of the segments: at the tracepoint the other one
 * (skc_num) is given back already.
 */
static __always_inline void emit(const struct tcp_sock *tp, const struct sh_record *rec, int old,
				 __u8 type, __u8 cause)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	const struct sock *sk = &icsk->icsk_inet.sk;
	struct sh_event *e = bpf_ringbuf_reserve(&sh_events, sizeof(*e), 0);

	if (!e) {
		fault(SH_FAULT_EVENT_LOST);
		return;
	}
	e->time_ns = bpf_ktime_get_ns();
	e->cookie = sk->__sk_common.skc_cookie.counter;
	e->bytes_received = tp->bytes_received - sock_fin_received(sk);
	e->bytes_acked = payload_acked(tp, rec, old);
	e->cgroup = sock_cgroup(sk);
	e->netns = sk->__sk_common.skc_net.net->ns.inum;
	e->policy = rec->policy;
	sock_addrs(sk, e->local, e->remote);
	e->local_port = bpf_ntohs(icsk->icsk_inet.inet_sport);
	e->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	e->err = sk->sk_err;
	e->type = type;
	e->cause = cause;
	e->family = sk->__sk_common.skc_family;
	e->direction = rec->direction;
	e->retransmits = icsk->icsk_retransmits;
	e->probes_out = icsk->icsk_probes_out;
	e->spare = 0;
	bpf_ringbuf_submit(e, 0);
}

/*
 * Why the socket goes to CLOSE. tcp_write_err() reports the last ICMP error
 * instead of ETIMEDOUT where one came (sk_err_soft).
 */
static __always_inline __u8 close_cause(const struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	int err = sk->sk_err;

	if (!err)
		return SH_CAUSE_NORMAL;
	if (err == ECONNRESET || err == EPIPE)
		return SH_CAUSE_RESET;
	if (err == ECONNABORTED)
		return SH_CAUSE_DESTROYED;
	if (err != ETIMEDOUT && err != sk->sk_err_soft)
		return SH_CAUSE_OTHER;
	return tp->write_seq == tp->snd_una ? SH_CAUSE_IDLE : SH_CAUSE_IN_FLIGHT;
}

/*
 * Counts the end of a connection, and tells of it where it was not its own. cause is
 * close_cause(), hidden where that can be.
 */
static __always_inline void tell_close(const struct tcp_sock *tp, const struct sh_record *rec,
				       int old, __u32 cause)
{
	struct sh_counters *c = counters(rec->policy);

	if (c && cause < SH_CAUSE_MAX) {
		COUNT(c->closed[cause], 1);
		COUNT(c->bytes_received,
		      tp->bytes_received - sock_fin_received(&tp->inet_conn.icsk_inet.sk));
		COUNT(c->bytes_acked, payload_acked(tp, rec, old));
	}
	if (cause != SH_CAUSE_NORMAL)
		emit(tp, rec, old, SH_EVENT_CLOSE, cause);
}

#endif
