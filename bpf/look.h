/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* One look at one socket, the same from every program that looks. */
#ifndef SOCKHEALTH_LOOK_H
#define SOCKHEALTH_LOOK_H

#include "kernels.h"

/* What to fill in of the way out: device and its state. */
static __always_inline __u32 look_device(const struct sock *sk, struct sh_look *out)
{
	struct dst_entry *dst = sk->sk_dst_cache;
	struct net_device *dev;

	out->dst_dev = 0;
	if (!dst)
		return 0;
	dev = dst->dev;
	if (!dev)
		return 0;
	out->dst_dev = dev->ifindex;
	if (!(dev->flags & IFF_UP) ||
	    dev->state >> bpf_core_enum_value(enum netdev_state_t, __LINK_STATE_NOCARRIER) & 1)
		return SH_LOOK_DEV_DOWN;
	return 0;
}

/* The device that its packets came in by, also when that is down and its routes are gone. */
static __always_inline __u32 look_source(const struct inet_sock *inet)
{
	if (bpf_core_field_exists(inet->sk.sk_rx_dst_ifindex))
		return inet->sk.sk_rx_dst_ifindex;
	if (bpf_core_field_exists(inet->rx_dst_ifindex))
		return inet->rx_dst_ifindex;
	return 0;
}

/* Whether IPsec may treat packets that leave by what they are of. */
static __always_inline __u32 look_ipsec(const struct net *net)
{
	if (!bpf_core_field_exists(net->xfrm.policy_count))
		return 0;
	return net->xfrm.policy_count[1] || net->xfrm.policy_count[4] ? SH_LOOK_IPSEC : 0;
}

static __always_inline __u32 look_flags(struct tcp_sock *tp)
{
	__u32 flags = 0;

	if (BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok))
		flags |= SH_LOOK_TSTAMP;
	if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
		flags |= SH_LOOK_TSTAMP_USEC;
	if (is_mptcp(tp))
		flags |= SH_LOOK_MPTCP;
	if (has_keys(tp))
		flags |= SH_LOOK_MD5_OR_AO;
	if (sock_flag(&tp->inet_conn.icsk_inet.sk, bpf_core_enum_value(enum sock_flags, SOCK_DEAD)))
		flags |= SH_LOOK_ORPHAN;
	/* A process holds the lock: segments wait in the backlog unread. */
	if (bpf_core_field_exists(tp->inet_conn.icsk_inet.sk.sk_lock.owned) &&
	    tp->inet_conn.icsk_inet.sk.sk_lock.owned)
		flags |= SH_LOOK_LOCKED;
	if (tp->inet_conn.icsk_inet.sk.sk_backlog.len)
		flags |= SH_LOOK_BACKLOG;
	if (BPF_CORE_READ_BITFIELD(tp, repair))
		flags |= SH_LOOK_REPAIR;
	if (is_kernels(tp))
		flags |= SH_LOOK_KERNEL;
	/* Of SYN and FIN it counts the payload alone; lsndtime begins at the handshake. */
	if (!tp->bytes_sent)
		flags |= SH_LOOK_UNSENT;
	return flags;
}

/*
 * The ages: of the last payload and of the last acceptable segment. Data that
 * acknowledges nothing new refreshes only the one stamp, a pure ACK only the
 * other. As in keepalive_time_elapsed() the ages are unsigned: a stamp may be
 * older than half the range of a tick counter. Stamps come before the clock, so
 * that no segment is younger than it.
 */
static __always_inline void look_ages(const struct tcp_sock *tp, struct sh_look *out)
{
	__u32 data = tp->inet_conn.icsk_ack.lrcvtime;
	__u32 ack = tp->rcv_tstamp;
	__u32 sent = tp->lsndtime;
	__u32 now = bpf_jiffies64();
	__u32 data_age = now - data, ack_age = now - ack;

	out->data_age_ms = ticks_to_ms(data_age);
	out->packet_age_ms = ticks_to_ms(data_age < ack_age ? data_age : ack_age);
	out->send_age_ms = ticks_to_ms(now - sent);
	out->data_stamp = data;
	out->ack_stamp = ack;
}

/*
 * How far off the timer is of what the kernel asks by itself while data waits: a
 * retransmission, a probe of a shut window, or one of a tail that may be lost.
 */
static __always_inline __u16 look_timer(const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	__u32 at, left, now = bpf_jiffies64();

	if (!icsk->icsk_pending)
		return 0;
	if (bpf_core_field_exists(icsk->icsk_retransmit_timer))
		at = icsk->icsk_retransmit_timer.expires;
	else if (bpf_core_field_exists(icsk->icsk_inet.sk.tcp_retransmit_timer))
		at = icsk->icsk_inet.sk.tcp_retransmit_timer.expires;
	else
		return 0;
	left = at - now;
	if ((__s32)left <= 0)
		return 1;
	left = ticks_to_ms(left);
	return left > 0xffff ? 0xffff : left | !left;
}

static __always_inline void look_fill(struct tcp_sock *tp, struct sh_look *out)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	const struct inet_sock *inet = &icsk->icsk_inet;
	const struct sock *sk = &inet->sk;
	/* Once each: kernels before 7.0 look through all types for each that is loaded. */
	const struct net *net = sk->__sk_common.skc_net.net;
	const struct ipv6_pinfo *v6 = bpf_core_field_exists(inet->pinet6) ? inet->pinet6 : NULL;

	out->taken_ns = bpf_ktime_get_ns();
	look_ages(tp, out);
	out->cookie = sk->__sk_common.skc_cookie.counter;
	out->bytes_received = tp->bytes_received;
	out->bytes_acked = tp->bytes_acked;
	out->cgroup = sock_cgroup(sk);
	sock_addrs(sk, out->local, out->remote);
	out->local_port = sk->__sk_common.skc_num;
	out->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	out->netns = net->ns.inum;
	out->snd_una = tp->snd_una;
	out->snd_nxt = tp->snd_nxt;
	out->write_seq = tp->write_seq;
	out->rcv_nxt = tp->rcv_nxt;
	out->copied_seq = tp->copied_seq;
	out->snd_wnd = tp->snd_wnd;
	out->rcv_wnd = tp->rcv_wup + tp->rcv_wnd - tp->rcv_nxt;
	out->srtt_us = tp->srtt_us >> 3;
	out->ts_offset = tp->tsoffset;
	out->ts_recent = tp->rx_opt.ts_recent;
	out->mark = sk->sk_mark;
	out->txhash = sk->sk_txhash;
	out->bound_dev = sk->__sk_common.skc_bound_dev_if;
	out->uid = sk->sk_uid.val;
	out->flags = look_flags(tp) | look_device(sk, out) | look_ipsec(net);
	out->state = sk->__sk_common.skc_state;
	out->family = sk->__sk_common.skc_family;
	out->tos = inet->tos;
	out->flow_label = 0;
	if (out->family == AF_INET6 && v6 && !is_mapped(out->remote)) {
		out->tos = v6->tclass;
		out->flow_label = bpf_ntohl(v6->flow_label) & 0xfffff;
	}
	out->src_dev = look_source(inet);
	out->rcv_wscale = BPF_CORE_READ_BITFIELD(tp, rx_opt.rcv_wscale);
	out->retransmits = icsk->icsk_retransmits;
	out->probes_out = icsk->icsk_probes_out;
	out->timer_ms = look_timer(tp);
	sock_options(tp, &out->options);
}

#endif
